"""Files that are written: never onto inputs, never outside the folder, all of them or none."""

import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxremat
from models import BUILDERS
from onnxremat.commands import files
from onnxremat.commands.files import check_outputs, external_copies, write_files
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer.external import data_files
from onnxremat.importer.load import load
from onnxremat.options import Options
from onnxremat.system import temporary

pytestmark = pytest.mark.slow

QUICK = Options(session="recipe", time_limit=1, threads=1, tiling=False)
SHAPE = [16, 16]


def stored_in(location: str, folder: Path | None = None, name: str = "w") -> TensorProto:
    """A tensor whose data is in another file; the file, too, if there is a folder for it."""
    tensor = numpy_helper.from_array(np.full(SHAPE, 0.5, "f"), name)
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", 0), ("length", len(data))):
        tensor.external_data.add(key=key, value=str(entry))
    if folder is not None:
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        (folder / location).write_bytes(data)
    return tensor


def value(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(path: Path, weights: list[TensorProto]) -> Path:
    """A model of two nodes that reads the first weight."""
    nodes = [
        helper.make_node("MatMul", ["x", weights[0].name], ["a"], "a"),
        helper.make_node("Relu", ["a"], ["y"], "y"),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", SHAPE)], [value("y", SHAPE)], weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def everywhere(folder: Path) -> Path:
    """A model with external data in an initializer, a branch, a Constant and a function."""
    at = {
        name: stored_in(f"{name}.bin", folder, name) for name in ("top", "then", "constant", "body")
    }
    then = helper.make_graph(
        [helper.make_node("MatMul", ["a", "then"], ["t"])],
        "then",
        [],
        [value("t", SHAPE)],
        [at["then"]],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["a"], ["u"])], "else", [], [value("u", SHAPE)]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "top"], ["a"], "a"),
        helper.make_node("If", ["c"], ["b"], "b", then_branch=then, else_branch=other),
        helper.make_node("Constant", [], ["k"], "k", value=at["constant"]),
        helper.make_node("Add", ["b", "k"], ["d"], "d"),
        helper.make_node("Block", ["d"], ["y"], "y", domain="local"),
    ]
    body = [
        helper.make_node("Constant", [], ["w"], value=at["body"]),
        helper.make_node("MatMul", ["i", "w"], ["o"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    block = helper.make_function("local", "Block", ["i"], ["o"], body, opsets[:1])
    inputs = [value("x", SHAPE), value("c", [], TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", SHAPE)], [at["top"]])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[block])
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_external_data_of_every_place_goes_along_and_the_file_opens(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = everywhere(tmp_path / "in")
    target = tmp_path / "out" / "m.onnx"
    rewrite(path, "min", QUICK, output=target)
    names = {"top.bin", "then.bin", "constant.bin", "body.bin"}
    assert {entry.name for entry in target.parent.iterdir()} == {"m.onnx", *names}
    feed = {"x": np.ones(SHAPE, "f"), "c": np.array(True)}
    made = onnxremat.open_session(target).run(None, feed)[0]
    assert np.array_equal(made, np.full(SHAPE, (16 * 0.5 * 16 * 0.5 + 0.5) * 16 * 0.5, "f"))


@pytest.mark.parametrize(
    "options",
    [
        Options(session="stock", embed_weights=True, threads=1),
        Options(session="recipe", optimize="basic", threads=1),
    ],
)
def test_external_data_in_bodies_is_found_by_other_targets(
    options: Options, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    path = everywhere(tmp_path)
    result = rewrite(path, "1GB", options, output=tmp_path / "out" / "m.onnx")
    assert result.verification is not None
    assert result.verification.identical
    for name in data_files(result.model):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_sparse_tensors_lists_of_tensors_and_training_graphs_have_data_too() -> None:
    dense = [stored_in(f"{name}.bin", name=name) for name in "abcdefg"]
    sparse = onnx.SparseTensorProto(values=dense[0], indices=dense[1])
    node = helper.make_node("Any", [], ["y"])
    node.attribute.append(
        onnx.AttributeProto(name="s", sparse_tensor=onnx.SparseTensorProto(values=dense[2]))
    )
    node.attribute.append(onnx.AttributeProto(name="t", tensors=dense[3:5]))
    body = onnx.GraphProto(initializer=[dense[5]])
    node.attribute.append(onnx.AttributeProto(name="g", graphs=[body]))
    model = onnx.ModelProto(graph=onnx.GraphProto(node=[node], sparse_initializer=[sparse]))
    model.training_info.add().algorithm.initializer.append(dense[6])
    assert data_files(model) == tuple(f"{name}.bin" for name in "abcdefg")


def test_outputs_that_are_inputs_are_refused(tmp_path: Path) -> None:
    loaded = load(saved(tmp_path / "m.onnx", [stored_in("w.bin", tmp_path)]))
    feed = tmp_path / "in.npz"
    feed.write_text("")
    (tmp_path / "link").symlink_to("w.bin")
    os.link(feed, tmp_path / "hard")
    for name, what in {
        "m.onnx": "the model itself",
        "w.bin": "external data of the model",
        "link": "external data of the model",
        "in.npz": "the file of --inputs",
        "hard": "the file of --inputs",
    }.items():
        with pytest.raises(UsageError, match=f"cannot write .*{name}: it is {what}"):
            check_outputs(loaded, feed, (None, tmp_path / name))
    with pytest.raises(UsageError, match="a file each"):
        check_outputs(loaded, feed, (tmp_path / "new", tmp_path / "." / "new"))
    check_outputs(loaded, feed, (tmp_path / "new", tmp_path / "other"))


def test_data_of_a_function_that_nothing_calls_is_an_input_as_well(tmp_path: Path) -> None:
    path = everywhere(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.node[-1].CopyFrom(helper.make_node("Relu", ["d"], ["y"]))
    onnx.save(model, path)
    loaded = load(path)
    assert "body.bin" not in data_files(loaded.model)
    with pytest.raises(UsageError, match="external data"):
        check_outputs(loaded, None, (tmp_path / "body.bin",))


LOCATIONS = {
    "above": "../secret.bin",
    "below and above": "sub/../../secret.bin",
    "absolute": "/etc/hostname",
    "a link to a file outside": "file.bin",
    "a link to a folder outside": "folder/secret.bin",
}


@pytest.mark.parametrize("case", LOCATIONS)
def test_data_outside_the_folder_of_the_model_is_refused_read_or_not(
    case: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    unread = stored_in(LOCATIONS[case], name="unread")
    path = saved(folder / "m.onnx", [stored_in("w.bin", folder), unread])
    (tmp_path / "secret.bin").write_bytes(b"\0" * 1024)
    (folder / "sub").mkdir()
    (folder / "file.bin").symlink_to("../secret.bin")
    (folder / "folder").symlink_to("..")
    with pytest.raises(ModelError, match=r"'unread' is at '.*', outside the folder of the model"):
        load(path)


def test_a_location_that_cannot_be_a_path_is_refused_in_one_line(tmp_path: Path) -> None:
    for location in ("x" * 6000, "y\0z", "z/" * 3000 + "w"):
        path = saved(
            tmp_path / "m.onnx", [stored_in("w.bin", tmp_path), stored_in(location, name="u")]
        )
        with pytest.raises(ModelError, match="the data of 'u'") as raised:
            load(path)
        assert len(str(raised.value)) < 300
        assert "\n" not in str(raised.value)


def test_copies_of_weights_never_leave_the_folder_nor_replace_anything(tmp_path: Path) -> None:
    source, out, outside = (tmp_path / name for name in ("in", "out", "outside"))
    for folder in (source, out, outside):
        folder.mkdir()
    model = onnx.load(
        saved(source / "m.onnx", [stored_in("sub/w.bin", source)]), load_external_data=False
    )
    target = out / "m.onnx"
    assert external_copies(model, source, target) == {out / "sub/w.bin": source / "sub/w.bin"}
    (out / "sub").symlink_to(outside)
    with pytest.raises(UsageError, match="that leads out of the folder"):
        external_copies(model, source, target)
    (out / "sub").unlink()
    (out / "sub").mkdir()
    back = onnx.ModelProto()
    back.CopyFrom(model)
    for tensor in back.graph.initializer:
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value="sub/../../in/sub/w.bin")
    with pytest.raises(UsageError, match="that leads out of the folder"):
        external_copies(back, source, target)
    assert external_copies(back, source, source / "o.onnx") == {}
    (out / "sub").rmdir()
    (out / "sub").write_text("a file")
    with pytest.raises(UsageError, match="sub is no folder"):
        external_copies(model, source, target)
    (out / "sub").unlink()
    (out / "sub").mkdir()
    (out / "sub" / "w.bin").symlink_to("nowhere")
    with pytest.raises(UsageError, match="another file is there"):
        external_copies(model, source, target)
    (out / "sub" / "w.bin").unlink()
    with pytest.raises(UsageError, match="the weights of the model belong there"):
        external_copies(model, source, target, [None, out / "." / "sub/w.bin"])
    (out / "sub" / "w.bin").write_bytes((source / "sub/w.bin").read_bytes())
    assert external_copies(model, source, target) == {}
    assert external_copies(model, source, source / "other.onnx") == {}
    beside = onnx.load(
        saved(source / "n.onnx", [stored_in("n.bin", source)]), load_external_data=False
    )
    with pytest.raises(UsageError, match="the weights of the model belong there"):
        external_copies(beside, source, out / "n.bin")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of the test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(temporary, "_own", temporary._Own())
    yield folder
    temporary.clean_up()


def state(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder, with what is in it."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Callable[[], None], dict[str, bytes | None]]:
    """A folder, what writes four files there, one of which replaces an old one, and the result."""
    out, source = tmp_path / "out", tmp_path / "source"
    out.mkdir()
    source.write_bytes(b"weights")
    (out / "old.onnx").write_bytes(b"old")
    (out / "notes").write_bytes(b"not ours")
    contents = {out / "plan.json": b"plan", out / "old.onnx": b"new"}
    copies = {out / "a/b/w.bin": source, out / "v.bin": source}
    after = {"plan.json": b"plan", "old.onnx": b"new", "notes": b"not ours", "a": None, "a/b": None,
             "a/b/w.bin": b"weights", "v.bin": b"weights"}  # fmt: skip
    return out, lambda: write_files(contents, copies), after


@pytest.mark.usefixtures("place")
def test_all_files_are_written_and_nothing_else_stays(
    written: tuple[Path, Callable[[], None], dict[str, bytes | None]],
) -> None:
    out, write, after = written
    write()
    assert state(out) == after


STEPS = ("open", "fsync", "chmod", "mkdir", "link", "remove", "replace")


def interposed(
    at: int, action: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], int]:
    """Have `action` done before call number `at` of what changes files; returns their count."""
    count = 0

    def before(function: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == at:
                action()
            return function(*arguments, **options)

        return called

    for name in STEPS:
        monkeypatch.setattr(os, name, before(getattr(os, name)))
    monkeypatch.setattr(files, "open", before(open), raising=False)
    return lambda: count


@pytest.mark.usefixtures("place")
def test_a_failure_at_any_step_leaves_the_folder_as_it_was(
    written: tuple[Path, Callable[[], None], dict[str, bytes | None]],
) -> None:
    out, write, after = written
    before, failed = state(out), 0

    def fail() -> None:
        raise OSError(28, "No space left on device")

    for at in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            count = interposed(at, fail, patch)
            try:
                write()
            except UsageError as error:
                assert "No space left" in str(error)
                failed += 1
            if count() < at:
                break
        assert state(out) in (before, after), at
    assert failed > 15
    assert state(out) == after


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writer is a fork that kills itself")
def test_what_a_kill_at_any_step_leaves_is_undone_by_the_next_start(
    place: Path, written: tuple[Path, Callable[[], None], dict[str, bytes | None]]
) -> None:
    out, write, after = written
    before, kills = state(out), 0
    for at in range(1, 100):
        child = os.fork()
        if child == 0:
            interposed(at, lambda: os.kill(os.getpid(), signal.SIGKILL), pytest.MonkeyPatch())
            write()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        kills += 1
        temporary.sweep()
        assert state(out) in (before, after), at
        assert list(place.iterdir()) == [], at
        if state(out) == after:  # killed when all was in place
            break
    assert kills > 15
    assert state(out) == after


@pytest.mark.usefixtures("place")
def test_a_model_never_stands_beside_weights_of_another(tmp_path: Path) -> None:
    """Whoever looks between two steps, or after a crash there, finds a pair or misses a file."""
    model, data, source = (tmp_path / name for name in ("m.onnx", "m.onnx.data", "source"))
    source.write_bytes(b"new")
    seen = set()

    def look() -> None:
        seen.add(tuple(p.read_bytes() if p.exists() else None for p in (model, data)))

    for at in range(1, 100):
        model.write_bytes(b"old")
        data.write_bytes(b"old")
        with pytest.MonkeyPatch.context() as patch:
            count = interposed(at, look, patch)
            write_files({data: source, model: b"new"})
            if count() < at:
                break
        assert (model.read_bytes(), data.read_bytes(), source.read_bytes()) == (b"new",) * 3
    assert {pair for pair in seen if None not in pair} == {(b"old", b"old"), (b"new", b"new")}
    assert len(seen) > 2


@pytest.mark.usefixtures("place")
@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_copies_are_for_those_who_may_read_the_weights(tmp_path: Path) -> None:
    """And new files are as the process makes them."""
    private, target = tmp_path / "w.bin", tmp_path / "out"
    private.write_bytes(b"weights")
    private.chmod(0o600)
    for mask, modes in ((0o022, (0o600, 0o644)), (0o077, (0o600, 0o600))):
        made = [target / f"{mask}.bin", target / f"{mask}.onnx"]
        before = os.umask(mask)
        try:
            write_files({made[1]: b"model"}, {made[0]: private})
        finally:
            os.umask(before)
        assert tuple(stat.S_IMODE(one.stat().st_mode) for one in made) == modes


def test_weights_that_another_process_has_written_meanwhile_are_kept(tmp_path: Path) -> None:
    source, copy, model = tmp_path / "source", tmp_path / "w.bin", tmp_path / "m.onnx"
    source.write_bytes(b"weights")
    write_files({model: b"m"}, {copy: source}, lambda: copy.write_bytes(b"weights") and None)
    assert (copy.read_bytes(), model.read_bytes()) == (b"weights", b"m")
    model.unlink()
    copy.unlink()
    with pytest.raises(UsageError, match=r"w\.bin: another file is there"):
        write_files({model: b"m"}, {copy: source}, lambda: copy.write_bytes(b"other") and None)
    assert copy.read_bytes() == b"other"
    assert not model.exists()


@pytest.mark.parametrize("beside", [False, True])
def test_a_name_that_is_too_long_is_refused_before_anything_runs(
    tmp_path: Path, beside: bool
) -> None:
    onnx.save(BUILDERS["mlp"](depth=2, width=8, features=8), tmp_path / "m.onnx")
    name = "n" * (250 if beside else 300) + ".onnx"
    options = Options(session="stock") if beside else Options(session="recipe")
    with pytest.raises(UsageError, match="File name too long"):
        rewrite(tmp_path / "m.onnx", "100%", options, output=tmp_path / name)
