"""Small models for the tests of the importer."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxremat.importer import (
    ImportedModel,
    LoadedModel,
    ValueTypes,
    bind_dimensions,
    from_proto,
    import_model,
    infer_types,
)

node = helper.make_node
Shape = Sequence[int | str | None] | None


def value(name: str, shape: Shape = (4,), dtype: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto] | None = None,
    outputs: Sequence[str | ValueInfoProto] = ("y",),
    weights: Mapping[str, NDArray[np.generic]] | None = None,
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
    stated: Sequence[ValueInfoProto] = (),
) -> ModelProto:
    """One input `x` of four floats and one output `y` unless said otherwise."""
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x")] if inputs is None else inputs,
        [value(o, None) if isinstance(o, str) else o for o in outputs],
        [numpy_helper.from_array(data, name) for name, data in (weights or {}).items()],
        value_info=stated,
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def types_of(proto: ModelProto, **dims: int) -> tuple[LoadedModel, ValueTypes]:
    loaded = from_proto(proto)
    return loaded, infer_types(loaded, bind_dimensions(loaded, dims))


def imported(proto: ModelProto, **options: object) -> ImportedModel:
    loaded, types = types_of(proto)
    return import_model(loaded, types, **options)  # type: ignore[arg-type]


def reads_by_name(result: ImportedModel) -> dict[str, tuple[str, ...]]:
    """What each op reads, by the name of its first output."""
    tensors = result.graph.tensors
    return {
        tensors[op.outputs[0]].name: tuple(tensors[t].name for t in op.inputs)
        for op in result.graph.ops
    }
