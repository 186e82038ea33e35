"""How long the command takes before it does any work: CPU seconds of help, version and the list.

    python -m benchmarks.startup [--repeats 5] [--limit 0.3]

Each command runs in a process of its own; the least of some runs counts, for the machine may have
other things to do. Ends with FAILED, and 1, if one takes more than the limit.
"""

import argparse
import os
import subprocess
import sys

from benchmarks.tables import markdown

COMMANDS = (
    ("--help",),
    ("--version",),
    ("planners",),
    *((name, "--help") for name in ("rewrite", "audit", "frontier", "verify", "planners")),
)


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one run."""
    before = os.times()
    command = [sys.executable, "-m", "onnxremat", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=0.3)
    arguments = parser.parse_args()
    seconds = {
        command: min(cpu_seconds(*command) for _ in range(arguments.repeats))
        for command in COMMANDS
    }
    rows = [(f"`onnxremat {' '.join(c)}`", f"{took:.2f}") for c, took in seconds.items()]
    print(markdown(("command", "CPU s"), rows))
    if max(seconds.values()) > arguments.limit:
        print("FAILED")
        sys.exit(1)


if __name__ == "__main__":
    main()
