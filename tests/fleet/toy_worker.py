"""The process of a job that does what a test says: answers, waits, or dies."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxremat.fleet.fleet_job import answer_job


def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    if asked.get("began"):
        with Path(asked["began"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    time.sleep(asked.get("seconds", 0))
    if asked.get("exit"):
        print("something is wrong\n", file=sys.stderr)
        os._exit(asked["exit"])
    if asked.get("signal"):
        os.kill(os.getpid(), signal.Signals[asked["signal"]])
    return {"echo": asked.get("say")}


if __name__ == "__main__":
    answer_job(answer)
