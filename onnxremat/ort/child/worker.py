"""The child process that executes models: `python -m onnxremat.ort.child.worker FOLDER`.

Reads `request.json` in FOLDER, does one action, writes `result.json`: its answer, or
`{"error": message, "model": index}` if ONNX Runtime refuses or memory does not suffice. The
working directory is FOLDER.

An action is a function of a module, named `module:function`, that takes a `JobRequest` and returns
plain data: any module that the child can import may bring its own. Those of `worker_actions` import
only numpy and onnxruntime (memray where it counts), so that a child starts quickly, 0.3 s, and has
nothing in its memory that a program which runs models would not have. `process` is the parent's
side.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from onnxremat.ort.child.actions import JobRequest
from onnxremat.ort.child.runner import RuntimeRefusal


def main(folder: Path) -> None:
    """Do what the request in `folder` asks and write the answer beside it."""
    data = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    module, _, name = data["action"].partition(":")
    action = getattr(import_module(module), name)
    answer: dict[str, Any]
    try:
        answer = action(JobRequest.from_data(folder, data))
    except RuntimeRefusal as refusal:
        answer = {"error": refusal.reason, "model": refusal.model}
    except MemoryError:
        answer = {"error": "there is not enough memory for its inputs and outputs"}
    (folder / "result.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
