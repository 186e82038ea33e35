"""What a target is, and what they share: a plan written as a model, and its prediction."""

from dataclasses import dataclass, replace
from typing import Protocol

import onnx

from onnxremat.depth_first import DepthFirst
from onnxremat.execution_order import default_order, priority_order
from onnxremat.graph import Graph
from onnxremat.importer import ImportedModel
from onnxremat.importer.nodes import is_constant
from onnxremat.memory import MemoryRules
from onnxremat.plan import Plan
from onnxremat.prepare import Options, ProgressReport, Subject
from onnxremat.runtimes.generic import StaticPlan
from onnxremat.runtimes.measure import PeakMeasurement
from onnxremat.runtimes.profiling import RunProfile, carried_profile
from onnxremat.runtimes.recipe import ExecutionOrder, Recipe
from onnxremat.schedule import Schedule, given_order, with_eager_ops, without_unread
from onnxremat.targets.stock_trial import StockResult
from onnxremat.verification import Verification, verify
from onnxremat_rewriters.embed import embed_order
from onnxremat_rewriters.recompute import Rewritten, apply_schedule
from onnxremat_rewriters.release import release


@dataclass(frozen=True)
class Made:
    """A plan as a file for one target.

    `rewritten` has its nodes in plan order; `model` is what is written (the same, or a form of it).
    `measured` is the figure that `--mem` limits. `stock` and `static` are the details of those two
    targets, None elsewhere.
    """

    rewritten: Rewritten
    model: onnx.ModelProto
    measured: PeakMeasurement
    stock: StockResult | None = None
    static: StaticPlan | None = None


class Target(Protocol):
    """Where a model will run.

    `subject`: what is planned; may be exchanged for one with substitutes before the first plan.
    `figure`: what `--mem` limits, in words. `rules`: of memory, for the planner. `bound_rules`:
    rules under which no schedule can go below the bound in this target, None if nothing is proved
    there. `node_bytes`: what the runtime keeps for each node that a file has more, beside buffers.
    `tolerance`: the share by which `expected_bytes` may err. `original` and `released`: the
    figure of the model as it came, and without values that nobody reads. `recipe`: the session
    options that the file is to be opened with. `sized`: the file holds for the planned sizes only,
    whatever is in it.
    """

    subject: Subject
    figure: str
    rules: MemoryRules
    bound_rules: MemoryRules | None
    node_bytes: int
    tolerance: float
    original: PeakMeasurement
    released: PeakMeasurement
    recipe: Recipe
    sized: bool = False

    def expected_bytes(self, plan: Plan) -> int:
        """What `make(plan)` will measure, as far as it can be told before."""
        ...

    def make(self, plan: Plan) -> Made:
        """The plan written and measured."""
        ...

    def verify(self, made: Made, final: onnx.ModelProto) -> Verification:
        """Original and `final` (`made.model` with its record) compared in the runtime."""
        ...


def verify_in_recipe(
    subject: Subject,
    made: Made,
    final: onnx.ModelProto,
    original: PeakMeasurement,
    options: Options,
    progress: ProgressReport,
) -> Verification:
    """Both models compared under the recipe's session options; peaks are those known already.

    With substitutes that round, the bits that count are those of the model with them in it.
    """
    feed = subject.feed
    return verify(
        feed.loaded,
        replace(feed.loaded, model=final),
        feed.inputs,
        feed.recipe,
        progress=progress,
        measured=(original, made.measured),
        measure_limit=options.measure_limit,
        reference=None if subject.exact else subject.released_source(),
    )


def own_schedule(imported: ImportedModel, mode: ExecutionOrder) -> Schedule:
    """The ops as the runtime executes the model as it was imported.

    In mode DEFAULT, where views that are outputs make an order of ops that no search over the ops
    alone gives, the order of that search instead.
    """
    if mode is ExecutionOrder.DEFAULT:
        op_of = {node: v for v, node in enumerate(imported.op_nodes)}
        executed = default_order(imported.model.graph.node)
        own = Schedule(tuple(op_of[i] for i in executed if i in op_of))
        search = DepthFirst.of(imported.graph)
        return own if search.gives(own.steps) else Schedule(search.default().order)
    return as_executed(imported.graph, given_order(imported.graph), mode)


def as_executed(graph: Graph, schedule: Schedule, mode: ExecutionOrder) -> Schedule:
    """A plan as the runtime executes it: PRIORITY starts Shape and Size at once."""
    return with_eager_ops(graph, schedule) if mode is ExecutionOrder.PRIORITY else schedule


def write_plan(imported: ImportedModel, plan: Plan, mode: ExecutionOrder) -> Rewritten:
    """The model of a plan: released, for copies leave outputs unread that their originals' readers
    read; and its nodes where the runtime, in its mode, executes them as planned.

    Raises ValueError for a plan that is no depth-first order, in mode DEFAULT.
    """
    schedule = without_unread(imported.graph, plan.schedule)
    rewritten = apply_schedule(imported, as_executed(imported.graph, schedule, mode))
    released = release(rewritten.model)
    origin = [None if i is None else rewritten.origin[i] for i in released.origin]
    model = released.model
    if mode is ExecutionOrder.DEFAULT:
        ops = set(imported.op_nodes)
        embedded = embed_order(model, {i for i, v in enumerate(origin) if v not in ops})
        if embedded.model is None:
            raise ValueError(embedded.reason)
        model, order = embedded.model, list(embedded.origin)
    else:
        nodes = list(model.graph.node)
        constant = [i for i, node in enumerate(nodes) if is_constant(node)]
        order = [*constant, *priority_order(nodes)]
        model.graph.ClearField("node")
        model.graph.node.extend(nodes[i] for i in order)
    return Rewritten(model, tuple(origin[i] for i in order), rewritten.recomputed)


def expected_profile(subject: Subject, rewritten: Rewritten, mode: ExecutionOrder) -> RunProfile:
    """The profile of a rewritten model that nobody has run yet: a node does what the node of the
    subject does that it stands for, less outputs that were dropped."""
    return carried_profile(subject.profile, rewritten.model, rewritten.origin, mode)
