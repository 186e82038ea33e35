"""The child's side of `cap`: a model opened and run on an arena that may not grow past a limit.

The arena is registered with the environment of the process and cannot be changed afterwards, so a
child tries one limit. What the arena took is read from its own log, which goes to standard error:
that is sent to a file meanwhile.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxremat.ort.child.actions import JobRequest
from onnxremat.ort.child.runner import RuntimeRefusal
from onnxremat.ort.library import ort

ENV_ALLOCATORS = {"session.use_env_allocators": "1"}
NEXT_POWER_OF_TWO, SAME_AS_REQUESTED = 0, 1
SMALLEST_DEAD_BYTES = 1
"""Every chunk is cut (0 crashes in 1.31.1)."""

_INFO, _ERROR = 1, 3
_FULL = re.compile(r"Available memory of \d+ is smaller than requested bytes|[Ff]ailed to allocate")
_CREATED = "Creating BFCArena"
_RESERVED = re.compile(r"Reserving memory in BFCArena for \S+ size: (\d+)")
_EXTENDED = re.compile(r"Extended allocation by (\d+) bytes")


def capped(request: JobRequest) -> dict[str, Any]:
    """Open model 0 and run it `runs` times with at most `cap_bytes` of arena.

    Answers `reserved_bytes` (taken by Reserve while loading), `stages_bytes` (all that the arena
    has after loading and after each run that went through) and `refusal`: None, or why it ended.
    """
    log = request.folder / "arena.log"
    stages: list[int] = []
    refusal = None
    with _standard_error_in(log):
        ort.set_default_logger_severity(_INFO)
        _register(request.options["cap_bytes"], one_region=request.options["one_region"])
        try:
            runner = request.runner(0, config=ENV_ALLOCATORS)
            stages.append(log.stat().st_size)
            for _ in range(request.options["runs"]):
                runner.release()
                runner.run()
                stages.append(log.stat().st_size)
        except RuntimeRefusal as error:
            if not _FULL.search(error.reason):
                raise
            refusal = error.reason
        finally:
            ort.set_default_logger_severity(_ERROR)
    content = log.read_bytes()
    if _CREATED.encode() not in content:
        raise RuntimeRefusal(0, "this ONNX Runtime does not tell what its arena takes")
    texts = [content[:size].decode(errors="replace") for size in stages]
    loading = texts[0] if texts else content.decode(errors="replace")
    return {
        "reserved_bytes": _sum(_RESERVED, loading),
        "stages_bytes": [_sum(_RESERVED, text) + _sum(_EXTENDED, text) for text in texts],
        "refusal": refusal,
    }


def _register(cap_bytes: int, *, one_region: bool) -> None:
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    settings = {
        "max_mem": cap_bytes,
        "arena_extend_strategy": NEXT_POWER_OF_TWO if one_region else SAME_AS_REQUESTED,
        "max_dead_bytes_per_chunk": SMALLEST_DEAD_BYTES,
    }
    if one_region:
        settings["initial_chunk_size_bytes"] = cap_bytes
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(settings))


def _sum(pattern: re.Pattern[str], text: str) -> int:
    return sum(int(found[1]) for found in pattern.finditer(text))


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """What the process writes to standard error goes to `path` inside the block."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as target:
        os.dup2(target.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
