"""The product's children as forks: a `subprocess.Popen` that starts no new interpreter.

Most of the time of a rewrite of a small model goes into starting the children that run it. Here a
command `python -m onnxremat...` is run in a fork instead, which has imported all it needs: same
code, same folder, same pipes, same exit codes. What the environment sets for the allocator of a
child (MALLOC_...) does not act; no other difference is known.
"""

import inspect
import itertools
import os
import runpy
import subprocess
import sys
from typing import Any

from benchmarks.robustness.processes import ended_as, fresh_python, leaving

PACKAGES = ("onnxremat", "onnxremat_rewriters")
_SIGNATURE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_RealPopen = subprocess.Popen
_MOST_FILES = 4096


def _module(command: Any) -> tuple[str, list[str]] | None:
    """The module that a command runs with the interpreter of this process, and its arguments."""
    if not isinstance(command, (list, tuple)) or "-m" not in command:
        return None
    words = [os.fspath(word) for word in command]
    place = words.index("-m")
    options = words[1:place]
    if words[0] != sys.executable or not all(word.startswith("-") for word in options):
        return None
    name = words[place + 1]
    return (name, words[place + 2 :]) if name.split(".")[0] in PACKAGES else None


class ForkingPopen(_RealPopen):  # type: ignore[type-arg]
    """A Popen whose child is a fork of this process, where the command is one of the product's."""

    def _execute_child(self, *arguments: Any, **named: Any) -> None:
        given = _SIGNATURE.bind(self, *arguments, **named).arguments
        found = _module(given["args"])
        if found is None or given["shell"]:
            super()._execute_child(*arguments, **named)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid == 0:
            with leaving():
                _become_child(given)
                os._exit(ended_as(lambda: _run(*found)))
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in _PIPES))  # type: ignore[attr-defined]


def _become_child(given: dict[str, Any]) -> None:
    if given.get("start_new_session"):
        os.setsid()
    if given.get("process_group", -1) >= 0:
        os.setpgid(0, given["process_group"])
    if given["cwd"] is not None:
        os.chdir(given["cwd"])
    if given["env"] is not None:
        os.environ.clear()
        os.environ.update(given["env"])
    fresh_python(given["p2cread"], given["c2pwrite"], given["errwrite"])
    kept = sorted({2, *given["pass_fds"], _MOST_FILES})
    for last, following in itertools.pairwise(kept):
        os.closerange(last + 1, following)
    if given["preexec_fn"] is not None:
        given["preexec_fn"]()


def _run(module: str, arguments: list[str]) -> int:
    """What `python -m module` does; a module that was imported runs a second time, as main."""
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=False)
    return 0


def install() -> None:
    """From now on this process starts the product's children as forks."""
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
