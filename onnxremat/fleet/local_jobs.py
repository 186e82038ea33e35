"""Jobs in processes of this machine, as many at once as its processors and its memory permit."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from onnxremat.fleet.fleet_job import POLL_SECONDS, FleetJob, JobListener, RunningJob
from onnxremat.ort.child.machine import available_bytes


class MemoryRoom:
    """Whether one job more finds room in the memory that is available.

    Two things are asked: that what all of them take, by their estimates, is within what was
    available when none ran, and that what the new one takes is available now. With nothing running
    any job is taken: there will never be more room.
    """

    def __init__(self, available: Callable[[], int] = available_bytes) -> None:
        self._available = available
        self._whole = 0

    def takes(self, memory_bytes: int, running_bytes: Sequence[int]) -> bool:
        """Whether a job of `memory_bytes` may start beside those that run."""
        free = self._available()
        if not running_bytes:
            self._whole = free
            return True
        return memory_bytes <= free and memory_bytes + sum(running_bytes) <= self._whole


def run_here(
    jobs: Sequence[FleetJob],
    listener: JobListener,
    *,
    at_once: int,
    memory: Callable[[FleetJob], int] = lambda job: job.memory_bytes,
    room: MemoryRoom | None = None,
) -> None:
    """Run all jobs, at most `at_once` beside each other, and fewer where memory does not suffice:
    the first one that finds room is the next. `memory` estimates what a job takes: asked each time,
    since earlier jobs may have told more.

    Jobs that run are killed if the listener raises.
    """
    room = room or MemoryRoom()
    waiting = list(jobs)
    running: list[tuple[RunningJob, ExitStack, int]] = []
    with ExitStack() as everything:
        while waiting or running:
            taken = [nbytes for *_, nbytes in running]
            for job in waiting if len(running) < at_once else ():
                nbytes = memory(job)
                if room.takes(nbytes, taken):
                    waiting.remove(job)
                    own = everything.enter_context(ExitStack())
                    running.append((own.enter_context(RunningJob(job)), own, nbytes))
                    listener.started(job)
                    break
            else:
                time.sleep(POLL_SECONDS)
            for one in list(running):
                end = one[0].end()
                if end is not None:
                    one[1].close()
                    running.remove(one)
                    listener.ended(end)
