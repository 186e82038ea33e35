"""`Deadline`: when work has to end, and how much of what it was given has passed."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TypeVar

from onnxremat.core.problem import Limits
from onnxremat.core.work import EVALUATION_SECONDS, WorkClock

T = TypeVar("T")

CUT_SHORT = "cut short by the limits"
"""For the scope of a plan: more would have been tried with more time, or without a stop."""

COUNTED_SECONDS = 1e6
"""What searches have whose iterations are limited: enough not to end them."""

SPENT_SHARE = 0.99
"""Of the seconds: where more have passed, nothing could be done in the rest."""


class StoppedError(Exception):
    """The work was given up at a deadline; the caller goes on with what it has."""


class Deadline:
    """The end of work: after the seconds of `limits`, after its iterations (those that are told by
    `count`), or once its `stop()` is true.

    Seconds pass from the start, or with `waits` only inside `passing()`. What passes of a part
    (`parent`) passes of the whole; that of another whose clock goes on meanwhile (`beside`) passes
    by its own clock. `now` is the clock, if it is not that of the limits; `busy` the one of what a
    single thread does, which counts no seconds while others have the processor, so that it ends at
    about the same place each time. `cut_short` once anybody was told that it is over.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        now: Callable[[], float] | None = None,
        busy: Callable[[], float] = time.thread_time,
        waits: bool = False,
        parent: "Deadline | None" = None,
        beside: "Deadline | None" = None,
    ) -> None:
        self.limits = limits
        self.now = now or limits.work or time.monotonic
        self.busy = busy
        self.iterations = 0
        self.cut_short = False
        self.lock = threading.Lock()
        self._parent, self._beside = parent, beside
        self._passed = 0.0
        self._began = None if waits else self.now()

    @classmethod
    def of_planning(cls, limits: Limits) -> "Deadline":
        """One that waits for `passing()`; where iterations are limited it stands still: what its
        seconds are shared out for ends by counts of work alone, at the same place each time."""
        if limits.iterations is None:
            return cls(limits, waits=True)
        return cls(limits, now=_standing, busy=_standing, waits=True)

    @property
    def passed_seconds(self) -> float:
        """Seconds that count so far."""
        running = 0.0 if self._began is None else self.now() - self._began
        return self._passed + running

    @property
    def left_seconds(self) -> float:
        """Seconds that have not passed yet; 0 if more have."""
        left = max(0.0, self.limits.seconds - self.passed_seconds)
        return left if self._parent is None else min(left, self._parent.left_seconds)

    @property
    def spent(self) -> bool:
        """Whether the seconds are so far over that nothing should be started any more."""
        return self.passed(SPENT_SHARE) or (self._parent is not None and self._parent.spent)

    @property
    def whole(self) -> "Deadline":
        """What this is a part of."""
        whole = self._parent or self._beside
        return self if whole is None else whole.whole

    def passed(self, share: float) -> bool:
        """Whether so much of the seconds has passed."""
        return self.passed_seconds >= share * self.limits.seconds

    def used(self) -> float:
        """Share of the limits used: of iterations if they are limited, else of seconds."""
        limit = self.limits.iterations
        if limit is not None:
            return self.iterations / limit if limit > 0 else 1.0
        return self.passed_seconds / max(self.limits.seconds, 1e-9)

    def stopped(self) -> bool:
        """Whether the caller says stop."""
        return self.limits.stop is not None and self.limits.stop()

    def out_of_time(self) -> bool:
        """Whether to stop now, whatever was counted."""
        over = self.left_seconds <= 0.0 or self.stopped()
        self.cut_short = self.cut_short or over
        return over

    def over(self) -> bool:
        """Whether to stop now."""
        over = self._counted_out() or self.out_of_time()
        self.cut_short = self.cut_short or over
        return over

    def _counted_out(self) -> bool:
        limit = self.limits.iterations
        out = limit is not None and self.iterations >= limit
        return out or (self._parent is not None and self._parent._counted_out())

    def ask(self) -> None:
        """Raise StoppedError if it is time to stop."""
        if self.over():
            raise StoppedError

    def asking(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with the question whether to stop before each. Raises StoppedError."""
        for item in items:
            self.ask()
            yield item

    def count(self, iterations: int) -> None:
        """Note that iterations were done; threads may do so at a time."""
        with self.lock:
            self.iterations += iterations

    def forgive(self, seconds: float) -> None:
        """Let seconds that have passed not count; where work is counted they do not anyway."""
        if self.limits.work is None:
            self._passed -= seconds

    def worked(self, seconds: float) -> None:
        """Note work that takes so many seconds, where work is counted (`Limits.work`)."""
        if self.limits.work is not None:
            self.limits.work.worked(seconds)

    def evaluated(self, ops: int) -> None:
        """Note that a schedule of so many ops was made and measured, or work like that."""
        self.worked(EVALUATION_SECONDS * ops)

    def restart(self, limits: Limits) -> None:
        """Begin anew with other limits, for whoever holds this."""
        self.limits, self.iterations = limits, 0
        self._passed, self._began = 0.0, None if self._began is None else self.now()

    def part(self, share: float) -> "Deadline":
        """A share of the seconds that are left."""
        return self._of(share * self.left_seconds)

    def share(self, share: float, *, busy: bool = False) -> "Deadline":
        """A share of all seconds, or what is left if that is less; by the clock of this thread if
        it is to count only what the thread does (`busy`)."""
        return self._of(share * self.limits.seconds, self.busy if busy else self.now)

    def counting_work(self, share: float) -> "Deadline":
        """A share of all seconds, of counted work: what is done in it is the same each time. The
        seconds of this one go on meanwhile, but do not end it."""
        limits = replace(self.limits, seconds=share * self.limits.seconds, work=WorkClock())
        return Deadline(limits, waits=True, beside=self)

    def until(self, share: float) -> "Deadline":
        """What ends when that share of all seconds has passed."""
        return self._of(max(0.0, share * self.limits.seconds - self.passed_seconds))

    def uncounted(self) -> "Deadline":
        """The same without the iterations: only time and the caller end it."""
        limits = replace(self.limits, seconds=self.left_seconds, iterations=None)
        return Deadline(limits, now=self.now)

    def granting(self, seconds: float) -> Limits:
        """Limits for a search that has so many of the seconds, or, where iterations are limited,
        as many as those take."""
        counted = self.limits.iterations is not None
        return replace(self.limits, seconds=COUNTED_SECONDS if counted else seconds)

    def limited(self, share: float) -> Limits:
        """Limits for work of its own: a share of the seconds left, and of all iterations."""
        iterations = self.limits.iterations
        iterations = None if iterations is None else max(1, int(iterations * share))
        return replace(self.limits, seconds=share * self.left_seconds, iterations=iterations)

    def _of(self, seconds: float, now: Callable[[], float] | None = None) -> "Deadline":
        return Deadline(
            replace(self.limits, seconds=seconds),
            now=now or self.now,
            busy=self.busy,
            waits=self._began is None,
            parent=self,
        )

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Inside, the seconds of what waits pass."""
        if self.limits.work is not None:
            self.limits.work.resume()
        with nullcontext() if self._beside is None else self._beside.passing():
            began = self.now()
            try:
                yield
            finally:
                self._pass(self.now() - began)

    def _pass(self, seconds: float) -> None:
        self._passed += seconds
        if self._parent is not None:
            self._parent._pass(seconds)


def _standing() -> float:
    """A clock that stands still."""
    return 0.0


ENDLESS = Deadline(Limits(seconds=math.inf))
"""For work that is to come to its own end."""
