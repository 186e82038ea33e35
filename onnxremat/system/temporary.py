"""Temporary folders: one a process, removed when it ends, or by the next start if it was killed.

All that a process needs for a while lies in one folder of its own in the system's temporary folder:
a folder for each job of a child, and the journal of the files it writes. A lock in it is held as
long as the process lives, and the system lets go of it however the process ends, so that whoever
gets the lock knows that the owner is gone. (Numbers of processes would not tell: they are used
again, and containers that share a temporary folder do not see each other's.) Every process removes
what others left behind before it makes a folder of its own.

Where the system has no such locks nothing of others is removed. On Windows the lock is one of
`msvcrt`; that is not tested.
"""

import atexit
import errno
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from onnxremat.core.errors import UsageError
from onnxremat.system.journal import roll_back

PREFIX, LOCK = "onnxremat-run-", "lock"
_TOKEN_BYTES = 8
_ATTEMPTS = 10
_UNWRITABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
)


@dataclass
class _Own:
    """The folder of this process, None until it needs one. `process` tells a fork from it."""

    path: Path | None = None
    lock: int | None = None
    process: int = 0
    jobs: int = 0


_own = _Own()
_unusable: set[str] = set()
"""Places where no folder could be made, though the system said so."""
_making = threading.Lock()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder that exists inside the `with` block.

    Raises UsageError if none can be made, or if the block fails because files there cannot be
    written.
    """
    parent = process_folder()
    with _making:
        _own.jobs += 1
        path = parent / f"job{_own.jobs}"
    try:
        with _writable(parent):
            path.mkdir()
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Turns a disk that is full, or may not be written, into a UsageError that names the place."""
    try:
        yield
    except OSError as error:
        elsewhere = error.filename is not None and not _is_within(folder, error.filename)
        if elsewhere or error.errno not in _UNWRITABLE:
            raise
        raise UsageError(
            f"cannot write temporary files to {folder.parent}: {error.strerror}"
        ) from None


def _is_within(folder: Path, name: object) -> bool:
    return isinstance(name, str) and Path(name).is_relative_to(folder)


def process_folder() -> Path:
    """The folder of this process, made when it is first asked for. Raises UsageError."""
    with _making:
        if _own.path is None or _own.process != os.getpid() or not _own.path.is_dir():
            sweep()
            _make()
        assert _own.path is not None
        return _own.path


def token() -> str:
    """What temporary names of this process have in common, and those of no other."""
    return process_folder().name.removeprefix(PREFIX)


def clean_up() -> None:
    """Remove the folder of this process and what it was writing; also done when Python ends."""
    if _own.path is None or _own.process != os.getpid():
        return
    roll_back(_own.path)
    _remove(_own.path, _own.lock)
    _own.path = _own.lock = None


def temporary_place() -> Path:
    """The system's folder for temporary files, as Python's `tempfile` chooses it, and told to that.

    It would find out by writing a file there under a name that nobody knows afterwards, which a
    signal leaves. Raises FileNotFoundError if there is none.
    """
    if tempfile.tempdir is None:
        places = (one for one in _candidates() if one not in _unusable and _may_be_written(one))
        tempfile.tempdir = next(places, None)
    return Path(tempfile.gettempdir())


def _candidates() -> Iterator[str]:
    """Absolute paths, those that the environment names first."""
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    usual = [] if sys.platform == "win32" else ["/tmp", "/var/tmp", "/usr/tmp"]
    for path in (*named, *usual):
        with suppress(FileNotFoundError):  # a relative one, in a folder that is gone
            if path:
                yield os.path.abspath(path)


def _may_be_written(folder: str) -> bool:
    """Whether files can be made in a folder, as far as the system tells without trying."""
    if not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        return False
    if sys.platform == "win32":
        return True
    room = os.statvfs(folder)
    return room.f_blocks == 0 or room.f_bavail > 0


def sweep() -> None:
    """Remove what processes that were killed left behind: folders, and files half in place.

    Never what belongs to a process that lives, or to another user.
    """
    with suppress(OSError):
        place = temporary_place()
        for name in os.listdir(place):
            path = place / name
            if name.startswith(PREFIX) and path != _own.path and _is_private(path):
                _remove_abandoned(path)


def _remove_abandoned(folder: Path) -> None:
    try:
        lock = _locked(folder)
    except OSError:
        return
    if lock is None:
        return
    roll_back(folder)
    _remove(folder, lock)


def _remove(folder: Path, lock: int | None) -> None:
    """Remove a folder while its lock is held, then let go of that."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)
    if sys.platform == "win32":  # the lock itself cannot be removed while it is open
        shutil.rmtree(folder, ignore_errors=True)


def _is_private(path: Path) -> bool:
    """A folder (no link to one) that nobody but this user can have written to."""
    try:
        found = path.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return False
    return sys.platform == "win32" or (
        found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    )


def _make() -> None:
    """A new folder with its lock held, in the first place where one can be made."""
    try:
        while True:
            place = None
            place = temporary_place()
            try:
                _make_in(place)
                break
            except OSError:
                if str(place) in _unusable or str(place) not in _candidates():
                    raise
                _unusable.add(str(place))
                tempfile.tempdir = None
    except OSError as error:
        _own.path = None
        where = "" if place is None else f" in {place}"
        why = error.strerror or error
        raise UsageError(f"cannot make a temporary folder{where}: {why}") from None
    atexit.unregister(clean_up)
    atexit.register(clean_up)


def _make_in(place: Path) -> None:
    """A new folder in a place. It is known before it is there, so that whatever happens between the
    two, `clean_up` finds it. Raises OSError if there can be none."""
    for _ in range(_ATTEMPTS):
        name = PREFIX + os.urandom(_TOKEN_BYTES).hex()
        _own.process, _own.lock, _own.path = os.getpid(), None, place / name
        _own.path.mkdir(mode=0o700)
        try:
            _own.lock = _locked(_own.path)
        except FileNotFoundError:  # swept before it was locked
            continue
        except OSError:  # no locks here: nobody sweeps either
            break
        if _own.lock is not None:
            break
    else:
        raise UsageError(f"cannot keep a temporary folder in {place}: it is removed at once")


def _locked(folder: Path) -> int | None:
    """The lock of a folder, open and held; None if another process holds it or has removed it.

    Raises OSError if there is no such folder, or the system has no locks there.
    """
    path = folder / LOCK
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if take_lock(file) and os.path.samestat(os.fstat(file), path.stat()):
            return file
    except FileNotFoundError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def take_lock(file: int) -> bool:
    """Lock an open file for this process, as long as it is open; False if another one has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True
