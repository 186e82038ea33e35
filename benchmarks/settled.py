"""What the runtime executes is what the settled file says: every model that there is to be had.

    python -m benchmarks.settled [--shared FOLDER] [--packages FOLDER] [--only PART]
                                 [--markdown FILE]

Each model of the ONNX backend suite that ONNX Runtime runs (the test's own inputs), of `--shared`
(`training/*.onnx`) and of `--packages` (the inference files that ship in registry packages, as
NAME.onnx) is released and settled as `rewrite` does it, and opened with the recipe. Four things
must hold: the session's nodes, in order, are the file's; the bits are those of the original;
settled again it is itself; and a model that the runtime leaves alone is not touched at all. A model
where one does not is listed as FAILED, and so ends the command. One process opens them all, so that
two thousand take a minute.
"""

import argparse
import ctypes
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from benchmarks.prediction import DIMS, SHAPES
from benchmarks.tables import commit, markdown
from onnxremat.core.errors import OnnxrematError
from onnxremat.importer import from_proto
from onnxremat.options import Options
from onnxremat.ort.child.actions import STATS_CONFIG
from onnxremat.ort.child.runner import DATA_FOLDER
from onnxremat.ort.child.wire import REINTERPRETED, as_numpy, is_foreign
from onnxremat.ort.library import RUNTIME_ERRORS, RUNTIME_VERSION, ort
from onnxremat.ort.measuring.profile import named_copy, read_profile
from onnxremat.ort.recipe import RECIPE, ExecutionOrder, Recipe, session_options
from onnxremat.subject import prepare_feed
from onnxremat_rewriters.graft import graft, labelled
from onnxremat_rewriters.release import release

SUITE = ("node", "simple", "pytorch-converted", "pytorch-operator")
Feeds = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model, the folder of its external data, its inputs, and how it is opened."""

    name: str
    model: onnx.ModelProto
    folder: Path
    feeds: Feeds
    recipe: Recipe = RECIPE


def suite() -> Iterator[Subject]:
    """The models of the backend suite."""
    for kind in SUITE:
        for test in load_model_tests(kind=kind):
            model = test.model
            if model is None:
                model = onnx.load(Path(test.model_dir) / "model.onnx")
            if test.data_sets:
                values = [_array_of(value) for value in test.data_sets[0][0]]
            else:
                stored = Path(test.model_dir) / "test_data_set_0"
                files = sorted(stored.glob("input_*.pb"), key=lambda p: int(p.stem[6:]))
                values = [_array_of(TensorProto.FromString(p.read_bytes())) for p in files]
            names = [value.name for value in model.graph.input]
            yield Subject(
                f"{kind}/{test.name}", model, Path(), dict(zip(names, values, strict=False))
            )


def _array_of(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def files(folder: Path | None, scratch: Path) -> Iterator[Subject]:
    """The ONNX files of a folder, with made inputs."""
    for path in sorted(folder.glob("*.onnx")) if folder else ():
        inputs = None
        if path.stem in SHAPES:
            inputs = scratch / f"{path.stem}.npz"
            shapes = SHAPES[path.stem].items()
            made: dict[str, Any] = {k: _array(k, shape) for k, shape in shapes}
            np.savez(inputs, **made)
        feed = prepare_feed(
            path, Options(session="recipe", dims=dict(DIMS.get(path.stem, {})), inputs=inputs)
        )
        yield Subject(path.stem, feed.loaded.model, path.parent, feed.inputs, feed.recipe)


def _array(name: str, shape: tuple[int, ...]) -> Any:
    if name == "sr":
        return np.array(16000, np.int64)
    return (np.random.default_rng(0).standard_normal(shape) * 0.1).astype(np.float32)


def judged(subject: Subject, scratch: Path) -> str:
    """What became of a model, in a few words; "FAILED" leads if anything does not hold."""
    try:
        expected = _run(subject, subject.model)
    except (*RUNTIME_ERRORS, KeyError, TypeError, ValueError):
        return "the runtime does not run it"
    try:
        model = from_proto(subject.model, subject.folder).model
    except OnnxrematError as error:
        return f"not supported: {error}"
    released = release(model).model
    made = _settled(subject, released, scratch)
    final = release(made).model if made is not released else made
    profile = scratch / "profile"
    seen = []
    found = _run(subject, named_copy(final), profile, seen)
    ran = read_profile(final, *seen)
    wrong = []
    if not ran.is_of(final, ExecutionOrder.PRIORITY):
        wrong.append(f"other nodes run ({len(ran.expanded)} expanded, {len(ran.foreign)} foreign)")
    if not _same(expected, found) and _same(expected, _run(subject, subject.model)):
        wrong.append("other bits")
    if _settled(subject, final, scratch) is not final:
        wrong.append("no fixed point")
    if wrong:
        return f"FAILED: {', '.join(wrong)}"
    return "left as it is" if made is released else "settled"


def _settled(subject: Subject, model: onnx.ModelProto, scratch: Path) -> onnx.ModelProto:
    """`ort.settle.settled` in this process."""
    asked = labelled(model)
    options = session_options(RECIPE)
    options.optimized_model_filepath = str(scratch / "executed.onnx")
    _open(subject, asked, options)
    return graft(model, asked, onnx.load(scratch / "executed.onnx")).model


def _open(subject: Subject, model: onnx.ModelProto, options: Any) -> Any:
    options.add_session_config_entry(DATA_FOLDER, str(subject.folder.resolve()))
    content = model.SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _run(
    subject: Subject,
    model: onnx.ModelProto,
    profile: Path | None = None,
    seen: list[Any] | None = None,
) -> list[Any]:
    """The outputs; `seen` gets the profile's events and the statistics, written at `profile`."""
    options = session_options(subject.recipe)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
        options.add_session_config_entry(STATS_CONFIG, f"{profile}.csv")
    session = _open(subject, model, options)
    feeds = {v.name: _fed(subject.feeds[v.name], v.type) for v in session.get_inputs()}
    if any(isinstance(value, ort.OrtValue) for value in feeds.values()):
        values = {name: _ort_value(value) for name, value in feeds.items()}
        made = session.run_with_ort_values([v.name for v in session.get_outputs()], values)
        outputs = [_bytes(value) for value in made]
    else:
        outputs = list(session.run(None, feeds))
    if profile is not None and seen is not None:
        events = Path(session.end_profiling())
        del session
        seen += [json.loads(events.read_text()), Path(f"{profile}.csv").read_text()]
        events.unlink()
    return outputs


def _fed(value: Any, type_name: str) -> Any:
    """An input as the runtime takes it: types that numpy does not know as its own value."""
    if not isinstance(value, np.ndarray) or not is_foreign(value.dtype):
        return value
    kind = REINTERPRETED[type_name.removeprefix("tensor(").removesuffix(")")]
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(as_numpy(value), kind)


def _ort_value(value: Any) -> Any:
    return value if isinstance(value, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(value)


def _bytes(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bits of a tensor."""
    count = value.tensor_size_in_bytes()
    content = bytes((ctypes.c_ubyte * count).from_address(value.data_ptr())) if count else b""
    return value.data_type(), tuple(value.shape()), content


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray):
        if a.dtype == object:
            return bool(a.tolist() == b.tolist())
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def main() -> int:
    """Judge all models; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--only", default="", help="models with this in their names")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: dict[str, Counter[str]] = {}
    failed = 0
    with TemporaryDirectory() as name:
        scratch = Path(name)
        training = given.shared / "training" if given.shared else None
        groups: dict[str, Callable[[], Iterator[Subject]]] = {
            "training graphs": lambda: files(training, scratch),
            "inference files": lambda: files(given.packages, scratch),
            "backend suite": suite,
        }
        for group, subjects in groups.items():
            counts[group] = Counter()
            for subject in subjects():
                if given.only not in subject.name:
                    continue
                verdict = judged(subject, scratch)
                counts[group][verdict.partition(":")[0]] += 1
                if verdict.startswith(("FAILED", "not")):
                    print(f"{subject.name}: {verdict}", flush=True)
                failed += verdict.startswith("FAILED")
    kinds = list(dict.fromkeys(kind for found in counts.values() for kind in found))
    rows = [[group, *(str(found[kind]) for kind in kinds)] for group, found in counts.items()]
    table = markdown(["models", *kinds], rows)
    print(table)
    if given.markdown:
        head = f"# Settled models\n\n`python -m benchmarks.settled` at commit {commit()}, "
        given.markdown.write_text(f"{head}ONNX Runtime {RUNTIME_VERSION}:\n\n{table}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
