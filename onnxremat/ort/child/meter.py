"""How much memory this process has resident, and the most it had.

Linux: the kernel's high-water mark, which can be reset, so the peak is exact for each run.
Elsewhere the high-water mark counts from the start of the process: a peak is then never too low.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_HIGH_WATER_MARK = "5"


class Meter(Protocol):
    """Resident memory of this process; `name` says how it is read."""

    name: str

    def current_bytes(self) -> int:
        """Resident now."""
        ...

    def peak_bytes(self) -> int:
        """Most resident since the last reset, or since the start where there is no reset."""
        ...

    def mapped_bytes(self) -> int:
        """Of what is resident, pages of mapped files, which the system can drop at any time; 0
        where it does not tell."""
        ...

    def reset(self) -> None:
        """Start a new peak, where the system can."""
        ...


def meter() -> Meter:
    """The meter of this system. Raises OSError if it has none."""
    if _can_reset():
        return _ProcMeter()
    if sys.platform == "win32":
        return _WindowsMeter()
    return _UsageMeter()


def _can_reset() -> bool:
    """Whether the kernel lets this process reset its high-water mark (some containers do not)."""
    try:
        _CLEAR.write_text(_RESET_HIGH_WATER_MARK, encoding="ascii")
    except OSError:
        return False
    return True


class _ProcMeter:
    name = "linux high-water mark"

    def current_bytes(self) -> int:
        return self._read("VmRSS:")

    def peak_bytes(self) -> int:
        return self._read("VmHWM:")

    def mapped_bytes(self) -> int:
        return self._read("RssFile:")

    def reset(self) -> None:
        _CLEAR.write_text(_RESET_HIGH_WATER_MARK, encoding="ascii")

    def _read(self, key: str) -> int:
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
        raise OSError(f"{_STATUS} has no {key}")


class _UsageMeter:
    """macOS and other systems with getrusage; the current size comes from `ps`."""

    name = "high-water mark since the start of the process"

    def current_bytes(self) -> int:
        command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
        return int(subprocess.run(command, capture_output=True, check=True).stdout) * 1024

    def peak_bytes(self) -> int:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def mapped_bytes(self) -> int:
        return 0

    def reset(self) -> None:
        return


class _Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of psapi.h."""

    _fields_ = [
        ("cb", ctypes.c_uint32),
        ("PageFaultCount", ctypes.c_uint32),
        ("PeakWorkingSetSize", ctypes.c_size_t),
        ("WorkingSetSize", ctypes.c_size_t),
        ("QuotaPeakPagedPoolUsage", ctypes.c_size_t),
        ("QuotaPagedPoolUsage", ctypes.c_size_t),
        ("QuotaPeakNonPagedPoolUsage", ctypes.c_size_t),
        ("QuotaNonPagedPoolUsage", ctypes.c_size_t),
        ("PagefileUsage", ctypes.c_size_t),
        ("PeakPagefileUsage", ctypes.c_size_t),
    ]


class _WindowsMeter:
    name = "peak working set since the start of the process"

    def current_bytes(self) -> int:
        return int(self._read().WorkingSetSize)

    def peak_bytes(self) -> int:
        return int(self._read().PeakWorkingSetSize)

    def mapped_bytes(self) -> int:
        return 0

    def reset(self) -> None:
        return

    def _read(self) -> _Counters:
        counters = _Counters()
        counters.cb = ctypes.sizeof(counters)
        kernel = ctypes.CDLL("kernel32")
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        process = ctypes.c_void_p(kernel.GetCurrentProcess())
        if not kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.cb):
            raise OSError("GetProcessMemoryInfo failed")
        return counters
