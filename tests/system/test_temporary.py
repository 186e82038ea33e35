"""Temporary folders: gone with their process, or at the next start; never those of others."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onnxremat.core.errors import UsageError
from onnxremat.system import temporary
from onnxremat.system.temporary import LOCK, PREFIX, process_folder, sweep, temporary_folder

ROOT = Path(__file__).parent.parent.parent
HOLD = "import sys; from onnxremat.system.temporary import temporary_folder as t\nwith t() as f: print(f, flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of the test's own, in which this process has no folder yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary, "_own", temporary._Own())
    yield tmp_path
    temporary.clean_up()


@contextmanager
def holder(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process inside `temporary_folder`, and its folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_what_a_killed_process_leaves_is_removed_and_what_a_running_one_has_is_not(
    place: Path,
) -> None:
    with holder(place) as (running, kept), holder(place) as (killed, left):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        with temporary_folder() as own:
            assert kept.is_dir()
            assert not left.parent.exists()
            assert {path.name for path in place.iterdir()} == {kept.parent.name, own.parent.name}
        assert running.poll() is None


FIND = """
import sys, tempfile
from onnxremat.system.temporary import temporary_place
made = []
sys.addaudithook(lambda event, args: made.append(args[0]) if event == "open" else None)
place = temporary_place()
print(str(place) == tempfile.gettempdir(), place, sum(str(place) in str(one) for one in made))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there Python itself tries the folders")
def test_the_place_for_temporary_files_is_found_without_writing_to_it(tmp_path: Path) -> None:
    """A file there would have a name that nobody removes, if a signal came then."""
    full, missing = Path("/dev/full"), tmp_path / "missing"
    for named, found in ((tmp_path, tmp_path), (missing, None), (full, None)):
        done = subprocess.run(
            [sys.executable, "-c", FIND],
            env={**os.environ, "TMPDIR": str(named), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        same, place, opened = done.stdout.split()
        assert same == "True"
        assert opened == "0"
        assert place != str(missing)
        assert found is None or place == str(found)


def test_a_folder_is_gone_with_its_block_and_with_its_process(place: Path) -> None:
    with holder(place) as (process, folder):
        assert folder.is_dir()
        process.communicate("")
        assert process.returncode == 0
        assert list(place.iterdir()) == []
    with pytest.raises(KeyError), temporary_folder() as own:
        (own / "file").write_text("")
        raise KeyError
    assert not own.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_keeps_its_hands_off_the_folder_of_its_parent(place: Path) -> None:
    ours = process_folder()
    child = os.fork()
    if child == 0:
        temporary.clean_up()
        theirs = process_folder()
        temporary.clean_up()
        os._exit(0 if theirs != ours and ours.is_dir() and not theirs.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ours.is_dir()


def test_only_private_folders_of_the_right_name_are_removed(place: Path) -> None:
    precious = place / "precious"
    precious.mkdir()
    (place / f"{PREFIX}link").symlink_to(precious)
    (place / f"{PREFIX}file").write_text("")
    shared, dead = place / f"{PREFIX}shared", place / f"{PREFIX}dead"
    for folder in (shared, dead):
        folder.mkdir(mode=0o700)
        (folder / LOCK).write_text("")
    shared.chmod(0o777)
    sweep()
    assert {path.name.removeprefix(PREFIX) for path in place.iterdir()} == {
        "precious", "link", "file", "shared",
    }  # fmt: skip


def test_a_process_that_is_swept_before_it_has_its_lock_takes_another_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, tried = temporary._locked, list[Path]()

    def swept_once(folder: Path) -> int | None:
        tried.append(folder)
        if len(tried) == 1:
            folder.rmdir()
        return lock(folder)

    monkeypatch.setattr(temporary, "_locked", swept_once)
    own = process_folder()
    assert own == tried[1] != tried[0]
    assert list(place.iterdir()) == [own]


def test_a_place_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(UsageError, match="cannot make a temporary folder in /dev/null: Not a"):
        process_folder()


@pytest.mark.skipif(sys.platform != "linux", reason="a folder where root cannot make any: /proc")
def test_where_no_folder_can_be_made_the_next_place_is_taken(tmp_path: Path) -> None:
    """Root may write there, says the system, and there is room."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from onnxremat.system.temporary import process_folder\n"
        "print(process_folder().parent)"
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    for folder, named in (("/", "/proc"), (str(gone), "relative")):
        done = subprocess.run(
            ["sh", "-c", 'cd "$1" && { test "$1" = / || rmdir "$1"; } && shift && exec "$@"', "sh", folder,
             sys.executable, "-P", "-c", script, str(ROOT)],
            env={**os.environ, "TMPDIR": named, "TEMP": str(tmp_path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.strip() == str(tmp_path), done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_one_line(place: Path) -> None:
    said = f"cannot write temporary files to {place}: No space"
    with pytest.raises(UsageError, match=said), temporary_folder():
        Path("/dev/full").write_text("x")
    with pytest.raises(FileNotFoundError), temporary_folder():
        (place / "absent").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes")
def test_a_file_that_may_not_grow_is_one_line(place: Path) -> None:
    program = (
        "import resource, signal\n"
        "from onnxremat.system.temporary import temporary_folder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with temporary_folder() as folder:\n"
        "    (folder / 'a').write_bytes(bytes(4096))\n"
    )
    environment = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert f"UsageError: cannot write temporary files to {place}: File too large" in ended.stderr
    assert list(place.iterdir()) == []
