"""Whether a session with default options executes a stock model's plan in its order.

The optimisations of such a session drop, merge and rename nodes, so there are two questions. With
optimisations off every step runs under its own name, and the executed order must be the plan. With
default options the steps that still run under their own name must be in the order of the plan; the
others (`vanished`) were folded, merged into another node or replaced.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from onnxremat.importer.nodes import subgraphs
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.recipe import STOCK, OptimizationLevel
from onnxremat_rewriters.stock.build import StockModel, planned_graph

_STEP, _OTHER = "onnxremat_step_", "onnxremat_other_"
_STEP_NAME = re.compile(rf"{_STEP}(\d+)(?!\d)")
"""A node made by a fusion may add to the name of the step that it stands for."""
_KERNEL = "_kernel_time"


@dataclass(frozen=True)
class OrderCheck:
    """The steps of a plan (positions in it) as they were executed.

    `executed` are those that ran under their own name, in order of execution; `vanished` the
    others.
    """

    executed: tuple[int, ...]
    vanished: tuple[int, ...]

    @property
    def inversions(self) -> int:
        """How many steps ran right behind a step that comes later in the plan."""
        return sum(a > b for a, b in zip(self.executed, self.executed[1:], strict=False))

    @property
    def as_planned(self) -> bool:
        """Whether no step ran out of order."""
        return self.inversions == 0


def check_order(
    made: StockModel,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    *,
    threads: int | None = None,
    optimized: bool = True,
) -> OrderCheck:
    """Run a stock model once with a profile. `optimized`: with default options, else with the
    optimisations off. Raises ModelError if the runtime refuses the model."""
    named = _named(made)
    recipe = replace(STOCK, threads=threads, mem_pattern=False)
    if not optimized:
        recipe = replace(recipe, optimization=OptimizationLevel.NONE)
    source = ModelSource(model=named, base_dir=Path(base_dir))
    with run_job(worker_actions.profile, [source], [recipe], inputs, options={"runs": 1}) as job:
        events = json.loads((job.folder / job.answer["profile"]).read_text(encoding="utf-8"))
    names = [
        event["name"].removesuffix(_KERNEL)
        for event in sorted(
            (e for e in events if e.get("cat") == "Node" and e["name"].endswith(_KERNEL)),
            key=lambda e: e["ts"],
        )
    ]
    found = (_STEP_NAME.match(name) for name in names)
    executed = tuple(dict.fromkeys(int(match[1]) for match in found if match))
    return OrderCheck(executed, tuple(sorted(set(range(len(made.steps))) - set(executed))))


def _named(made: StockModel) -> onnx.ModelProto:
    """A copy in which the name of a node says which step it is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(made.model)
    step_of = {value: i for i, value in enumerate(made.steps)}
    for index, node in enumerate(planned_graph(copy).node):
        step = next((step_of[name] for name in node.output if name in step_of), None)
        node.name = f"{_OTHER}{index}" if step is None else f"{_STEP}{step}"
        for body in subgraphs(node):
            _rename(body, f"{_OTHER}{index}_")
    return copy


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    for index, node in enumerate(graph.node):
        node.name = f"{prefix}{index}"
        for body in subgraphs(node):
            _rename(body, f"{prefix}{index}_")
