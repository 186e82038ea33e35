"""The journal of finished jobs: whole whatever happens, and of one sweep at a time."""

import json
from pathlib import Path

import pytest

from onnxremat.core.errors import UsageError
from onnxremat.fleet.run_journal import RunJournal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv.jsonl"
    with RunJournal(path) as journal:
        journal.add("a", {"n": 1})
        journal.add("b", {"n": 2})
        journal.add("a", {"n": 3})
    return path


def test_what_was_added_is_there_the_last_of_each_key(path: Path) -> None:
    with RunJournal(path) as journal:
        assert journal.answers == {"a": {"n": 3}, "b": {"n": 2}}
    assert len(path.read_bytes().splitlines()) == 3


def test_wherever_a_kill_cuts_the_last_line_the_others_are_whole(path: Path) -> None:
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        with RunJournal(path) as journal:
            assert journal.answers == {"a": {"n": 1}, "b": {"n": 2}}
            journal.add("c", {})
        assert [json.loads(line)["key"] for line in path.read_bytes().splitlines()] == [*"abc"]


@pytest.mark.parametrize("content", [b"x,y\n1,2\n", b'{"n": 1}\n', b"[1]\n", b"notes", b"\xff\n"])
def test_another_file_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.csv.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no journal of a sweep"), RunJournal(path):
        pass
    assert path.read_bytes() == content


def test_two_sweeps_do_not_share_one(path: Path) -> None:
    with RunJournal(path), pytest.raises(UsageError, match="another sweep"), RunJournal(path):
        pass
    with RunJournal(path) as journal:
        assert len(journal.answers) == 2


def test_one_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"), RunJournal(tmp_path / "no" / "t.jsonl"):
        pass
