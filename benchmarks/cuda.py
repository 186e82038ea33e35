"""What a rewritten model saves on a GPU: smallest gpu_mem_limit, order, bits and time.

    python -m benchmarks.cuda plan FOLDER [--models NAME ...] [--share 0.6]
    python -m benchmarks.cuda run FOLDER

`plan` needs no GPU: it builds each model of `models/`, plans it for `--share` of its own peak
(sizes by shape inference, buffers rounded to the 256 bytes of the CUDA arena, nothing in place) and
writes original, released and rewritten files to FOLDER. `run` needs only numpy, onnxruntime-gpu and
a CUDA device, and no network: it runs the files under the recipe on the CUDA provider with
`arena_extend_strategy` kSameAsRequested and prints a table. The smallest `gpu_mem_limit` with which
a model still runs is found by bisection, one process a trial; it includes weights, the caller's
inputs that are copied to the device, and kernel workspace.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

MODELS: dict[str, dict[str, Any]] = {
    "unet_train": {"size": 256, "base": 32, "batch": 4},
    "transformer_train": {"sequence": 512, "width": 512, "batch": 4},
    "resnet_train": {"size": 128, "base": 32, "batch": 16},
}
ROOF_BYTES = 40 * 10**9
RESOLUTION = 0.01
"""Bisection ends when the limit is known to this share."""
RUNS = 20


def session_of(path: Path, limit: int, profile_prefix: str | None = None) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    options.use_deterministic_compute = True
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    cuda = {
        "gpu_mem_limit": str(limit),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "0",
        "use_tf32": "0",
    }
    return ort.InferenceSession(str(path), options, providers=[("CUDAExecutionProvider", cuda)])


def trial(arguments: list[str]) -> None:
    """One run in a process of its own: `path limit runs`; the last line printed is JSON."""
    path, limit, runs = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    session = session_of(path, limit, str(path.with_suffix("")) if runs else None)
    if "CUDAExecutionProvider" not in session.get_providers():
        raise SystemExit("the session does not run on CUDA")
    feeds = {i.name: values(i.name, i.shape, i.type) for i in session.get_inputs()}
    outputs = session.run(None, feeds)
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - start)
    result: dict[str, Any] = {
        "digest": [hashlib.sha256(o.tobytes()).hexdigest() for o in outputs],
        "finite": all(bool(np.isfinite(o).all()) for o in outputs),
    }
    if runs:
        result["seconds"] = statistics.median(seconds)
        result["order"] = executed(Path(session.end_profiling()))
    print(json.dumps(result))


def values(name: str, shape: list[int], dtype: str) -> Any:
    """Values for an input that depend on its name only: small floats, integers 0 and 1."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if dtype == "tensor(float)":
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)
    return rng.integers(0, 2, shape).astype(np.int64)


def executed(profile_path: Path) -> list[str]:
    """Node names in the order of the first run; copies between devices are left out."""
    events = json.loads(profile_path.read_text())
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    order: dict[str, None] = {}
    for event in sorted(kernels, key=lambda e: e["ts"]):
        if not event["args"].get("op_name", "").startswith("Memcpy"):
            order[event["name"].removesuffix("_kernel_time")] = None
    return list(order)


def attempt(path: Path, limit: int, runs: int = 0) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "benchmarks.cuda", "--trial", str(path), str(limit), str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if runs:
            print(done.stderr.strip()[-500:], file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def smallest_limit(path: Path, low: int, high: int) -> int:
    while high - low > RESOLUTION * high:
        middle = (low + high) // 2
        if attempt(path, middle) is None:
            low = middle
        else:
            high = middle
    return high


def plan(folder: Path, names: list[str], share: float) -> None:
    """Write the three variants of each model, nodes named by their place in the file."""
    import onnx

    from models import BUILDERS
    from onnxremat.importer import bind_dimensions, from_proto, import_model, infer_types
    from onnxremat.memory import MemoryRules, profile
    from onnxremat.plan import Limits, Problem
    from onnxremat.planners import PLANNERS
    from onnxremat.runtimes.rules import EAGER_OPS, VIEW_OPS
    from onnxremat.schedule import given_order, with_eager_ops
    from onnxremat_rewriters.recompute import apply_schedule
    from onnxremat_rewriters.release import release

    rules = MemoryRules(alignment_bytes=256)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        original = BUILDERS[name](**MODELS[name])
        released = release(original).model
        loaded = from_proto(released)
        types = infer_types(loaded, bind_dimensions(loaded, {}))
        imported = import_model(loaded, types, view_ops=VIEW_OPS, eager_ops=EAGER_OPS)
        graph = imported.graph
        before = profile(graph, with_eager_ops(graph, given_order(graph)), rules).peak_bytes
        problem = Problem(graph, rules, budget_bytes=int(share * before))
        made = PLANNERS["auto"].function(problem, Limits(seconds=20))
        again = apply_schedule(imported, with_eager_ops(graph, made.schedule)).model
        variants = {"original": original, "released": released, "rewritten": release(again).model}
        for variant, model in variants.items():
            for index, node in enumerate(model.graph.node):
                node.name = f"node{index}"
            onnx.save(model, folder / f"{name}-{variant}.onnx")
        nodes = {
            v: [n.name for n in m.graph.node if n.op_type != "Constant"]
            for v, m in variants.items()
        }
        facts = {
            "nodes": nodes,
            "activations": f"{before / 1e6:.1f} MB planned to {made.peak_bytes / 1e6:.1f} MB",
            "time": f"{100 * made.extra_time:+.1f}%",
        }
        (folder / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")
        print(f"{name}: {facts['activations']}, planned time {facts['time']}", flush=True)


def run(folder: Path) -> list[str]:
    """The table, a line printed as soon as it is known."""
    import onnxruntime as ort

    lines: list[str] = []

    def out(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    out(f"Card: {card()}; ONNX Runtime {ort.__version__}. Limit: the smallest")
    out(f"runs (within {RESOLUTION:.0%}). Time: median of {RUNS} runs, inputs and outputs on host.")
    out("")
    out("| model | variant | limit MB | of original | ms | executed | outputs |")
    out("|---|---|---|---|---|---|---|")
    for facts_path in sorted(folder.glob("*.json")):
        facts = json.loads(facts_path.read_text(encoding="utf-8"))
        name = facts_path.stem
        original: tuple[int, dict[str, Any]] | None = None
        for variant in ("original", "released", "rewritten"):
            path = folder / f"{name}-{variant}.onnx"
            result = attempt(path, ROOF_BYTES, RUNS)
            if result is None:
                out(f"| {name} | {variant} | does not run | | | | |")
                continue
            limit = smallest_limit(path, 10**6, 4 * 10**9)
            original = original or (limit, result)
            in_order = result["order"] == facts["nodes"][variant]
            same = result["digest"] == original[1]["digest"]
            finite = "" if result["finite"] else ", not finite"
            out(
                f"| {name} | {variant} | {limit / 1e6:.1f} | {100 * limit / original[0]:.1f}% | "
                f"{1e3 * result['seconds']:.2f} | {'file order' if in_order else 'other order'} | "
                f"{'identical' if same else 'different'}{finite} |"
            )
        out(f"| {name} | plan | {facts['activations']} | | {facts['time']} | | |")
    return lines


def card() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    if sys.argv[1:2] == ["--trial"]:
        trial(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("action", choices=("plan", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "plan":
        plan(arguments.folder, arguments.models, arguments.share)
        return
    lines = run(arguments.folder)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
