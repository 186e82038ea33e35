"""`python -m onnxremat` is the `onnxremat` command."""

from onnxremat.cli import main

main()
