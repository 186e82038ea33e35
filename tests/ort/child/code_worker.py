"""A worker that does what a file in the folder of its job says."""

import sys
from pathlib import Path

CODE = "code.py"

if __name__ == "__main__":
    exec(Path(sys.argv[1], CODE).read_text(encoding="utf-8"))
