"""A subject with ops written so that tiles can go through them, where that is needed."""

from dataclasses import replace

from onnxremat.core.bounds import op_bytes
from onnxremat.core.memory import MemoryRules
from onnxremat.subject import Subject, studied
from onnxremat_rewriters.release import release
from onnxremat_rewriters.tileable import tileable


def tileable_subject(
    subject: Subject, limit_bytes: int | None, rules: MemoryRules, *, allow_rounding: bool
) -> Subject:
    """The subject in which Gemms between Reshapes, and with `allow_rounding` normalizations,
    have a form that tiles can go through, run once and imported again; the subject itself if there
    are none.

    Of those that round differently only such as hold half of `limit_bytes` or more under `rules`;
    None: all. What comes of it holds for its sizes only.
    """
    imported = subject.imported
    rounding: set[int] = set()
    if allow_rounding:
        least = 0 if limit_bytes is None else limit_bytes // 2
        held = op_bytes(imported.graph, rules)
        rounding = {
            node for node, nbytes in zip(imported.op_nodes, held, strict=True) if nbytes >= least
        }
    made = tileable(subject.released.model, subject.fixed_types, rounding)
    if not made.changed:
        return subject
    again = studied(subject.feed, release(made.model))
    replaced = subject.replaced + made.replaced
    return replace(again, replaced=replaced, rounded=subject.rounded, sized=True)
