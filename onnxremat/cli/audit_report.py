"""An Audit as text for people: where memory goes, and what could be done about it."""

from collections.abc import Sequence

from onnxremat.cli.memory_chart import memory_chart
from onnxremat.cli.report import FOR_RECIPE, estimated_rows
from onnxremat.cli.tables import columns, paragraph, shown_name, table
from onnxremat.commands.attribution import MeasuredPeak
from onnxremat.commands.audit import Audit, Floor, HeldTensor
from onnxremat.commands.audits import Audits
from onnxremat.core.text import printable
from onnxremat.core.units import format_bytes
from onnxremat.ort.measuring.figures import ORIGINAL, SessionFigures
from onnxremat.tiling import TilingPlan

_HELD_SHOWN = 10
_BEYOND_SHOWN = 3
_BEYOND_BYTES = 65536


def audits_text(result: Audits, width: int | None = None, *, blocks: bool = True) -> str:
    """Several audits, each below the name of its model."""
    each = [
        f"{printable(str(one.model))}\n{audit_text(one, width, blocks=blocks)}"
        for one in result.audits
    ]
    return "\n\n".join(each)


def audit_text(result: Audit, width: int | None = None, *, blocks: bool = True) -> str:
    """What a model needs and where its peak comes from, in `width` columns at most (None: any).
    `blocks`: whether the picture of its memory may have other characters than ASCII."""
    peak = result.peak
    rows = [
        *_rewritten_rows(result),
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
    own = f"{peak.step + 1} of {peak.steps}: {shown_name(peak.op)} ({peak.op_type})"
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
            (
                "activation limit",
                f"{format_bytes(result.limit_bytes)}: {_verdict(result, result.limit_bytes)}",
            )
        )
    elif result.limit_text is not None:
        rows.append(("limit", f"the smallest peak: {_smallest(result)}"))
    if result.sessions:
        rows.extend(_default_rows(result))
    elif result.sessions_reason:
        rows.append(("default options", f"not measured: {result.sessions_reason}"))
    measured = result.measured_peak
    live = result.timeline.live_bytes
    where = f"peak: {shown_name(peak.op)} ({peak.op_type})"
    chart = memory_chart(live, where, width, blocks=blocks)
    title = paragraph(f"held at each of {len(live)} steps, by the model of memory", width)
    chart = f"{title}\n{chart}"
    parts = [table(rows, width), chart]
    if measured is not None and measured.op is not None:
        parts.append(_measured_table(measured, width))
    else:
        parts.append(_held_table(peak.held, width))
    if result.sessions:
        parts.append(_sessions_table(result.sessions, width))
    return "\n\n".join(parts)


def _rewritten_rows(result: Audit) -> list[tuple[str, str]]:
    """What to know of a file that onnxremat wrote."""
    if result.of_recipe is None:
        return []
    if result.of_recipe:
        return [("rewritten", f"to be opened with {FOR_RECIPE}")]
    beside = "`onnxremat audit ORIGINAL --html PAGE --with FILE` shows both in one picture"
    return [("rewritten", f"for default options: {beside}")]


def _default_rows(result: Audit) -> list[tuple[str, str]]:
    """The resident peak of today, and whether that or a session option keeps the limit."""
    today, limit = result.sessions[0], result.sessions_limit_bytes
    rows = [
        (
            "resident peak",
            f"{format_bytes(today.runs_bytes)} above the loaded default session: what `rewrite "
            "--mem` limits unless another --session is asked for",
        )
    ]
    if limit is not None:
        kept = [one for one in result.sessions if one.runs_bytes <= limit]
        if today in kept:
            said = "met as it is"
        elif kept:
            said = f"{_opened(kept[0])} keeps it ({kept[0].option}), with no other file"
        else:
            said = "kept by no session option alone: try `onnxremat rewrite`"
        rows.append(("resident limit", f"{format_bytes(limit)}: {said}"))
    return rows


def _opened(one: SessionFigures) -> str:
    """How a session was opened, without saying of what."""
    return one.opened.removeprefix(ORIGINAL).strip() or "default options"


def _sessions_table(sessions: Sequence[SessionFigures], width: int | None) -> str:
    header = ("session today", "runs", "loading", "process", "set in Python")
    lines = [
        (_opened(one), format_bytes(one.runs_bytes), format_bytes(one.loaded_bytes),
         format_bytes(one.process_bytes), one.option or "nothing")
        for one in sessions
    ]  # fmt: skip
    return columns([header, *lines], width, words=(0, 4))


def _measured_rows(measured: MeasuredPeak) -> list[tuple[str, str]]:
    """Where the measured peak is, if it is not where the model of memory has its own."""
    rows = []
    if measured.op is None:
        rows.append(("at", f"an unknown node: {measured.reason}"))
    else:
        rows.append(
            ("at", f"{shown_name(measured.op)} ({measured.op_type}), by counting node by node")
        )
        if measured.workspace_bytes:
            counted = format_bytes(measured.workspace_bytes)
            modelled = format_bytes(measured.modelled_workspace_bytes)
            rows.append(("workspace there", f"{counted} counted, {modelled} by the model"))
    beyond = [
        f"{format_bytes(one.beyond_bytes)} made by {shown_name(one.made_by)}"
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


def _measured_table(measured: MeasuredPeak, width: int | None) -> str:
    header = ("held at the peak", "counted", "by the model", "made by")
    lines = [
        (shown_name(", ".join(one.values)), format_bytes(one.nbytes),
         format_bytes(one.modelled_bytes), f"{shown_name(one.made_by)} ({one.op_type})")
        for one in measured.held[:_HELD_SHOWN]
    ]  # fmt: skip
    text = columns([header, *lines], width, names=(0, 3))
    rest = measured.held[_HELD_SHOWN:]
    if rest:
        text += f"\nand {len(rest)} smaller, {format_bytes(sum(t.nbytes for t in rest))} together"
    return text


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


def _held_table(held: Sequence[HeldTensor], width: int | None) -> str:
    header = ("held at the peak", "size", "shape", "made by", "last read by")
    lines = [
        (shown_name(t.name), format_bytes(t.nbytes), f"{t.dtype}[{','.join(map(str, t.shape))}]",
         shown_name(t.made_by), shown_name(t.last_read_by or "(graph output)"))
        for t in held[:_HELD_SHOWN]
    ]  # fmt: skip
    text = columns([header, *lines], width, names=(0, 3, 4))
    if len(held) > _HELD_SHOWN:
        rest = sum(t.nbytes for t in held[_HELD_SHOWN:])
        text += f"\nand {len(held) - _HELD_SHOWN} smaller, {format_bytes(rest)} together"
    return text
