"""An inspection without a name that somebody gave: sizes, ops and structure stay.

Nodes, values and files get neutral names, the same everywhere. The parts of a node's name become
neutral one by one, so that what belongs together still does. Op types that are neither ONNX's nor
the runtime's are names, too. Sentences that may quote a name are left out.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnxremat.commands.attribution import Holder, MeasuredPeak
from onnxremat.commands.audit import Audit, Floor, HeldTensor, Peak
from onnxremat.commands.inspection import Inspection, Lever, Portrait
from onnxremat.commands.timeline import Timeline

UNSAID = "not told: the names of this page were replaced"
_KNOWN_DOMAINS = ("com.microsoft.nchwc::", "com.ms.internal.nhwc::", "ai.onnx.ml::")
_PARTS = re.compile(r"([/.])")


def without_names(inspection: Inspection) -> Inspection:
    """The same inspection under neutral names. O(names)."""
    return _Names().inspection(inspection)


@dataclass
class _Names:
    """What stands for each name, found as names are met."""

    values: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    ops: dict[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        return self.values.setdefault(name, f"t{len(self.values) + 1}")

    def node(self, name: str) -> str:
        if name not in self.nodes:
            *parts, _ = _PARTS.split(name)
            scope = "".join(
                part if number % 2 or not part
                else self.scopes.setdefault(part, f"s{len(self.scopes) + 1}")
                for number, part in enumerate(parts)
            )  # fmt: skip
            self.nodes[name] = f"{scope}n{len(self.nodes) + 1}"
        return self.nodes[name]

    def op(self, op_type: str) -> str:
        if "::" not in op_type or op_type.startswith(_KNOWN_DOMAINS):
            return op_type
        return self.ops.setdefault(op_type, f"custom{len(self.ops) + 1}")

    def inspection(self, one: Inspection) -> Inspection:
        first = self.portrait(one.first, Path("model.onnx"))
        second = one.second and self.portrait(one.second, Path("second.onnx"))
        levers = tuple(map(self.lever, one.levers))
        return Inspection(self.audit(one.audit, first.file), first, levers, second)

    def lever(self, lever: Lever) -> Lever:
        return replace(lever, reason=lever.reason and UNSAID)

    def portrait(self, one: Portrait, file: Path) -> Portrait:
        return replace(
            one,
            file=file,
            timelines=tuple(map(self.timeline, one.timelines)),
            failed=tuple(UNSAID for _ in one.failed),
        )

    def timeline(self, one: Timeline) -> Timeline:
        steps = tuple(
            replace(step, name=self.node(step.name), op_type=self.op(step.op_type))
            for step in one.steps
        )
        values = tuple(replace(value, name=self.value(value.name)) for value in one.values)
        return replace(one, steps=steps, values=values)

    def audit(self, one: Audit, file: Path) -> Audit:
        tiling = replace(
            one.tiling,
            regions=(),
            recomputed=tuple(map(self.value, one.tiling.recomputed)),
            reasons=tuple(UNSAID for _ in one.tiling.reasons),
        )
        return replace(
            one,
            model=file,
            peak=self.peak(one.peak),
            floor=self.floor(one.floor, one.timeline),
            tiling=tiling,
            timeline=self.timeline(one.timeline),
            measured_peak=one.measured_peak and self.measured(one.measured_peak),
            estimated=tuple(map(self.node, one.estimated)),
            estimated_reason=one.estimated_reason and UNSAID,
        )

    def peak(self, one: Peak) -> Peak:
        held = tuple(map(self.held, one.held))
        return replace(one, op=self.node(one.op), op_type=self.op(one.op_type), held=held)

    def held(self, one: HeldTensor) -> HeldTensor:
        last = one.last_read_by and self.node(one.last_read_by)
        name, made_by = self.value(one.name), self.node(one.made_by)
        return replace(one, name=name, made_by=made_by, last_read_by=last)

    def floor(self, one: Floor, timeline: Timeline) -> Floor:
        """What sets it is said anew where it is an op."""
        if one.op is None:
            return one
        kind = next((step.op_type for step in timeline.steps if step.name == one.op), "")
        op = self.node(one.op)
        reason = f"inputs, outputs and workspace of {op} ({self.op(kind)})"
        return replace(one, op=op, reason=reason)

    def measured(self, one: MeasuredPeak) -> MeasuredPeak:
        return replace(
            one,
            op=one.op and self.node(one.op),
            op_type=self.op(one.op_type),
            held=tuple(map(self.holder, one.held)),
            reason=one.reason and UNSAID,
        )

    def holder(self, one: Holder) -> Holder:
        return replace(
            one,
            made_by=self.node(one.made_by),
            op_type=self.op(one.op_type),
            values=tuple(map(self.value, one.values)),
        )
