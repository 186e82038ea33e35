"""A Dask cluster of processes of its own, as its users start one."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Cluster:
    """The address of the scheduler, and the processes of the workers."""

    address: str
    workers: tuple["subprocess.Popen[bytes]", ...]


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """A scheduler and workers without a nanny: one that is killed stays away."""
    from distributed import Client

    told = folder / "scheduler.json"
    alone = ["--no-dashboard"]
    with ExitStack() as stack:
        _start(stack, folder, "scheduler", "--port", "0", *alone, "--scheduler-file", str(told))
        started = tuple(
            _start(stack, folder, "worker", "--no-nanny", "--nthreads", "2", *alone,
                   "--scheduler-file", str(told))
            for _ in range(workers)
        )  # fmt: skip
        while not told.exists() or not told.read_text():
            time.sleep(0.05)
        with Client(scheduler_file=str(told), set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
            address = client.scheduler.address
        yield Cluster(address, started)


def _start(stack: ExitStack, folder: Path, what: str, *arguments: str) -> "subprocess.Popen[bytes]":
    paths = [str(ROOT), str(ROOT / "rewriters"), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process
