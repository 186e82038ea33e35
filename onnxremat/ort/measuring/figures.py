"""What a session takes, in the three figures that are limited, for those who may open a model.

A file is compared with what people run today, the original under default options, and with what
session options alone would give, which nobody should pay for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.measure import measure_activation
from onnxremat.ort.measuring.session_memory import SessionMemory, measure_session
from onnxremat.ort.recipe import Recipe

ORIGINAL, FILE = "original", "file"
ACTIVATION_RUNS = 2
OPTION_RUNS = 6
"""Without an arena malloc's own rules change from run to run, and by the fifth a process may have
grown far above what the first ones took."""
SESSION_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "without a memory pattern": {"mem_pattern": False},
    "without an arena": {"cpu_arena": False},
}
"""What may be set in every binding: fields of a Recipe, by words that tell of it."""
MEASUREMENTS = 1 + len(SESSION_OPTIONS)
"""Of one model: its activations, and its memory with each option."""
_IN_PYTHON = {"mem_pattern": "enable_mem_pattern", "cpu_arena": "enable_cpu_mem_arena"}


@dataclass(frozen=True)
class SessionFigures:
    """`opened`: what, and how; `option`: what was set for that, as in Python, or "".
    `activations_bytes`: the most that is allocated in a run, without
    an arena. `runs_bytes`: the most that a run adds to what the loaded session holds, resident
    (`SessionMemory.above_loaded_bytes`). `process_bytes`: the most of loading and runs together;
    loading added `loaded_bytes` and took `load_seconds`. `returning_bytes`: the
    same as `process_bytes` where malloc gives back what is freed, as MALLOC_MMAP_THRESHOLD_=65536
    makes it do."""

    opened: str
    option: str
    activations_bytes: int
    runs_bytes: int
    loaded_bytes: int
    load_seconds: float
    process_bytes: int
    returning_bytes: int


def all_figures(
    original: ModelSource,
    file: ModelSource,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    memory: Sequence[SessionMemory],
    listener: Listener = lambda said: None,
) -> tuple[SessionFigures, ...]:
    """Of the original, of the original with the session option that takes least in all, and of the
    file; `memory` is that of the original and of the file, as measured before, `returning` too.
    `listener` hears which measurement it is.

    Raises ModelError if the runtime refuses a model. O(a few runs of each).
    """
    before, after = memory
    count = MEASUREMENTS + 1
    now, *options = today(original, inputs, recipe, before, listener, count=count)
    listener(f"{count} of {count}")
    peak = _activations(file, inputs, recipe)
    return (now, min(options, key=lambda one: one.process_bytes), _figures(FILE, peak, after))


def today(
    original: ModelSource,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    memory: SessionMemory,
    listener: Listener = lambda said: None,
    *,
    count: int = MEASUREMENTS,
) -> tuple[SessionFigures, ...]:
    """What people have without any other file: the original, whose `memory` was measured before,
    `returning` too, and the original with each of SESSION_OPTIONS.

    `listener` hears which of `count` measurements it is. Raises ModelError if the runtime refuses
    the model. O(a few runs).
    """
    listener(f"1 of {count}")
    peak = _activations(original, inputs, recipe)
    found = [_figures(ORIGINAL, peak, memory)]
    for number, (words, changed) in enumerate(SESSION_OPTIONS.items(), start=2):
        listener(f"{number} of {count}")
        found.append(
            _figures(
                f"{ORIGINAL} {words}",
                peak,
                measure_session(
                    original, inputs, replace(recipe, **changed), runs=OPTION_RUNS, returning=True
                ),
                ", ".join(f"{_IN_PYTHON[name]} = {value}" for name, value in changed.items()),
            )
        )
    return tuple(found)


def _activations(source: ModelSource, inputs: Mapping[str, Array], recipe: Recipe) -> int:
    plain = replace(recipe, cpu_arena=False)
    return measure_activation(source, inputs, plain, ACTIVATION_RUNS).peak_bytes


def _figures(
    opened: str, activations: int, memory: SessionMemory, option: str = ""
) -> SessionFigures:
    assert memory.returning is not None, "what is shown was measured in both ways"
    return SessionFigures(
        opened,
        option,
        activations,
        max(memory.above_loaded_bytes),
        memory.loaded_bytes,
        memory.load_seconds,
        memory.grown_bytes,
        memory.returning.grown_bytes,
    )
