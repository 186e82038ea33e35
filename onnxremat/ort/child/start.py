"""The first thing a child does: `python -m onnxremat.ort.child.start PARENT BYTES WORKER FOLDER`.

It ties its life to that of the process PARENT, bounds its memory (to BYTES, if that is a number,
once the runtime is loaded), and then is the module WORKER, which finds FOLDER as its only argument.
`children` is the parent's side, and says what is tested.
"""

import os
import runpy
import signal
import sys
import threading

from onnxremat.ort.child.machine import bound_memory

_PR_SET_PDEATHSIG = 1
_LIFELINE = 0
"""Standard input: a pipe whose other end the parent holds."""


def tie_to_parent(parent: int) -> None:
    """End this process when its parent ends; at once if that has happened already."""
    if not (sys.platform == "linux" and _killed_by_kernel()):
        threading.Thread(target=_watch, args=(_LIFELINE,), daemon=True).start()
    elif os.getppid() != parent:
        os._exit(1)


def _killed_by_kernel() -> bool:
    """Ask Linux for SIGKILL when the parent is gone; False if it does not do that."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return False
    return bool(prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)


def _watch(pipe: int) -> None:
    """Wait until the other end of the pipe is closed, then end the process."""
    while os.read(pipe, 1):
        continue
    os._exit(1)


def _import_runtime() -> None:
    """Load what every job needs: libraries end in ways of their own where they get no memory."""
    import numpy  # noqa: F401
    import onnxruntime  # noqa: F401


def main() -> None:
    """Become the worker."""
    parent, memory, worker = sys.argv[1:4]
    tie_to_parent(int(parent))
    bound_memory()
    if memory.isdecimal():
        _import_runtime()
        bound_memory(int(memory))
    sys.argv = [worker, *sys.argv[4:]]
    runpy.run_module(worker, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
