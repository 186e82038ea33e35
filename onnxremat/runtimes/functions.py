"""Nodes that ONNX Runtime replaces by the nodes of a function when it loads a model.

Operators without a kernel of their own (HardSwish, Mish, Swish, GroupNormalization, CenterCropPad,
losses ...) and calls of the model's own functions are expanded, and the parts get indices after
all other nodes: their place in the file no longer decides when they run. A model is therefore
planned best after they have been expanded in the file itself.
"""

from collections.abc import Collection

import onnx
import onnx.inliner

from onnxremat.errors import ModelError


def expand_functions(model: onnx.ModelProto, nodes: Collection[int]) -> onnx.ModelProto:
    """A copy in which the nodes (indices into `model.graph.node`, as `RunProfile.expanded` lists
    them) stand as the nodes of their functions, at the same place.

    Every node of the same op type is expanded with them. Names of other nodes and of their values
    stay; functions inside functions are expanded too. Raises ModelError if onnx cannot expand one.
    """
    kinds = {(model.graph.node[v].domain, model.graph.node[v].op_type) for v in nodes}
    if not kinds:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    names = ", ".join(sorted(op_type for _, op_type in kinds))
    typed = _with_weight_types(model)
    try:
        expanded = onnx.inliner.inline_selected_functions(
            typed, sorted(kinds), exclude=False, inline_schema_functions=True
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{names} cannot be expanded into simpler nodes: {reason}") from None
    weights = {tensor.name for tensor in model.graph.initializer}
    stated = {value.name for value in model.graph.value_info}
    kept = [v for v in expanded.graph.value_info if v.name in stated or v.name not in weights]
    expanded.graph.ClearField("value_info")
    expanded.graph.value_info.extend(kept)
    return expanded


def _with_weight_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that states the type of each initializer: the inliner looks for them there."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    stated = {value.name for value in (*model.graph.input, *model.graph.value_info)}
    copy.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.name not in stated
    )
    return copy
