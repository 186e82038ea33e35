"""The format of what `--json` prints: its name and version, and the file that describes it.

Every object has a field `schema`, such as "onnxremat/audit/1". The number goes up when a field is
renamed or removed, or means something else; new fields may come at any time, so that readers ignore
those that they do not know.
"""

from collections.abc import Mapping
from importlib.resources import files

from onnxremat.core.errors import UsageError

VERSIONS: Mapping[str, int] = {
    "rewrite": 1,
    "audit": 1,
    "audits": 1,
    "budget": 1,
    "frontier": 1,
    "verify": 1,
    "check": 1,
    "planners": 1,
    "sweep": 1,
    "error": 1,
}
"""By command; "audits" is what `audit` prints of several models, "budget" what it does with
--fail-above; "error" is what a command prints that ends with another exit code than 0, unless it
has a result all the same (`verify`, `check`, `audit --fail-above`)."""


def schema_name(command: str) -> str:
    """What the objects of a command say of themselves."""
    return f"onnxremat/{command}/{VERSIONS[command]}"


def schema_text(command: str) -> str:
    """The JSON Schema (draft 2020-12) of a command's objects. Raises UsageError for others."""
    if command not in VERSIONS:
        raise UsageError(f"{command!r} prints no JSON; those that do: {', '.join(VERSIONS)}")
    file = files("onnxremat.cli") / "schema_files" / f"{command}.schema.json"
    return file.read_text(encoding="utf-8")
