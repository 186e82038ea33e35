"""A process that opens a model as people deploy it, nothing set, and says what that took.

    python process_client.py MODEL INPUTS.npz RUNS THREADS

Nothing of onnxremat is imported, and of ONNX Runtime nothing is set but the number of threads.
Printed as one JSON object: the growth of anonymous memory from before the session is opened to
after loading it, and to after the runs, the outputs that are still held taken off; the largest of
both on the way (the high-water mark of what is resident, without mapped pages); what is resident of
the mapped file of weights; seconds to load; seconds of the processor for a run, the least of all;
and the bits of the outputs.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort


def field(file: str, key: str) -> int:
    """Bytes that a file of /proc/self has under a key."""
    lines = Path("/proc/self", file).read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def resident(path: Path) -> int:
    """Bytes of a file's mappings that are in memory."""
    nbytes, within = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            within = line.endswith(str(path))
        elif within and first == "Rss:":
            nbytes += int(line.split()[1]) * 1024
    return nbytes


def main() -> None:
    model, inputs, runs, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    feed = dict(np.load(inputs))
    options = ort.SessionOptions()  # type: ignore[attr-defined]
    options.intra_op_num_threads = threads
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = field("smaps_rollup", "Anonymous:")
    began = time.perf_counter()
    session = ort.InferenceSession(  # type: ignore[attr-defined]
        model, options, providers=["CPUExecutionProvider"]
    )
    load_seconds = time.perf_counter() - began
    loaded = field("smaps_rollup", "Anonymous:")
    seconds = []
    outputs: list[Any] = []
    for _ in range(runs):
        outputs.clear()
        start = time.process_time()
        outputs = list(session.run(None, feed))
        seconds.append(time.process_time() - start)
    held = sum(value.nbytes for value in outputs)
    after = field("smaps_rollup", "Anonymous:")
    most = field("status", "VmHWM:") - field("status", "RssFile:")
    bits = hashlib.sha256()
    for value in outputs:
        bits.update(np.ascontiguousarray(value).tobytes())
    print(
        json.dumps({
            "loaded_bytes": loaded - before,
            "bytes": after - before - held,
            "most_bytes": most - before - held,
            "mapped_bytes": resident(Path(f"{model}.data").resolve()),
            "load_seconds": load_seconds,
            "cpu_seconds": min(seconds),
            "bits": bits.hexdigest(),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
