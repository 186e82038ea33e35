"""Commands in places that are not made for them: no home, nothing writable, other languages.

Each is a real process on a small model. It either does its work, or says in one line why not; which
of the two is right stands in the table. Some need root, to become nobody: they are skipped, and
say so, where that cannot be.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnxremat
import onnxremat_rewriters
from benchmarks.robustness import direct, seeds
from benchmarks.robustness.judging import Line, errors, exception, in_parallel
from benchmarks.robustness.processes import environment_of_users, guard_memory

SECONDS = 240.0
"""Compiling kernels without a cache is in it."""

DONE, REFUSED, EITHER = (0,), (2, 5), (0, 2, 5)
_RIGHTS = "-all,+dac_read_search"
_NOBODY_ID = 65534
_NOBODY = (
    "setpriv", f"--reuid={_NOBODY_ID}", f"--regid={_NOBODY_ID}", "--clear-groups",
    f"--inh-caps={_RIGHTS}", f"--ambient-caps={_RIGHTS}", "--",
)  # fmt: skip
"""Somebody who may read everything, as root's files are read, and write nothing."""


@dataclass(frozen=True)
class Place:
    """A way of starting the command, and the exit codes that are right there.

    `shell` is put around the command ("$@"), `prepare` makes the folder ready, `model` and `output`
    are paths in it, `nobody` says that the command runs without rights.
    """

    name: str
    codes: tuple[int, ...] = DONE
    environment: Mapping[str, str | None] = field(default_factory=dict)
    shell: str = 'exec "$@"'
    prepare: Callable[[Path], None] = lambda folder: None
    model: str = "model.onnx"
    output: str = "out/new.onnx"
    nobody: bool = False
    copied: bool = False
    before: Callable[[], None] | None = None


def _small_files() -> None:
    """A disk that is full after a few kilobytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _renamed(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        (folder / "model.onnx").rename(target)

    return prepare


def _read_only_output(folder: Path) -> None:
    (folder / "out").chmod(0o555)


def _fifo(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    os.mkfifo(folder / "model.onnx")


def _link_to_itself(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to("model.onnx")


_C = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
_MODEL = "mödel-模型.onnx"
_NO_HOME = {"HOME": None, "XDG_CACHE_HOME": None, "NUMBA_CACHE_DIR": None}
_LOCKED = {**_NO_HOME, "HOME": "/proc/none"}

_KEPT = (f"numba-onnxremat-{_NOBODY_ID}",)
"""The compiled kernels of somebody who has no other place for them stay, for the next run."""

PLACES = (
    Place("as it is"),
    Place("no HOME", environment=_NO_HOME),
    Place("nobody, without a home", environment=_LOCKED, nobody=True),
    Place("nobody, read-only package, no cache", environment=_LOCKED, nobody=True, copied=True),
    Place("LANG=C", environment=_C),
    Place("TMPDIR missing", environment={"TMPDIR": "/nonexistent/tmp"}),
    Place("nobody, TMPDIR missing", environment={**_LOCKED, "TMPDIR": "/none"}, nobody=True),
    Place("stdout full", shell='exec "$@" >/dev/full', codes=EITHER),
    Place("stdout closed", shell='exec "$@" >&-', codes=EITHER),
    Place("stderr full", shell='exec "$@" 2>/dev/full'),
    Place("stderr closed", shell='exec "$@" 2>&-'),
    Place("stdin closed", shell='exec "$@" <&-'),
    Place("all closed", shell='exec "$@" <&- >&- 2>&-', codes=EITHER),
    Place("stdout a pipe that nobody reads", shell='"$@" | true'),
    Place("paths not ASCII", prepare=_renamed(_MODEL), model=_MODEL, output="out/é.onnx"),
    Place("paths not ASCII, LANG=C", environment=_C, prepare=_renamed(_MODEL), model=_MODEL,
          output="out/é.onnx"),
    Place("a path that is not UTF-8", prepare=_renamed("m\udcff.onnx"), model="m\udcff.onnx",
          output="out/n\udcfe.onnx"),
    Place("a path with a line break", prepare=_renamed("m\n\x1b[2J.onnx"), model="m\n\x1b[2J.onnx"),
    Place("output in a read-only folder", nobody=True, prepare=_read_only_output, codes=(2,)),
    Place("disk full", before=_small_files, codes=(2, 5)),
    Place("model is a pipe", prepare=_fifo, codes=REFUSED),
    Place("model is a folder", model="out", codes=REFUSED),
    Place("model is /dev/zero", model="/dev/zero", codes=REFUSED),
    Place("model is a link to itself", prepare=_link_to_itself, codes=REFUSED),
)  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A place and how the command ended there; `skipped` says why it was not tried."""

    place: str
    code: int | None
    message: str
    wrong: tuple[str, ...]
    skipped: str = ""


def try_place(root: Path, number: int) -> Tried:
    """Rewrite a small model in place `number`."""
    place = PLACES[number]
    if place.nobody and (os.geteuid() != 0 or shutil.which(_NOBODY[0]) is None):
        return Tried(place.name, None, "", (), "only root can become nobody")
    folder = Path(tempfile.mkdtemp(dir=root))
    seeds.Seed("chain", seeds.chain().SerializeToString()).write(folder)
    for name in ("out", "tmp"):
        (folder / name).mkdir()
    if place.nobody:
        for path in (folder, folder / "out", folder / "tmp"):
            os.chown(path, _NOBODY_ID, _NOBODY_ID)
    place.prepare(folder)
    changes: dict[str, str | None] = {"TMPDIR": str(folder / "tmp"), **place.environment}
    if place.copied:
        changes["PYTHONPATH"] = str(_copied_package(folder))
    code, said = _started(place, folder, environment_of_users(**changes))
    lines = errors(said)
    wrong = _wrong(place, folder, code, lines)
    return Tried(place.name, code, lines[-1] if lines else "", tuple(wrong))


def _started(place: Place, folder: Path, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """Run the command; its exit code, None if it had to be ended, and what it said on stderr."""

    def before() -> None:
        guard_memory()
        if place.before is not None:
            place.before()

    with subprocess.Popen(
        ["sh", "-c", place.shell, "sh", *_command(place)], cwd=folder, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True, preexec_fn=before,  # noqa: PLW1509
    ) as child:  # fmt: skip
        try:
            _, said = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            _, said = child.communicate()
            return None, said
    return child.returncode, said


def _command(place: Place) -> list[str]:
    quick = ("--session=recipe", "--mem", "min", "--time-limit", "0.5")
    arguments = ["rewrite", place.model, *quick, "-o", place.output]
    command = [sys.executable, "-m", "onnxremat", *arguments]
    return [*_NOBODY, *command] if place.nobody else command


def _copied_package(folder: Path) -> Path:
    """The packages without what was compiled before, owned by root."""
    target = folder / "package"
    for module in (onnxremat, onnxremat_rewriters):
        source = Path(module.__path__[0])
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target / source.name, ignore=ignored)
    return target


def _wrong(place: Place, folder: Path, code: int | None, said: Sequence[str]) -> list[str]:
    if code is None:
        return [f"hang: no end after {SECONDS:.0f} s"]
    wrong = []
    if any("Traceback" in line for line in said):
        wrong.append(f"traceback: {exception(chr(10).join(said))}")
    elif code not in place.codes:
        wrong.append(f"exit {code}: {said[-1] if said else 'no message'}")
    elif code != 0 and len(said) != 1 and "2>" not in place.shell:
        wrong.append(f"{len(said)} lines on stderr")
    target = folder / place.output
    piped = "|" in place.shell
    if target.is_file() != (code == 0) and not (piped and not target.exists()):
        wrong.append(f"exit {code}, and the file is {'' if target.is_file() else 'not '}there")
    if target.is_file():
        try:
            direct.session(target)
        except direct.REFUSALS as error:
            wrong.append(f"the file cannot be opened: {str(error)[:100]}")
    left = [path.name for path in (folder / "tmp").iterdir() if path.name not in _KEPT]
    left += [path.name for path in (folder / "out").iterdir() if path != target]
    return [*wrong, *(f"left: {name}" for name in left)]


def run_environments(
    jobs: int, only: str = "", report: Callable[[Tried], None] = print
) -> list[Tried]:
    """Try all places, or those whose name contains `only`."""
    numbers = [i for i, place in enumerate(PLACES) if only in place.name]
    found = []
    with tempfile.TemporaryDirectory(prefix="robustness-") as name:
        root = Path(name)
        root.chmod(0o755)
        for tried in in_parallel(partial(try_place, root), numbers, jobs):
            report(tried)
            found.append(tried)
    names = [place.name for place in PLACES]
    return sorted(found, key=lambda one: names.index(one.place))


def lines(tried: Sequence[Tried]) -> Iterator[Line]:
    """The lines of the table: one a place."""
    for one in tried:
        words = f"skipped: {one.skipped}" if one.skipped else f"exit {one.code}"
        wrong = tuple(f"{one.place}: {fault}" for fault in one.wrong)
        yield Line("environments", one.place, 0 if one.skipped else 1, words, wrong)
