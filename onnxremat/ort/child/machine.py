"""How much memory there is here: what no size that a file or a user states can exceed, and how much
of it is free."""

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

_CONTROL_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")
_FIRST_TO_GO = Path("/proc/self/oom_score_adj")
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
_USED_FILES = ("memory.current", "memory.usage_in_bytes")
_GIVEN_BACK = ("inactive_file ", "total_inactive_file ")
"""Pages of files that a control group counts as used, and drops where it needs room."""


@cache
def memory_bytes() -> int:
    """The machine's memory in bytes, or what this process's control group leaves of it.

    Raises OSError if the system does not tell.
    """
    return min([_physical_bytes(), *_group_limits()])


def available_bytes() -> int:
    """The memory that can be had now without anything being swapped out, in this process's control
    group, too. Where the system does not tell (elsewhere than on Linux), what there is in all.

    Raises OSError if that is not known either.
    """
    free = [memory_bytes()]
    if _MEMORY.is_file():
        free.append(_of_meminfo("MemAvailable"))
    for place in _group_places():
        limits = [_number(place / name) for name in _LIMIT_FILES]
        used = [_number(place / name) for name in _USED_FILES]
        free += [
            limit - taken + _given_back(place)
            for limit, taken in zip(limits, used, strict=True)
            if limit is not None and taken is not None
        ]
    return max(0, min(free))


def _given_back(place: Path) -> int:
    try:
        lines = (place / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return max((int(one.split()[1]) for one in lines if one.startswith(_GIVEN_BACK)), default=0)


def _physical_bytes() -> int:
    if sys.platform == "win32":
        return _windows_bytes()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_limits() -> list[int]:
    """Limits of the control groups that this process is in; none elsewhere than on Linux."""
    limits = [_number(place / name) for place in _group_places() for name in _LIMIT_FILES]
    return [limit for limit in limits if limit is not None]


def _group_places() -> list[Path]:
    """The folders of the control groups that this process is in."""
    if not _CONTROL_GROUP.is_file():
        return []
    places = []
    for line in _CONTROL_GROUP.read_text(encoding="utf-8", errors="replace").splitlines():
        _, controllers, group = line.split(":", maxsplit=2)
        if controllers in ("", "memory"):
            folder = _GROUPS / controllers
            places += [folder, folder / group.lstrip("/")]
    return places


def _number(file: Path) -> int | None:
    """What a file of the kernel's says, None if it is not there or says `max`."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def bound_memory(most_bytes: int | None = None) -> None:
    """Let this process ask for no more memory than there is, nor than `most_bytes`; let it be the
    first to go if all is used.

    A model may need any amount; an allocation that is refused is an error with a reason, and one
    that is granted and not there ends some process, maybe another. Linux alone counts so.
    """
    if sys.platform != "linux":
        return
    import resource

    limit = memory_bytes() + _swap_bytes()
    if most_bytes is not None:
        limit = min(limit, most_bytes)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    with suppress(OSError):  # Some containers do not let it be written.
        _FIRST_TO_GO.write_text("1000", encoding="ascii")


def _swap_bytes() -> int:
    return _of_meminfo("SwapTotal")


def _of_meminfo(name: str) -> int:
    """A figure of the kernel's, in bytes; 0 if it has none of that name."""
    for line in _MEMORY.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of sysinfoapi.h."""

    _fields_ = [
        ("dwLength", ctypes.c_uint32),
        ("dwMemoryLoad", ctypes.c_uint32),
        ("ullTotalPhys", ctypes.c_uint64),
        ("ullAvailPhys", ctypes.c_uint64),
        ("ullTotalPageFile", ctypes.c_uint64),
        ("ullAvailPageFile", ctypes.c_uint64),
        ("ullTotalVirtual", ctypes.c_uint64),
        ("ullAvailVirtual", ctypes.c_uint64),
        ("ullAvailExtendedVirtual", ctypes.c_uint64),
    ]


def _windows_bytes() -> int:
    status = _MemoryStatus()
    status.dwLength = ctypes.sizeof(status)
    kernel = ctypes.CDLL("kernel32")
    if not kernel.GlobalMemoryStatusEx(ctypes.byref(status)):
        raise OSError("GlobalMemoryStatusEx failed")
    return int(status.ullTotalPhys)
