"""What the child process can do with models: actions, and the request that each of them takes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxremat.ort.child import meter as memory
from onnxremat.ort.child.heap_trace import read_trace
from onnxremat.ort.child.one_heap import grown
from onnxremat.ort.child.runner import Runner, RuntimeRefusal, refusals, runtime_session
from onnxremat.ort.child.watching import PROGRESS
from onnxremat.ort.child.wire import Array, read_arrays, write_arrays
from onnxremat.ort.library import native_path
from onnxremat.ort.recipe import Recipe, session_options

STATS_FILE = "workspace.csv"
HEAP_FILE = "heap.bin"
STATS_CONFIG = "session.collect_node_memory_stats_to_file"
PROFILE_PREFIX = "profile"
OPTIMIZED_FILE, WEIGHTS_FILE = "optimized.onnx", "optimized.weights"
_WEIGHTS_CONFIG = "session.optimized_model_external_initializers_"
_PACKED_CONFIG = "session.save_external_prepacked_constant_initializers"
_SMALLEST_EXTERNAL_BYTES = 1024


@dataclass(frozen=True)
class JobRequest:
    """Models to open, each with its recipe, the inputs they share, and an action's options."""

    folder: Path
    models: list[dict[str, str | None]]
    recipes: list[Recipe]
    inputs: dict[str, Array]
    options: dict[str, Any]

    @classmethod
    def from_data(cls, folder: Path, data: Mapping[str, Any]) -> "JobRequest":
        """The request that `process` wrote."""
        return cls(
            folder,
            data["models"],
            [Recipe.from_dict(recipe) for recipe in data["recipes"]],
            read_arrays(folder, data["inputs"]),
            data["options"],
        )

    def tell(self, text: str) -> None:
        """Let the parent know what is being done (see `watching`)."""
        with (self.folder / PROGRESS).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def runner(self, number: int, **settings: Any) -> Runner:
        """Model `number`, opened."""
        return Runner(number, self.models[number], self.recipes[number], self.inputs, **settings)


def outputs(request: JobRequest) -> dict[str, Any]:
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


def profile(request: JobRequest) -> dict[str, Any]:
    """Run at most `runs` times with ONNX Runtime's profiling and memory statistics on.

    Runs end when the next one would not end within `seconds`; the first one is made anyway.
    """
    config = {STATS_CONFIG: native_path(request.folder / STATS_FILE)}
    runner = request.runner(0, config=config, profile_prefix=PROFILE_PREFIX)
    seconds = _run_within(request, runner.run, runner, "profiled run")
    profile_file = runner.session.end_profiling()
    del runner  # the statistics are written when the session ends
    return {"profile": Path(profile_file).name, "stats": STATS_FILE, "run_seconds": seconds}


def _run_within(
    request: JobRequest, run: Callable[[], Any], runner: Runner, what: str
) -> list[float]:
    """Call `run` at most `runs` times, and only as often as `seconds` permit; how long each took.

    The outputs of each run are let go of before the next.
    """
    runs, seconds = request.options["runs"], request.options.get("seconds")
    took: list[float] = []
    while len(took) < runs:
        if took and seconds is not None and sum(took) + max(took) > seconds:
            break
        request.tell(f"{what} {len(took) + 1} of {runs}")
        start = time.perf_counter()
        run()
        took.append(time.perf_counter() - start)
        runner.release()
    return took


def optimize(request: JobRequest) -> dict[str, Any]:
    """Open model 0 and let ONNX Runtime write what its optimizations made of it.

    Weights from 1 KB on go to a file of their own, so that there is no limit of 2 GB here; with
    `packed` also in the form that kernels make of them.
    """
    with refusals(0):
        options = session_options(request.recipes[0])
        options.optimized_model_filepath = native_path(request.folder / OPTIMIZED_FILE)
        for key, value in (
            ("file_name", WEIGHTS_FILE),
            ("min_size_in_bytes", str(_SMALLEST_EXTERNAL_BYTES)),
        ):
            options.add_session_config_entry(_WEIGHTS_CONFIG + key, value)
        if request.options.get("packed"):
            options.add_session_config_entry(_PACKED_CONFIG, "1")
        runtime_session(request.models[0], request.recipes[0], options)
    return {"optimized": OPTIMIZED_FILE, "weights": WEIGHTS_FILE}


def heap(request: JobRequest) -> dict[str, Any]:
    """Most bytes that malloc held at once during each of `runs` runs, counted by memray; of fewer
    runs if the next would not end within `seconds`."""
    try:
        import memray  # noqa: F401
    except ImportError as error:
        return {"unavailable": f"memray cannot be imported: {error}"}
    runner = request.runner(0)
    peaks: list[int] = []
    _run_within(
        request, lambda: peaks.append(_heap_peak_bytes(request.folder, runner)), runner, "run"
    )
    return {"run_peaks_bytes": peaks}


def resident(request: JobRequest) -> dict[str, Any]:
    """Resident memory above the loaded session, the most in each of `runs` runs."""
    runner = request.runner(0)
    meter = memory.meter()
    base = meter.current_bytes()
    peaks = _resident_peaks(runner, meter, base, request.options["runs"])
    return {"run_peaks_bytes": peaks, "method": meter.name}


def session_memory(request: JobRequest) -> dict[str, Any]:
    """What opening model 0 adds to resident memory, then and meanwhile, and the most above that in
    each of `runs` runs; pages of mapped files apart. And how long opening it took.

    Nothing is imported meanwhile."""
    meter = memory.meter()
    before = meter.current_bytes() - meter.mapped_bytes()
    meter.reset()
    runner = request.runner(0)
    files = meter.mapped_bytes()
    most = meter.peak_bytes() - files
    loaded = meter.current_bytes() - files
    peaks = _resident_peaks(runner, meter, loaded, request.options["runs"], mapped=False)
    return {
        "before_bytes": before,
        "opening_bytes": max(most - before, loaded - before, 0),
        "loaded_bytes": max(loaded - before, 0),
        "load_seconds": runner.load_seconds,
        "run_peaks_bytes": peaks,
    }


def opening(request: JobRequest) -> dict[str, Any]:
    """How long opening model 0 takes, the first session of this process."""
    return {"load_seconds": request.runner(0).load_seconds}


def one_heap(request: JobRequest) -> dict[str, Any]:
    """What opening model 0 and a run of it need of one heap (see `one_heap`): where the heap ends,
    and the most that is held. Records are read for `seconds` at most, counted from the start of
    this; None where there is nothing that records, or not enough time."""
    try:
        import memray
    except ImportError:
        return {"end_bytes": None}
    late = time.monotonic() + request.options["seconds"]
    opening, running = (request.folder / f"{name}_{HEAP_FILE}" for name in ("opening", "running"))
    with memray.Tracker(opening):
        runner = request.runner(0)
    with memray.Tracker(running):
        runner.run()
    with memray.FileReader(opening) as first, memray.FileReader(running) as second:
        heap = grown(
            first.get_allocation_records(),
            second.get_allocation_records(),
            model_bytes=Path(str(request.models[0]["path"])).stat().st_size,
            inputs_bytes=[value.nbytes for value in request.inputs.values()],
            late=lambda: time.monotonic() > late,
        )
    for record in (opening, running):
        record.unlink()
    if heap is None:
        return {"end_bytes": None}
    return {
        "end_bytes": heap.end_bytes,
        "held_bytes": heap.most_held_bytes,
        "opened_bytes": heap.opened_bytes,
    }


def _resident_peaks(
    runner: Runner, meter: memory.Meter, base: int, runs: int, *, mapped: bool = True
) -> list[int]:
    """The most above `base` in each run; without `mapped` less what is mapped when it ends, which
    the system keeps while there is room."""
    peaks = []
    for _ in range(runs):
        runner.release()
        meter.reset()
        runner.run()
        files = 0 if mapped else meter.mapped_bytes()
        peaks.append(max(meter.peak_bytes() - files - base, 0))
    return peaks


def shapes(request: JobRequest) -> dict[str, Any]:
    """Open model 0 and tell name, type and shape of every output, as the runtime knows them."""
    with refusals(0):
        options = session_options(request.recipes[0])
        session = runtime_session(request.models[0], request.recipes[0], options)
    made = session.get_outputs()
    return {"outputs": [{"name": o.name, "type": o.type, "shape": list(o.shape)} for o in made]}


TIMED_SECONDS, MOST_ROUNDS = 1.0, 6
"""Runs are timed until they have taken so long, in at most so many times the rounds asked for."""

PAUSE_SECONDS = 0.01
SHORT_SECONDS = 0.25


def times(request: JobRequest) -> dict[str, Any]:
    """Seconds of every model in each round; models alternate within a round.

    There are `pairs` rounds, and of short runs more, until they have taken TIMED_SECONDS; fewer if
    the next one would not end within `seconds`, and one at least. Before
    each run is a pause, so that no thread of another session still waits for work in a loop, and a
    short one runs once untimed, so that its threads and what it reads are awake. Of a single thread
    the seconds of the processor are counted, which others on the machine do not change.
    """
    runners = [request.runner(number) for number in range(len(request.models))]
    for runner in runners:
        runner.run()
        runner.release()
    alone = all(recipe.threads == 1 for recipe in request.recipes)
    clock = time.process_time if alone else time.perf_counter
    rounds: list[list[float]] = []
    limit = request.options.get("seconds")
    began = time.perf_counter()
    spent, shortest = 0.0, [float("inf")] * len(runners)
    for number in range(request.options["pairs"] * MOST_ROUNDS):
        if number >= request.options["pairs"] and spent > TIMED_SECONDS:
            break
        passed = time.perf_counter() - began
        if limit is not None and rounds and passed * (number + 1) / number > limit:
            break
        pairs = request.options["pairs"]
        request.tell(f"round {number + 1}" + (f" of {pairs}" if number < pairs else ""))
        order = runners if number % 2 == 0 else runners[::-1]
        seconds = [0.0] * len(runners)
        for runner in order:
            time.sleep(PAUSE_SECONDS)
            if shortest[runner.number] < SHORT_SECONDS:
                runner.run()
                runner.release()
            start = clock()
            runner.run()
            seconds[runner.number] = clock() - start
            runner.release()
            shortest[runner.number] = min(shortest[runner.number], seconds[runner.number])
        spent += sum(seconds)
        rounds.append(seconds)
    return {"rounds_seconds": rounds}


def node_heaps(request: JobRequest) -> dict[str, Any]:
    """The heap of a run of model 0, which has marks, node by node (see `heap_trace`).

    `mark_bytes` is the size of a mark. A first run may set up what stays, so it is not counted.
    Records are read for `seconds` at most, counted from the start of this.
    """
    try:
        import memray
    except ImportError as error:
        return {"unavailable": f"memray cannot be imported: {error}"}
    end = time.monotonic() + request.options["seconds"]
    runner = request.runner(0)
    request.tell("counting the heap, run 1 of 2")
    runner.run()
    runner.release()
    request.tell("counting the heap, run 2 of 2")
    record = request.folder / HEAP_FILE
    with memray.Tracker(record):
        runner.run()
    with memray.FileReader(record) as reader:
        everything = max(reader.metadata.total_allocations, 1)

        def late(number: int) -> bool:
            request.tell(f"reading what was allocated, {100 * number // everything}%")
            return bool(time.monotonic() > end)

        trace = read_trace(
            reader.get_allocation_records(),
            request.options["mark_bytes"],
            reader.metadata.main_thread_id,
            late,
        )
    record.unlink()
    return trace.to_dict()


def _heap_peak_bytes(folder: Path, runner: Runner) -> int:
    """Most bytes that malloc held at once during a run."""
    import memray

    runner.release()
    record = folder / HEAP_FILE
    with memray.Tracker(record):
        runner.run()
    with memray.FileReader(record) as reader:
        peak: int = reader.metadata.peak_memory
    record.unlink()
    return peak
