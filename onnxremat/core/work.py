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
"""Where work takes so many times as long as it counts, and this beside, real time counts, too: the
search ends earlier then than elsewhere."""

EVALUATION_SECONDS = 1e-5
"""For each op, to make a schedule and to find its peak (`Deadline.evaluated`)."""


class WorkClock:
    """A clock that stands still but for `worked`. `clock` is the real one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0
        self.resume()

    def resume(self) -> None:
        """Forget the real time that has passed: something else was done in it."""
        self._real_began = self._clock() - PATIENCE * self._seconds

    def __call__(self) -> float:
        """Seconds of work so far, or as many as real time makes of them if those are more."""
        real = self._clock() - self._real_began
        return max(self._seconds, (real - GRACE_SECONDS) / PATIENCE)

    def worked(self, seconds: float) -> None:
        """Count work that takes so many seconds elsewhere."""
        self._seconds += seconds
