"""Which runs a sweep has: models x limits x targets, each with a key that says what it is of.

A key is a digest of all that decides what a run gives: the bytes of the model and of its external
data, the limit, the options, the bytes of the file of inputs, the file that is kept, and the
versions of onnxremat and ONNX Runtime. Where the model lies is not in it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

import onnxremat
from onnxremat.commands.rewrite import outputs
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.units import MemoryLimit
from onnxremat.importer.binding import own_dims
from onnxremat.importer.external import data_files, is_inside
from onnxremat.importer.load import parsed, read_content
from onnxremat.options import Options
from onnxremat.ort.library import RUNTIME_VERSION
from onnxremat.target_table import DEFAULT, TARGETS, TargetInfo, chosen_target

VERSIONS = {"onnxremat": onnxremat.__version__, "onnxruntime": RUNTIME_VERSION}
_DIGITS = 8
"""Of a digest, in names."""


@dataclass(frozen=True)
class ModelContent:
    """A model as it is now: the SHA-256 of the file, and of that with its external data, and the
    bytes of both."""

    file_sha256: str
    sha256: str
    nbytes: int


@dataclass(frozen=True)
class SweepRun:
    """One rewrite: of a model to a limit, with options. `file` and `plan_file` are written, if they
    are kept."""

    model: Path
    content: ModelContent
    limit: MemoryLimit
    options: Options
    key: str
    file: Path | None = None
    plan_file: Path | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What the process of the run is told, in terms of JSON."""
        return {
            "model": str(self.model.absolute()),
            "file_sha256": self.content.file_sha256,
            "mem": self.limit.text,
            "options": plain_options(self.options),
            "file": _absolute(self.file),
            "plan_file": _absolute(self.plan_file),
            "versions": VERSIONS,
        }


def chosen_targets(sessions: Sequence[str], runtimes: Sequence[str]) -> tuple[TargetInfo, ...]:
    """The targets that have one of the sessions and one of the runtimes, each once; where there are
    no sessions, the first of each runtime. Raises UsageError for a name that chooses none."""
    sessions, runtimes = list(dict.fromkeys(sessions)), list(dict.fromkeys(runtimes))
    runtimes = runtimes or [DEFAULT.runtime]
    if not sessions:
        return tuple(chosen_target(None, runtime) for runtime in runtimes)
    found = [
        info for info in TARGETS.values() if info.session in sessions and info.runtime in runtimes
    ]
    for session in sessions:
        if session not in {info.session for info in found}:
            chosen_target(session, runtimes[0])
    for runtime in runtimes:
        if runtime not in {info.runtime for info in found}:
            chosen_target(sessions[0], runtime)
    return tuple(sorted(found, key=lambda info: sessions.index(info.session)))


def planned_runs(
    models: Sequence[Path],
    limits: Sequence[MemoryLimit],
    options: Sequence[Options],
    keep: Path | None = None,
) -> tuple[SweepRun, ...]:
    """All runs, in the order of models, limits and options (one for each target).

    Where there are several models, each has the sizes of its own dimensions. With `keep` each has a
    folder there, with its name (and the first digits of its digest, if several have that name);
    files are named as `rewrite` names them. Raises UsageError for a model or a file of inputs that
    cannot be read. O(bytes of models).
    """
    models = list(dict.fromkeys(models))
    several = len(models) > 1
    contents, of_each = [], []
    for model in models:
        content, proto = _read(model)
        contents.append(content)
        of_each.append(_own(proto, options) if several else options)
    inputs = {one: _file_digest(one) for one in {each.inputs for each in options} if one}
    return tuple(
        _run(model, content, limit, each, inputs, folder)
        for model, content, folder, own in zip(
            models, contents, _folders(models, contents, keep), of_each, strict=True
        )
        for limit in dict.fromkeys(limits)
        for each in own
    )


def _own(model: ModelProto | None, options: Sequence[Options]) -> Sequence[Options]:
    """The options with the sizes of dimensions that a model has; all, if it cannot be read."""
    if model is None or not any(each.dims for each in options):
        return options
    return [replace(each, dims=own_dims(model.graph, each.dims)) for each in options]


def _run(
    model: Path,
    content: ModelContent,
    limit: MemoryLimit,
    options: Options,
    inputs: Mapping[Path, str],
    folder: Path | None,
) -> SweepRun:
    file = plan = None
    if folder is not None:
        file, plan = outputs(folder / f"{folder.name}.onnx", limit, options, None, None)
    of = {
        "model": content.sha256,
        "mem": limit.text.lower(),
        "options": plain_options(options),
        "inputs": None if options.inputs is None else inputs[options.inputs],
        "file": _absolute(file),
        "versions": VERSIONS,
    }
    key = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
    return SweepRun(model, content, limit, options, key, file, plan)


def plain_options(options: Options) -> dict[str, Any]:
    """Options in terms of JSON; `options_of` reads them."""
    plain = {one.name: getattr(options, one.name) for one in fields(options)}
    plain["dims"] = dict(options.dims)
    plain["inputs"] = _absolute(options.inputs)
    plain["allow_ops"] = list(options.allow_ops)
    return plain


def options_of(plain: Mapping[str, Any]) -> Options:
    """The options that `plain_options` wrote."""
    inputs = plain["inputs"]
    return Options(**{
        **plain,
        "inputs": None if inputs is None else Path(inputs),
        "allow_ops": tuple(plain["allow_ops"]),
    })  # fmt: skip


def model_content_digest(model: Path) -> ModelContent:
    """What a model is now, whether it is a valid one or not. Raises UsageError if there is no such
    file, or it cannot be read."""
    return _read(model)[0]


def model_file_sha256(model: Path) -> str:
    """`ModelContent.file_sha256`, without a look at external data. Raises UsageError as
    `model_content_digest`."""
    try:
        return hashlib.sha256(read_content(model)).hexdigest()
    except ModelError:  # empty, or larger than models are: the run says so
        return _file_digest(model)


def _read(model: Path) -> tuple[ModelContent, ModelProto | None]:
    """What a model is now, and what is in its file: None if that is no model, as the run will say.
    Raises UsageError as `model_content_digest`."""
    try:
        content = read_content(model)
    except ModelError:  # empty, or larger than models are
        digest = _file_digest(model)
        return ModelContent(digest, digest, model.stat().st_size), None
    own = hashlib.sha256(content).hexdigest()
    whole, nbytes = hashlib.sha256(own.encode()), len(content)
    try:
        proto = parsed(content, model)
    except ModelError:
        return ModelContent(own, whole.hexdigest(), nbytes), None
    for file in _data_of(proto, model.parent):
        whole.update(_file_digest(file).encode())
        nbytes += file.stat().st_size
    return ModelContent(own, whole.hexdigest(), nbytes), proto


def _data_of(model: ModelProto, folder: Path) -> Iterator[Path]:
    """Files with data of a model that may be read."""
    for name in data_files(model):
        file = folder / name
        if is_inside(file, folder) and file.is_file():
            yield file


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _folders(
    models: Sequence[Path], contents: Sequence[ModelContent], keep: Path | None
) -> list[Path | None]:
    if keep is None:
        return [None] * len(models)
    names = Counter(model.stem.lower() for model in models)
    return [
        keep / (model.stem if names[model.stem.lower()] == 1
                else f"{model.stem}-{content.sha256[:_DIGITS]}")
        for model, content in zip(models, contents, strict=True)
    ]  # fmt: skip


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
