"""How wide the blocks of the blocked layout (NCHWc) are on this processor: the runtime is asked."""

from functools import cache

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxremat.importer.nodes import LAYOUT_DOMAIN
from onnxremat.ort.optimize import optimize_offline
from onnxremat.ort.recipe import RECIPE, OptimizationLevel

_NARROWEST = 8


@cache
def layout_width() -> int | None:
    """Channels in a block (8 or 16 on 1.31.1), None if this runtime has no such layout.

    The runtime is asked: it pads the filters of a convolution to whole blocks of channels.
    """
    filters = numpy_helper.from_array(np.ones((_NARROWEST, 3, 1, 1), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _NARROWEST, 4, 4])
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([conv], "probe", [x], [y], [filters])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = optimize_offline(model, ".", OptimizationLevel.ALL, RECIPE).model
    sizes = {tensor.name: tensor.dims for tensor in made.graph.initializer}
    blocked = (node for node in made.graph.node if node.domain == LAYOUT_DOMAIN)
    widths = (
        int(sizes[name][0])
        for node in blocked
        if node.op_type == "Conv"
        for name in node.input[1:2]
    )
    return next(widths, None)


def block_channels(model: ModelProto) -> int:
    """Channels in a block of the values of `model` that lie in blocks; 0 if none does."""
    blocked = any(node.domain == LAYOUT_DOMAIN for node in model.graph.node)
    return (layout_width() or 0) if blocked else 0
