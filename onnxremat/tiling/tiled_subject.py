"""A planned tiling carried out: the subject whose model runs in tiles."""

from dataclasses import replace

from onnxremat.importer import declare_sizes
from onnxremat.ort.blocked_layout import block_channels
from onnxremat.subject import Subject, studied
from onnxremat.tiling.tiling_plan import TilingPlan
from onnxremat_rewriters.release import release
from onnxremat_rewriters.tile import tile


def tiled_subject(subject: Subject, plan: TilingPlan) -> Subject:
    """The subject in which the regions of `plan` run tile by tile, run once and imported again; the
    subject itself if there are no regions. Its inputs declare the sizes that the tiles are for.

    The bits are those of the original at `plan.threads` threads. Raises ModelError if the runtime
    refuses the model.
    """
    if not plan.regions:
        return subject
    model = subject.released.model
    made = tile(
        model,
        plan.regions,
        subject.fixed_types,
        threads=plan.threads,
        allow_rounding=plan.allow_rounding,
        block_channels=block_channels(model),
    )
    sized = declare_sizes(made.model, subject.feed.binding, subject.types)
    again = studied(subject.feed, release(sized))
    names = (model.graph.node[index].name for index in made.rounded)
    rounded = (*subject.rounded, *names)
    return replace(again, replaced=subject.replaced, rounded=rounded, sized=True)
