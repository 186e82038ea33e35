"""What every kept table needs: the commit it was made at, and its form."""

import subprocess
from collections.abc import Iterable, Sequence


def commit() -> str:
    """The commit that is checked out, "unknown" outside a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def row(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(cells) + " |"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, without a newline at its end."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(row(line) for line in lines)
