"""`audit` of several models: one that cannot be audited keeps no other from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.commands.audit import Audit, audit_subject
from onnxremat.core.errors import OnnxrematError, about
from onnxremat.core.units import MemoryLimit
from onnxremat.importer import load, own_dims
from onnxremat.options import ModelOptions
from onnxremat.stages import ProgressReport, silent
from onnxremat.subject import prepare


@dataclass(frozen=True)
class NotAudited:
    """A model that could not be audited: the `error`, which names it, and its exit code."""

    model: Path
    error: str
    exit_code: int


@dataclass(frozen=True)
class Audits:
    """The audits of several models, and the models that could not be audited, both in the order in
    which they were given."""

    audits: tuple[Audit, ...]
    failed: tuple[NotAudited, ...]


def audit_each(
    models: Sequence[Path],
    options: ModelOptions,
    *,
    limit: MemoryLimit | None = None,
    progress: ProgressReport = silent,
) -> Audits:
    """`audit` of models one after the other, each with the sizes of its own dimensions. What is
    wrong with a model is among those that `failed`."""
    found, failed = [], []
    for model in models:
        progress("reading the model", str(model))
        try:
            loaded = load(model)
            own = replace(options, dims=own_dims(loaded.model.graph, options.dims))
            subject = prepare(loaded, own, progress)
            found.append(audit_subject(subject, limit=limit, progress=progress))
        except OnnxrematError as error:
            failed.append(NotAudited(model, about(model, str(error)), error.exit_code))
    return Audits(tuple(found), tuple(failed))
