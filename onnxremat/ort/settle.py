"""A model made settled: ONNX Runtime executes its nodes as they are, no more and no others.

With optimizations off the runtime still changes a graph when it opens it:

- Nodes without a kernel of their own (HardSwish, Swish, GroupNormalization, losses, CastLike ...)
  become the nodes of their function, behind all others.
- Casts to float32 and back are put around nodes that have no float16 kernel on the CPU, between
  two of which such Casts are left out.
- A Cast all of whose readers are Casts is removed where no precision is lost, as are pairs that
  cancel: exporters write them for sizes.
- A DequantizeLinear with several readers is made once for each.

None of that can be switched off, and a plan is about nodes that run; so the runtime is asked to
write the graph that it executes, and what differs is put into the model (`graft`). What comes out
is a fixed point: opened again, the runtime leaves it as it is.
"""

from pathlib import Path

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.ort.optimize import written_by_runtime
from onnxremat.ort.recipe import OptimizationLevel, Recipe
from onnxremat_rewriters.graft import graft, labelled


def settled(model: onnx.ModelProto, base_dir: Path | str, recipe: Recipe) -> onnx.ModelProto:
    """The model with the nodes that the runtime executes, `model` itself if those are its own.

    `base_dir` is the folder of external data. Of `recipe` the provider counts, and no size: what
    comes out holds for any. A model that the runtime does not open or cannot write is returned as
    it is: running it will tell why, or that its nodes are others.
    """
    asked = labelled(model)
    settings = Recipe(provider=recipe.provider, optimization=OptimizationLevel.NONE)
    try:
        executed = written_by_runtime(asked, base_dir, settings)
    except ModelError:
        return model
    return graft(model, asked, executed).model


def kept_single(model: onnx.ModelProto) -> frozenset[int]:
    """Nodes that must not be copied, lest the copy or its original be one that the runtime takes
    away: Casts beside Casts. A copy may have only some of their readers, and then none but Casts;
    and it is no output of the graph, which keeps a Cast from being removed."""
    nodes = model.graph.node
    casts = {v for v, node in enumerate(nodes) if node.op_type == "Cast" and not node.domain}
    maker = {nodes[v].output[0]: v for v in casts}
    pairs = [(maker[nodes[v].input[0]], v) for v in casts if nodes[v].input[0] in maker]
    return frozenset(v for pair in pairs for v in pair)
