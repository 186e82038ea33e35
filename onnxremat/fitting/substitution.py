"""Ops replaced by others that hold less, before anything is planned."""

from onnxremat.core.bounds import peak_bound
from onnxremat.core.memory import MemoryRules
from onnxremat.stages import ProgressReport
from onnxremat.subject import Subject, with_substitutes
from onnxremat_rewriters.substitutes import substitutions

MOST_OF_LIMIT = 0.8
"""Ops that alone take this share of a limit are replaced: beside them there is always more."""

LEAST_REPLACED_BYTES = 16384
"""Where the smallest peak is asked for, ops that hold less are not replaced: the nodes that would
stand for them take the runtime some hundred bytes each in a run."""


def substituted(
    subject: Subject,
    budget: int | None,
    rules: MemoryRules,
    progress: ProgressReport,
    *,
    allow_rounding: bool,
) -> Subject:
    """Substitutes where they are needed: exact ones, which may take time, for ops that alone take
    most of the limit under `rules`; those that round differently, if they are allowed, for ops that
    take half of it. For the smallest peak those that set the bound are replaced, unless they hold
    little."""
    if budget is None:
        budget = max(peak_bound(subject.imported.graph, rules).nbytes, LEAST_REPLACED_BYTES)
        most = budget
    else:
        most = min(budget + 1, max(int(MOST_OF_LIMIT * budget), LEAST_REPLACED_BYTES))
    chosen = [(substitutions(exact=True), most)]
    if allow_rounding:
        chosen.append((substitutions(exact=False), budget // 2))
    for allowed, threshold in chosen:
        progress("looking for kernels that others can replace")
        subject = with_substitutes(subject, allowed, threshold, rules)
    return subject
