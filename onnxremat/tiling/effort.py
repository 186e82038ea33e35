"""How long tiles are looked for: counted in work, so that the same search ends at the same place.

The search for the smallest peak decides which limits are met. Were it ended by the clock alone, a
limit could be missed only since the machine was busier than when the smallest peak was found. So
its seconds stand for a number of planned nodes, few enough for this to be what ends it. The clock
is there for slow machines, and it counts the seconds of this thread on a processor, not those in
which others had it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

UNITS_A_SECOND = 10_000
"""Work that a second stands for: nodes planned or laid out in a tile. A quiet processor does two
to three times as much."""


@dataclass
class Effort:
    """Work done so far, and where it ends. Not thread-safe.

    `end_seconds` is a time of `now` (seconds), `end_units` a count of work; None: no such end.
    `stop()` turning true ends it, too.
    """

    stop: Callable[[], bool] | None = None
    now: Callable[[], float] = time.thread_time
    units: int = 0
    end_seconds: float | None = None
    end_units: int | None = None

    def spend(self, units: int) -> None:
        """Count work."""
        self.units += units

    @property
    def late(self) -> bool:
        """Whether to end now."""
        if self.end_seconds is not None and self.now() > self.end_seconds:
            return True
        if self.end_units is not None and self.units >= self.end_units:
            return True
        return self.stop is not None and self.stop()
