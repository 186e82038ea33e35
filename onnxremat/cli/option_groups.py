"""Options that several commands take, declared once: a dataclass for those that go together.

A command has a parameter for each group; on the command line (`flattened`), and in its help, the
fields of the group stand in the place of that parameter.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

from onnxremat.cli import arguments as option
from onnxremat.core.errors import UsageError
from onnxremat.core.units import parse_bytes, parse_share
from onnxremat.ort.child.run_limit import RUN_SECONDS
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS

_COUNT = re.compile(r"[0-9]{1,1000}")


@dataclass(frozen=True)
class Shown:
    """What is shown beside results and errors: nothing, or everything, or what is usual; and
    whether results are shown as JSON, beside which nothing is usual."""

    quiet: option.Quiet = False
    verbose: option.Verbose = False
    as_json: option.AsJson = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise UsageError("--quiet and --verbose do not go together")

    @property
    def silent(self) -> bool:
        """Whether nothing is shown."""
        return self.quiet or (self.as_json and not self.verbose)


@dataclass(frozen=True)
class InputArguments:
    """What a model is fed with."""

    dim: option.Dim = field(default_factory=list)
    inputs: option.Inputs = None


@dataclass(frozen=True)
class RunArguments:
    """How a model is run and measured."""

    run_limit: option.RunLimit = RUN_SECONDS
    run_memory: option.RunMemory = None
    threads: option.Threads = None
    measure_limit: option.MeasureLimit = MEASURE_SECONDS
    seed: option.Seed = 0


@dataclass(frozen=True)
class FileArguments:
    """What kind of file is made, and what is limited."""

    order: option.Order = "priority"
    optimize: option.Optimize = "none"
    portable: option.Portable = True
    embed_weights: option.EmbedWeights = False
    mem_of: option.MemOf = None
    max_slowdown: option.MaxSlowdown = None


@dataclass(frozen=True)
class PlanArguments:
    """How a model is fed, planned, run and measured to make a file of it."""

    dim: option.Dim = field(default_factory=list)
    inputs: option.Inputs = None
    planner: option.Planner = "auto"
    recompute: option.Recompute = True
    tiling: option.Tiling = True
    allow_rounding: option.AllowRounding = False
    allow_op: option.AllowOp = field(default_factory=list)
    costs: option.Costs = "model"
    time_limit: option.TimeLimit = 10.0
    iterations: option.Iterations = None
    measure_limit: option.MeasureLimit = MEASURE_SECONDS
    run_limit: option.RunLimit = RUN_SECONDS
    run_memory: option.RunMemory = None
    threads: option.Threads = None
    seed: option.Seed = 0
    verify: option.Verify = True


def read(*groups: InputArguments | RunArguments | FileArguments | PlanArguments) -> dict[str, Any]:
    """What was written, as the fields of `onnxremat.options`. Raises UsageError."""
    found = {}
    for group in groups:
        for name, value in vars(group).items():
            to, reader = _READERS.get(name, (name, _as_it_is))
            found[to] = reader(value)
    return found


def _as_it_is(value: Any) -> Any:
    return value


def _dims(pairs: list[str]) -> dict[str, int]:
    """`["batch=4"]` as `{"batch": 4}`. Raises UsageError."""
    dims: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = pair.rpartition("=")
        if not equals or not name or not _COUNT.fullmatch(size):
            raise UsageError(f"--dim: {pair!r} is not NAME=VALUE with a whole number")
        if dims.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim: {name} is given as {dims[name]} and as {size}")
    return dims


def _run_memory(text: str | None) -> int | None:
    return None if text is None else parse_bytes(text, "--run-memory")


_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "dim": ("dims", _dims),
    "allow_op": ("allow_ops", tuple),
    "max_slowdown": ("max_slowdown", partial(parse_share, option="--max-slowdown")),
    "run_memory": ("run_memory", _run_memory),
}
"""The field that an option has, if it is not its name, and what reads its text."""


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The command as the command line calls it: with the fields of its groups one by one."""
    kinds = get_type_hints(command, include_extras=True)
    given, groups = [], {}
    for one in signature(command).parameters.values():
        kind = kinds[one.name]
        if is_dataclass(kind) and isinstance(kind, type):
            members = list(_members(kind))
            groups[one.name] = (kind, [member.name for member in members])
            given += members
        else:
            given.append(one.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind))

    @wraps(command)
    def called(**values: Any) -> None:
        for name, (kind, members) in groups.items():
            values[name] = kind(**{member: values.pop(member) for member in members})
        command(**values)

    called.__signature__ = Signature(given)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in given}
    return called


def _members(group: type) -> Iterator[Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    for one in fields(group):
        yield Parameter(
            one.name, Parameter.KEYWORD_ONLY, default=_default(one), annotation=kinds[one.name]
        )


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()
