"""A better order before tiles are planned: regions are parts of the order of the file."""

from dataclasses import replace

from onnxremat.memory import MemoryRules, profile
from onnxremat.prepare import Options, Subject, studied
from onnxremat.schedule import Schedule, given_order
from onnxremat_rewriters.recompute import apply_schedule
from onnxremat_rewriters.release import release


def ordered_subject(
    subject: Subject, order: Schedule, rules: MemoryRules, options: Options
) -> Subject:
    """The subject with its nodes in another order, run once and imported again; the subject itself
    if that order has no smaller peak under `rules`."""
    graph = subject.imported.graph
    peaks = [profile(graph, s, rules).peak_bytes for s in (order, given_order(graph))]
    if peaks[0] >= peaks[1]:
        return subject
    made = apply_schedule(subject.imported, order)
    again = studied(subject.feed, release(made.model), options)
    return replace(again, replaced=subject.replaced, rounded=subject.rounded, sized=subject.sized)
