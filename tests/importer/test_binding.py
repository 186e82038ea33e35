import pytest
from onnx import ModelProto, TensorProto, helper

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer import Binding, bind_dimensions, from_proto, own_dims

from .build import model, node, value

TWO = model(
    [node("Add", ["x:0", "z"], ["y"])],
    inputs=[value("x:0", ["batch", 3, None]), value("z", ["batch", 3, 8])],
    outputs=[value("y", ["batch", 3, "inner"])],
)


def bind(proto: ModelProto, **dims: int) -> Binding:
    return bind_dimensions(from_proto(proto), dims)


def bound(**dims: int) -> dict[str, tuple[int, ...]]:
    return dict(bind(TWO, **dims).input_shapes)


def test_names_and_axes() -> None:
    wanted = {"x:0": (4, 3, 8), "z": (4, 3, 8)}
    assert bound(batch=4, **{"x:0:2": 8}) == wanted
    assert bound(**{"z:0": 4, "x:0:2": 8}) == wanted
    assert bound(batch=4, **{"x:0:0": 4, "x:0:1": 3, "x:0:2": 8}) == wanted
    assert bind(TWO, **{"z:0": 4, "x:0:2": 8}).symbols == {"batch": 4}


def test_inner_names_may_be_bound_too() -> None:
    assert bind(TWO, batch=4, inner=8, **{"x:0:2": 8}).symbols == {"batch": 4, "inner": 8}


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            {},
            r"--dim batch=SIZE \(dimension 0 of input 'x:0' and dimension 0 of input 'z'\), "
            "--dim x:0:2=SIZE",
        ),
        ({"batch": 4}, r"give --dim x:0:2=SIZE \(dimension 2 of input 'x:0'\)"),
        ({"bacth": 4}, r"no dimension 'bacth'; it has batch, x:0:2"),
        ({"w:0": 4}, "no dimension 'w:0'"),
        ({"x:0:5": 4}, "has 3 dimensions, and no axis 5"),
        ({"x:0:1": 4}, "dimension 1 of input 'x:0' is 3, not 4"),
        ({"batch": 4, "z:0": 5}, "dimension 0 of input 'z' is 4, not 5"),
        ({"z:0": 4, "x:0:0": 5}, "is 4, not 5"),
        ({"batch": -1}, "at least 0"),
        ({"b*h": 4}, "give --dim x:0:2=SIZE"),
        ({"*": 4, "batch": 5, "z:0": 6}, "is 5, not 6"),
        ({"x:0:*": 4, "x*": 5}, "x:0:0 is given as 4 and as 5"),
        ({"v*": 4}, r"no dimension 'v\*'; it has batch, x:0:2"),
    ],
)
def test_errors_say_what_to_do(dims: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        bind(TWO, **dims)
    assert "\n" not in str(caught.value)


def test_a_size_may_be_zero() -> None:
    assert bound(batch=0, **{"x:0:2": 0}) == {"x:0": (0, 3, 0), "z": (0, 3, 8)}
    assert bind(TWO, **{"z:0": 0, "x:0:2": 8}).symbols == {"batch": 0}


def test_a_star_stands_for_any_text() -> None:
    assert bound(**{"*": 8}) == {"x:0": (8, 3, 8), "z": (8, 3, 8)}
    assert bound(**{"*": 8, "batch": 4}) == {"x:0": (4, 3, 8), "z": (4, 3, 8)}
    assert bound(**{"*": 4, "x:0:2": 8}) == {"x:0": (4, 3, 8), "z": (4, 3, 8)}
    assert bound(**{"bat*": 4, "x*:2": 8}) == {"x:0": (4, 3, 8), "z": (4, 3, 8)}
    starred = model([node("Relu", ["x"], ["y"])], inputs=[value("x", ["n*", "name"])])
    assert bind(starred, **{"n*": 2, "name": 3}).symbols == {"n*": 2, "name": 3}


def cache(dim: str | None) -> ModelProto:
    """Fifty inputs with a size of that name."""
    names = [f"past.{layer}.{kind}" for layer in range(25) for kind in ("key", "value")]
    inputs = [value(name, [1, dim, 8]) for name in names]
    return model([node("Concat", names, ["y"], axis=1)], inputs=inputs)


def test_fifty_inputs_are_bound_at_once_and_asked_for_in_a_line() -> None:
    with pytest.raises(UsageError) as caught:
        bind(cache("past"))
    assert str(caught.value) == (
        "the model leaves sizes open: give --dim past=SIZE "
        "(dimension 1 of input 'past.0.key' and 49 more)"
    )
    assert set(bind(cache("past"), past=0).input_shapes.values()) == {(1, 0, 8)}
    for dims in ({}, {"post": 4}):
        with pytest.raises(UsageError, match="and 46 more") as caught:
            bind(cache(None), **dims)
        assert len(str(caught.value)) < 400
    shapes = bind(cache(None), **{"past.*:1": 0, "past.3.key:1": 2}).input_shapes
    assert shapes.pop("past.3.key") == (1, 2, 8)
    assert set(shapes.values()) == {(1, 0, 8)}


def test_a_model_without_open_sizes_says_so() -> None:
    with pytest.raises(UsageError, match="all input sizes are fixed"):
        bind(model([node("Relu", ["x"], ["y"])]), batch=3)


def test_an_input_without_any_shape() -> None:
    proto = model([node("Relu", ["x"], ["y"])], inputs=[value("x", None)])
    with pytest.raises(UsageError, match=r"'x' declares no shape: .* --dim x:0=SIZE"):
        bind(proto)
    with pytest.raises(UsageError, match="declares no shape"):
        bind(proto, **{"x:1": 2})
    assert bind(proto, **{"x:0": 2, "x:1": 5}).input_shapes == {"x": (2, 5)}


def test_minus_one_counts_as_open() -> None:
    proto = model([node("Relu", ["x"], ["y"])], inputs=[value("x", [-1, 3])])
    with pytest.raises(UsageError, match="--dim x:0=SIZE"):
        bind(proto)
    assert bind(proto, **{"x:0": 2}).input_shapes == {"x": (2, 3)}


def test_initializers_listed_as_inputs_are_not_bound() -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], inputs=[value("x"), value("w", ["free"])])
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [0.0] * 4))
    assert bind(proto).input_shapes == {"x": (4,)}


def test_a_sequence_as_input_is_not_supported() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    proto = model([node("ConcatFromSequence", ["s"], ["y"], axis=0)], inputs=[sequence])
    with pytest.raises(ModelError, match="graph input 's' is a sequence"):
        bind(proto)


def test_of_sizes_for_several_models_each_has_its_own() -> None:
    dims = {"batch": 1, "x:0:2": 2, "z*": 3, "w:0": 4, "other": 5, "past.*": 6}
    own = own_dims(TWO.graph, dims)
    assert own.keys() <= dims.keys() and not own.keys() & {"w:0", "other", "past.*"}
    assert own.keys() >= {"batch", "x:0:2"}
