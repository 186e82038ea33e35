"""A light copy of a model for shape inference: bound sizes, no weights.

onnx's inference works on serialized bytes, so what it does not need must not be in there. Small
constants (shapes, axes, scales) become initializers, all others graph inputs of their type. The
copy is never run or written to disk.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper
from onnx import helper as onnx_helper

from onnxremat.importer.binding import Binding
from onnxremat.importer.constants import Constants, small_value
from onnxremat.importer.load import LoadedModel, given_inputs
from onnxremat.importer.nodes import (
    DEFAULT_DOMAINS,
    FIRST_IR_WITH_FREE_INITIALIZERS,
    available_names,
    op_key,
)
from onnxremat.importer.values import ValueType, dtype_name

_MOST_SCALES = 16


def inference_copy(loaded: LoadedModel, binding: Binding, constants: Constants) -> ModelProto:
    """The copy. Inputs have the bound shapes; inner values and outputs have none yet (see `seed`).

    Raises ModelError if the data of a small tensor in another file cannot be read.
    """
    model = loaded.model
    copy = ModelProto(ir_version=max(model.ir_version, FIRST_IR_WITH_FREE_INITIALIZERS))
    copy.opset_import.extend(model.opset_import)
    used = {node.domain for node in model.graph.node}
    for domain in sorted(used - {opset.domain for opset in model.opset_import}):
        if domain not in DEFAULT_DOMAINS:
            copy.opset_import.append(onnx_helper.make_opsetid(domain, 1))
    graph = copy.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(node for node in model.graph.node if op_key(node) != "Constant")
    for value in given_inputs(model.graph):
        dtype = dtype_name(value.type.tensor_type.elem_type)
        graph.input.append(
            value_info(value.name, ValueType(dtype, binding.input_shapes[value.name]))
        )
    for name, kind in constants.types.items():
        data = _shape_data(name, kind, loaded, constants)
        if data is None:
            graph.input.append(value_info(name, kind))
        else:
            graph.initializer.append(numpy_helper.from_array(data, name))
    for value in model.graph.output:
        output = graph.output.add(name=value.name)
        output.type.CopyFrom(value.type)
        output.type.tensor_type.ClearField("shape")
    return copy


def seed(copy: ModelProto, types: Mapping[str, ValueType]) -> None:
    """State the types of inner values and outputs in the copy, replacing what it stated before."""
    graph = copy.graph
    del graph.value_info[:]
    outputs = {value.name: value for value in graph.output}
    skip = available_names(graph)
    for name, kind in types.items():
        if name in outputs:
            outputs[name].CopyFrom(value_info(name, kind))
        elif name not in skip:
            graph.value_info.append(value_info(name, kind))


def value_info(name: str, kind: ValueType) -> ValueInfoProto:
    """A declaration of a tensor."""
    return onnx_helper.make_tensor_value_info(
        name, TensorProto.DataType.Value(kind.dtype.upper()), kind.shape
    )


def _shape_data(
    name: str, kind: ValueType, loaded: LoadedModel, constants: Constants
) -> NDArray[np.generic] | None:
    """The data of a constant that may decide a shape: integers, or the few scales of a Resize."""
    if name in constants.stored and (kind.is_integer or kind.elements <= _MOST_SCALES):
        return small_value(constants.stored[name], loaded)
    return None
