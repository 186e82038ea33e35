"""The schemas of `--json`, made from the types of results: `python -m docs.json_schemas`.

A field that is new makes them new, too. Where one is renamed or removed, or means something else,
the version in `onnxremat/cli/schemas.py` goes up first.
"""

import inspect
import json
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from onnxremat.cli import schemas
from onnxremat.cli.report import told_fields
from onnxremat.commands.audit import Audit
from onnxremat.commands.audits import Audits
from onnxremat.commands.budget import BudgetReport
from onnxremat.commands.fitness import Check
from onnxremat.commands.frontier import Frontier
from onnxremat.commands.process_frontier import ProcessFrontier
from onnxremat.commands.rewrite import RewriteResult
from onnxremat.commands.sweep import SweepResult
from onnxremat.commands.sweep_row import COLUMNS
from onnxremat.core.attempt import Attempt
from onnxremat.planners import PlannerInfo
from onnxremat.target_table import TARGETS
from onnxremat.targets.stock_trial import StockResult
from onnxremat.verification import Verification

FOLDER = Path(schemas.__file__).with_name("schema_files")
RESULTS: Mapping[str, tuple[type, ...]] = {
    "rewrite": (RewriteResult,),
    "audit": (Audit,),
    "audits": (Audits,),
    "budget": (BudgetReport,),
    "frontier": (Frontier, ProcessFrontier),
    "verify": (Verification,),
    "check": (Check,),
    "sweep": (SweepResult,),
}
"""What commands print; of frontier by the session."""
LISTS: Mapping[str, tuple[str, type]] = {
    "planners": ("planners", PlannerInfo),
}
"""What is a list of results, by the command that prints it."""
DETAILS = {"stock": StockResult}
"""What a target has to tell, by its name in the table."""
ROWS: Mapping[tuple[str, str], Mapping[str, type]] = {("SweepResult", "rows"): COLUMNS}
"""Rows of tables, with the columns of each. A cell may be null, or not be there."""
ALWAYS = ("model", "status", "seconds")
"""Columns that every row has."""
NOT_A_NUMBER = {("Rounding", "worst"), ("Rounding", "median")}
"""Floats that may be none: JSON has null for those."""
_PLAIN = {
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string"},
    type(None): {"type": "null"},
}


def schema(command: str) -> dict[str, Any]:
    """The schema of what a command prints."""
    named: dict[str, Any] = {}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": schemas.schema_name(command),
        "description": _described("audit" if command in ("audits", "budget") else command),
    }
    if command == "error":
        body = _object({"error": _PLAIN[str], "exit_code": _PLAIN[int],
                        "attempts": _of(tuple[Attempt, ...], named)})  # fmt: skip
        head["description"] = "What a command prints with --json that ends with an error."
    elif command in LISTS:
        by, kind = LISTS[command]
        head["description"] = _described(by)
        body = _object({command: {"type": "array", "items": _of(kind, named)}})
    else:
        refs = [_of(kind, named) for kind in RESULTS[command]]
        for kind in RESULTS[command]:
            named[kind.__name__] = _with_name(named[kind.__name__], command)
        return head | (refs[0] if len(refs) == 1 else {"oneOf": refs}) | {"$defs": named}
    return head | _with_name(body, command) | {"$defs": named}


def _described(command: str) -> str:
    return (
        f"What `onnxremat {command} --json` prints. Sizes are in bytes, times in seconds, shares "
        "of 1."
    )


def _with_name(body: dict[str, Any], command: str) -> dict[str, Any]:
    name = {"schema": {"const": schemas.schema_name(command)}}
    return body | {
        "required": ["schema", *body["required"]],
        "properties": name | body["properties"],
    }


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(properties),
        "properties": dict(properties),
    }


def _of(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The schema of values of a type; those of dataclasses are put into `named`."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in named:
            named[hint.__name__] = {}
            named[hint.__name__] = _of_fields(hint, named)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [one.value for one in hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(one, named) for one in inner]}
    return _of_many(hint, named)


def _of_many(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    """That of mappings and sequences."""
    origin, inner = get_origin(hint), get_args(hint)
    if not isinstance(origin, type) or not issubclass(origin, Iterable):
        raise TypeError(f"no schema is known for {hint}")
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(inner[1], named)}
    if origin is not tuple or inner[-1] is Ellipsis:
        return {"type": "array", "items": _of(inner[0], named)}
    count = len(inner)
    each = [_of(one, named) for one in inner]
    return {"type": "array", "prefixItems": each, "minItems": count, "maxItems": count}


def _of_fields(kind: type, named: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties: dict[str, Any] = {}
    for name in told_fields(kind):
        if kind is RewriteResult and name == "details":
            for key in (info.details for info in TARGETS.values() if info.details):
                properties[key] = {"anyOf": [_of(DETAILS[key], named), _PLAIN[type(None)]]}
        elif (kind.__name__, name) in ROWS:
            properties[name] = {"type": "array", "items": _row(ROWS[kind.__name__, name])}
        elif (kind.__name__, name) in NOT_A_NUMBER:
            properties[name] = {"type": ["number", "null"]}
        else:
            properties[name] = _of(hints[name], named)
    return {"description": " ".join(inspect.getdoc(kind).split())} | _object(properties)


def _row(columns: Mapping[str, type]) -> dict[str, Any]:
    """That of a row of a table."""
    cells = {
        name: dict(_PLAIN[kind]) if name in ALWAYS else {"type": [_PLAIN[kind]["type"], "null"]}
        for name, kind in columns.items()
    }
    return _object(cells) | {"required": list(ALWAYS)}


def text(command: str) -> str:
    """The file of a command."""
    return json.dumps(schema(command), indent=1, ensure_ascii=True) + "\n"


def write(told: Callable[[str], None]) -> None:
    """Write the file of each command."""
    FOLDER.mkdir(exist_ok=True)
    for command in schemas.VERSIONS:
        file = FOLDER / f"{command}.schema.json"
        file.write_text(text(command), encoding="utf-8")
        told(str(file))


if __name__ == "__main__":
    write(print)
