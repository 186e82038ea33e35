"""What a rewritten file is compared with is the file that it was made from."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from onnxremat.core.errors import VerificationError
from onnxremat.importer import load
from onnxremat.options import ModelOptions
from onnxremat.ort.child import process
from onnxremat.subject import feed_for
from onnxremat.verification import require_expanded_alike
from tests.ort.build import FLOAT, model, node, value


def with_function(path: Path, *body: onnx.NodeProto) -> Path:
    """A model whose only node is a function of its own, from `a` to `b`."""
    call = node("Own", ["x"], ["y"], domain="local")
    made = model([call], [value("x", FLOAT, [4])], ["y"])
    made.opset_import.append(helper.make_opsetid("local", 1))
    opsets = [helper.make_opsetid("", made.opset_import[0].version)]
    made.functions.append(helper.make_function("local", "Own", ["a"], ["b"], body, opsets))
    onnx.save(made, path)
    return path


def test_expanded_functions_are_compared_with_the_file(tmp_path: Path) -> None:
    twice = [node("Exp", ["a"], ["t"]), node("Sin", ["t"], ["b"])]
    feed = feed_for(load(with_function(tmp_path / "m.onnx", *twice)), ModelOptions())
    assert [one.op_type for one in feed.loaded.model.graph.node] == ["Exp", "Sin"]
    require_expanded_alike(feed)
    other = load(with_function(tmp_path / "o.onnx", node("Exp", ["a"], ["b"])))
    wrong = replace(feed.loaded, model=other.model)
    with pytest.raises(VerificationError, match=r"functions expanded .* other bits .*: y"):
        require_expanded_alike(replace(feed, loaded=wrong))


def test_an_original_that_differs_from_itself_is_named_so(tmp_path: Path) -> None:
    noise = node("RandomUniformLike", ["a"], ["b"])
    feed = feed_for(load(with_function(tmp_path / "m.onnx", noise)), ModelOptions())
    with pytest.raises(VerificationError, match="itself gives different bits"):
        require_expanded_alike(feed)


def test_without_functions_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model([node("Exp", ["x"], ["y"])], [value("x", FLOAT, [4])], ["y"]), path)
    feed = feed_for(load(path), ModelOptions())
    started: list[object] = []
    monkeypatch.setattr(process, "run_child", lambda *given, **_: started.append(given))
    require_expanded_alike(feed)
    assert started == []
