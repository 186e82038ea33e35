"""Sizes that depend on values, not on the sizes of the inputs alone.

What lies behind a NonZero, a Compress or a Resize to sizes that the caller gives has other sizes at
other values of the same declared shape. A plan of whole ops holds for any sizes; what writes sizes
into the model (tiles, substitutes) would be right for those of the planned values only.

    kept contents (constants, what Shape and Size tell, what is computed of these alone)
      -> values whose size is set by other contents, and all that is made of them
"""

from collections.abc import Iterator

from onnx import ModelProto, NodeProto

from onnxremat.importer.inference import infer_shapes
from onnxremat.importer.nodes import DEFAULT_DOMAINS, has_subgraph, is_constant, reads, replaceable

"""Before, initializers have to be inputs, and are constants all the same."""

_ALWAYS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Ops whose outputs are as large as the values say."""

_SEQUENCES = frozenset({"ConcatFromSequence", "SequenceAt", "SequenceLength", "OptionalGetElement"})
"""Ops that read what has no one size."""

_SIZING: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1, 2),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(
        (
            *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
            *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        ),
        (1,),
    ),
}
"""Inputs whose contents set the size of the output."""

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
    | {"RandomUniformLike"}
)
_MEASURES = frozenset({"Shape", "Size"})


def sizes_from_values(model: ModelProto) -> frozenset[str]:
    """The values of the main graph whose sizes depend on values. What onnx infers without reading
    any, from the declared sizes of the inputs, does not. O(nodes + reads)."""
    graph = model.graph
    given = replaceable(model)
    kept = {t.name for t in graph.initializer} - given
    kept.update({t.values.name for t in graph.sparse_initializer} - given)
    found = set[str]()
    for node in graph.node:
        if _sized_by_values(node, kept, found):
            found.update(name for name in node.output if name)
        elif _keeps(node, kept, found):
            kept.update(name for name in node.output if name)
    return frozenset(found - set(_inferred(model))) if found else frozenset()


def _sized_by_values(node: NodeProto, kept: set[str], found: set[str]) -> bool:
    read = reads(node)
    if any(name in found for name in read):
        return node.op_type not in _MEASURES
    if node.op_type in _SEQUENCES or (node.op_type in ("If", "Loop") and has_subgraph(node)):
        return not all(name in kept for name in read)
    if node.domain not in DEFAULT_DOMAINS:
        return False
    if node.op_type in _ALWAYS:
        return not all(name in kept for name in read)
    sizing = (node.input[i] for i in _SIZING.get(node.op_type, ()) if i < len(node.input))
    return any(name and name not in kept for name in sizing)


def _keeps(node: NodeProto, kept: set[str], found: set[str]) -> bool:
    """Whether what a node makes depends on sizes of the inputs only."""
    if node.op_type in _MEASURES and node.domain in DEFAULT_DOMAINS:
        return node.input[0] not in found
    if node.op_type in _RANDOM:
        return False
    return is_constant(node) or all(name in kept for name in reads(node))


def _inferred(model: ModelProto) -> Iterator[str]:
    """Values of which onnx knows all sizes; what the file itself says of them does not count."""
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    known = infer_shapes(bare, data_prop=True)
    if known is None:
        return
    for value in (*known.graph.value_info, *known.graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            yield value.name
