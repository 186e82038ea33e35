"""The child that asks ONNX Runtime for shapes, `python -m ...provable_worker FOLDER`.

Opens the model in FOLDER and writes type and shape of every output. `provable` is the parent.
"""

import json
import sys
from pathlib import Path
from typing import Any

from onnxremat.runtimes.library import RUNTIME_ERRORS, native_path, ort
from onnxremat.runtimes.recipe import Recipe, providers, session_options
from onnxremat.runtimes.runner import DATA_FOLDER


def main(folder: Path) -> None:
    """Answer the request in `folder`."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    try:
        answer: dict[str, Any] = {"outputs": outputs(folder / "model.onnx", request)}
    except RUNTIME_ERRORS as error:
        answer = {"error": str(error)}
    (folder / "result.json").write_text(json.dumps(answer), encoding="utf-8")


def outputs(model: Path, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Name, type and shape of every output of a model, as the runtime knows them."""
    recipe = Recipe.from_dict(request["recipe"])
    options = session_options(recipe)
    options.add_session_config_entry(DATA_FOLDER, native_path(request["data_folder"]))
    session = ort.InferenceSession(
        model.read_bytes(), options, providers=providers(recipe), enable_fallback=0
    )
    return [{"name": o.name, "type": o.type, "shape": list(o.shape)} for o in session.get_outputs()]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
