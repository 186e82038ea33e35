"""A better order before tiles are planned: regions are parts of the order of the file."""

from dataclasses import replace

from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule, given_order
from onnxremat.ort.measuring.profile import carried_profile
from onnxremat.subject import Subject, studied
from onnxremat_rewriters.recompute import apply_schedule
from onnxremat_rewriters.release import release


def ordered_subject(subject: Subject, order: Schedule, rules: MemoryRules) -> Subject:
    """The subject with its nodes in another order, imported again; the subject itself if that order
    has no smaller peak under `rules`. What its nodes do is known, so that nothing is run, unless
    the runtime executes others."""
    graph = subject.imported.graph
    peaks = [profile(graph, s, rules).peak_bytes for s in (order, given_order(graph))]
    if peaks[0] >= peaks[1]:
        return subject
    made = apply_schedule(subject.imported, order)
    released = release(made.model)
    run = None
    if subject.settled:
        origin = [None if i is None else made.origin[i] for i in released.origin]
        mode = subject.feed.recipe.execution_order
        run = carried_profile(subject.profile, released.model, origin, mode)
    again = studied(subject.feed, released, run=run)
    return replace(again, replaced=subject.replaced, rounded=subject.rounded, sized=subject.sized)
