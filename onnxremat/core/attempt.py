"""What became of a plan: the record that `--explain` prints."""

from dataclasses import dataclass

from onnxremat.core.units import format_bytes

TAKEN = "taken"
"""The outcome of the plan that is written."""
WHOLE_OPS = "whole ops"
"""Said of what is planned where nothing is cut."""
ORIGINAL = "original"
"""Said of the model as it came."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan and what became of it.

    `of`: what was planned, whole ops or tiles. `target_bytes`: what the planner was to keep by the
    model of memory, None for the smallest peak. `planned_bytes`: the peak by that model;
    `expected_bytes`: by the emulation of the runtime, None if it was not asked; `measured_bytes`:
    in the runtime, None if it did not come to that. `extra_time`: the share of one pass of whole
    ops that is added. `outcome`: TAKEN, or why it was not. `seconds`: of all that, on the wall.
    """

    of: str
    by: str
    target_bytes: int | None
    planned_bytes: int
    expected_bytes: int | None
    measured_bytes: int | None
    extra_time: float
    outcome: str
    seconds: float

    def __str__(self) -> str:
        """On one line."""
        target = (
            "the smallest peak" if self.target_bytes is None else format_bytes(self.target_bytes)
        )
        figures = {
            "planned": self.planned_bytes,
            "expected": self.expected_bytes,
            "measured": self.measured_bytes,
        }
        known = ", ".join(
            f"{name} {format_bytes(n)}" for name, n in figures.items() if n is not None
        )
        return (
            f"{self.of} by {self.by} for {target}: {known}, {100 * self.extra_time:+.1f}% time, "
            f"{self.seconds:.1f} s: {self.outcome}"
        )
