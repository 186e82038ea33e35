"""What a child process is doing, told to whoever waits for it.

The child adds lines to a file of its job folder (`Request.tell`); here a thread of the parent reads
the last one now and then.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRESS = "progress.txt"
_LOOK_SECONDS = 0.5

Listener = Callable[[str], None]
"""Called with what the child is doing, from another thread than the one that waits."""


@contextmanager
def watching(folder: Path, listener: Listener | None) -> Iterator[None]:
    """Inside the block, `listener` hears every half second what is new in `folder`'s progress."""
    if listener is None:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(folder / PROGRESS, listener, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(file: Path, listener: Listener, done: threading.Event) -> None:
    said = ""
    while not done.wait(_LOOK_SECONDS):
        lines = file.read_text(encoding="utf-8").split("\n") if file.is_file() else []
        now = lines[-2] if len(lines) > 1 else ""
        if now != said:
            listener(now)
            said = now
