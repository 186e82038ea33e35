"""Jobs, and somebody who listens, for tests."""

from typing import Any

from onnxremat.fleet.fleet_job import FleetJob, JobEnd

WORKER = "tests.fleet.toy_worker"


def toy(key: str, *, memory_bytes: int = 0, **asked: Any) -> FleetJob:
    """A job of `toy_worker`."""
    return FleetJob(key, WORKER, asked, memory_bytes)


class Heard:
    """A JobListener that keeps what it heard; `most` is how many ran at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.ends: dict[str, JobEnd] = {}
        self.running: set[str] = set()
        self.most = 0

    def started(self, job: FleetJob) -> None:
        self.order.append(job.key)
        self.running.add(job.key)
        self.most = max(self.most, len(self.running))

    def ended(self, end: JobEnd) -> None:
        self.running.discard(end.key)
        self.ends[end.key] = end
