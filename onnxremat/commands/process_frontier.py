"""Memory of the process against time, measured, over what people run today.

Where `frontier` tells what planners state, here each point is a file that was made, opened and run
with default options. The baseline is the original with default options; the session option that
takes least of it is a point too, since nobody has to rewrite a model for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.commands.files import check_outputs
from onnxremat.commands.rewrite import RewriteResult, rewrite
from onnxremat.core.errors import ModelError, NoPlanFoundError, UsageError
from onnxremat.core.undominated import undominated
from onnxremat.importer import LoadedModel, load
from onnxremat.options import Options
from onnxremat.ort.measuring.figures import ORIGINAL, SESSION_OPTIONS, SessionFigures
from onnxremat.ort.measuring.measure import in_memory, measure_times
from onnxremat.stages import NOTE, ProgressReport, silent
from onnxremat.subject import feed_for
from onnxremat.targets.stock_target import how

DEFAULT_SLOWDOWNS = (0.02, 0.10, 0.20, 0.35)


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A session: `opened` says of what, `how` what is in the file. `process_bytes` is what opening
    it and a run add to the process, `loaded_bytes` of that what opening does; `extra_time` the
    share of the original's time that it takes more."""

    opened: str
    how: str
    process_bytes: int
    loaded_bytes: int
    extra_time: float


@dataclass(frozen=True)
class ProcessFrontier:
    """The points, the original first. `best` has no point beside which another has no more memory
    and no more time, least memory first. `missed`: what was asked for in vain, and why."""

    model: Path
    portable: bool
    threads: int | None
    points: tuple[MeasuredPoint, ...]
    best: tuple[MeasuredPoint, ...]
    missed: dict[str, str]

    @property
    def original(self) -> MeasuredPoint:
        """What people run today."""
        return self.points[0]


def process_frontier(
    model: Path,
    options: Options | None = None,
    *,
    slowdowns: Sequence[float] = DEFAULT_SLOWDOWNS,
    output: Path | None = None,
    progress: ProgressReport = silent,
) -> ProcessFrontier:
    """Make the file of least memory for each of `slowdowns`, shares of the original's time, and
    measure it; none of them is kept.

    `options` are those of `rewrite` with the session "stock" but for `mem_of` and `max_slowdown`.
    `output` is a file that the caller is going to write, as in `frontier`. Each point takes as long
    as a rewrite. Raises UsageError or ModelError.
    """
    options = options or Options(session="stock")
    if not options.target.optimizes:
        raise UsageError("only files for default sessions are measured in whole processes")
    loaded = load(model)
    check_outputs(loaded, options.inputs, (output,))
    found: dict[float, RewriteResult] = {}
    missed: dict[str, str] = {}
    asked_for = sorted(set(slowdowns))
    for number, slowdown in enumerate(asked_for, start=1):
        said = _allowed(slowdown)
        prefix = f"file {number} of {len(asked_for)}, {said} time"

        def told(stage: str, detail: str = "", prefix: str = prefix) -> None:
            progress(stage if stage == NOTE else f"{prefix}: {stage}", detail)

        asked = replace(options, mem_of="process", max_slowdown=slowdown, verify=True)
        try:
            found[slowdown] = rewrite(model, "min", asked, progress=told)
        except NoPlanFoundError as error:
            missed[said] = str(error)
    if not found:
        raise ModelError("; ".join(f"{said}: {why}" for said, why in missed.items()))
    first = next(iter(found.values()))
    points = [*_today(loaded, options, first), *map(_point, found, found.values())]
    best = undominated(points, lambda p: (p.process_bytes, p.extra_time))
    return ProcessFrontier(model, options.portable, options.threads, tuple(points), best, missed)


def _allowed(slowdown: float) -> str:
    return f"at most {100 * slowdown:+.0f}%"


def _today(loaded: LoadedModel, options: Options, first: RewriteResult) -> list[MeasuredPoint]:
    """The original with default options, and with the option that takes least."""
    assert first.verification is not None
    original, best, _ = first.verification.figures
    words = best.opened.removeprefix(f"{ORIGINAL} ")
    feed = feed_for(loaded, options)
    source = in_memory(feed.as_it_came.model, feed.as_it_came.base_dir)
    recipes = [first.recipe, replace(first.recipe, **SESSION_OPTIONS[words])]
    times = measure_times([source, source], feed.inputs, recipes)
    return [_of(original, "default options", 0.0), _of(best, words, times.ratios[1] - 1)]


def _of(figures: SessionFigures, how: str, extra_time: float) -> MeasuredPoint:
    return MeasuredPoint(ORIGINAL, how, figures.process_bytes, figures.loaded_bytes, extra_time)


def _point(slowdown: float, result: RewriteResult) -> MeasuredPoint:
    """The file that was made for a slowdown."""
    assert result.verification is not None
    _, _, figures = result.verification.figures
    ratio = result.verification.time_ratio
    return MeasuredPoint(
        f"file, {_allowed(slowdown)}",
        how(result),
        figures.process_bytes,
        figures.loaded_bytes,
        0.0 if ratio is None else ratio - 1,
    )
