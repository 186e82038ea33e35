"""What a target is, and what they share: a plan written as a model, and its prediction."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import onnx

from onnxremat.core.depth_first import DepthFirst
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules
from onnxremat.core.problem import Plan
from onnxremat.core.schedule import Schedule, given_order, with_eager_ops, without_unread
from onnxremat.core.units import format_bytes
from onnxremat.importer import ImportedModel
from onnxremat.importer.execution_order import default_order, priority_order
from onnxremat.importer.nodes import is_constant
from onnxremat.ort.measuring.measure import PeakMeasurement
from onnxremat.ort.measuring.profile import RunProfile, carried_profile
from onnxremat.ort.outside import ModelPair
from onnxremat.ort.recipe import ExecutionOrder, Recipe
from onnxremat.stages import ProgressReport, silent
from onnxremat.subject import Subject
from onnxremat.targets.static_plan import StaticPlan
from onnxremat.verification import Verification, verify
from onnxremat_rewriters.embed import embed_order
from onnxremat_rewriters.recompute import Rewritten, apply_schedule
from onnxremat_rewriters.release import release

if TYPE_CHECKING:
    from onnxremat.commands.rewrite import RewriteResult


@dataclass(frozen=True)
class TargetReport:
    """What the text report has from a target: what the file is opened with, rows of its own, and
    what stands beside the measured figure. `planned`: whether the file is the plan."""

    opened: str
    rows: tuple[tuple[str, str], ...]
    beside: str = ""
    planned: bool = True


@dataclass(frozen=True)
class Forecast:
    """A plan, and what making it is expected to measure in bytes. What was made or found out to
    tell is kept: `rewritten` is the plan written down, `warm_bytes` the size of the block that a
    stock file asks for first."""

    plan: Plan
    expected_bytes: int
    rewritten: Rewritten | None = None
    warm_bytes: int | None = None


@dataclass(frozen=True)
class Wanted:
    """What a plan is made for: what is above `limit_bytes` need be no more than measured;
    `extra_time` is the share of a run that the plan adds on purpose; `tiled`: whether the subject
    has parts in tiles."""

    limit_bytes: int | None = None
    extra_time: float = 0.0
    tiled: bool = False


ANYTHING = Wanted()


@dataclass(frozen=True)
class Made:
    """A plan as a file for one target.

    `rewritten` has its nodes in plan order; `model` is what is written (the same, or a form of it).
    `measured` is the figure that `--mem` limits, `expected_bytes` what was expected of it. `static`
    is the static plan, where one was made; `pair` is `model` with the file of its weights, where
    they lie outside; `details` are what a target has to tell beside all that, for its part of the
    report. `refused`: why the plan is not in it, where the original stands for it, "" if it is.
    `sized`: whether `model` holds for the planned sizes only, None where the subject says so.
    `checks_sizes`: whether `model` itself fails at other sizes, so that its inputs need not declare
    them. `dearer`: why a form of the plan that takes less was not taken, if one was refused for
    time. `load_share`: of the time that it takes to open what was refused for that, the largest
    share that is allowed, None if nothing was. `least_bytes`: the figure without what is chance in
    it, None if nothing is.
    """

    rewritten: Rewritten
    model: onnx.ModelProto
    measured: PeakMeasurement
    expected_bytes: int
    static: StaticPlan | None = None
    pair: ModelPair | None = None
    details: object = None
    refused: str = ""
    dearer: str = ""
    load_share: float | None = None
    sized: bool | None = None
    checks_sizes: bool = False
    least_bytes: int | None = None

    @property
    def measured_bytes(self) -> int:
        """The figure that `--mem` limits."""
        return self.measured.peak_bytes

    @property
    def compared_bytes(self) -> int:
        """By this, plans are compared where nothing is limited."""
        return self.measured_bytes if self.least_bytes is None else self.least_bytes


@dataclass(frozen=True)
class Target(ABC):
    """Where a model will run, with the original measured there.

    `rules`: of memory, for everything that plans. `bound_rules`: rules under which no schedule can
    go below the bound in this target, None if nothing is proved there. `node_bytes`: what the
    runtime keeps for each node that a file has more, beside buffers. `tolerance`: the share by
    which forecasts may err. `takes_original`: whether the model as it came can be what is written.
    `tile_shares`: where the smallest peak in tiles is looked for by measuring, the shares of the
    model's own peak that tiles are chosen for in turn; none where predictions find it.

    `recipe`: the session options that the file is to be opened with. `original` and `released`: the
    figure of the model as it came, and without values that nobody reads.
    """

    rules: ClassVar[MemoryRules]
    bound_rules: ClassVar[MemoryRules | None]
    node_bytes: ClassVar[int]
    tolerance: ClassVar[float]
    takes_original: ClassVar[bool] = True
    tile_shares: ClassVar[tuple[float, ...]] = ()

    progress: ProgressReport
    recipe: Recipe
    original: PeakMeasurement
    released: PeakMeasurement

    @classmethod
    @abstractmethod
    def of(cls, subject: Subject, progress: ProgressReport = silent) -> Self:
        """The target of a model, which is measured."""

    def fused(self, subject: Subject) -> frozenset[str]:
        """Values that are no part of tiles, and stay beside what reads them: the runtime fuses
        both, where it can, which rounds otherwise than one after the other."""
        return frozenset()

    def joined(self, subject: Subject) -> frozenset[str]:
        """Values whose makers stay in tiles with, or whole beside, what makes their inputs."""
        return frozenset()

    def refutes(self, bound_bytes: int) -> bool:
        """Whether the model itself takes less, measured, than a bound of its ops says: then the
        rules hold some value that the runtime does not."""
        return min(self.original.peak_bytes, self.released.peak_bytes) < bound_bytes

    @abstractmethod
    def forecast(self, subject: Subject, plan: Plan) -> Forecast:
        """What `make` will measure, as far as it can be told before."""

    @abstractmethod
    def make(self, subject: Subject, forecast: Forecast, wanted: Wanted = ANYTHING) -> Made:
        """The plan of a forecast written and measured."""

    @property
    def added_node_bytes(self) -> int:
        """What a node more takes of what is limited."""
        return self.node_bytes

    def verify(self, subject: Subject, made: Made, final: onnx.ModelProto) -> Verification:
        """Original and `final` (`made.model` with its record) compared in the runtime: under the
        recipe's session options, peaks being known.

        With substitutes that round, the bits that count are those of the model with them in it.
        """
        feed = subject.feed
        return verify(
            feed.loaded,
            replace(feed.loaded, model=final),
            feed.inputs,
            feed.recipe,
            progress=self.progress,
            measured=(self.original, made.measured),
            measure_limit=feed.options.measure_limit,
            reference=None if subject.exact else subject.released_source(),
        )

    @classmethod
    def reports(cls, result: "RewriteResult") -> TargetReport:
        """What the text report says of this target alone."""
        whole = " of whole nodes" if result.tiling is not None else ""
        bound = f"{format_bytes(result.floor.nbytes)}: {result.floor.reason}"
        planned = f"planned {format_bytes(result.expected_bytes)}"
        opened = f'onnxremat.open_session("{result.output}")'
        return TargetReport(opened, ((f"lower bound{whole}", bound),), planned)


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
