"""Whether ten rewrites give the files that another commit gave, byte for byte.

    python -m benchmarks.same_files [--only NAME,NAME] [--markdown FILE] [--against FILE]

Each is a run of the command line with a fixed number of iterations, so that no clock decides. The
table has the SHA-256 of what was written; `--against` is a table of another commit, and a file that
differs from it ends with FAILED, as the command does. Files for default session options are left
out: which variant is taken, and the figure in the record, are measured in resident memory.
"""

import argparse
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.limits import SIZES
from benchmarks.tables import commit, markdown
from models import BUILDERS

FIXED = (
    "--session=recipe",
    "--iterations",
    "3000",
    "--time-limit",
    "2",
    "--threads",
    "1",
    "--no-verify",
)


@dataclass(frozen=True)
class Rewrite:
    """A model of `models/` and the options of its rewrite."""

    model: str
    options: tuple[str, ...]


REWRITES = (
    Rewrite("transformer_train", ("--mem", "80%")),
    Rewrite("unet_train", ("--mem", "80%", "--planner", "greedy")),
    Rewrite("transformer", ("--mem", "50%")),
    Rewrite("vae_decoder", ("--mem", "min")),
    Rewrite("resnet", ("--mem", "min", "--order", "default", "--no-recompute")),
    Rewrite("densenet", ("--mem", "min", "--runtime", "generic")),
    Rewrite(
        "gpt_cache",
        (
            "--mem",
            "70%",
            "--no-tiling",
            "--dim",
            "batch=1",
            "--dim",
            "sequence=64",
            "--dim",
            "past=192",
        ),
    ),
    Rewrite("half_attention", ("--mem", "60%")),
    Rewrite("espcn", ("--mem", "40%", "--allow-rounding")),
    Rewrite("inception", ("--mem", "min", "--optimize", "extended")),
)


def digest(rewrite: Rewrite, folder: Path) -> str:
    """The hash of all that a rewrite wrote, or what it said instead."""
    path = folder / f"{rewrite.model}.onnx"
    onnx.save(BUILDERS[rewrite.model](**SIZES.get(rewrite.model, {})), path)
    command = [sys.executable, "-m", "onnxremat", "rewrite", path.name, *rewrite.options, *FIXED]
    ended = subprocess.run(
        [*command, "-o", "out.onnx"], cwd=folder, capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        return f"exit {ended.returncode}: {ended.stderr.strip().splitlines()[-1]}"
    written = hashlib.sha256()
    for made in sorted(folder.glob("out.*")):
        written.update(made.name.encode())
        written.update(made.read_bytes())
        made.unlink()
    return written.hexdigest()


def rows(only: frozenset[str], before: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """One a rewrite: model, options, hash, verdict."""
    with TemporaryDirectory() as name:
        for rewrite in REWRITES:
            if only and rewrite.model not in only:
                continue
            found = digest(rewrite, Path(name))
            expected = before.get(rewrite.model)
            same = "" if not before else "same" if found == expected else "FAILED"
            print(rewrite.model, found, same, flush=True)
            yield rewrite.model, " ".join(rewrite.options), found, same


def stored(table: Path) -> dict[str, str]:
    """The hashes of a table by model."""
    lines = table.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    return {row[1]: row[3] for row in cells if re.fullmatch(r"[0-9a-f]{64}|exit .*", row[3])}


def main() -> None:
    """Print the table, and compare it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    before = {} if given.against is None else stored(given.against)
    made = list(rows(frozenset(given.only.split(",")) - {""}, before))
    head = f"Made at commit {commit()}, each with {' '.join(FIXED)}.\n\n"
    text = head + markdown(["model", "options", "SHA-256", "verdict"], made)
    if given.markdown is not None:
        given.markdown.write_text(text + "\n", encoding="utf-8")
    if any(row[3] == "FAILED" for row in made):
        print("FAILED")
        sys.exit(1)


if __name__ == "__main__":
    main()
