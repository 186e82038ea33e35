"""Jobs on a Dask cluster: what workers that are lost, and clients that go, leave to others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxremat.core.errors import UsageError
from onnxremat.fleet.dask_jobs import run_on_dask
from onnxremat.fleet.fleet_job import FleetJob
from tests.fleet.build import Heard, toy
from tests.fleet.cluster import ROOT, Cluster, cluster

CLIENT = """
import sys
from onnxremat.fleet.dask_jobs import run_on_dask
from tests.fleet.build import Heard, toy
run_on_dask(sys.argv[1], [toy("a", seconds=60, began=sys.argv[2])], Heard())
"""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="clusters are Dask's: pip install 'onnxremat[dask]'")
    with cluster(tmp_path, 3) as found:
        yield found


def test_without_dask_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'onnxremat\[dask\]'"):
        run_on_dask("tcp://127.0.0.1:1", [toy("a")], Heard())


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nothing://x", "tcp://"])
def test_no_scheduler_there_is_one_line(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="clusters are Dask's: pip install 'onnxremat[dask]'")
    monkeypatch.setattr("onnxremat.fleet.dask_jobs.CONNECT_SECONDS", 1)
    with pytest.raises(UsageError, match="no Dask scheduler at"):
        run_on_dask(address, [toy("a")], Heard())


def test_each_job_is_done_although_a_worker_is_killed(three: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "began"
    folder.mkdir()
    killed: list[int] = []

    class KillsOne(Heard):
        """Kills the first worker that it knows to be at work."""

        def started(self, job: FleetJob) -> None:
            super().started(job)
            if len(self.order) == 3:
                while len(list(folder.iterdir())) < 3:
                    time.sleep(0.05)
                victim = three.workers[0]
                victim.kill()
                killed.append(victim.wait())

    names = [f"job{i}" for i in range(7)]
    jobs = [toy(one, say=one, seconds=1.5, began=str(folder / one)) for one in names]
    heard = KillsOne()
    run_on_dask(three.address, jobs, heard)
    assert killed == [-signal.SIGKILL]
    assert {key: end.answer for key, end in heard.ends.items()} == {
        one: {"echo": one} for one in names
    }
    assert heard.most == 3
    beginnings = [len((folder / one).read_text().split()) for one in names]
    assert sorted(beginnings) == [1, 1, 1, 1, 1, 1, 2], "that of the killed one began again"
    ends = [pid for one in names for pid in (folder / one).read_text().split()]
    assert not [pid for pid in ends if Path(f"/proc/{pid}").exists()]


def test_jobs_end_with_the_client(three: Cluster, tmp_path: Path) -> None:
    began = tmp_path / "began"
    paths = f"{ROOT}{os.pathsep}{ROOT / 'rewriters'}"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, three.address, str(began)],
        env={**os.environ, "PYTHONPATH": paths},
    )
    while not began.exists() or not began.read_text():
        assert client.poll() is None
        time.sleep(0.05)
    client.kill()
    client.wait()
    job = int(began.read_text())
    for _ in range(200):
        if not Path(f"/proc/{job}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the job goes on without its client")
