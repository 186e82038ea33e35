"""What a rewritten model saves on a GPU: smallest gpu_mem_limit, order, bits and time.

    python -m benchmarks.cuda plan FOLDER [--models NAME ...] [--share 0.6]
    python -m benchmarks.cuda run FOLDER

`plan` needs no GPU: it builds each model of `models/`, plans it for `--share` of its own peak
(sizes by shape inference, buffers rounded to the 256 bytes of the CUDA arena, nothing in place) and
writes original, released and rewritten files to FOLDER; inference models are rewritten in tiles to
`TILED_SHARE` of their own CPU figure. `run` needs only numpy, onnxruntime-gpu and
a CUDA device, and no network: it runs the files under the recipe on the CUDA provider with
`arena_extend_strategy` kSameAsRequested and prints a table. The smallest `gpu_mem_limit` with which
a model still runs is found by bisection, one process a trial; it includes weights, the caller's
inputs that are copied to the device, and kernel workspace. Times are measured first, one model at a
time; searches for limits run side by side. Tiles are planned for the CPU's kernels, so whether they
keep the bits on CUDA is a question that the table answers, not a promise.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

MODELS: dict[str, dict[str, Any]] = {
    "unet_train": {"size": 256, "base": 32, "batch": 4},
    "transformer_train": {"sequence": 512, "width": 512, "batch": 4},
    "resnet_train": {"size": 128, "base": 32, "batch": 16},
}
TILED: dict[str, dict[str, Any]] = {
    "unet": {"size": 512, "base": 16},
    "espcn": {"size": 1024},
    "transformer": {"sequence": 2048, "width": 128, "depth": 2},
}
TILED_SHARE = "20%"
ROOF_BYTES = 40 * 10**9
RESOLUTION = 0.01
"""Bisection ends when the limit is known to this share."""
RUNS = 20
SIDE_BY_SIDE = 8
"""Trials that run at once while limits are looked for; each holds a few GB of the host at most."""


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
        "largest": [float(np.abs(o).max()) if o.size else 0.0 for o in outputs],
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
    """Write the variants of each model, nodes named by their place in the file."""
    from models import BUILDERS

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in TILED:
            model = BUILDERS[name](**TILED[name])
            variants, facts = planned_tiles(model, folder / "scratch")
        else:
            model = BUILDERS[name](**MODELS[name])
            variants, facts = planned_again(model, share)
        write_variants(folder, name, variants, facts)
        print(f"{name}: {facts['activations']}, planned time {facts['time']}", flush=True)


def planned_again(original: Any, share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Original, released and recomputed to `share` of the released peak; and what was planned."""
    from onnxremat.core.memory import MemoryRules, profile
    from onnxremat.core.problem import Limits, Problem
    from onnxremat.core.schedule import given_order, with_eager_ops
    from onnxremat.importer import bind_dimensions, from_proto, import_model, infer_types
    from onnxremat.importer.execution_order import EAGER_OPS
    from onnxremat.ort.emulation.rules import VIEW_OPS
    from onnxremat.planners import PLANNERS
    from onnxremat_rewriters.recompute import apply_schedule
    from onnxremat_rewriters.release import release

    rules = MemoryRules(alignment_bytes=256)
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
    facts = {
        "activations": f"{before / 1e6:.1f} MB planned to {made.peak_bytes / 1e6:.1f} MB",
        "time": f"{100 * made.extra_time:+.1f}%",
    }
    return variants, facts


def planned_tiles(original: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Original and in tiles, as `rewrite` makes it for the CPU; and what was planned."""
    import onnx

    import onnxremat

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "original.onnx"
    onnx.save(original, path)
    result = onnxremat.rewrite(
        path, TILED_SHARE, onnxremat.Options(session="recipe", time_limit=20, verify=False)
    )
    before, after = result.original.peak_bytes, result.rewritten.peak_bytes
    facts = {
        "activations": f"{before / 1e6:.1f} MB on the CPU, in tiles {after / 1e6:.1f} MB",
        "time": f"{100 * result.extra_time:+.1f}%",
    }
    return {"original": original, "rewritten": result.model}, facts


def write_variants(
    folder: Path, name: str, variants: dict[str, Any], facts: dict[str, Any]
) -> None:
    import onnx

    for variant, model in variants.items():
        for index, node in enumerate(model.graph.node):
            node.name = f"node{index}"
        onnx.save(model, folder / f"{name}-{variant}.onnx")
    nodes = {
        v: [n.name for n in m.graph.node if n.op_type != "Constant"] for v, m in variants.items()
    }
    text = json.dumps({"nodes": nodes, **facts})
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


def run(folder: Path) -> list[str]:
    """The table, a line printed as soon as it is known."""
    import onnxruntime as ort

    lines: list[str] = []

    def out(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    out(f"Card: {card()}; ONNX Runtime {ort.__version__}. Limit: the smallest `gpu_mem_limit` that")
    out(f"runs (within {RESOLUTION:.0%}). Time: median of {RUNS} runs, inputs and outputs on host.")
    out("")
    out("| model | variant | limit MB | of original | ms | executed | outputs |")
    out("|---|---|---|---|---|---|---|")
    names = [path.stem for path in sorted(folder.glob("*.json"))]
    facts = {n: json.loads((folder / f"{n}.json").read_text(encoding="utf-8")) for n in names}
    files = {(n, v): folder / f"{n}-{v}.onnx" for n in names for v in facts[n]["nodes"]}
    results = {key: attempt(path, ROOF_BYTES, RUNS) for key, path in files.items()}
    running = {key: path for key, path in files.items() if results[key] is not None}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        search = partial(smallest_limit, low=10**6, high=4 * 10**9)
        limits = dict(zip(running, pool.map(search, running.values()), strict=True))
    for name, variant in files:
        result, first = results[name, variant], results[name, "original"]
        if result is None or first is None:
            out(f"| {name} | {variant} | does not run | | | | |")
            continue
        limit, whole = limits[name, variant], limits[name, "original"]
        in_order = result["order"] == facts[name]["nodes"][variant]
        out(
            f"| {name} | {variant} | {limit / 1e6:.1f} | {100 * limit / whole:.1f}% | "
            f"{1e3 * result['seconds']:.2f} | {'file order' if in_order else 'other order'} | "
            f"{difference(result, first)} |"
        )
        if variant == "rewritten":
            planned = facts[name]
            out(f"| {name} | plan | {planned['activations']} | | {planned['time']} | | |")
    return lines


def difference(result: dict[str, Any], first: dict[str, Any]) -> str:
    """How the outputs of one trial compare with those of the original."""
    if result["digest"] == first["digest"]:
        said = "identical"
    else:
        largest = max(
            abs(a - b) / max(abs(a), 1e-30)
            for a, b in zip(first["largest"], result["largest"], strict=True)
        )
        said = f"different (largest values by {largest:.0e})"
    return said + ("" if result["finite"] else ", not finite")


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
    parser.add_argument("--models", nargs="*", default=[*MODELS, *TILED])
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
