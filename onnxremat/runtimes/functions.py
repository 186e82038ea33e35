"""Nodes that ONNX Runtime replaces by the nodes of a function when it loads a model.

Operators without a kernel of their own (HardSwish, Mish, Swish, GroupNormalization, CenterCropPad,
losses ...) and calls of the model's own functions are expanded, and the parts get indices after
all other nodes: their place in the file no longer decides when they run. A model is therefore
planned best after they have been expanded in the file itself.
"""

from collections.abc import Collection

import onnx
import onnx.inliner


def expand_functions(model: onnx.ModelProto, nodes: Collection[int]) -> onnx.ModelProto:
    """A copy in which the nodes (indices into `model.graph.node`, as `RunProfile.expanded` lists
    them) stand as the nodes of their functions, at the same place.

    Every node of the same op type is expanded with them. Names of other nodes and of their values
    stay; functions inside functions are expanded too.
    """
    kinds = {(model.graph.node[v].domain, model.graph.node[v].op_type) for v in nodes}
    if not kinds:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    return onnx.inliner.inline_selected_functions(
        model, sorted(kinds), exclude=False, inline_schema_functions=True
    )
