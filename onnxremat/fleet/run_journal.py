"""What finished jobs answered, one line of JSON each, on the disk as soon as it is known.

Lines are only ever added. Whatever ends the process, the lines before the last are whole; a last
one without its end is dropped, and its job has not finished. Of several lines of one key the last
counts. The file is locked as long as it is open: two that add to it at once would do everything
twice.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from onnxremat.core.errors import UsageError
from onnxremat.system.temporary import take_lock

_START = b'{"key": '


class RunJournal:
    """The journal at a path, open inside the `with` block. `answers` has them by key, each as
    `checked` gives it back, which raises ValueError for what no job answers."""

    def __init__(
        self, path: Path, checked: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda a: a
    ) -> None:
        self._path, self._checked = path, checked
        self._file = -1
        self.answers: dict[str, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        """Raises UsageError if the file cannot be written, is another kind of file, or is open
        elsewhere."""
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}") from None
        try:
            self._read()
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def add(self, key: str, answer: Mapping[str, Any]) -> None:
        """Add a line, and wait until it is on the disk. Raises UsageError if it cannot be."""
        line = json.dumps({"key": key, "answer": dict(answer)}).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}") from None
        self.answers[key] = answer

    def _read(self) -> None:
        try:
            locked = take_lock(self._file)
        except OSError:  # no locks there
            locked = True
        if not locked:
            raise UsageError(f"{self._path} is being written by another sweep")
        *lines, rest = self._path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self.answers[entry["key"]] = self._checked(dict(entry["answer"]))
            except (ValueError, KeyError, TypeError):
                raise self._foreign(f"line {number}") from None
        if rest:
            if rest[: len(_START)] != _START[: len(rest)]:
                raise self._foreign("its last line")
            os.truncate(self._path, os.path.getsize(self._path) - len(rest))

    def _foreign(self, where: str) -> UsageError:
        return UsageError(f"{self._path} is no journal of a sweep ({where}): name another output")
