"""The data of an inspection that the script of its page draws from: columns of numbers and names.

Names stand once in a table; the script knows them by number. Nothing of a weight or a value is here
but its name, type and size.
"""

from typing import Any

from onnxremat.commands.inspection import Inspection, Portrait
from onnxremat.commands.timeline import Stacking, Timeline
from onnxremat.core.text import printable

_NAME_SHOWN = 120


class _Table:
    """Texts, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Where it stands."""
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(printable(text, _NAME_SHOWN))
        return self._numbers[text]


def payload(inspection: Inspection) -> dict[str, Any]:
    """All models and their sessions. O(steps + reads)."""
    names = _Table()
    portraits = [inspection.first, *([inspection.second] if inspection.second else [])]
    bounds = {inspection.audit.timeline.session: inspection.audit.floor.nbytes}
    if inspection.audit.floor.refuted:
        bounds = {}
    models = [_model(one, names, bounds if i == 0 else {}) for i, one in enumerate(portraits)]
    limit = inspection.audit.limit_bytes
    return {"names": names.texts, "models": models, "limit": limit}


def _model(portrait: Portrait, names: _Table, bounds: dict[str, int]) -> dict[str, Any]:
    return {
        "file": printable(portrait.file.name, _NAME_SHOWN),
        "sessions": [
            {**_session(one, names), "bound": bounds.get(one.session)} for one in portrait.timelines
        ],
    }


def _session(timeline: Timeline, names: _Table) -> dict[str, Any]:
    steps, values = timeline.steps, timeline.values
    stacks = {}
    for by in Stacking:
        stack = timeline.stacked(by)
        stacks[by.value] = {
            "labels": [printable(label, _NAME_SHOWN) for label in stack.labels],
            "layer": stack.layer_of,
            "others": stack.others,
        }
    return {
        "session": timeline.session,
        "weights": timeline.weight_bytes,
        "inputs": timeline.input_bytes,
        "peak": timeline.peak_bytes,
        "peakStep": timeline.peak_step,
        "measured": timeline.times_measured,
        "steps": {
            "name": [names.number(one.name) for one in steps],
            "op": [names.number(one.op_type) for one in steps],
            "work": [one.workspace_bytes for one in steps],
            "ns": [one.time_ns for one in steps],
            "reads": [one.reads for one in steps],
            "makes": [one.makes for one in steps],
        },
        "values": {
            "name": [names.number(one.name) for one in values],
            "type": [
                names.number(f"{one.dtype}[{','.join(map(str, one.shape))}]") for one in values
            ],
            "bytes": [one.nbytes for one in values],
            "start": [one.start for one in values],
            "end": [one.end for one in values],
        },
        "stacks": stacks,
    }
