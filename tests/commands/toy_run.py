"""The process of a run of a sweep that takes no time: no library for models is loaded.

What is in the model says what becomes of it: `crash`, `refuse`, `full`, `wait`, or anything else for a file.
"""

import os
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from onnxremat.fleet.fleet_job import answer_job


def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    content = Path(asked["model"]).read_bytes()
    if b"crash" in content:
        os._exit(1)
    if b"wait" in content:
        time.sleep(600)
    if b"refuse" in content:
        return {"status": "no model", "reason": "refused", "exit_code": 5, "seconds": 0.1}
    if b"full" in content:
        return {"status": "not usable", "reason": "no space", "exit_code": 2, "seconds": 0.1}
    row: dict[str, Any] = {
        "status": "made",
        "exit_code": 0,
        "seconds": 0.1,
        "original_peak_bytes": len(content),
    }
    if asked["file"] is not None:
        Path(asked["file"]).write_bytes(content)
        row |= {"file": asked["file"], "file_sha256": sha256(content).hexdigest(), "data_bytes": 0}
    return row


if __name__ == "__main__":
    answer_job(answer)
