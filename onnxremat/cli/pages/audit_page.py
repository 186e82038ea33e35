"""The page of an audit: where memory goes step by step, what is held at the peak, and what to do.

What it says in words and tables is in the page as text; only the picture needs its script.
"""

from collections.abc import Iterator

from onnxremat.cli.pages.payload import payload
from onnxremat.cli.pages.shell import named, page, shown, table
from onnxremat.commands.audit import Floor
from onnxremat.commands.default_session import DEFAULT_SESSION
from onnxremat.commands.inspection import PROCESS, Inspection, Lever, Portrait
from onnxremat.commands.timeline import Stacking, Timeline
from onnxremat.core.units import format_bytes, format_seconds
from onnxremat.ort.measuring.session_memory import SessionMemory

HELD_SHOWN = 40
"""Rows of a table of what is held at a peak; the rest is one row."""

_SESSIONS = {
    DEFAULT_SESSION: "default options",
    "as written": "options of a recipe (nodes as written)",
}
"""What a session is called on the page."""


def audit_html(inspection: Inspection) -> str:
    """The page of an inspection, one file."""
    first, second = inspection.first, inspection.second
    title = f"Memory of {first.file.name}"
    if second is not None:
        title += f" and {second.file.name}"
    body = [
        f"<h1>{shown(title)}</h1>",
        *_summary(inspection),
        *_picture(inspection),
        *_held(inspection),
        *_process(inspection),
        *_levers(inspection),
        *_bound(inspection),
        *_notes(inspection),
    ]
    return page(title, body, ("timeline.js",), payload(inspection))


def _portraits(inspection: Inspection) -> list[Portrait]:
    return [inspection.first, *([inspection.second] if inspection.second else [])]


def _summary(inspection: Inspection) -> Iterator[str]:
    audit, process = inspection.audit, inspection.first.process
    unread = f", {audit.unread_values} values that nobody reads" if audit.unread_values else ""
    yield (
        f'<p class="soft">{audit.nodes:,} nodes, {audit.ops:,} of them compute{unread}; '
        f"{format_bytes(audit.weight_bytes)} of weights, {format_bytes(audit.input_bytes)} of "
        f"inputs; {_threads(audit.threads)}.</p>"
    )
    cards = [
        (process.grown_bytes, "added to the process by a session with default options, loading "
                              "and runs together (measured)"),
        (process.loaded_bytes, "of that is held once the model is loaded, before any run "
                               "(measured)"),
        (audit.original_peak_bytes, "held by one run at its peak: values and workspace of kernels, "
                                    "nodes as written (measured)"),
    ]  # fmt: skip
    if not audit.floor.refuted:
        cards.append((audit.floor.nbytes, "no schedule of whole nodes goes below (proved)"))
    yield '<ul class="cards">'
    for nbytes, said in cards:
        yield f"<li><b>{format_bytes(nbytes)}</b><span>{said}</span></li>"
    yield "</ul>"
    yield from _compared(inspection)
    best = [_best(inspection.levers, figure) for figure in (PROCESS, "activations")]
    for lever in filter(None, best):
        of = "The process with no other model" if lever.figure == PROCESS else "The peak of a run"
        yield (
            f"<p><b>{of}:</b> at least with {shown(lever.name)}, "
            f"{format_bytes(lever.after_bytes or 0)} instead of "
            f"{format_bytes(lever.before_bytes)} {_tag(lever)} "
            f"<code>{shown(lever.how)}</code></p>"
        )


def _compared(inspection: Inspection) -> Iterator[str]:
    """Before and after, or what would make an after."""
    after = inspection.second
    if after is None:
        yield (
            "<p><b>The process with a rewritten model:</b> <code>onnxremat rewrite MODEL --mem min "
            "--mem-of process</code> makes files, measures them, and keeps the one that takes "
            "least.</p>"
        )
        return
    before = inspection.first.process.grown_bytes
    yield (
        f"<p><b>{shown(after.file.name)}</b> adds {format_bytes(after.process.grown_bytes)} to the "
        f"process, {shown(inspection.first.file.name)} {format_bytes(before)}, each with "
        'default options <span class="tag measured">measured</span></p>'
    )


def _best(levers: tuple[Lever, ...], figure: str) -> Lever | None:
    """The one that leaves least, if any leaves less than there is."""
    able = [
        one for one in levers
        if one.figure == figure and one.after_bytes is not None
        and one.after_bytes < one.before_bytes
    ]  # fmt: skip
    return min(able, key=lambda one: one.after_bytes or 0, default=None)


def _threads(threads: int | None) -> str:
    if threads is None:
        return "the runtime's own number of threads"
    return f"{threads} thread" + ("s" if threads > 1 else "")


def _picture(inspection: Inspection) -> Iterator[str]:
    portraits = _portraits(inspection)
    yield '<h2 id="steps">Memory over the execution</h2>'
    yield (
        '<p class="soft">Each step is one node, in the order in which the session runs them. '
        "Drag to look closer, double-click for all; with the keyboard: arrows, Home, End, "
        "<b>p</b> for the peak, <b>+</b>, <b>-</b> and Esc.</p>"
    )
    yield "<noscript><p>The picture needs a script; the tables below do not.</p></noscript>"
    yield '<div class="controls">'
    if len(portraits) > 1:
        options = ["both in one picture", *(one.file.name for one in portraits)]
        yield _choice("model", "model", options)
    yield _choice("session", "session", [])
    yield _choice("by", "stacked by", [by.value for by in Stacking])
    yield '<label><input type="checkbox" id="weights"> weights</label>'
    yield '<label><input type="checkbox" id="inputs"> inputs</label>'
    yield '<button id="whole" type="button" hidden>all steps</button></div>'
    yield (
        '<div class="view"><div><div id="plot" tabindex="0" role="group" '
        'aria-label="memory over the steps of a run; the text beside it tells of one step">'
        '</div><ul id="legend"></ul></div>'
        '<div id="detail" role="status" aria-live="polite"></div></div>'
    )


def _choice(name: str, label: str, options: list[str]) -> str:
    chosen = "".join(f"<option>{shown(one)}</option>" for one in options)
    return f'<label>{label} <select id="{name}">{chosen}</select></label>'


def _held(inspection: Inspection) -> Iterator[str]:
    yield '<h2 id="peak">What is held at the peak</h2>'
    for number, portrait in enumerate(_portraits(inspection)):
        for timeline in portrait.timelines:
            if not timeline.steps:
                continue
            yield f'<section data-model="{number}" data-session="{shown(timeline.session)}">'
            yield from _held_in(portrait, timeline)
            yield "</section>"


def _held_in(portrait: Portrait, timeline: Timeline) -> Iterator[str]:
    step = timeline.peak_step
    running, peak = timeline.steps[step], timeline.peak_bytes
    yield (
        f"<p><b>{format_bytes(peak)}</b> at step {step + 1} of {len(timeline.steps)}, while "
        f"{named(running.name)} ({shown(running.op_type)}) runs; {shown(portrait.file.name)}, "
        f"session with {shown(_SESSIONS.get(timeline.session, timeline.session))}.</p>"
    )
    rows = []
    if running.workspace_bytes:
        rows.append([
            "workspace of the kernel", format_bytes(running.workspace_bytes),
            _share(running.workspace_bytes, peak), "", named(running.name), named(running.name), "",
        ])  # fmt: skip
    held = timeline.held_at(step)
    rows += [_row(timeline, i, step) for i in held[:HELD_SHOWN]]
    rest = held[HELD_SHOWN:]
    if rest:
        nbytes = sum(timeline.values[i].nbytes for i in rest)
        rows.append([
            f"{len(rest)} smaller", format_bytes(nbytes), _share(nbytes, peak), "", "", "", "",
        ])  # fmt: skip
    head = ("value", "size", "share", "type", "made by", "last read by", "can be made again")
    yield table(head, rows, "what is held at the peak", 2)


def _row(timeline: Timeline, number: int, step: int) -> list[str]:
    value = timeline.values[number]
    maker = timeline.steps[value.maker]
    last = "(nobody)" if value.last_read is None else named(timeline.steps[value.last_read].name)
    return [
        named(value.name),
        format_bytes(value.nbytes),
        _share(value.nbytes, timeline.peak_bytes),
        shown(f"{value.dtype}[{','.join(map(str, value.shape))}]"),
        f"{named(maker.name)} ({shown(maker.op_type)})",
        "(output of the model)" if value.kept else last,
        _again(timeline, number, step),
    ]


def _again(timeline: Timeline, number: int, step: int) -> str:
    """Whether a value can be made again, and what that costs. One that is not needed any more is
    held where the runtime keeps its buffer for a later value of the same size."""
    value = timeline.values[number]
    if value.maker >= step:
        return "made here" if value.maker == step else "not made yet: the buffer of an output"
    if not value.kept and (value.last_read is None or value.last_read < step):
        return "not needed any more: its buffer waits for a later value"
    if value.last_read == step:
        return "read here"
    if not value.repeatable:
        return "no"
    maker = timeline.steps[value.maker]
    share = 100 * maker.time_ns / max(1, timeline.time_ns)
    how = "measured" if timeline.times_measured else "estimated"
    missing = timeline.missing(number, step)
    more = f", with {missing} more value{'s' if missing > 1 else ''}" if missing else ""
    return f"yes: {share:+.1f}% time ({how}){more}"


def _share(nbytes: int, whole: int) -> str:
    return f"{100 * nbytes / max(1, whole):.1f}%"


def _process(inspection: Inspection) -> Iterator[str]:
    yield '<h2 id="process">The whole process, loading included</h2>'
    yield (
        '<p class="soft">Resident memory with default options, measured, without pages of mapped '
        "files. Grey is what was there before, Python and the runtime (other languages have "
        "less), in colour what the model adds.</p>"
    )
    portraits = _portraits(inspection)
    rows = [(one, list(_moments(one.process))) for one in portraits]
    largest = max(start + added for _, moments in rows for _, start, added, _ in moments)
    yield '<div class="bars">'
    for portrait, moments in rows:
        yield f'<div class="group">{shown(portrait.file.name)}</div>'
        for label, start, added, colour in moments:
            parts = (("others", start), (colour, added))
            bar = "".join(
                f'<span style="width:{100 * nbytes / max(1, largest):.2f}%;'
                f'background:var(--{name})"></span>'
                for name, nbytes in parts
            )
            yield f'<div>{label}</div><div class="num">{format_bytes(start + added)}</div>'
            yield f'<div class="bar" aria-hidden="true">{bar}</div>'
    yield "</div>"
    loads = ", ".join(
        f"{shown(one.file.name)} in {format_seconds(one.process.load_seconds)}" for one in portraits
    )
    yield f'<p class="soft">Time of the processor to open it: {loads}.</p>'


def _moments(process: SessionMemory) -> Iterator[tuple[str, int, int, str]]:
    """What is shown of a process: a label, what was there before, what the model adds, a colour."""
    before, loaded = process.before_bytes, process.loaded_bytes
    yield "before it is opened", before, 0, "c0"
    yield "while it is opened", before, process.opening_bytes, "c0"
    yield "opened", before, loaded, "c0"
    yield "first run", before, loaded + process.first_bytes, "c0"
    yield "later runs", before, loaded + process.steady_bytes, "c0"
    if process.returning is not None:
        yield "most, if malloc gives back", before, process.returning.grown_bytes, "c0"


def _tag(lever: Lever) -> str:
    said = "measured" if lever.measured else "predicted"
    return f'<span class="tag {said}">{said}</span>'


def _levers(inspection: Inspection) -> Iterator[str]:
    yield '<h2 id="levers">What each lever would give</h2>'
    yield (
        '<p class="soft">Each by itself. <b>Measured</b>: in the runtime, here. <b>Predicted</b>: '
        "by the model of memory, for a session with the options of a recipe; "
        "<code>onnxremat rewrite</code> measures what it makes.</p>"
    )
    rows = []
    for lever in inspection.levers:
        of = "process" if lever.figure == PROCESS else "one run"
        after, change = "none", ""
        if lever.after_bytes is not None:
            after = format_bytes(lever.after_bytes)
            change = f"{100 * (lever.after_bytes / max(1, lever.before_bytes) - 1):+.1f}%"
        time = "" if lever.extra_time is None else f"{100 * lever.extra_time:+.1f}%"
        less = lever.after_bytes is not None and lever.after_bytes < lever.before_bytes
        how = f"<code>{shown(lever.how)}</code>" if less else ""
        if lever.after_bytes is not None and not less:
            how = '<span class="soft">no less</span>'
        if lever.reason:
            how += f'<br><span class="soft">{shown(lever.reason)}</span>'
        rows.append([
            shown(lever.name), format_bytes(lever.before_bytes), after, change, time, of,
            _tag(lever), how,
        ])  # fmt: skip
    head = ("lever", "now", "then", "change", "time", "of", "figure", "how")
    yield table(head, rows, "what each lever would give", 4)


def _bound(inspection: Inspection) -> Iterator[str]:
    audit = inspection.audit
    yield '<h2 id="bound">How far down</h2>'
    yield f"<p>{_floor(audit.floor)}</p>"
    order = format_bytes(audit.reordered_bound_bytes)
    yield f"<p>No order of the nodes alone goes below {order}, by the model of memory.</p>"
    if audit.limit_bytes is not None:
        met = "met as it is" if audit.original_peak_bytes <= audit.limit_bytes else "not met"
        yield f"<p>The limit of {format_bytes(audit.limit_bytes)} on a run is {met}.</p>"


def _floor(floor: Floor) -> str:
    if floor.refuted:
        return (
            f"Nothing is proved: the model takes less than the {format_bytes(floor.nbytes)} that "
            f"{shown(floor.reason)} would."
        )
    return (
        f"No schedule of whole nodes goes below <b>{format_bytes(floor.nbytes)}</b>, whatever is "
        f"computed again: {shown(floor.reason)}. Tiles go below it."
    )


def _notes(inspection: Inspection) -> Iterator[str]:
    """What is not as exact as it looks."""
    audit, notes = inspection.audit, list[str]()
    for portrait in _portraits(inspection):
        notes += [shown(f"{portrait.file.name}: {said}") for said in portrait.failed]
    measured = audit.measured_peak
    if measured is not None:
        where = "an unknown node" if measured.op is None else named(measured.op)
        notes.append(
            f"As written, a run holds {format_bytes(measured.nbytes)} at {where}, measured; the "
            f"model of memory, which the steps are drawn by, has "
            f"{format_bytes(measured.modelled_bytes)}."
        )
    if audit.estimated:
        named_ones = ", ".join(map(named, audit.estimated[:3]))
        more = len(audit.estimated) - 3
        notes.append(
            f"The workspace of {named_ones}{f' and {more} more' if more > 0 else ''} is an "
            f"estimate ({shown(audit.estimated_reason)})."
        )
    held = [
        (one.file.name, max(line.peak_bytes for line in one.timelines[:1]), one.process)
        for one in _portraits(inspection)
        if one.timelines and one.timelines[0].session == DEFAULT_SESSION
    ]
    for name, peak, process in held:
        added = max(process.above_loaded_bytes)
        if added > peak:
            notes.append(
                f"{shown(name)}: with default options a run adds {format_bytes(added)} to the "
                f"process and holds {format_bytes(peak)} in values and workspace; the rest is "
                "what the arena and the memory pattern of the runtime keep."
            )
    if notes:
        yield '<h2 id="notes">Notes</h2><ul>'
        yield from (f"<li>{note}</li>" for note in notes)
        yield "</ul>"
