"""A better order before tiles are planned: regions are parts of the order of the file."""

from dataclasses import replace

from onnxremat.memory import profile
from onnxremat.plan import Limits, Problem
from onnxremat.planners import PLANNERS
from onnxremat.prepare import Options, Subject, studied
from onnxremat.runtimes.rules import RECIPE_RULES
from onnxremat.schedule import given_order
from onnxremat_rewriters.recompute import apply_schedule
from onnxremat_rewriters.release import release


def ordered_subject(subject: Subject, options: Options, seconds: float) -> Subject:
    """The subject with its nodes in the order that the `reorder` planner finds in `seconds`, run
    once and imported again; the subject itself if that order has no smaller peak."""
    graph = subject.imported.graph
    own = given_order(graph)
    problem = Problem(graph, RECIPE_RULES, max_copies=1, starts=(own,))
    plan = PLANNERS["reorder"].function(problem, Limits(seconds=seconds, seed=options.seed))
    if plan.peak_bytes >= profile(graph, own, RECIPE_RULES).peak_bytes:
        return subject
    made = apply_schedule(subject.imported, plan.schedule)
    again = studied(subject.feed, release(made.model), options)
    return replace(again, replaced=subject.replaced, rounded=subject.rounded)
