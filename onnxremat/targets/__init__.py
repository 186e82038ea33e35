"""Where a rewritten model will run: what `--mem` limits there, and how a plan becomes a file.

| target | chosen by | `--mem` limits |
|---|---|---|
| `RecipeTarget` | `--session recipe` | the activation peak under the session options in the file |
| `StockTarget` | `--session stock` | the resident peak of a session with default options |
| `StaticTarget` | `--runtime generic` | the arena of a static plan |

All of them plan on the same graph; they differ in the rules of memory, in what they predict of a
plan before anything runs, and in what they measure.
"""

from onnxremat.prepare import Options, ProgressReport, Subject, silent
from onnxremat.targets.recipe import RecipeTarget
from onnxremat.targets.static import StaticTarget
from onnxremat.targets.stock import StockTarget
from onnxremat.targets.target import Made, Target, as_executed, own_schedule, write_plan

__all__ = ["Made", "Target", "as_executed", "make_target", "own_schedule", "write_plan"]


def make_target(subject: Subject, options: Options, progress: ProgressReport = silent) -> Target:
    """The target that the options choose, with the original measured there."""
    if options.runtime == "generic":
        return StaticTarget(subject, options, progress)
    if options.session == "stock":
        return StockTarget(subject, options, progress)
    return RecipeTarget(subject, options, progress)
