"""Which ops give the same result when they run again, and may therefore be recomputed.

A list of what is known to be pure, never of what is known to be impure: an op that is not
listed is not recomputed unless the user allows its name.
"""

from collections.abc import Collection

import onnx
from onnx import NodeProto

from onnxremat.importer.nodes import DEFAULT_DOMAINS, attribute, has_subgraph, op_key

RANDOM_OPS = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
    }
)
"""Standard ops that draw numbers. A seed does not help: the generator's state moves on."""

NON_TENSOR_OPS = frozenset(
    {
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceInsert",
        "SequenceErase",
        "SequenceAt",
        "SequenceLength",
        "SplitToSequence",
        "ConcatFromSequence",
        "SequenceMap",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
    }
)
"""Standard ops that read or make values that are no tensors."""

PURE_MICROSOFT_OPS = frozenset(
    {
        # Fusions of pure standard ops, made by ONNX Runtime's optimizer.
        "FusedConv",
        "FusedMatMul",
        "FusedGemm",
        "FusedMatMulActivation",
        "TransposeMatMul",
        "Gelu",
        "BiasGelu",
        "FastGelu",
        "QuickGelu",
        "BiasSoftmax",
        "BiasAdd",
        "BiasSplitGelu",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "EmbedLayerNormalization",
        "GroupNorm",
        "SkipGroupNorm",
        "ConvTransposeWithDynamicPads",
        "NhwcConv",
        "NhwcFusedConv",
        "NhwcMaxPool",
        "GemmFastGelu",
        "RotaryEmbedding",
        "RelativePositionBias",
        "GatedRelativePositionBias",
        "Inverse",
        "Pad",
        "Unique",
        "ExpandDims",
        "Range",
        "Trilu",
        "GridSample",
        "CropAndResize",
        "MaxpoolWithMask",
        "Irfft",
        "Rfft",
        "ComplexMul",
        "ComplexMulConj",
        "GatherND",
        "MatMulNBits",
        "MatMulBnb4",
        "MatMulFpQ4",
        "GatherBlockQuantized",
        # Attention without a cache that is written in place.
        "Attention",
        "MultiHeadAttention",
        "PackedAttention",
        "PackedMultiHeadAttention",
        "LongformerAttention",
        "QAttention",
        "QOrderedAttention",
        "RemovePadding",
        "RestorePadding",
        # Quantized arithmetic.
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
        "MatMulInteger16",
        "QGemm",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearReduceMean",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
        "MulInteger",
        "ReduceSumInteger",
        "QEmbedLayerNormalization",
        # Gradients: closed formulas of their inputs (DropoutGrad reads the mask it is given).
        "BatchNormalizationGrad",
        "BiasFastGeluGrad_dX",
        "BiasGeluGrad_dX",
        "ConvGrad",
        "DivGrad",
        "DropoutGrad",
        "FastGeluGrad",
        "GatherElementsGrad",
        "GatherGrad",
        "GatherNDGrad",
        "GeluGrad",
        "InvertibleLayerNormalizationGrad",
        "LayerNormalizationGrad",
        "LogSoftmaxGrad",
        "LogSoftmaxGrad_13",
        "MaxPoolGrad",
        "AveragePoolGrad",
        "ReluGrad",
        "Scale",
        "SigmoidGrad",
        "SimplifiedLayerNormalizationGrad",
        "SliceGrad",
        "SoftmaxCrossEntropyGrad",
        "SoftmaxCrossEntropyLossGrad",
        "SoftmaxCrossEntropyLossInternal",
        "SoftmaxCrossEntropyLossInternalGrad",
        "SoftmaxGrad",
        "SoftmaxGrad_13",
        "SplitTraining",
        "ConcatTraining",
        "TanhGrad",
        "PadAndUnflatten",
        "ReduceSumTraining",
        # The NCHWc convolution family (domain com.microsoft.nchwc).
        "Conv",
        "MaxPool",
        "GlobalMaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "ReorderInput",
        "ReorderOutput",
        "Upsample",
    }
)
"""Ops of ONNX Runtime's own domains whose outputs are by definition a function of their inputs.

Left out on purpose: dropouts and samplers (random), GroupQueryAttention and
DecoderMaskedMultiHeadAttention (write their cache in place), InPlaceAccumulator and optimizers
(change their inputs), BeamSearch and GreedySearch (subgraphs), anything that talks to devices.
"""

_MICROSOFT_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")
_PURE_DOMAINS = ("ai.onnx.ml",)


def is_pure(node: NodeProto) -> bool:
    """Whether the outputs are a function of the inputs, as far as the op itself goes.

    Dropout counts as random unless `inference_dropout` says otherwise; see there.
    """
    if node.domain in _PURE_DOMAINS:
        return True
    if node.domain in _MICROSOFT_DOMAINS:
        writes_cache = bool(attribute(node, "past_present_share_buffer", 0))
        return node.op_type in PURE_MICROSOFT_OPS and not writes_cache
    if node.domain not in DEFAULT_DOMAINS or node.op_type in RANDOM_OPS | {"Dropout"}:
        return False
    # ONNX Runtime's optimizer also puts some of its ops into the standard domain.
    return onnx.defs.has(node.op_type) or node.op_type in PURE_MICROSOFT_OPS


def inference_dropout(node: NodeProto, opset: int, training_mode: bool | None) -> bool:
    """Whether a Dropout node passes its input on unchanged.

    `training_mode` is the value of its third input: None if that is not a known constant. Before
    opset 12 there is no such input, and from 7 on Dropout is always inference; before that the
    attribute `is_test` says so.
    """
    if op_key(node) != "Dropout":
        return False
    if opset < 7:
        return bool(attribute(node, "is_test", 0))
    return len(node.input) < 3 or not node.input[2] or training_mode is False


def is_recomputable(node: NodeProto, allowed: Collection[str] = ()) -> bool:
    """Whether the node may run again with the same result.

    `allowed` are names of op types, bare or as `domain::type`, that the user vouches for. Not
    even they make a node with subgraphs or values that are no tensors recomputable.
    """
    if has_subgraph(node) or op_key(node) in NON_TENSOR_OPS:
        return False
    return is_pure(node) or node.op_type in allowed or op_key(node) in allowed
