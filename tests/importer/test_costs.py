"""Each formula against a count made by hand, and the roofline around them."""

import pytest
from onnx import NodeProto, helper

from onnxremat.importer import ValueType
from onnxremat.importer.costs import DEFAULT_COSTS, CostModel, flop_count, moved_bytes, op_ns

node = helper.make_node


def f32(*shape: int) -> ValueType:
    return ValueType("float", shape)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "flops"),
    [
        # 5*5 places, 16 filters, 3 channels, 3*3 taps, multiply and add
        (
            node("Conv", "xw", "y"),
            [f32(1, 3, 7, 7), f32(16, 3, 3, 3)],
            [f32(1, 16, 5, 5)],
            2 * 25 * 16 * 3 * 9,
        ),
        # depthwise: the filter has one channel
        (
            node("Conv", "xw", "y", group=8),
            [f32(2, 8, 4, 4), f32(8, 1, 3, 3)],
            [f32(2, 8, 4, 4)],
            2 * 2 * 8 * 16 * 9,
        ),
        (
            node("ConvTranspose", "xw", "y"),
            [f32(1, 4, 5, 5), f32(4, 6, 2, 2)],
            [f32(1, 6, 6, 6)],
            2 * 4 * 25 * 6 * 4,
        ),
        (
            node("ConvGrad", "dxw", ["dx", "dw"], domain="com.microsoft"),
            [f32(1, 16, 5, 5), f32(1, 3, 7, 7), f32(16, 3, 3, 3)],
            [f32(1, 3, 7, 7), f32(16, 3, 3, 3)],
            2 * 2 * 25 * 16 * 3 * 9,
        ),
        (
            node("QLinearConv", ["x", "a", "b", "w", "c", "d", "e", "f"], "y"),
            [
                ValueType("uint8", (1, 3, 7, 7)),
                f32(),
                None,
                ValueType("int8", (16, 3, 3, 3)),
                f32(),
                None,
                f32(),
                None,
            ],
            [ValueType("uint8", (1, 16, 5, 5))],
            2 * 25 * 16 * 3 * 9,
        ),
        (node("MatMul", "ab", "y"), [f32(7, 4, 5), f32(5, 6)], [f32(7, 4, 6)], 2 * 7 * 4 * 6 * 5),
        (node("MatMul", "ab", "y"), [f32(5), f32(5)], [f32()], 10),
        (node("Gemm", "ab", "y", transA=1), [f32(5, 4), f32(5, 6)], [f32(4, 6)], 2 * 4 * 6 * 5),
        (node("Gemm", "ab", "y", transB=1), [f32(4, 5), f32(6, 5)], [f32(4, 6)], 2 * 4 * 6 * 5),
        (
            node("Einsum", "ab", "y", equation="bij, bjk -> bik"),
            [f32(2, 3, 4), f32(2, 4, 5)],
            [f32(2, 3, 5)],
            2 * 2 * 3 * 4 * 5,
        ),
        (
            node("Attention", "qkv", "y"),
            [f32(2, 8, 10, 16)] * 3,
            [f32(2, 8, 10, 16)],
            2 * 2 * (2 * 8 * 10 * 10 * 16),
        ),
        (
            node("MultiHeadAttention", "qkv", "y", domain="com.microsoft"),
            [f32(2, 10, 128), f32(2, 7, 128), f32(2, 7, 128)],
            [f32(2, 10, 128)],
            2 * 2 * (2 * 10 * 7 * 128),
        ),
        (
            node("Attention", "xwb", "y", domain="com.microsoft"),
            [f32(2, 10, 64), f32(64, 192), f32(192)],
            [f32(2, 10, 64)],
            2 * 2 * 10 * 64 * 192 + 2 * 2 * (2 * 10 * 10 * 64),
        ),
        (
            node("MaxPool", "x", "y", kernel_shape=[3, 3]),
            [f32(1, 2, 6, 6)],
            [f32(1, 2, 4, 4)],
            2 * 16 * 9,
        ),
        (
            node("LSTM", "xwr", "y"),
            [f32(9, 2, 5), f32(1, 12, 5), f32(1, 12, 3)],
            [f32(9, 1, 2, 3)],
            9 * 2 * 2 * (12 * 5 + 12 * 3),
        ),
        (
            node("GRU", "xwr", "y"),
            [f32(9, 2, 5), f32(2, 9, 5), f32(2, 9, 3)],
            [f32(9, 2, 2, 3)],
            9 * 2 * 2 * 2 * (9 * 5 + 9 * 3),
        ),
        (node("Add", "ab", "y"), [f32(4, 1), f32(5)], [f32(4, 5)], 20),
        (node("ReduceSum", "x", "y"), [f32(4, 5)], [f32(1, 1)], 20),
        (node("Softmax", "x", "y"), [f32(4, 5)], [f32(4, 5)], 20 * 14),
        (node("LRN", "x", "y", size=5), [f32(1, 2, 3, 3)], [f32(1, 2, 3, 3)], 18 * 20),
        (node("Transpose", "x", "y"), [f32(4, 5)], [f32(5, 4)], 0),
        (node("Mystery", "x", "y"), [f32(4, 5)], [f32(5, 4)], 0),
        (
            node("Conv", "xw", "y", domain="org.example"),
            [f32(1, 3, 7, 7), f32(16, 3, 3, 3)],
            [f32(1, 16, 5, 5)],
            0,
        ),
    ],
)
def test_operations(
    op: NodeProto, inputs: list[ValueType | None], outputs: list[ValueType | None], flops: int
) -> None:
    assert flop_count(op, inputs, outputs) == flops


def test_einsum_with_an_ellipsis() -> None:
    op = node("Einsum", "ab", "y", equation="...ij,...jk->...ik")
    flops = flop_count(op, [f32(7, 3, 4), f32(7, 4, 5)], [f32(7, 3, 5)])
    assert flops == 2 * 7 * 3 * 4 * 5


def test_the_slower_of_arithmetic_and_memory_counts() -> None:
    costs = CostModel(flop_per_us=1_000, bytes_per_us=500, overhead_ns=7)
    matmul = node("MatMul", "ab", "y")
    shapes = [f32(100, 100), f32(100, 100)]
    assert op_ns(matmul, shapes, [f32(100, 100)], costs) == 2_000_000 + 7
    transpose = node("Transpose", "x", "y")
    assert op_ns(transpose, [f32(100, 100)], [f32(100, 100)], costs) == 160_000 + 7


def test_selections_read_what_they_take() -> None:
    table, rows, taken = f32(1000, 8), ValueType("int64", (2,)), f32(2, 8)
    assert moved_bytes(node("Gather", "tr", "y"), [table, rows], [taken]) == 64 + 16 + 64
    assert moved_bytes(node("Shape", "t", "y"), [table], [rows]) == 32
    assert moved_bytes(node("Neg", "t", "y"), [table], [table]) == 64_000


@pytest.mark.parametrize(
    "op_type",
    [
        "Conv",
        "ConvGrad",
        "MatMul",
        "Gemm",
        "Attention",
        "LSTM",
        "Einsum",
        "MaxPool",
        "LRN",
        "Softmax",
        "Add",
        "Transpose",
    ],
)
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_unknown_types_and_missing_operands_cost_the_overhead(op_type: str, domain: str) -> None:
    op = node(op_type, ["x", "", "z"], ["y", ""], domain=domain)
    assert op_ns(op, [None, None, None], [None, None]) == DEFAULT_COSTS.overhead_ns
    assert op_ns(op, [], []) == DEFAULT_COSTS.overhead_ns
    assert op_ns(op, [ValueType("string", (4,))], [None]) >= DEFAULT_COSTS.overhead_ns


def test_recomputing_an_activation_function_is_cheaper_than_a_convolution() -> None:
    image = f32(1, 64, 56, 56)
    relu = op_ns(node("Relu", "x", "y"), [image], [image])
    convolution = op_ns(node("Conv", "xw", "y"), [image, f32(64, 64, 3, 3)], [image])
    assert convolution > 10 * relu
