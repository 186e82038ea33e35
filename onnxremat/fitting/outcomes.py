"""What became of attempts to plan for a limit, and what is said where all of them missed it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxremat.core.attempt import TAKEN, WHOLE_OPS, Attempt
from onnxremat.core.bounds import PeakBound
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.core.problem import Plan
from onnxremat.core.schedule import Schedule
from onnxremat.core.units import format_bytes
from onnxremat.fitting.loop import PlanMissedError, said
from onnxremat.subject import Subject
from onnxremat.targets.target import Made
from onnxremat.tiling import TilingPlan


@dataclass(frozen=True)
class Planned:
    """A plan of a subject, measured; `tiling` is how the subject was cut, None for whole ops.
    `attempts` end with it."""

    subject: Subject
    plan: Plan
    made: Made
    tiling: TilingPlan | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def extra_time(self) -> float:
        """The share of a run of the whole ops that tiles and recomputation add."""
        if self.tiling is None:
            return self.plan.extra_time
        return self.tiling.extra_time_with(self.plan.extra_cost)


def words_of(tiling: TilingPlan | None) -> str:
    """What is planned, in words."""
    if tiling is None:
        return WHOLE_OPS
    if not tiling.regions:
        return "no regions"
    return f"{len(tiling.regions)} region" + ("s" if len(tiling.regions) > 1 else "")


@dataclass(frozen=True)
class Tried:
    """What became of an attempt: a plan, or why there is none, or nothing: not tried."""

    planned: Planned | None = None
    missed: InfeasibleError | NoPlanFoundError | None = None

    @property
    def nothing(self) -> bool:
        """Whether it was not tried."""
        return self.planned is None and self.missed is None

    @property
    def refused(self) -> bool:
        """Whether the file was refused for its time or its bits, not for its memory."""
        if self.planned is not None:
            return bool(self.planned.made.refused)
        return isinstance(self.missed, PlanMissedError) and self.missed.refused

    @property
    def load_share(self) -> float | None:
        """Of the time that it takes to open the file, where it was refused for that, the share that
        is allowed."""
        made = None if self.planned is None else self.planned.made
        return made.load_share if made is not None and made.refused else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The plans that were made, the one that keeps the limit last."""
        if self.planned is not None:
            return self.planned.attempts
        return () if self.missed is None else self.missed.attempts

    @property
    def starts(self) -> tuple[Schedule, ...]:
        """What is worth going on from."""
        if self.planned is not None:
            return (self.planned.plan.schedule,)
        return (self.missed.schedule,) if isinstance(self.missed, PlanMissedError) else ()


@dataclass(frozen=True)
class TriedTiles:
    """The last tiling that was looked at, None if time was over before; what became of the models
    in the tilings that were tried; `untried_bytes`, the smallest peak that is predicted of one that
    was not; and all `attempts`."""

    tiling: TilingPlan | None = None
    tried: tuple[Tried, ...] = ()
    untried_bytes: int | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def last(self) -> Tried:
        """What became of the last one."""
        return self.tried[-1] if self.tried else Tried()

    def with_untried(
        self, tiling: TilingPlan, target_bytes: int | None, seconds: float, why: str
    ) -> "TriedTiles":
        """The same and a tiling that is not tried, without regions perhaps, and why. What
        regions that were tried just before take is known: no prediction counts."""
        last = () if self.tiling is None or not self.tried else self.tiling.regions
        new = bool(tiling.regions) and tiling.regions != last
        peak = tiling.peak_bytes if new else self.untried_bytes
        why = f"not planned: {why if tiling.regions else ''.join(tiling.reasons[:1])}"
        attempt = Attempt(
            words_of(tiling), "tiles", target_bytes, tiling.peak_bytes, None, None,
            tiling.extra_time, why, seconds,
        )  # fmt: skip
        attempts = (*self.attempts, attempt)
        return replace(self, tiling=tiling, untried_bytes=peak, attempts=attempts)

    def with_tried(self, tiling: TilingPlan, one: Tried) -> "TriedTiles":
        """The same and a tiling that was tried, whatever was predicted of it."""
        return TriedTiles(tiling, (*self.tried, one), attempts=self.attempts + one.attempts)

    @property
    def found(self) -> bool:
        """Whether one keeps the limit."""
        return any(one.planned is not None for one in self.tried)

    @property
    def late(self) -> bool:
        """Whether more tiles would have been looked at with more time."""
        return self.tiling is None or self.tiling.late

    @property
    def smallest_bytes(self) -> int | None:
        """The smallest peak that was measured, or predicted of what was not tried."""
        peaks = [o.missed.peak_bytes for o in self.tried if isinstance(o.missed, PlanMissedError)]
        if self.untried_bytes is not None:
            peaks.append(self.untried_bytes)
        return min(peaks, default=None)


def taken_of(best: Planned, attempts: Sequence[Attempt]) -> Planned:
    """The best plan with all attempts: of those that would do, it alone is taken."""
    last = best.attempts[-1]
    peak = format_bytes(best.made.measured.peak_bytes)
    other = f"refused: another plan is better ({peak} in {100 * last.extra_time:+.1f}% time)"
    marked = tuple(
        replace(one, outcome=other) if one.outcome == TAKEN and one is not last else one
        for one in attempts
    )
    return replace(best, attempts=marked)


def plans_of(tried: Sequence[Tried]) -> list[Planned]:
    """The plans that were found."""
    return [one.planned for one in tried if one.planned is not None]


def why_missed(
    tried: Sequence[Tried],
    tiles: TriedTiles,
    deadline: Deadline,
    budget_bytes: int,
    uncut: PeakBound | None,
    *,
    cut: bool,
    attempts: tuple[Attempt, ...],
) -> InfeasibleError | NoPlanFoundError:
    """Why no plan keeps a budget, with the smallest peaks that are known, of whole ops and of
    tiles (`cut`: whether they were allowed); with all `attempts`.

    Impossible is only what a bound says: where nothing may be cut that of whole ops, else `uncut`,
    which tiles cannot go below either. A search that found nothing proves nothing.
    """
    missed = _of_whole_ops([one for one in tried if one not in tiles.tried])
    if not cut:
        missed.attempts = attempts
        return missed
    impossible = isinstance(missed, InfeasibleError)
    smallest, reasons = tiles.smallest_bytes, () if tiles.tiling is None else tiles.tiling.reasons
    known = (
        ""
        if smallest is None
        else (f"the smallest peak found in tiles is about {format_bytes(smallest)}")
    )
    if impossible and uncut is not None and uncut.nbytes > budget_bytes:
        why = f"nor do tiles go below {format_bytes(uncut.nbytes)} ({uncut.reason})"
        return InfeasibleError("; ".join(filter(None, (str(missed), why, known))), attempts)
    if known:
        found = known
    elif tiles.late or not reasons:
        found = "no tiles were found that help"
    else:
        found = f"no tiles were found that help: {reasons[0]}"
    more_time_helps = tiles.late or (deadline.spent and not impossible)
    advice = "try a longer --time-limit" if more_time_helps else "try a higher --mem"
    of_whole = missed.found if isinstance(missed, PlanMissedError) else missed
    return NoPlanFoundError(
        f"no plan within {format_bytes(budget_bytes)} was found {said(deadline)}: "
        f"{found}; {advice} (whole ops: {of_whole})",
        attempts,
    )


def _of_whole_ops(tried: Sequence[Tried]) -> InfeasibleError | NoPlanFoundError:
    """The miss that came closest; one that is proved, if there is."""
    errors = [one.missed for one in tried if one.missed is not None]
    close = [error for error in errors if isinstance(error, PlanMissedError)]
    proved = [error for error in errors if isinstance(error, InfeasibleError)]
    if proved or not close:
        return (proved or errors)[0]
    return min(close, key=lambda error: error.peak_bytes)
