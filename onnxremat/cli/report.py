"""Results as text for people and as plain data for machines."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import onnx

from onnxremat.cli.explain import attempts_text
from onnxremat.cli.schemas import schema_name
from onnxremat.cli.tables import shown_name, table
from onnxremat.commands.fitness import Check
from onnxremat.commands.rewrite import RewriteResult
from onnxremat.commands.timeline import Timeline
from onnxremat.core.units import format_bytes, format_seconds
from onnxremat.importer import open_inputs
from onnxremat.ort.measuring.compare import Rounding
from onnxremat.ort.measuring.figures import SessionFigures
from onnxremat.ort.measuring.measure import PeakMethod
from onnxremat.ort.outside import SUFFIX, DataFile, ModelPair
from onnxremat.ort.recipe import ExecutionOrder
from onnxremat.ort.record import OptimizedFor
from onnxremat.target_table import TARGETS
from onnxremat.targets.static_plan import StaticPlan
from onnxremat.targets.stock_variants import Written
from onnxremat.tiling import TilingPlan
from onnxremat.verification import Verification
from onnxremat_rewriters.substitutes import Replaced

_ESTIMATED_SHOWN = 3
_PATHS = ("written", "", "open it with")
"""Labels of the rows that have paths."""
_REGIONS_SHOWN = 4
_SIZES_SHOWN = 3
FOR_RECIPE = (
    "onnxremat.open_session, or the session options of its recipe: with others it may take more "
    "than the original"
)
"""What files of a recipe are opened with."""
_LEFT_OUT = (onnx.ModelProto, StaticPlan, Timeline, Written, DataFile, ModelPair)


def as_json(result: Any) -> Any:
    """A result as data that `json.dumps` takes; enums are their values, and what is not a number is
    None, for JSON has no such numbers. Models and what is written to a file of its own are left
    out."""
    if is_dataclass(result) and not isinstance(result, type):
        plain = {name: as_json(getattr(result, name)) for name in told_fields(type(result))}
        return _named_details(plain) if isinstance(result, RewriteResult) else plain
    if isinstance(result, Mapping):
        return {str(key): as_json(value) for key, value in result.items()}
    if isinstance(result, Iterable) and not isinstance(result, str | Enum):
        return [as_json(value) for value in result]
    return _as_plain(result)


def _as_plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def told_fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that `as_json` tells."""
    hints = get_type_hints(kind)
    return tuple(one.name for one in fields(kind) if not _left_out(hints[one.name]))


def _left_out(hint: Any) -> bool:
    kinds = (hint, *get_args(hint))
    return any(isinstance(one, type) and issubclass(one, _LEFT_OUT) for one in kinds)


def json_document(command: str, result: Any) -> dict[str, Any]:
    """What a command prints with --json, as `schemas.schema_text` describes it."""
    plain = as_json(result)
    if not isinstance(plain, dict):
        plain = {command: plain}
    return {"schema": schema_name(command)} | plain


def _named_details(plain: dict[str, Any]) -> dict[str, Any]:
    """The details of a target under the key that it gives them; null for those of others."""
    details = plain.pop("details")
    keys = {info.details: info.name for info in TARGETS.values() if info.details}
    return plain | {k: details if name == plain["target"] else None for k, name in keys.items()}


def rewrite_text(result: RewriteResult, width: int | None = None) -> str:
    """What `rewrite` did, in about ten lines, of `width` columns at most (None: any)."""
    info = TARGETS[result.target]
    of_target = info.kind.reports(result)
    share = 100 * result.rewritten.peak_bytes / max(1, result.original.peak_bytes)
    beside = f"; {of_target.beside}" if of_target.beside else ""
    rows = [
        ("limit", _limit(result)),
        (
            result.figure.split(" with ", maxsplit=1)[0],
            f"{format_bytes(result.original.peak_bytes)} original{_in_default_order(result)}",
        ),
    ]
    if result.released.peak_bytes != result.original.peak_bytes:
        rows.append(
            ("", f"{format_bytes(result.released.peak_bytes)} released (no unread value is held)")
        )
    rows.append(
        ("", f"{format_bytes(result.rewritten.peak_bytes)} rewritten ({share:.1f}%{beside})")
    )
    rows.extend(of_target.rows)
    if result.static is not None:
        rows.append(("static plan", _static(result.static)))
    rows.extend(_change_rows(result))
    if result.plan.one_pass and of_target.planned:
        rows.append(("planned time", _planned_time(result)))
    if result.verification is not None:
        rows.extend(_verification_rows(result.verification))
    else:
        rows.append(("verified", "no (--no-verify)"))
    if result.stopped:
        rows.append(("stopped", "by Ctrl-C: this is the best plan found until then"))
    if result.output is not None:
        rows.append(("written", str(result.output)))
        if result.data is not None:
            rows.append(("", f"{result.output}{SUFFIX}"))
        if result.plan_output is not None:
            rows.append(("", str(result.plan_output)))
        rows.append(("open it with", of_target.opened))
    return table(rows, width, paths=_PATHS)


def explained_text(result: RewriteResult, width: int | None = None) -> str:
    """The same, and every plan that was made."""
    return f"{rewrite_text(result, width)}\n\n{attempts_text(result.attempts, width)}"


def _change_rows(result: RewriteResult) -> list[tuple[str, str]]:
    """What is another in the file, and what follows for other sizes."""
    rows = [("recomputed", f"{result.recomputed} executions beside {result.nodes_before} nodes")]
    if result.replaced:
        rows.append(("replaced", _replaced(result.replaced)))
    if result.tiling is not None:
        rows.append(("tiled", _tiled(result.tiling)))
    if result.sizes:
        rows.append(("sizes", _sizes(result)))
    rows.extend(estimated_rows(result.estimated, result.estimated_reason))
    return rows


def _replaced(replaced: Sequence[Replaced]) -> str:
    kinds = Counter((one.op_type, one.exact) for one in replaced)
    return ", ".join(
        f"{count} {op_type} ({'exact' if exact else 'rounds differently'})"
        for (op_type, exact), count in kinds.items()
    )


def _in_default_order(result: RewriteResult) -> str:
    """Said of an original whose nodes do not run in the order of the file."""
    mode = result.recipe.execution_order
    return " (in ONNX Runtime's default order)" if mode is ExecutionOrder.DEFAULT else ""


def _tiled(tiling: TilingPlan) -> str:
    """Which regions, in how many tiles of which axes, and what is made again in each."""
    regions = [
        f"{shown_name(region.outputs[0])} in "
        + " x ".join(f"{tiles} on axis {axis}" for axis, tiles in region.grid)
        + (" (edges kept for the next)" if region.carry else "")
        + (" (left in strips)" if region.outputs[0] in region.opened else "")
        for region in tiling.regions[:_REGIONS_SHOWN]
    ]
    more = len(tiling.regions) - len(regions)
    parts = ["; ".join(regions) + (f" and {more} more" if more else "")]
    if tiling.recomputed:
        parts.append(f"made again in tiles: {', '.join(map(shown_name, tiling.recomputed))}")
    threads = f"{tiling.threads} thread" + ("s" if tiling.threads > 1 else "")
    parts.append(f"{tiling.nodes_added} nodes more; for {threads}")
    return "; ".join(parts)


def _sizes(result: RewriteResult) -> str:
    """What the file does at other sizes than the planned ones."""
    planned = _shapes(result.sizes)
    if result.any_size:
        return f"{planned}: others run, too, but the limit holds for these"
    how = "checked when it runs" if open_inputs(result.model) else "declared in the file"
    return f"{planned}, {how}: any runtime refuses others"


def _planned_time(result: RewriteResult) -> str:
    """The time with what is known of it, and of which problem; of the peak, if the smallest was
    asked for. Nothing is proved of tiles: others may be better."""
    plan = result.plan
    proved = plan.proved and result.tiling is None
    if result.limit_bytes is None:
        known = ["smallest peak proved" if proved else "smallest peak found"]
    elif result.tiling is not None:
        known = ["feasible"]
    else:
        known = [plan.status.value]
        if not proved and plan.time_bound > plan.one_pass:
            known.append(f"none below {100 * plan.extra_time_bound:+.1f}%")
    known.append(f"planner {plan.planner}" + ("" if result.tiling is None else ", in tiles"))
    optimal = plan.proved
    said = plan.scope and result.tiling is None and (plan.extra_time > 0 or not optimal)
    scope = f"; {plan.scope}" if said else ""
    return f"{100 * result.extra_time:+.1f}% ({', '.join(known)}{scope})"


def _static(plan: StaticPlan) -> str:
    over = 100 * (plan.arena_bytes / max(plan.live_peak_bytes, 1) - 1)
    return (
        f"arena of {format_bytes(plan.arena_bytes)}, {over:.1f}% above the live peak; none below "
        f"{format_bytes(plan.bound_bytes)} for this order ({plan.method})"
    )


def _limit(result: RewriteResult) -> str:
    if result.limit_bytes is None:
        return f"the smallest {result.figure}"
    own = f" ({result.limit_text} of the original's)" if result.limit_text.endswith("%") else ""
    return f"{format_bytes(result.limit_bytes)}{own}, {result.figure}"


def check_text(found: Check, width: int | None = None) -> str:
    """What a file is for, and what is here."""
    record, made = found.record, found.optimized
    ours = found.runtime_version
    here = "the same here" if record.runtime_version == ours else f"here {ours}"
    rows = [
        ("made for", "any processor" if made is None or not _tied(made) else _kind(made)),
        ("runtime", f"measured with ONNX Runtime {record.runtime_version}; {here}"),
        ("threads", "the runtime's own number" if record.threads is None else f"{record.threads}"),
        ("sizes", _shapes(record.input_shapes)),
        ("memory", f"{format_bytes(record.measured_peak_bytes)} there ({record.figure})"),
    ]
    if found.data_bytes:
        rows.append(("weights", f"{format_bytes(found.data_bytes)} beside it"))
    if found.packed_alike is not None:
        alike = "as they are in the file: loading packs none"
        otherwise = "otherwise: loading packs its own, in memory"
        rows.append(("packed here", alike if found.packed_alike else otherwise))
    if record.of_recipe:
        rows.append(("open it with", FOR_RECIPE))
    rows.append(("here", found.problem or "it opens and runs"))
    return table(rows, width)


def _tied(made: OptimizedFor) -> bool:
    return made.layout_width is not None or made.packed


def _kind(made: OptimizedFor) -> str:
    if made.layout_width is None:
        return "any processor; weights are packed as by the one that made it"
    return f"processors with blocks of {made.layout_width} channels"


def _shapes(sizes: Mapping[str, tuple[int, ...]]) -> str:
    """The first sizes of inputs."""
    first = itertools.islice(sizes.items(), _SIZES_SHOWN)
    shown = [f"{shown_name(name)} {list(shape)}" for name, shape in first]
    more = len(sizes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def verification_text(result: Verification, width: int | None = None) -> str:
    """What `verify` measured."""
    resident = result.original.method is PeakMethod.RESIDENT
    name = "resident peak" if resident else "activation peak"
    if result.process:
        name = "memory of the process"
    rows = [
        (name, f"{format_bytes(result.original.peak_bytes)} original"),
        ("", f"{format_bytes(result.rewritten.peak_bytes)} rewritten"),
    ]
    return table(rows + _verification_rows(result), width)


def _verification_rows(result: Verification) -> list[tuple[str, str]]:
    same = (
        "identical bit for bit" if result.identical else f"DIFFER: {len(result.different_outputs)}"
    )
    if not result.bits_compared:
        same = "ops were replaced by others that round differently"
    elif result.identical:
        same += f" to {result.compared_with or 'the original under the same session options'}"
    order = "as planned" if result.order_as_planned else "not as planned; measured all the same"
    return [
        *_figure_rows(result.figures),
        ("measured time", _times(result)),
        ("outputs", same),
        ("executed order", order),
        *_rounding_rows(result.rounding),
    ]  # fmt: skip


def _figure_rows(figures: Sequence[SessionFigures]) -> list[tuple[str, str]]:
    """A saving in one figure may be paid for in another, and session options alone may do."""
    named: dict[str, Callable[[SessionFigures], str]] = {
        "activations": lambda one: format_bytes(one.activations_bytes),
        "runs": lambda one: format_bytes(one.runs_bytes),
        "loading": lambda one: (
            f"{format_bytes(one.loaded_bytes)} in {format_seconds(one.load_seconds)}"
        ),
        "process": lambda one: format_bytes(one.process_bytes),
        "malloc set": lambda one: format_bytes(one.returning_bytes),
    }
    return [
        (name, ", ".join(f"{figure(one)} {one.opened}" for one in figures))
        for name, figure in named.items()
        if figures
    ]


def _times(result: Verification) -> str:
    if result.time_ratio is None:
        return "not measured: it is the original"
    return (
        f"{format_seconds(result.original_seconds or 0)} original, "
        f"{100 * (result.time_ratio - 1):+.1f}% rewritten (medians of runs taken in turns)"
    )


def _rounding_rows(rounding: Rounding | None) -> list[tuple[str, str]]:
    if rounding is None:
        return []
    return [
        ("rounding", f"up to {rounding.worst:.1e} of the largest value, in {rounding.name}; "
                     f"{rounding.median:.1e} in the median output")
    ]  # fmt: skip


def estimated_rows(nodes: Sequence[str], reason: str) -> list[tuple[str, str]]:
    """Which ops' workspace is no measured figure, if there are any."""
    if not nodes:
        return []
    more = len(nodes) - _ESTIMATED_SHOWN
    named = ", ".join(map(shown_name, nodes[:_ESTIMATED_SHOWN])) + (
        f" and {more} more" if more > 0 else ""
    )
    return [("estimated", f"the workspace of {named} ({reason})")]
