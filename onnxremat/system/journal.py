"""What is about to be put in place, written down first, so that it can be undone by anybody.

Several files (a model, its weights, a plan) cannot be renamed at once. Before the first is, a
journal says which temporary file becomes which target, and what stands there now is kept under
another temporary name. Until the journal says DONE, `roll_back` restores the state before:
in the process itself when it fails or is interrupted, else at the next start of any other
(`temporary.sweep`), if it was killed.

A target is only touched if it is the very file that was staged (device and inode), a temporary name
only if it has the form of one: whatever a journal says, nothing else is ever removed.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

JOURNAL = "journal.json"
STAGING, PLACING, DONE = "staging", "placing", "done"
_PREFIX, _SUFFIX = ".onnxremat-", ".tmp"


@dataclass(frozen=True)
class JournalStep:
    """One file on its way: `temporary` will be renamed to `target`, after what stands there now was
    kept as `backup`. `identity` is device and inode of the temporary file, once it is written."""

    temporary: str
    target: str
    backup: str
    identity: tuple[int, int] | None = None


def temporary_name(token: str, number: int) -> str:
    """The name of a temporary file beside what it becomes."""
    return f"{_PREFIX}{token}-{number}{_SUFFIX}"


def identity(path: str | Path) -> tuple[int, int] | None:
    """Device and inode of what stands at a path (links are not followed), None for nothing."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def write_journal(
    folder: Path, state: str, steps: Iterable[JournalStep], folders: Iterable[Path]
) -> None:
    """Write the journal of a process into its folder, whole or not at all. Raises OSError.

    `folders` are those that are made for the files: removed again if they are empty.
    """
    data = {
        "state": state,
        "steps": [asdict(step) for step in steps],
        "folders": [str(made) for made in folders],
    }
    new = folder / f"{JOURNAL}.new"
    new.write_text(json.dumps(data), encoding="ascii")
    new.replace(folder / JOURNAL)


def roll_back(folder: Path) -> None:
    """Undo what the journal in `folder` says is not done, and remove its temporary files.

    Nothing happens without a journal that can be read; what cannot be undone stays.
    """
    try:
        data = json.loads((folder / JOURNAL).read_text(encoding="ascii"))
        state = data["state"]
        steps = [JournalStep(**step) for step in data["steps"]]
        folders = [str(made) for made in data["folders"]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for step in reversed(steps):
        with suppress(OSError):
            _undo(step, state)
    if state != DONE:
        for made in reversed(folders):
            with suppress(OSError):
                os.rmdir(made)
    with suppress(OSError):
        (folder / JOURNAL).unlink()


def _undo(step: JournalStep, state: str) -> None:
    if state == PLACING and step.identity is not None:
        standing = identity(step.target)
        placed = standing is not None and standing == tuple(step.identity)
        kept = _is_temporary(step.backup) and identity(step.backup) is not None
        if kept and (placed or standing is None):
            os.replace(step.backup, step.target)
        elif placed:
            os.unlink(step.target)
    for name in (step.temporary, step.backup):
        if _is_temporary(name):
            with suppress(FileNotFoundError):
                os.unlink(name)


def _is_temporary(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)
