"""The ONNX backend suite of the installed onnx package: every model with the inputs of its test."""

import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class BackendTest:
    """A model of the suite, stored in `folder` as model.onnx with the first inputs of its test."""

    name: str
    kind: str
    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    def feed(self) -> dict[str, Any]:
        """The test's own inputs, by name."""
        stored: dict[str, Any] = pickle.loads((self.folder / "feed.pickle").read_bytes())
        return stored


def store(root: Path, *, every: int = 1, only: str = "") -> list[BackendTest]:
    """Store every so many-th of the tests whose name contains `only`, in folders of `root`."""
    tests = []
    number = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for name, model, values in _node_tests() if kind == "node" else _stored_tests(kind):
                if only in name:
                    if number % every == 0:
                        tests.append(_store(root, kind, name, model, values))
                    number += 1
    return tests


def _store(
    root: Path, kind: str, name: str, model: onnx.ModelProto, values: list[Any]
) -> BackendTest:
    folder = root / f"{kind}-{name}"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    given = [value.name for value in model.graph.input]
    feed = dict(zip(given, values, strict=False))
    (folder / "feed.pickle").write_bytes(pickle.dumps(feed))
    return BackendTest(name, kind, folder)


def _node_tests() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    from onnx.backend.test.case.node import collect_testcases

    for test in collect_testcases(None):
        if test.model is not None and test.data_sets:
            yield test.name, test.model, [_plain(value) for value in test.data_sets[0][0]]


def _stored_tests(kind: str) -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    from onnx.backend.test.loader import load_model_tests

    for test in load_model_tests(kind=kind):
        folder = Path(test.model_dir)
        model = onnx.load(folder / "model.onnx")
        data = sorted((folder / "test_data_set_0").glob("input_*.pb"), key=_number)
        values = [_value(file, model.graph.input[i]) for i, file in enumerate(data)]
        yield test.name, model, values


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("input_"))


def _value(file: Path, declared: onnx.ValueInfoProto) -> Any:
    """An input as a test file has it: a tensor, a sequence or an optional."""
    kinds = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    kind = kinds.get(declared.type.WhichOneof("value"), onnx.TensorProto)
    return _plain(kind.FromString(file.read_bytes()))


def _plain(value: Any) -> Any:
    """A stored value as an array, a list or None; others as they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return value
