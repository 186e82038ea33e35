"""The child's side of `slack`: open a session and take blocks as its arena will."""

import ctypes
import sys
from typing import Any

from onnxremat.ort.child import meter as resident
from onnxremat.ort.child.actions import JobRequest
from onnxremat.ort.emulation.arena import PAGE_BYTES

_ALIGNMENT_BYTES = 64


def slack(request: JobRequest) -> dict[str, Any]:
    """By how much less than what was written resident memory grew, after each state."""
    states: list[list[dict[str, Any]]] = request.options["states"]
    runner = request.runner(0)
    if not sys.platform.startswith("linux"):
        return {"slack_bytes": [0] * len(states)}
    meter = resident.meter()
    before = meter.current_bytes()
    blocks: list[int] = []
    saved = []
    for state in states:
        for region in state[len(blocks) :]:
            blocks.append(_taken(region["bytes"]))
        written = 0
        for block, region in zip(blocks, state, strict=True):
            for start, count in region["written"]:
                nbytes = min(count * PAGE_BYTES, region["bytes"] - start * PAGE_BYTES)
                ctypes.memset(block + start * PAGE_BYTES, 1, nbytes)
                written += nbytes
        saved.append(max(written - (meter.current_bytes() - before), 0))
    runner.release()
    return {"slack_bytes": saved}


def _taken(nbytes: int) -> int:
    """A block from the C library, aligned as the runtime asks for it."""
    block = ctypes.c_void_p()
    posix_memalign = ctypes.CDLL(None).posix_memalign
    posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    if posix_memalign(ctypes.byref(block), _ALIGNMENT_BYTES, nbytes) != 0 or block.value is None:
        raise MemoryError(f"no block of {nbytes} bytes")
    return block.value
