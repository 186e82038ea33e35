"""What every kept table needs: the commit it was made at, and its form."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn


def commit() -> str:
    """The commit that is checked out, "unknown" outside a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def made_with() -> str:
    """How a table begins that depends on the code and on the runtime: the commit and versions."""
    import onnxruntime

    import onnxremat

    return (
        f"Made at commit {commit()} with onnxremat {onnxremat.__version__}, ONNX Runtime "
        f"{onnxruntime.__version__}"
    )


def row(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(cells) + " |"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, without a newline at its end."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(row(line) for line in lines)


def end(rows: Sequence[Sequence[str]], text: str, target: Path | None, after: str = "") -> NoReturn:
    """Write `text` to a file, say how many rows FAILED (`after`: and in what time), and end the
    command, with 1 if any did, or if there are none."""
    if target is not None:
        target.write_text(text, encoding="utf-8")
    failed = sum("FAILED" in one[-1] for one in rows)
    print(f"{len(rows)} lines{after}: {failed} FAILED", flush=True)
    if not rows:
        print("no model was looked at: FAILED")
    sys.exit(failed > 0 or not rows)
