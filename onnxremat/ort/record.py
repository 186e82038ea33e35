"""The record of a plan, kept in the metadata of the file that was written for it.

The file's `metadata_props` entry `onnxremat.plan` holds JSON. `open_session` needs the
recipe and the input shapes; the rest says where the file comes from.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.ort.library import RUNTIME_VERSION
from onnxremat.ort.recipe import (
    STOCK,
    OptimizationLevel,
    Recipe,
    require_usable,
    typed,
    typed_size,
)

METADATA_KEY = "onnxremat.plan"
RECORD_VERSION = 2
RUNTIME = "onnxruntime"


@dataclass(frozen=True)
class OptimizedFor:
    """What a file is tied to that holds the runtime's own optimizations: their level, the
    execution provider, and the width of the blocked layout (None if it is not in that layout).
    `packed`: weights lie beside it as this processor's kernels pack them; others pack their own."""

    level: str
    provider: str
    layout_width: int | None
    packed: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "OptimizedFor":
        """Of plain data. Raises KeyError or TypeError for what is missing or of another kind."""
        width = data["layout_width"]
        return cls(
            OptimizationLevel(data["level"]).value,
            typed(data["provider"], str),
            None if width is None else typed(width, int),
            typed(data.get("packed", False), bool),
        )


@dataclass(frozen=True)
class PlanRecord:
    """What a rewritten file was made for, and how.

    `figure`: what is limited, in words. `limit_bytes`: the limit that was asked for, None for the
    smallest. `planned_peak_bytes`: what the figure was expected to be; `measured_peak_bytes`:
    the figure.
    `threads`: of the runtime, None for its own choice. `runtime_version`: of the runtime it was
    measured on. `input_shapes`: sizes in elements the plan holds for. `executed`: node names in
    plan order, if they were kept. `recomputed`: how many nodes were added. `original_sha256`: of
    the model file it was made from. `optimized`: what the runtime's own optimizations, done before
    the plan, tie the file to. `exact`: whether the file gives the bits of the original. `any_size`:
    whether it runs at all sizes that its inputs leave open; its memory is promised for
    `input_shapes` alone.
    """

    recipe: Recipe
    input_shapes: Mapping[str, tuple[int, ...]]
    figure: str
    limit_bytes: int | None
    planned_peak_bytes: int
    measured_peak_bytes: int
    planner: str
    recomputed: int
    original_sha256: str
    threads: int | None = None
    executed: tuple[str, ...] = ()
    optimized: OptimizedFor | None = None
    exact: bool = True
    any_size: bool = False
    runtime: str = RUNTIME
    runtime_version: str = RUNTIME_VERSION
    version: int = RECORD_VERSION

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        *,
        input_shapes: Mapping[str, tuple[int, ...]],
        figure: str,
        limit_bytes: int | None,
        planned_peak_bytes: int,
        measured_peak_bytes: int,
        planner: str,
        recomputed: int,
        original_sha256: str,
        executed: tuple[str, ...] = (),
        optimized: OptimizedFor | None = None,
        exact: bool = True,
        any_size: bool = False,
    ) -> "PlanRecord":
        """A record for this version of the runtime; threads are the recipe's."""
        return cls(
            recipe=recipe,
            input_shapes=dict(input_shapes),
            figure=figure,
            limit_bytes=limit_bytes,
            planned_peak_bytes=planned_peak_bytes,
            measured_peak_bytes=measured_peak_bytes,
            planner=planner,
            recomputed=recomputed,
            original_sha256=original_sha256,
            threads=recipe.threads,
            executed=executed,
            optimized=optimized,
            exact=exact,
            any_size=any_size,
        )

    @property
    def of_recipe(self) -> bool:
        """Whether the file is for sessions with the options of its recipe, which `open_session`
        sets; otherwise for those in which nothing is set but threads."""
        return self.recipe.with_threads(None) != STOCK

    def to_json(self) -> str:
        """The record as JSON, keys sorted; `from_json` reverses it."""
        data = {
            "version": self.version,
            "figure": self.figure,
            "limit_bytes": self.limit_bytes,
            "planned_peak_bytes": self.planned_peak_bytes,
            "measured_peak_bytes": self.measured_peak_bytes,
            "threads": self.threads,
            "runtime": self.runtime,
            "runtime_version": self.runtime_version,
            "recipe": self.recipe.to_dict(),
            "input_shapes": {name: list(shape) for name, shape in self.input_shapes.items()},
            "executed": list(self.executed),
            "exact": self.exact,
            "any_size": self.any_size,
            "optimized": None if self.optimized is None else asdict(self.optimized),
            "planner": self.planner,
            "recomputed": self.recomputed,
            "original_sha256": self.original_sha256,
        }
        return json.dumps(data, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "PlanRecord":
        """The record that `to_json` wrote. Raises UsageError, saying what is wrong with it, for
        whatever else stands there."""
        try:
            data = json.loads(text)
            if data["version"] != RECORD_VERSION:
                raise UsageError(
                    f"the plan's record has version {data['version']}, this onnxremat reads "
                    f"version {RECORD_VERSION}"
                )
            return cls._from_data(data)
        except KeyError as error:
            raise UsageError(f"the plan's record has no {error.args[0]!r}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the plan's record is damaged: {error}") from error
        except RecursionError:
            raise UsageError("the plan's record is damaged: it is nested too deep") from None

    @classmethod
    def _from_data(cls, data: Mapping[str, Any]) -> "PlanRecord":
        optimized = data["optimized"]
        return cls(
            recipe=Recipe.from_dict(data["recipe"]),
            input_shapes={
                typed(name, str): tuple(typed_size(size, 0) for size in typed(shape, list))
                for name, shape in typed(data["input_shapes"], dict).items()
            },
            figure=typed(data["figure"], str),
            limit_bytes=None if data["limit_bytes"] is None else typed_size(data["limit_bytes"], 0),
            planned_peak_bytes=typed_size(data["planned_peak_bytes"], 0),
            measured_peak_bytes=typed_size(data["measured_peak_bytes"], 0),
            planner=typed(data["planner"], str),
            recomputed=typed(data["recomputed"], int),
            original_sha256=typed(data["original_sha256"], str),
            threads=None if data["threads"] is None else typed_size(data["threads"], 1),
            executed=tuple(typed(name, str) for name in typed(data["executed"], list)),
            exact=typed(data["exact"], bool),
            # Older files do not say; their inputs may leave open what they depend on.
            any_size=typed(data.get("any_size", False), bool),
            optimized=None if optimized is None else OptimizedFor.from_dict(optimized),
            runtime=typed(data["runtime"], str),
            runtime_version=typed(data["runtime_version"], str),
            version=data["version"],
        )


def attach_record(model: onnx.ModelProto, record: PlanRecord) -> onnx.ModelProto:
    """A copy of the model that carries the record, instead of one it may have had."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [entry for entry in model.metadata_props if entry.key != METADATA_KEY]
    del copy.metadata_props[:]
    copy.metadata_props.extend(kept)
    copy.metadata_props.add(key=METADATA_KEY, value=record.to_json())
    return copy


def read_record(model: onnx.ModelProto) -> PlanRecord | None:
    """The record a model carries, or None. Raises UsageError if it has one that is damaged."""
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            return PlanRecord.from_json(entry.value)
    return None


def made_record(model: onnx.ModelProto, path: Path | str) -> PlanRecord:
    """`file_record` of a file that has to have one. Raises UsageError if it has none."""
    record = file_record(model, path)
    if record is None:
        raise UsageError(f"{path} holds no onnxremat plan: it was not made by onnxremat")
    return record


def file_record(model: onnx.ModelProto, path: Path | str) -> PlanRecord | None:
    """`read_record` for the model of a file. Raises ModelError, naming the file, for a damaged
    record."""
    try:
        record = read_record(model)
        if record is not None:
            require_usable(record.recipe)
        return record
    except UsageError as error:
        raise ModelError(f"{path}: {error}") from error
