"""What the child process can do with models. Each action takes a request and returns plain data."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxremat.runtimes import resident as memory
from onnxremat.runtimes.library import native_path
from onnxremat.runtimes.recipe import Recipe, session_options
from onnxremat.runtimes.runner import Runner, RuntimeRefusal, refusals, runtime_session
from onnxremat.runtimes.wire import Array, read_arrays, write_arrays

STATS_FILE = "workspace.csv"
STATS_CONFIG = "session.collect_node_memory_stats_to_file"
PROFILE_PREFIX = "profile"
OPTIMIZED_FILE, WEIGHTS_FILE = "optimized.onnx", "optimized.weights"
_WEIGHTS_CONFIG = "session.optimized_model_external_initializers_"
_SMALLEST_EXTERNAL_BYTES = 1024


@dataclass(frozen=True)
class Request:
    """Models to open, each with its recipe, the inputs they share, and an action's options."""

    folder: Path
    models: list[dict[str, str | None]]
    recipes: list[Recipe]
    inputs: dict[str, Array]
    options: dict[str, Any]

    @classmethod
    def from_data(cls, folder: Path, data: Mapping[str, Any]) -> "Request":
        """The request that `process` wrote."""
        return cls(
            folder,
            data["models"],
            [Recipe.from_dict(recipe) for recipe in data["recipes"]],
            read_arrays(folder, data["inputs"]),
            data["options"],
        )

    def runner(self, number: int, **settings: Any) -> Runner:
        """Model `number`, opened."""
        return Runner(number, self.models[number], self.recipes[number], self.inputs, **settings)


def outputs(request: Request) -> dict[str, Any]:
    """Run once; every output by name, as one array or as the arrays of a sequence."""
    made = request.runner(0).outputs()
    written = []
    for index, (name, value) in enumerate(made.items()):
        items = value if isinstance(value, list) else [value]
        if not all(hasattr(item, "dtype") for item in items):
            raise RuntimeRefusal(0, f"output {name!r} is neither a tensor nor a list of tensors")
        arrays = {str(i): item for i, item in enumerate(items)}
        entry = write_arrays(request.folder, f"output{index}_", arrays)
        written.append({"name": name, "sequence": isinstance(value, list), "arrays": entry})
    return {"outputs": written}


def profile(request: Request) -> dict[str, Any]:
    """Run `runs` times with ONNX Runtime's profiling and memory statistics on."""
    config = {STATS_CONFIG: native_path(request.folder / STATS_FILE)}
    runner = request.runner(0, config=config, profile_prefix=PROFILE_PREFIX)
    for _ in range(request.options["runs"]):
        runner.run()
        runner.release()
    profile_file = runner.session.end_profiling()
    del runner  # the statistics are written when the session ends
    return {"profile": Path(profile_file).name, "stats": STATS_FILE}


def optimize(request: Request) -> dict[str, Any]:
    """Open model 0 and let ONNX Runtime write what its optimizations made of it.

    Weights from 1 KB on go to a file of their own, so that there is no limit of 2 GB here.
    """
    with refusals(0):
        options = session_options(request.recipes[0])
        options.optimized_model_filepath = native_path(request.folder / OPTIMIZED_FILE)
        for key, value in (
            ("file_name", WEIGHTS_FILE),
            ("min_size_in_bytes", str(_SMALLEST_EXTERNAL_BYTES)),
        ):
            options.add_session_config_entry(_WEIGHTS_CONFIG + key, value)
        runtime_session(request.models[0], request.recipes[0], options)
    return {"optimized": OPTIMIZED_FILE, "weights": WEIGHTS_FILE}


def heap(request: Request) -> dict[str, Any]:
    """Most bytes that malloc held at once during each of `runs` runs, counted by memray."""
    try:
        import memray  # noqa: F401
    except ImportError as error:
        return {"unavailable": f"memray cannot be imported: {error}"}
    runner = request.runner(0)
    runs = range(request.options["runs"])
    return {"run_peaks_bytes": [_heap_peak_bytes(request.folder, runner) for _ in runs]}


def resident(request: Request) -> dict[str, Any]:
    """Resident memory above the loaded session, the most in each of `runs` runs."""
    runner = request.runner(0)
    meter = memory.meter()
    peaks = []
    base = meter.current_bytes()
    for _ in range(request.options["runs"]):
        runner.release()
        meter.reset()
        runner.run()
        peaks.append(max(meter.peak_bytes() - base, 0))
    return {"run_peaks_bytes": peaks, "method": meter.name}


TIMED_SECONDS, MOST_ROUNDS = 1.0, 6
"""Runs are timed until they have taken so long, in at most so many times the rounds asked for."""

PAUSE_SECONDS = 0.01
SHORT_SECONDS = 0.25


def times(request: Request) -> dict[str, Any]:
    """Seconds of every model in each round; models alternate within a round.

    There are `pairs` rounds, and of short runs more, until they have taken TIMED_SECONDS. Before
    each run is a pause, so that no thread of another session still waits for work in a loop, and a
    short one runs once untimed, so that its threads and what it reads are awake.
    """
    runners = [request.runner(number) for number in range(len(request.models))]
    for runner in runners:
        runner.run()
        runner.release()
    rounds = []
    spent, shortest = 0.0, [float("inf")] * len(runners)
    for number in range(request.options["pairs"] * MOST_ROUNDS):
        if number >= request.options["pairs"] and spent > TIMED_SECONDS:
            break
        order = runners if number % 2 == 0 else runners[::-1]
        seconds = [0.0] * len(runners)
        for runner in order:
            time.sleep(PAUSE_SECONDS)
            if shortest[runner.number] < SHORT_SECONDS:
                runner.run()
                runner.release()
            start = time.perf_counter()
            runner.run()
            seconds[runner.number] = time.perf_counter() - start
            runner.release()
            shortest[runner.number] = min(shortest[runner.number], seconds[runner.number])
        spent += sum(seconds)
        rounds.append(seconds)
    return {"rounds_seconds": rounds}


def node_heaps(request: Request) -> dict[str, Any]:
    """Single nodes: model 0 makes the values, every other model is one node on them.

    Scratch is the heap peak of a run less the bytes of the node's outputs, the smaller of two
    runs: the first may set up what stays. Values go from session to session without a copy. A
    node that the runtime refuses alone is None.
    """
    try:
        import memray  # noqa: F401
    except ImportError as error:
        return {"unavailable": f"memray cannot be imported: {error}"}
    maker = request.runner(0)
    if maker.binding is None:
        return {"unavailable": "text inputs cannot be bound"}
    values = maker.values()
    found: list[dict[str, Any] | None] = []
    for number in range(1, len(request.models)):
        try:
            found.append(_single_node(request, number, values))
        except RuntimeRefusal:
            found.append(None)
    return {"nodes": found}


def _single_node(request: Request, number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    runner = Runner(number, request.models[number], request.recipes[number], values)
    peak = min(_heap_peak_bytes(request.folder, runner) for _ in range(2))
    types = runner.output_types()
    seconds = []
    for _ in range(3):
        runner.release()
        start = time.perf_counter()
        runner.run()
        seconds.append(time.perf_counter() - start)
    scratch = max(peak - runner.output_bytes(), 0)
    return {"scratch_bytes": scratch, "seconds": sorted(seconds)[1], "outputs": types}


def _heap_peak_bytes(folder: Path, runner: Runner) -> int:
    """Most bytes that malloc held at once during a run."""
    import memray

    runner.release()
    record = folder / "heap.bin"
    with memray.Tracker(record):
        runner.run()
    with memray.FileReader(record) as reader:
        peak: int = reader.metadata.peak_memory
    record.unlink()
    return peak
