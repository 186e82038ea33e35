"""Windows: a job object that kills its processes when the last handle of it is closed.

The system closes handles however their owner ends. Not tested: where a call fails, the child is
left to the pipe that it watches (see `child`). On other systems nothing is done.
"""

import ctypes
import subprocess
import sys
from typing import Any

_KILL_ON_JOB_CLOSE = 0x2000
_EXTENDED_LIMIT_INFORMATION = 9


class _BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = [
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    ]


class _ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = [
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


def _kernel() -> Any:
    """kernel32 with the types of what is called here: handles are pointers."""
    kernel = getattr(ctypes, "WinDLL")("kernel32", use_last_error=True)  # noqa: B009 - on Windows only
    handle = ctypes.c_void_p
    kernel.CreateJobObjectW.restype = handle
    kernel.CreateJobObjectW.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p]
    information = [handle, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32]
    kernel.SetInformationJobObject.argtypes = information
    kernel.AssignProcessToJobObject.argtypes = [handle, handle]
    kernel.CloseHandle.argtypes = [handle]
    return kernel


def killed_on_close(child: subprocess.Popen[str]) -> int | None:
    """Put a child into a job object of its own; its handle, None where there is none."""
    if sys.platform != "win32":
        return None
    kernel = _kernel()
    job: int | None = kernel.CreateJobObjectW(None, None)
    if job is None:
        return None
    limits = _ExtendedLimits()
    limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
    size = ctypes.sizeof(limits)
    process = int(getattr(child, "_handle"))  # noqa: B009 - subprocess has no public name for it
    if not (
        kernel.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), size)
        and kernel.AssignProcessToJobObject(job, process)
    ):
        kernel.CloseHandle(job)
        return None
    return job


def close_handle(job: int | None) -> None:
    """Let go of a job object; the processes in it end."""
    if job is not None:
        _kernel().CloseHandle(job)
