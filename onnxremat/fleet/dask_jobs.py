"""Jobs on the workers of a Dask cluster, each in a process of its own there.

A worker that is lost takes its jobs with it, and the scheduler has them done by others; one that
was running on several lost workers (`distributed.scheduler.allowed-failures`) is given up. No more
jobs are sent than there are workers, and a worker runs one at a time whatever its number of
threads: beside each other they would disturb what they measure. If the client goes, its jobs end,
too.

Files are named by their paths: all workers have to see them where the client does.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from onnxremat.core.errors import OnnxrematError, UsageError
from onnxremat.fleet.fleet_job import FleetJob, JobEnd, JobListener, run_job

CONNECT_SECONDS = 10
_POLL_SECONDS = 0.1
_alone = threading.Lock()
"""Held by the job of this worker."""


def run_on_dask(
    address: str, jobs: Sequence[FleetJob], listener: JobListener, *, at_once: int | None = None
) -> None:
    """Run all jobs on the cluster whose scheduler is at `address`, at most `at_once` (None: as many
    as there are workers) at a time.

    Raises UsageError if there is no such scheduler, or Dask is not installed; OnnxrematError if it
    is lost on the way.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "--scheduler needs dask.distributed: pip install 'onnxremat[dask]'"
        ) from None
    _require_scheduler(address)
    with Client(address, timeout=CONNECT_SECONDS, set_as_default=False) as client:
        if not client.nthreads():
            raise UsageError(f"--scheduler: the scheduler at {address} has no workers: start some")
        try:
            _run_all(client, jobs, listener, at_once)
        except OSError as error:
            why = str(error) or type(error).__name__
            raise OnnxrematError(f"the Dask scheduler at {address} was lost: {why}") from None


def _require_scheduler(address: str) -> None:
    """Raises UsageError if no scheduler answers there, before there is a client, which would go on
    asking. Whatever else listens may answer anything, or nothing."""
    from distributed.comm import connect

    async def ask() -> None:
        comm = await connect(address, timeout=CONNECT_SECONDS)
        await comm.write({"op": "identity", "reply": True})
        answer = await comm.read()
        comm.abort()
        if not isinstance(answer, dict) or answer.get("type") != "Scheduler":
            raise ValueError("what answers is something else")

    try:
        asyncio.run(asyncio.wait_for(ask(), CONNECT_SECONDS))
    except (OSError, ValueError, TypeError, MemoryError) as error:
        why = "it is something else that answers" if isinstance(error, MemoryError) else str(error)
        why = why or "nothing answers"
        raise UsageError(f"--scheduler: no Dask scheduler at {address}: {why}") from None


def _run_all(
    client: Any, jobs: Sequence[FleetJob], listener: JobListener, at_once: int | None
) -> None:
    waiting, running = list(reversed(jobs)), dict[str, Any]()
    while waiting or running:
        room = at_once or max(1, len(client.nthreads()))
        while waiting and len(running) < room:
            job = waiting.pop()
            name = f"onnxremat-{uuid4().hex}"
            running[job.key] = client.submit(run_on_worker, job, key=name, pure=False)
            listener.started(job)
        time.sleep(_POLL_SECONDS)
        for key, future in list(running.items()):
            if future.done():
                del running[key]
                listener.ended(_end(key, future))


def _end(key: str, future: Any) -> JobEnd:
    if future.status == "finished":
        end = future.result()
        assert isinstance(end, JobEnd)
        return end
    if future.cancelled():
        return JobEnd(key, None, "the scheduler has dropped it", 0.0)
    error = future.exception()
    return JobEnd(key, None, f"{type(error).__name__}: {error}", 0.0)


def run_on_worker(job: FleetJob) -> JobEnd:
    """What a worker does: the job, as long as the scheduler wants it."""
    from distributed import get_worker

    worker = get_worker()
    name = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(name)
        return task is not None and task.state == "executing"

    while not _alone.acquire(timeout=_POLL_SECONDS):
        if not wanted():
            return JobEnd(job.key, None, "nobody waits for it any more", 0.0)
    try:
        return run_job(job, wanted)
    finally:
        _alone.release()
