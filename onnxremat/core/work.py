"""`WorkClock`: seconds that are counted by the work that is done, not by the time that it takes.

A search that ends by an ordinary clock ends elsewhere each time. One that ends by this clock finds
the same each time, and so a search for a limit can begin with what the search for the smallest peak
finds. Whoever works says what it did, in the seconds that it takes on an ordinary machine (x86-64
of 2020, one thread), as far as sizes tell; it need not be exact, only the same each time.

>>> clock = WorkClock()
>>> clock.worked(0.5)
>>> clock()
0.5
"""

import time
from collections.abc import Callable

PATIENCE, GRACE_SECONDS = 3.0, 1.0
"""Where work takes the processor so many times as long as it counts, and this beside, that counts,
too: the search ends earlier then than elsewhere."""

WALL_PATIENCE = 10.0
"""The same of what passes on the wall, where others have the processor meanwhile."""

EVALUATION_SECONDS = 1e-5
"""For each op, to make a schedule and to find its peak (`Deadline.evaluated`)."""


class WorkClock:
    """A clock that stands still but for `worked`. `real` stands for both of the real ones, that of
    the processor and that on the wall."""

    def __init__(self, real: Callable[[], float] | None = None) -> None:
        self._clocks = (
            (real or time.process_time, PATIENCE),
            (real or time.monotonic, WALL_PATIENCE),
        )
        self._seconds = 0.0
        self.resume()

    def resume(self) -> None:
        """Forget the real time that has passed: something else was done in it."""
        self._began = [clock() - patience * self._seconds for clock, patience in self._clocks]

    def __call__(self) -> float:
        """Seconds of work so far, or as many as real time makes of them if those are more."""
        real = (
            (clock() - began - GRACE_SECONDS) / patience
            for (clock, patience), began in zip(self._clocks, self._began, strict=True)
        )
        return max(self._seconds, *real)

    def worked(self, seconds: float) -> None:
        """Count work that takes so many seconds elsewhere."""
        self._seconds += seconds
