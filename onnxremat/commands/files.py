"""Files that are written: checked before anything runs, then all of them in place, or none.

A rewritten model may need copies of its external weights beside it, and a plan may be written with
it. All are written in full under temporary names; only then are they renamed, and if that fails
half-way it is undone (`journal`).
"""

import filecmp
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from onnxremat.core.errors import UsageError
from onnxremat.importer.external import data_files, is_inside
from onnxremat.importer.load import LoadedModel
from onnxremat.system.journal import (
    DONE,
    PLACING,
    STAGING,
    JournalStep,
    identity,
    roll_back,
    temporary_name,
    write_journal,
)
from onnxremat.system.temporary import process_folder, token

_BLOCK_BYTES = 1 << 24


def check_outputs(loaded: LoadedModel, inputs: Path | None, targets: Sequence[Path | None]) -> None:
    """Raise UsageError if one of the `targets` that are not None cannot be written, is needed as
    input (the model, its external data, the file `inputs`), or is another target, too."""
    needed = {} if loaded.path is None else {loaded.path: "the model itself"}
    needed |= {loaded.base_dir / name: "external data of the model" for name in loaded.data_files}
    if inputs is not None:
        needed[inputs] = "the file of --inputs"
    seen: set[str] = set()
    for target in targets:
        if target is None:
            continue
        check_writable(target)
        for path, what in needed.items():
            if _is_same_file(target, path):
                raise UsageError(f"cannot write {target}: it is {what}, which stays untouched")
        place = os.path.realpath(target)
        if place in seen:
            raise UsageError(f"cannot write {target}: model and plan need a file each")
        seen.add(place)


def _let_no_more_read(copy: str, source: Path) -> None:
    """A copy is for those who may read what it is of, as far as new files are for them."""
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (copy, source)]
    os.chmod(copy, modes[0] & modes[1] | stat.S_IRUSR | stat.S_IWUSR)


def _is_same_file(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):  # one of the two is not there, or cannot be
        return False


def check_writable(target: Path) -> None:
    """Raise UsageError if no file can be written there."""
    try:
        os.path.realpath(target)  # there is none where the current folder was removed
        _check_place(target, target.parent)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from None


def _check_place(target: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {folder}")
    if target.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder")
    if target.exists() and not target.is_file():
        raise UsageError(f"cannot write {target}: it is no regular file")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise UsageError(f"cannot write {target}: permission denied")


def external_copies(
    model: onnx.ModelProto, folder: Path, target: Path, others: Sequence[Path | None] = ()
) -> dict[Path, Path]:
    """Where the external data of `model` in `folder` goes if the model is written to `target`: from
    a copy in the folder of `target` to its source. Empty for what is there already.

    Raises UsageError if another file is there, if the copy would leave that folder (through a
    link), or if its name is that of `target` or of one of `others`.
    """
    written = {os.path.realpath(path) for path in (target, *others) if path is not None}
    copies = {}
    for location in data_files(model):
        source, copy = folder / location, target.parent / location
        if not is_inside(copy, target.parent):
            raise UsageError(f"cannot write the weights to {copy}: that leads out of the folder")
        if _is_same_file(copy, source):
            continue
        if os.path.realpath(copy) in written:
            raise UsageError(f"cannot write {copy}: the weights of the model belong there")
        if not os.path.lexists(copy):
            _require_room(copy)
            copies[copy] = source
        elif not _same_content(source, copy):
            raise UsageError(f"cannot write the weights to {copy}: another file is there")
    return copies


def _require_room(copy: Path) -> None:
    folder, _ = _nearest_folder(copy)
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"cannot write the weights to {copy}: {folder} is no folder")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write the weights to {copy}: permission denied")


def _nearest_folder(path: Path) -> tuple[Path, list[Path]]:
    """What is there of the folders above a path, and those to be made, the outermost first."""
    place, missing = path.parent, list[Path]()
    while not os.path.lexists(place):
        missing.insert(0, place)
        place = place.parent
    return place, missing


def _same_content(a: Path, b: Path) -> bool:
    return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)


def write_files(
    contents: Mapping[Path, bytes | Path],
    copies: Mapping[Path, Path] | None = None,
    placing: Callable[[], None] = lambda: None,
) -> None:
    """Write all of `contents` (bytes, or what a file has), and `copies` (from copy to source), or
    nothing.

    What is there is replaced by contents, never by copies. Once all is written under temporary
    names, `placing()` is called; what follows takes no time worth mentioning. Raises UsageError;
    after that, and after an interruption, the folders are as they were.
    """
    writing = _Writing(process_folder())
    try:
        for target, source in (copies or {}).items():
            writing.stage(target, source, is_copy=True)
        for target, content in contents.items():
            writing.stage(target, content)
        placing()
        writing.place()
    except OSError as error:
        raise UsageError(f"cannot write {writing.target}: {error.strerror or error}") from None
    finally:
        roll_back(writing.folder)


@dataclass
class _Writing:
    """Files on their way; the journal in `folder` always says how far they are. `target` is the one
    that is worked on, for messages."""

    folder: Path
    target: Path | None = None
    steps: list[JournalStep] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)
    copies: set[str] = field(default_factory=set)

    def stage(self, target: Path, content: bytes | Path, *, is_copy: bool = False) -> None:
        """Write a file under a temporary name, as near to its target as there is a folder."""
        self.target = target = target.absolute()
        place, missing = _nearest_folder(target)
        self.made += [path for path in missing if path not in self.made]
        number = len(self.steps)
        new, old = (place / temporary_name(token(), 2 * number + i) for i in range(2))
        step = JournalStep(str(new), str(target), str(old))
        self.steps.append(step)
        self._note(STAGING)
        with open(step.temporary, "xb") as file:
            if is_copy:
                self.copies.add(step.target)
            if isinstance(content, Path):
                _let_no_more_read(step.temporary, content)
                with content.open("rb") as source:
                    while block := source.read(_BLOCK_BYTES):
                        file.write(block)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.steps[-1] = replace(step, identity=identity(step.temporary))

    def place(self) -> None:
        """Rename all. The last entry in the journal is what makes it final.

        Where there are several, what they replace goes first: no file is ever beside one that was
        not made with it."""
        self._note(PLACING)
        for path in self.made:
            path.mkdir(exist_ok=True)
        replaced = [s for s in self.steps if s.target not in self.copies]
        for step in reversed(replaced):
            self.target = Path(step.target)
            if os.path.lexists(step.target):
                _keep(step)
                if len(replaced) > 1:
                    os.remove(step.target)
        for step in self.steps:
            self.target = Path(step.target)
            if step.target in self.copies and os.path.lexists(step.target):
                if _same_content(Path(step.temporary), Path(step.target)):
                    continue  # another process has written the same weights
                raise FileExistsError(0, "another file is there", step.target)
            os.replace(step.temporary, step.target)
        self._note(DONE)

    def _note(self, state: str) -> None:
        write_journal(self.folder, state, self.steps, self.made)


def _keep(step: JournalStep) -> None:
    """What stands at the target, under the name of its backup: as a second name of the file, so
    that there is one all the time, or as a copy where the system has no such."""
    with suppress(OSError, NotImplementedError):
        os.link(step.target, step.backup, follow_symlinks=False)
        return
    shutil.copy2(step.target, step.backup, follow_symlinks=False)
