"""The `onnxremat` command, also as `python -m onnxremat`."""

import sys

from onnxremat.errors import Interrupted


def main() -> None:
    """Load the command and run it; Ctrl-C while it is being loaded ends it in one line, too."""
    try:
        from onnxremat import cli
    except KeyboardInterrupt:
        sys.stderr.write("onnxremat: interrupted, nothing was written\n")
        sys.exit(Interrupted.exit_code)
    cli.main()


if __name__ == "__main__":
    main()
