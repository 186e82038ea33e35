"""onnxremat inside of other tools. Each module needs the tool that it is named for."""
