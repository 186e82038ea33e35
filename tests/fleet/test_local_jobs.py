"""Jobs in processes of this machine: how many at once, and what is known of those that die."""

import os
import time
from pathlib import Path

import pytest

from onnxremat.fleet.fleet_job import FleetJob, JobEnd, RunningJob, run_job
from onnxremat.fleet.local_jobs import MemoryRoom, run_here
from onnxremat.ort.child.machine import available_bytes, memory_bytes
from tests.fleet.build import Heard, toy

posix = pytest.mark.skipif(os.name != "posix", reason="signals end processes on POSIX systems")


def test_what_jobs_answer_and_why_others_have_no_answer() -> None:
    heard = Heard()
    run_here([toy("good", say="x"), toy("bad", exit=7)], heard, at_once=2)
    assert heard.ends["good"].answer == {"echo": "x"} and heard.ends["good"].reason == ""
    assert heard.ends["bad"].answer is None
    assert heard.ends["bad"].reason == "its process ended with exit code 7: something is wrong"
    assert heard.order == ["good", "bad"] and heard.most == 2


@posix
@pytest.mark.parametrize(("name", "hint"), [("SIGSEGV", ""), ("SIGKILL", "memory runs out")])
def test_a_signal_that_ends_a_job_is_named(name: str, hint: str) -> None:
    end = run_job(toy("a", signal=name), lambda: True)
    assert end.answer is None
    assert f"was ended by {name}" in end.reason and hint in end.reason


def test_an_exception_is_the_reason() -> None:
    end = run_job(FleetJob("a", "tests.fleet.toy_worker", {"seconds": "x"}), lambda: True)
    assert "exit code 1: TypeError" in end.reason


@posix
def test_what_is_not_wanted_any_more_ends(tmp_path: Path) -> None:
    began = tmp_path / "began"
    end = run_job(toy("a", seconds=60, began=str(began)), lambda: not began.exists())
    assert end.answer is None and end.seconds < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text() or -1), 0)


@posix
def test_jobs_end_with_a_listener_that_raises(tmp_path: Path) -> None:
    class Raises(Heard):
        def ended(self, end: JobEnd) -> None:
            raise RuntimeError(end.key)

    began = tmp_path / "began"
    jobs = [toy("short"), toy("long", seconds=60, began=str(began))]
    with pytest.raises(RuntimeError, match="short"):
        run_here(jobs, Raises(), at_once=2)
    if began.exists() and began.read_text():
        with pytest.raises(ProcessLookupError):
            os.kill(int(began.read_text()), 0)


def test_no_more_jobs_run_than_find_room() -> None:
    jobs = [toy("a", memory_bytes=60), toy("b", memory_bytes=60), toy("c", memory_bytes=30)]
    heard = Heard()
    run_here(jobs, heard, at_once=3, room=MemoryRoom(lambda: 100))
    assert heard.most == 2 and set(heard.ends) == {"a", "b", "c"}
    assert heard.order == ["a", "c", "b"], "c finds room beside a, and b does not"


def test_room_is_what_was_available_when_nothing_ran_and_what_is_now() -> None:
    free = [100]
    room = MemoryRoom(lambda: free[0])
    assert room.takes(500, []), "with nothing running there will never be more"
    assert room.takes(40, [60])
    assert not room.takes(41, [60])
    free[0] = 30
    assert not room.takes(40, [60])


def test_the_available_memory_is_part_of_what_there_is() -> None:
    assert 0 < available_bytes() <= memory_bytes()


def test_a_running_job_is_asked_for_its_end() -> None:
    with RunningJob(toy("a", seconds=0.2)) as running:
        assert running.end() is None
        while running.end() is None:
            time.sleep(0.05)
