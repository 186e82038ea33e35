"""The `verify` command."""

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.option_groups import InputArguments, RunArguments, Shown, read
from onnxremat.cli.working import working
from onnxremat.core.units import parse_limit


def verify_command(
    original: option.Model,
    rewritten: option.Rewritten,
    *,
    mem: option.LimitToKeep = None,
    fed: InputArguments,
    run: RunArguments,
    shown: Shown,
) -> None:
    """Run two models: outputs equal bit for bit, measured peaks, measured times."""
    from onnxremat.cli.report import verification_text
    from onnxremat.options import ModelOptions
    from onnxremat.verification import require, verify_files

    limit = parse_limit(mem) if mem is not None else None
    options = ModelOptions(**read(fed, run))
    with working(shown) as progress:
        result = verify_files(original, rewritten, options, progress=progress)
    terminal.emit("verify", result, verification_text, as_json=shown.as_json)
    require(result, limit.resolve(result.original_peak_bytes) if limit else None)
