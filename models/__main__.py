"""`python -m models NAME [--option value ...] -o FILE`: write one model to a file.

Every keyword argument of the builder is an option: `python -m models unet --help`.
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from models.table import BUILDERS, Builder


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, write, say what was written; 0, or 2 when the options do not fit the builder."""
    options = vars(_parser().parse_args(arguments))
    name, output = options.pop("name"), options.pop("output")
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    try:
        model = BUILDERS[name](**given)
    except (ValueError, ImportError) as error:
        print(f"models: {name}: {error}", file=sys.stderr)
        return 2
    try:
        onnx.save(model, output)
    except OSError as error:
        print(f"models: cannot write {output}: {error.strerror or error}", file=sys.stderr)
        return 2
    size = Path(output).stat().st_size
    print(f"{output}: {name}, {len(model.graph.node)} nodes, {size} bytes")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, build in BUILDERS.items():
        text = inspect.getdoc(build) or ""
        sub = names.add_parser(
            name,
            help=text.partition(":")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write")
        _add_options(sub, build)
    return parser


def _add_options(parser: argparse.ArgumentParser, build: Builder) -> None:
    for option in inspect.signature(build).parameters.values():
        flag = f"--{option.name.replace('_', '-')}"
        kind: dict[str, Any] = {"type": option.annotation}
        if option.annotation is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        elif option.annotation == tuple[int, ...]:
            kind = {"type": int, "nargs": "+"}
        parser.add_argument(flag, default=option.default, help=f"default {option.default}", **kind)


if __name__ == "__main__":
    sys.exit(main())
