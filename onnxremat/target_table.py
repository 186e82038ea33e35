"""Where a rewritten model will run: what `--mem` limits there, and how a plan becomes a file.

All targets plan on the same graph; they differ in the rules of memory, in what they predict of a
plan before anything runs, and in what they measure. Adding one is a module with a
`targets.target.Target`, and one row in TARGETS: the command line, names of files, the report and
the README follow it. This module imports no target: each is loaded when it is chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from onnxremat.core.errors import UsageError

if TYPE_CHECKING:
    from onnxremat.targets.target import Target


class Refusal(NamedTuple):
    """An option of a command, the only value that a target permits of it, and what is said of any
    other."""

    option: str
    permitted: object
    reason: str


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """A target as the user sees it.

    `session` and `runtime`: the options that choose it. `summary`: what becomes of the file, in
    words. `figure`: what `--mem` limits; `figures`: by the value of `--mem-of`. `home`:
    MODULE:CLASS of the target itself. `refuses`: options that do not go with it. `suffix`: a part
    of default file names. `tiles`: whether ops may be cut. `optimizes`: whether the sessions that
    open a file optimize it, so that only measuring tells what they take. `sized`: whether files
    hold for the planned sizes only, whatever is in them. `writes_plan`: whether a static plan is
    written beside the model, asked for or not. `details`: the key of `Made.details` in JSON, "" for
    none.
    """

    name: str
    session: str
    runtime: str
    summary: str
    figure: str
    home: str
    figures: Mapping[str, str] = field(default_factory=dict)
    refuses: tuple[Refusal, ...] = ()
    suffix: str = ""
    tiles: bool = True
    optimizes: bool = False
    sized: bool = False
    writes_plan: bool = False
    details: str = ""

    @property
    def kind(self) -> "type[Target]":
        """The target itself; its module is loaded now."""
        module, name = self.home.split(":")
        return cast("type[Target]", getattr(import_module(module), name))

    @property
    def option(self) -> str:
        """The option that chooses it, as it is written."""
        if self.runtime != DEFAULT.runtime:
            return f"--runtime {self.runtime}"
        return f"--session {self.session}"

    @property
    def short_figure(self) -> str:
        """What is limited, in few words."""
        return self.figure.split(" with ", maxsplit=1)[0]

    def figure_of(self, mem_of: str | None) -> str:
        """What is limited, given `--mem-of`."""
        return self.figure if mem_of is None else self.figures[mem_of]

    def check(self, given: Mapping[str, object]) -> None:
        """Raise UsageError if one of the options (values by name) does not go with the target."""
        for option, permitted, reason in self.refuses:
            if given.get(option, permitted) != permitted:
                raise UsageError(reason)


_STOCK_ONLY = (
    Refusal("portable", True, "--no-portable goes with --session stock only"),
    Refusal("embed_weights", False, "--embed-weights goes with --session stock only"),
    Refusal("mem_of", None, "--mem-of goes with --session stock only"),
    Refusal("max_slowdown", None, "--max-slowdown goes with --session stock only"),
    Refusal("slowdowns", None, "--slowdowns goes with --session stock only"),
)
STOCK_FIGURE = "resident peak with default session options"
PROCESS_FIGURE = "memory of the process with default session options"

TARGETS: Mapping[str, TargetInfo] = {
    info.name: info
    for info in (
        TargetInfo(
            "stock",
            session="stock",
            runtime="ort-cpu",
            summary="the file is opened with ONNX Runtime's defaults",
            figure=STOCK_FIGURE,
            figures={
                "runs": STOCK_FIGURE,
                "process": PROCESS_FIGURE,
            },
            home="onnxremat.targets.stock_target:StockTarget",
            refuses=(
                Refusal(
                    "order",
                    "priority",
                    "--order default goes with --session recipe: a file for default sessions keeps "
                    "its own order",
                ),
                Refusal(
                    "optimize",
                    "none",
                    "--optimize goes with --session recipe: default sessions optimize every file",
                ),
                Refusal(
                    "plan_output",
                    None,
                    "--emit-plan goes with --session recipe or --runtime generic: in default "
                    "sessions buffers are placed by the runtime",
                ),
                Refusal("planners", None, "--planners goes with --session recipe only"),
                Refusal("budgets", None, "--budgets goes with --session recipe only"),
            ),
            optimizes=True,
            details="stock",
        ),
        TargetInfo(
            "recipe",
            session="recipe",
            runtime="ort-cpu",
            summary="the file is opened with the options stored in it",
            figure="activation peak",
            home="onnxremat.targets.recipe_target:RecipeTarget",
            refuses=_STOCK_ONLY,
            suffix="recipe",
        ),
        TargetInfo(
            "static",
            session="recipe",
            runtime="generic",
            summary="another runtime has every buffer at a fixed offset of one arena",
            figure="arena",
            home="onnxremat.targets.static_target:StaticTarget",
            refuses=(
                *_STOCK_ONLY,
                Refusal(
                    "optimize",
                    "none",
                    "--optimize makes ops that only ONNX Runtime has: not with --runtime generic",
                ),
            ),
            suffix="static",
            sized=True,
            writes_plan=True,
        ),
    )
}

DEFAULT = next(iter(TARGETS.values()))
"""What is made where nothing else is asked for: the first row."""


def chosen_target(session: str | None, runtime: str) -> TargetInfo:
    """The row that two options choose; without a session the first one of the runtime.

    Raises UsageError if no target has one of them, or none has both.
    """
    for option, value, known in (
        ("--session", session, [info.session for info in TARGETS.values()]),
        ("--runtime", runtime, [info.runtime for info in TARGETS.values()]),
    ):
        if value is not None and value not in known:
            names = ", ".join(dict.fromkeys(known))
            raise UsageError(f"{option}: {value!r} is none of {names}")
    for info in TARGETS.values():
        if info.runtime == runtime and session in (None, info.session):
            return info
    raise UsageError(f"--session {session} is of another runtime: not with --runtime {runtime}")
