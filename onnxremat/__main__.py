"""The `onnxremat` command, also as `python -m onnxremat`."""

from onnxremat.system.interrupts import INTERRUPTS, open_standard_streams


def main() -> None:
    """Load the command and run it; Ctrl-C while it is being loaded ends it in one line, too."""
    INTERRUPTS.install()
    open_standard_streams()
    from onnxremat.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
