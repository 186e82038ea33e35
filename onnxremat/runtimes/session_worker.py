"""The child of `resident`: opens one model and runs it. `python worker.py FOLDER`.

Reads `request.json`, `model.onnx` and the inputs in FOLDER, writes `result.json`. Only numpy and
onnxruntime are imported, as in a program that does nothing but run models.
"""

import json
import sys
from pathlib import Path
from typing import Any

from onnxremat.runtimes.recipe import Recipe
from onnxremat.runtimes.resident import meter
from onnxremat.runtimes.runner import Runner, RuntimeRefusal
from onnxremat.runtimes.wire import read_arrays


def main(folder: Path) -> None:
    """Do what the request in `folder` asks and write the answer beside it."""
    (folder / "result.json").write_text(json.dumps(_measure(folder)), encoding="utf-8")


def _measure(folder: Path) -> dict[str, Any]:
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    inputs = read_arrays(folder, request["inputs"])
    model = {"path": str(folder / "model.onnx"), "data_folder": request["data_folder"]}
    memory = meter()
    before = memory.current_bytes()
    try:
        runner = Runner(0, model, Recipe.from_dict(request["recipe"]), inputs)
        loaded = memory.current_bytes()
        peaks = []
        for _ in range(request["runs"]):
            runner.release()
            memory.reset()
            runner.run()
            peaks.append(max(memory.peak_bytes() - loaded, 0))
    except RuntimeRefusal as refusal:
        return {"error": refusal.reason}
    return {"loaded_bytes": max(loaded - before, 0), "run_peaks_bytes": peaks}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
