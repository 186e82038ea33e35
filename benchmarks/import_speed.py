"""How long it takes to import large training graphs: read, release, types, Graph. No planning.

    python -m benchmarks.import_speed [--nodes 20000]

Ratio: against onnx's own shape inference on the same model in the same run.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from models import BUILDERS
from onnxremat.importer import bind_dimensions, import_model, infer_types, load
from onnxremat_rewriters.release import release

NODES_PER_BLOCK = 57
"""Of `ffn_train`, by its README."""


def seconds_of_import(path: Path) -> tuple[float, int, int]:
    start = time.perf_counter()
    loaded = load(path)
    release(loaded.model)
    binding = bind_dimensions(loaded, {})
    imported = import_model(loaded, infer_types(loaded, binding))
    seconds = time.perf_counter() - start
    return seconds, len(loaded.model.graph.node), len(imported.graph.ops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=20_000)
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "ffn_train.onnx"
        onnx.save(BUILDERS["ffn_train"](depth=arguments.nodes // NODES_PER_BLOCK, width=32), path)
        seconds, nodes, ops = min(seconds_of_import(path) for _ in range(3))
        start = time.perf_counter()
        onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
        baseline = time.perf_counter() - start
    print("| nodes | ops | import s | onnx load and shape inference s | ratio |")
    print("|---|---|---|---|---|")
    print(f"| {nodes} | {ops} | {seconds:.2f} | {baseline:.2f} | {seconds / baseline:.2f} |")


if __name__ == "__main__":
    main()
