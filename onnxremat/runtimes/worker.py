"""The child process that executes models: `python -m onnxremat.runtimes.worker FOLDER`.

Reads `request.json` in FOLDER, does one action, writes `result.json`: its answer, or
`{"error": message, "model": index}` if ONNX Runtime refuses. The working directory is FOLDER.
Only numpy and onnxruntime are imported (memray where it counts), so that a child starts quickly:
0.3 s. `process` is the parent's side.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnxremat.runtimes import worker_actions as actions
from onnxremat.runtimes.cap_actions import capped
from onnxremat.runtimes.runner import RuntimeRefusal
from onnxremat.runtimes.slack_actions import slack

ACTIONS: dict[str, Callable[[actions.Request], dict[str, Any]]] = {
    "outputs": actions.outputs,
    "profile": actions.profile,
    "optimize": actions.optimize,
    "heap": actions.heap,
    "resident": actions.resident,
    "times": actions.times,
    "node_heaps": actions.node_heaps,
    "slack": slack,
    "capped": capped,
}


def main(folder: Path) -> None:
    """Do what the request in `folder` asks and write the answer beside it."""
    data = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    request = actions.Request.from_data(folder, data)
    try:
        answer = ACTIONS[data["action"]](request)
    except RuntimeRefusal as refusal:
        answer = {"error": refusal.reason, "model": refusal.model}
    (folder / "result.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
