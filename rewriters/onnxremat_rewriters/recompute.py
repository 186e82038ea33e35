"""`recompute`: write a model whose nodes, in file order, are a schedule.

An op that the schedule executes again becomes a copy of its node, `conv1__recompute1`, with
outputs of its own, and every reader reads the instance that is most recent where it stands. Three
things keep the saving alive in the runtime:

- A copy carries an attribute `__onnxremat_dup`, an integer of its own: without it the runtime's
  common-subexpression elimination merges the copy with its original. (Names that begin with two
  underscores pass the checker and every optimisation level; seen on ONNX Runtime 1.20 to 1.32.)
- View nodes (Reshape, ...) own no bytes but pin the instance they were made from. They are made
  again for every instance that a reader needs to see, right before that reader.
- The name of a graph output is on its last instance, the only one that is held to the end.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import helper

from onnxremat.core.schedule import Schedule, check
from onnxremat.importer import ImportedModel
from onnxremat.importer.nodes import reads
from onnxremat_rewriters.naming import NameSource, node_names, rename_reads, value_names

MARK = "__onnxremat_dup"
"""Attribute that makes a copy of a node unlike its original for the runtime's optimisers."""


@dataclass(frozen=True)
class Rewritten:
    """A model whose file order is a schedule.

    `origin[i]` is the index of the node of the argument's model that node i stands for; None for
    one that stands for none.
    `recomputed` counts the executions added.
    """

    model: onnx.ModelProto
    origin: tuple[int | None, ...]
    recomputed: int


def apply_schedule(imported: ImportedModel, schedule: Schedule) -> Rewritten:
    """Write `schedule`, a schedule of `imported.graph`, as a model. O(steps + reads).

    Only `graph.node` differs from `imported.model`. View nodes that no executed op reads are left
    out. Raises ScheduleError if the schedule does not compute the graph.
    """
    check(imported.graph, schedule)
    writer = _ScheduleWriter(imported, schedule)
    for v in schedule:
        writer.execute(v)
    return writer.finish()


def mark_of(node: onnx.NodeProto) -> int:
    """The number a copy is marked with, 0 for a node that is none."""
    return next((attribute.i for attribute in node.attribute if attribute.name == MARK), 0)


def set_mark(node: onnx.NodeProto, number: int) -> None:
    """Mark a node, in place, instead of the mark it may have had."""
    kept = [attribute for attribute in node.attribute if attribute.name != MARK]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(MARK, number)])


class _ScheduleWriter:
    """The nodes written so far, and for each value the name of its most recent instance."""

    def __init__(self, imported: ImportedModel, schedule: Schedule) -> None:
        self._imported = imported
        self._source = imported.model.graph
        self._values = NameSource(value_names(self._source))
        self._labels = NameSource(node_names(self._source))
        self._runs = Counter(schedule.steps)
        self._done: Counter[int] = Counter()
        self._outputs = {value.name for value in self._source.output}
        self._current: dict[str, str] = {}
        self._view_made_from: dict[str, tuple[str, ...]] = {}
        self._view_count: Counter[str] = Counter()
        self._nodes: list[onnx.NodeProto] = []
        self._origin: list[int] = []
        self._copies = 0
        self._marks = max((mark_of(node) for node in self._source.node), default=0)
        for index in imported.constant_nodes:
            self._append(index, self._copy(index))

    def execute(self, v: int) -> None:
        """Write one execution of op v, after the views that it needs."""
        index = self._imported.op_nodes[v]
        run = self._done[v]
        self._done[v] += 1
        node = self._copy(index)
        self._bind_reads(node)
        if run > 0:
            self._copies += 1
            node.name = self._labels.fresh(f"{self._imported.graph.ops[v].name}__recompute{run}")
            set_mark(node, self._marks + self._copies)
        for i, name in enumerate(self._source.node[index].output):
            if name:
                node.output[i] = self._instance_name(name, run, last=run == self._runs[v] - 1)
                self._current[name] = node.output[i]
        self._append(index, node)

    def finish(self) -> Rewritten:
        model = onnx.ModelProto()
        model.CopyFrom(self._imported.model)
        del model.graph.node[:]
        model.graph.node.extend(self._nodes)
        return Rewritten(model, tuple(self._origin), self._copies)

    def _append(self, index: int, node: onnx.NodeProto) -> None:
        self._nodes.append(node)
        self._origin.append(index)

    def _copy(self, index: int) -> onnx.NodeProto:
        node = onnx.NodeProto()
        node.CopyFrom(self._source.node[index])
        return node

    def _instance_name(self, name: str, run: int, *, last: bool) -> str:
        """The original name for the instance that keeps it: of a graph output the last one, of
        any other value the first."""
        if name in self._outputs:
            return name if last else self._values.fresh(f"{name}__early{run}")
        return name if run == 0 else self._values.fresh(f"{name}__recompute{run}")

    def _bind_reads(self, node: onnx.NodeProto) -> None:
        """Let `node`, in place, read the most recent instances."""
        names: dict[str, str] = {}
        for name in _distinct(reads(node)):
            if name in self._imported.views:
                self._make_view(name)
            names[name] = self._current.get(name, name)
        rename_reads(node, {old: new for old, new in names.items() if old != new})

    def _make_view(self, name: str) -> None:
        """Write the view nodes behind `name`, unless they stand already for the same instances."""
        views = self._imported.views
        pending = [name]
        behind: dict[str, int] = {}
        while pending:
            view = pending.pop()
            if view not in behind:
                behind[view] = views[view].node
                node = self._source.node[behind[view]]
                pending.extend(read for read in reads(node) if read in views)
        for view, index in sorted(behind.items(), key=lambda item: item[1]):
            node = self._copy(index)
            names = list(_distinct(reads(node)))
            made_from = tuple(self._current.get(read, read) for read in names)
            if self._view_made_from.get(view) == made_from:
                continue
            rename_reads(node, dict(zip(names, made_from, strict=True)))
            self._view_made_from[view] = made_from
            count = self._view_count[view]
            self._view_count[view] += 1
            if count > 0:
                node.name = self._labels.fresh(f"{node.name or view}__view{count}")
                node.output[0] = self._values.fresh(f"{view}__view{count}")
            self._current[view] = node.output[0]
            self._append(index, node)


def _distinct(names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(names)
