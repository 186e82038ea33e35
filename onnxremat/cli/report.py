"""Results as text for people and as plain data for machines."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import onnx

from onnxremat.cli.explain import attempts_text
from onnxremat.cli.tables import columns, table
from onnxremat.commands.attribution import MeasuredPeak
from onnxremat.commands.audit import Audit, Floor, HeldTensor
from onnxremat.commands.fitness import Check
from onnxremat.commands.rewrite import RewriteResult
from onnxremat.commands.timeline import Timeline
from onnxremat.core.text import printable
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

_HELD_SHOWN = 10
_ESTIMATED_SHOWN = _BEYOND_SHOWN = 3
_BEYOND_BYTES = 65536
_NAME_SHOWN = 48
_REGIONS_SHOWN = 4
_SIZES_SHOWN = 3
_LEFT_OUT = (onnx.ModelProto, StaticPlan, Timeline, Written, DataFile, ModelPair)


def as_json(result: Any) -> Any:
    """A result as data that `json.dumps` takes; enums are their values. Models and what is written
    to a file of its own are left out."""
    if is_dataclass(result) and not isinstance(result, type):
        plain: dict[str, Any] = {}
        for name in result.__dataclass_fields__:
            value = getattr(result, name)
            if not isinstance(value, _LEFT_OUT) and not callable(value):
                plain[name] = as_json(value)
        return _named_details(plain) if isinstance(result, RewriteResult) else plain
    if isinstance(result, Enum):
        return result.value
    if isinstance(result, Path):
        return str(result)
    if isinstance(result, Mapping):
        return {str(key): as_json(value) for key, value in result.items()}
    if isinstance(result, Iterable) and not isinstance(result, str):
        return [as_json(value) for value in result]
    return result


def _named_details(plain: dict[str, Any]) -> dict[str, Any]:
    """The details of a target under the key that it gives them; null for those of others."""
    details = plain.pop("details")
    keys = {info.details: info.name for info in TARGETS.values() if info.details}
    return plain | {k: details if name == plain["target"] else None for k, name in keys.items()}


def rewrite_text(result: RewriteResult) -> str:
    """What `rewrite` did, in about ten lines."""
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
    return table(rows)


def explained_text(result: RewriteResult) -> str:
    """The same, and every plan that was made."""
    return f"{rewrite_text(result)}\n\n{attempts_text(result.attempts)}"


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
        f"{_shown(region.outputs[0])} in "
        + " x ".join(f"{tiles} on axis {axis}" for axis, tiles in region.grid)
        + (" (edges kept for the next)" if region.carry else "")
        for region in tiling.regions[:_REGIONS_SHOWN]
    ]
    more = len(tiling.regions) - len(regions)
    parts = ["; ".join(regions) + (f" and {more} more" if more else "")]
    if tiling.recomputed:
        parts.append(f"made again in tiles: {', '.join(map(_shown, tiling.recomputed))}")
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


def check_text(found: Check) -> str:
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
    rows.append(("here", found.problem or "it opens and runs"))
    return table(rows)


def _tied(made: OptimizedFor) -> bool:
    return made.layout_width is not None or made.packed


def _kind(made: OptimizedFor) -> str:
    if made.layout_width is None:
        return "any processor; weights are packed as by the one that made it"
    return f"processors with blocks of {made.layout_width} channels"


def _shapes(sizes: Mapping[str, tuple[int, ...]]) -> str:
    """The first sizes of inputs."""
    first = itertools.islice(sizes.items(), _SIZES_SHOWN)
    shown = [f"{_shown(name)} {list(shape)}" for name, shape in first]
    more = len(sizes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def verification_text(result: Verification) -> str:
    """What `verify` measured."""
    resident = result.original.method is PeakMethod.RESIDENT
    name = "resident peak" if resident else "activation peak"
    if result.process:
        name = "memory of the process"
    rows = [
        (name, f"{format_bytes(result.original.peak_bytes)} original"),
        ("", f"{format_bytes(result.rewritten.peak_bytes)} rewritten"),
    ]
    return table(rows + _verification_rows(result))


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


def audits_text(result: Audit | Sequence[Audit]) -> str:
    """One audit, or several, each below the name of its model."""
    if isinstance(result, Audit):
        return audit_text(result)
    return "\n\n".join(f"{printable(str(one.model))}\n{audit_text(one)}" for one in result)


def audit_text(result: Audit) -> str:
    """What a model needs and where its peak comes from."""
    peak = result.peak
    rows = [
        ("nodes", f"{result.nodes} ({result.ops} compute; {result.unread_values} unread values)"),
        ("weights", format_bytes(result.weight_bytes)),
        ("inputs", format_bytes(result.input_bytes)),
        ("activation peak", f"{format_bytes(result.original_peak_bytes)} measured"),
    ]
    if result.released_peak_bytes != result.original_peak_bytes:
        rows.append(
            ("", f"{format_bytes(result.released_peak_bytes)} measured, no unread value held")
        )
    rows.append(("", f"{format_bytes(peak.nbytes)} by the model of memory"))
    own = f"{peak.step + 1} of {peak.steps}: {_shown(peak.op)} ({peak.op_type})"
    if result.measured_peak is None:
        rows.append(("at step", own))
        if peak.workspace_bytes:
            rows.append(("workspace there", format_bytes(peak.workspace_bytes)))
    else:
        rows.extend(_measured_rows(result.measured_peak))
        rows.append(("by the model at", f"step {own}"))
    rows.extend(estimated_rows(result.estimated, result.estimated_reason))
    rows.append(("lower bound", _floor(result.floor)))
    rows.append(("reordering alone", _reordered(result)))
    rows.append(("in tiles", _in_tiles(result.tiling)))
    if result.limit_bytes is not None:
        rows.append(
            ("limit", f"{format_bytes(result.limit_bytes)}: {_verdict(result, result.limit_bytes)}")
        )
    elif result.limit_text is not None:
        rows.append(("limit", f"the smallest peak: {_smallest(result)}"))
    measured = result.measured_peak
    if measured is not None and measured.op is not None:
        return "\n\n".join([table(rows), _measured_table(measured)])
    return "\n\n".join([table(rows), _held_table(peak.held)])


def _measured_rows(measured: MeasuredPeak) -> list[tuple[str, str]]:
    """Where the measured peak is, if it is not where the model of memory has its own."""
    rows = []
    if measured.op is None:
        rows.append(("at", f"an unknown node: {measured.reason}"))
    else:
        rows.append(("at", f"{_shown(measured.op)} ({measured.op_type}), by counting node by node"))
        if measured.workspace_bytes:
            counted = format_bytes(measured.workspace_bytes)
            modelled = format_bytes(measured.modelled_workspace_bytes)
            rows.append(("workspace there", f"{counted} counted, {modelled} by the model"))
    beyond = [
        f"{format_bytes(one.beyond_bytes)} made by {_shown(one.made_by)}"
        for one in sorted(measured.held, key=lambda one: -one.beyond_bytes)[:_BEYOND_SHOWN]
        if one.beyond_bytes > _BEYOND_BYTES
    ]
    if beyond:
        rows.append(("not in the model", ", ".join(beyond)))
    unexplained = measured.unexplained_bytes
    if measured.op is None or measured.reason:
        more = "more" if unexplained >= 0 else "less"
        why = f" than was seen there: {measured.reason}" if measured.op is not None else ""
        rows.append(("unexplained", f"{format_bytes(abs(unexplained))} {more}{why}"))
    return rows


def estimated_rows(nodes: Sequence[str], reason: str) -> list[tuple[str, str]]:
    """Which ops' workspace is no measured figure, if there are any."""
    if not nodes:
        return []
    more = len(nodes) - _ESTIMATED_SHOWN
    named = ", ".join(map(_shown, nodes[:_ESTIMATED_SHOWN])) + (
        f" and {more} more" if more > 0 else ""
    )
    return [("estimated", f"the workspace of {named} ({reason})")]


def _measured_table(measured: MeasuredPeak) -> str:
    header = ("held at the peak", "counted", "by the model", "made by")
    lines = [
        (_shown(", ".join(one.values)), format_bytes(one.nbytes), format_bytes(one.modelled_bytes),
         f"{_shown(one.made_by)} ({one.op_type})")
        for one in measured.held[:_HELD_SHOWN]
    ]  # fmt: skip
    table = columns([header, *lines])
    rest = measured.held[_HELD_SHOWN:]
    if rest:
        table += f"\nand {len(rest)} smaller, {format_bytes(sum(t.nbytes for t in rest))} together"
    return table


def _floor(floor: Floor) -> str:
    if floor.refuted:
        return (
            f"none is proved: the model takes less than the {format_bytes(floor.nbytes)} that "
            f"{floor.reason} would"
        )
    return f"{format_bytes(floor.nbytes)}: {floor.reason}"


def _reordered(result: Audit) -> str:
    reached = format_bytes(result.reordered_peak_bytes)
    if result.floor.refuted or result.measured_peak is not None:
        return f"{reached} by the model of memory, which the run does not follow"
    if result.reordered_peak_bytes == result.reordered_bound_bytes:
        own = result.reordered_peak_bytes == result.peak.nbytes
        return f"{reached}, the smallest of any order (proved)" + (
            ": its own is one" if own else ""
        )
    return f"{reached} or less; no order goes below {format_bytes(result.reordered_bound_bytes)}"


def _in_tiles(tiling: TilingPlan) -> str:
    if not tiling.regions:
        return tiling.reasons[0] if tiling.reasons else "no less"
    regions = f"{len(tiling.regions)} region" + ("s" if len(tiling.regions) > 1 else "")
    return (
        f"about {format_bytes(tiling.peak_bytes)} in {100 * tiling.extra_time:+.1f}% time, in "
        f"{regions} (predicted)"
    )


def _verdict(result: Audit, limit: int) -> str:
    if result.original_peak_bytes <= limit:
        return "met as it is"
    if result.floor.nbytes > limit and not result.floor.refuted:
        tiles = ": tiles may meet it" if result.tiling.peak_bytes <= limit else ""
        return f"impossible for whole ops (below the lower bound){tiles}"
    if result.reordered_peak_bytes <= limit:
        return "reordering alone meets it"
    return "above the lower bound: try `onnxremat rewrite`"


def _smallest(result: Audit) -> str:
    """What is known of it without planning."""
    known = min(result.reordered_peak_bytes, result.tiling.peak_bytes, result.released_peak_bytes)
    return f"{format_bytes(known)} or less; `onnxremat rewrite --mem min` looks for it"


def _held_table(held: Sequence[HeldTensor]) -> str:
    header = ("held at the peak", "size", "shape", "made by", "last read by")
    lines = [
        (_shown(t.name), format_bytes(t.nbytes), f"{t.dtype}[{','.join(map(str, t.shape))}]",
         _shown(t.made_by), _shown(t.last_read_by or "(graph output)"))
        for t in held[:_HELD_SHOWN]
    ]  # fmt: skip
    table = columns([header, *lines])
    if len(held) > _HELD_SHOWN:
        rest = sum(t.nbytes for t in held[_HELD_SHOWN:])
        table += f"\nand {len(held) - _HELD_SHOWN} smaller, {format_bytes(rest)} together"
    return table


def _shown(name: str) -> str:
    """A name as a table has room for it; exporters write some that are hundreds of letters long."""
    name = printable(name)
    half = _NAME_SHOWN // 2
    return name if len(name) <= _NAME_SHOWN else f"{name[:half]}...{name[-half:]}"
