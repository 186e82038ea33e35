"""The memory rules hold on the installed ONNX Runtime: heap peaks of tiny models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxremat.importer.nodes import LAYOUT_DOMAIN as BLOCKED
from onnxremat.ort.emulation.rules import INPLACE, VIEW_OPS
from onnxremat.ort.library import RUNTIME_ERRORS, ort
from onnxremat.ort.recipe import RECIPE, Recipe, providers, session_options
from tests.ort.build import FLOAT, INT64, SLACK_BYTES, TENSOR_BYTES, model, node, value

memray = pytest.importorskip("memray", reason="the heap is counted by memray")

SQUEEZED = {"target": np.array([4, 64, 256], np.int64), "axis": np.array([0], np.int64)}
VIEWS: Mapping[str, tuple[Sequence[str], int]] = {
    "Reshape": (["a", "target"], 17),
    "Squeeze": (["a", "axis"], 17),
    "Unsqueeze": (["a", "axis"], 17),
    "Flatten": (["a"], 17),
    "Identity": (["a"], 17),
    "OptionalGetElement": (["a"], 18),
}
INDICES = {"i": np.zeros((1, 4, 64, 8), np.int64), "u": np.ones((1, 4, 64, 8), np.float32)}
OPSETS = {"Scatter": 10}
NOT_INPLACE = [
    "Abs", "Neg", "Exp", "Sqrt", "Erf", "Floor", "Hardmax", "LpNormalization", "Sum", "Max",
]  # fmt: skip


def heap_bytes(graph: onnx.ModelProto, folder: Path, recipe: Recipe = RECIPE) -> float:
    """Heap peak of a run on x, in tensors of SHAPE, rounded to a quarter."""
    session = ort.InferenceSession(
        graph.SerializeToString(),
        session_options(recipe.with_threads(1)),
        providers=providers(recipe),
    )
    binding = session.io_binding()
    x = np.full((1, 4, 64, 256), 0.5, np.float32)
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    record = folder / "heap.bin"
    record.unlink(missing_ok=True)
    with memray.Tracker(record):
        session.run_with_iobinding(binding)
    assert np.all(x == 0.5), "the caller's input was overwritten"
    with memray.FileReader(record) as reader:
        peak: int = reader.metadata.peak_memory
    tensors = round(4 * peak / TENSOR_BYTES) / 4
    assert abs(peak - tensors * TENSOR_BYTES) < SLACK_BYTES
    return tensors


def chain(
    op: onnx.NodeProto,
    *,
    reread: bool,
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """x -> Exp -> a -> op -> b -> Size; with `reread`, a is read once more after that."""
    nodes = [node("Exp", ["x"], ["a"]), op, node("Size", ["b"], ["n"])]
    outputs: list[onnx.ValueInfoProto | str] = [value("n", INT64, [])]
    if reread:
        nodes.append(node("ReduceMax", ["a"], ["m"], keepdims=0))
        outputs.append(value("m", FLOAT, []))
    return model(nodes, [value("x")], outputs, weights, opset)


def inplace_node(op: str) -> tuple[onnx.NodeProto, Mapping[str, Any]]:
    if op in ("Scatter", "ScatterElements"):
        return node(op, ["a", "i", "u"], ["b"]), INDICES
    if op == "FusedConv":
        weights = {
            "w": np.ones((4, 4, 1, 1), np.float32),
            "bias": np.ones(4, np.float32),
            "image": np.ones((1, 4, 64, 256), np.float32),
        }
        return node(op, ["image", "w", "bias", "a"], ["b"], domain="com.microsoft"), weights
    attributes = {"to": FLOAT} if op == "Cast" else {}
    return node(op, ["a"], ["b"], **attributes), {}


@pytest.mark.parametrize("op", sorted(op for op in INPLACE if "::" not in op))
def test_inplace_ops_take_over_a_buffer_that_dies_and_no_other(op: str, tmp_path: Path) -> None:
    made, weights = inplace_node(op)
    opset = OPSETS.get(op, 17)
    dies = heap_bytes(chain(made, reread=False, weights=weights, opset=opset), tmp_path)
    kept = heap_bytes(chain(made, reread=True, weights=weights, opset=opset), tmp_path)
    assert (dies, kept) == (1.0, 2.0)


def test_a_blocked_convolution_adds_to_a_buffer_that_dies(tmp_path: Path) -> None:
    assert f"{BLOCKED}::Conv" in INPLACE
    weights = {
        "blocks": np.array([1, 16, 64, 64], np.int64),
        "image": np.ones((1, 16, 64, 64), np.float32),
        "w": np.ones((16, 16, 1, 1), np.float32),
        "bias": np.ones(16, np.float32),
    }
    made = node("Conv", ["image", "w", "bias", "a2"], ["b"], domain=BLOCKED, kernel_shape=[1, 1])
    heaps = []
    for reread in (False, True):
        graph = chain(made, reread=reread, weights=weights)
        graph.graph.node.insert(1, node("Reshape", ["a", "blocks"], ["a2"]))
        graph.opset_import.add(domain=BLOCKED, version=1)
        try:
            heaps.append(heap_bytes(graph, tmp_path))
        except RUNTIME_ERRORS as error:
            pytest.skip(f"this processor has no blocked layout of 16 channels: {error}")
    assert heaps == [1.0, 2.0]


@pytest.mark.parametrize("op", NOT_INPLACE)
def test_other_ops_get_a_buffer_of_their_own(op: str, tmp_path: Path) -> None:
    assert op not in INPLACE
    assert heap_bytes(chain(node(op, ["a"], ["b"]), reread=False), tmp_path) == 2.0


def test_adding_to_a_dying_tensor_is_not_in_place(tmp_path: Path) -> None:
    assert heap_bytes(chain(node("Add", ["a", "x"], ["b"]), reread=False), tmp_path) == 2.0


@pytest.mark.parametrize("op", sorted(VIEW_OPS))
def test_views_have_no_bytes_whatever_else_is_read(op: str, tmp_path: Path) -> None:
    inputs, opset = VIEWS[op]
    made = node(op, inputs, ["b"])
    graph = chain(made, reread=True, weights=SQUEEZED, opset=opset)
    assert heap_bytes(graph, tmp_path) == 1.0


@pytest.mark.parametrize("opset", [10, 13])
def test_dropout_copies(opset: int, tmp_path: Path) -> None:
    graph = chain(node("Dropout", ["a"], ["b"]), reread=True, opset=opset)
    mask = 0.25 if opset >= 12 else 0.0
    assert heap_bytes(graph, tmp_path) == 2.0 + mask


SIZE = value("n", INT64, [])
UNREAD = [node("Exp", ["x"], ["u"]), node("Neg", ["x"], ["b"]), node("Size", ["b"], ["n"])]


@pytest.mark.parametrize(
    ("nodes", "outputs", "tensors"),
    [
        pytest.param(UNREAD, [SIZE], 2.0, id="an unread value is held"),
        pytest.param(
            [*UNREAD, node("Size", ["u"], ["n2"])], [SIZE], 1.0, id="a Size reader frees it at once"
        ),
        pytest.param(
            [UNREAD[0], node("Reshape", ["u", "target"], ["v"]), *UNREAD[1:]],
            [SIZE],
            1.0,
            id="an unread view holds nothing",
        ),
        pytest.param(
            [UNREAD[0], node("Relu", ["u"], ["v"]), *UNREAD[1:]],
            [SIZE],
            1.0,
            id="an unread value in place goes with its buffer",
        ),
        pytest.param(
            [node("Exp", ["x"], ["a"]), node("Relu", ["a"], ["y"])],
            [value("y")],
            2.0,
            id="a graph output is never in place",
        ),
        pytest.param(
            [node("Exp", ["x"], ["a"]), node("Reshape", ["a", "target"], ["y"])],
            ["y"],
            2.0,
            id="a view that is a graph output is copied",
        ),
        pytest.param(
            [node("Exp", ["x"], ["y"]), node("Relu", ["y"], ["b"]), node("Size", ["b"], ["n"])],
            [value("y"), SIZE],
            2.0,
            id="a graph output is not taken over",
        ),
        pytest.param(
            [node("Reshape", ["x", "target"], ["v"]), node("Size", ["v"], ["n"])],
            [SIZE],
            0.0,
            id="a view of a graph input has no bytes",
        ),
        pytest.param(
            [
                node("Reshape", ["x", "target"], ["v"]),
                node("Relu", ["v"], ["b"]),
                node("Size", ["b"], ["n"]),
            ],
            [SIZE],
            1.0,
            id="a graph input is not taken over through a view",
        ),
        pytest.param(
            [
                node("Exp", ["x"], ["a"]),
                node("Reshape", ["a", "target"], ["v"]),
                node("Relu", ["v"], ["b"]),
                node("Size", ["b"], ["n"]),
            ],
            [SIZE],
            1.0,
            id="in place through a view",
        ),
    ],
)
def test_lifetimes(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto | str],
    tensors: float,
    tmp_path: Path,
) -> None:
    weights = {"target": SQUEEZED["target"]}
    assert heap_bytes(model(nodes, [value("x")], outputs, weights), tmp_path) == tensors


def test_in_place_needs_sizes_that_the_runtime_can_prove(tmp_path: Path) -> None:
    graph = model(
        [
            node("Exp", ["x"], ["a"]),
            node("Reshape", ["a", "target"], ["v"]),
            node("Relu", ["v"], ["b"]),
            node("Size", ["b"], ["n"]),
        ],
        [value("x", FLOAT, ["batch", 4, 64, 256])],
        [SIZE],
        {"target": np.array([-1, 64, 256], np.int64)},
    )
    assert heap_bytes(graph, tmp_path) == 2.0
    assert heap_bytes(graph, tmp_path, RECIPE.with_dimensions({"batch": 1})) == 1.0
