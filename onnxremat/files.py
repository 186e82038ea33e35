"""Files that are written: checked before, whole or not at all, external weights beside them."""

import filecmp
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import onnx

from onnxremat.errors import UsageError
from onnxremat.importer.load import external_location, external_tensors


def check_output(model: Path, target: Path) -> None:
    """Raise UsageError if `target` cannot be written, or is the model itself."""
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {folder}")
    if target.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder")
    if target.exists() and not target.is_file():
        raise UsageError(f"cannot write {target}: it is no regular file")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise UsageError(f"cannot write {target}: permission denied")
    if target.exists() and model.exists() and target.samefile(model):
        raise UsageError(f"cannot write {target}: it is the model itself, which stays untouched")


def _data_files(model: onnx.ModelProto) -> list[str]:
    return sorted({external_location(tensor) for tensor in external_tensors(model.graph)})


def check_external_data(model: onnx.ModelProto, path: Path, target: Path) -> None:
    """External weights stay where they are; a copy goes along if the output is elsewhere."""
    for location in _data_files(model):
        source, copy = path.parent / location, target.parent / location
        if copy.exists() and not filecmp.cmp(source, copy, shallow=False):
            raise UsageError(f"cannot write the weights to {copy}: another file is there")


def copy_external_data(model: onnx.ModelProto, path: Path, target: Path) -> None:
    """Copy what `model`, read from `path`, has in other files to the folder of `target`."""
    for location in _data_files(model):
        source, copy = path.parent / location, target.parent / location
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def write_file(data: bytes, target: Path) -> None:
    """Write a file under a temporary name, then rename: never half a file."""
    try:
        with NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.stem}-", suffix=".tmp", delete=False
        ) as file:
            temporary = Path(file.name)
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                temporary.chmod(0o644)
                temporary.replace(target)
            except BaseException:
                with suppress(FileNotFoundError):
                    temporary.unlink()
                raise
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from None
