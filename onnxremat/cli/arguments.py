"""The options of the command line, each with its type, its range and its line of help."""

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli.schemas import VERSIONS
from onnxremat.target_table import DEFAULT, TARGETS

Model = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
Models = Annotated[list[Path], typer.Argument(help="ONNX files.", show_default=False)]
Rewritten = Annotated[Path, typer.Argument(help="The rewritten file.", show_default=False)]
Described = Annotated[
    str,
    typer.Argument(metavar="COMMAND", help=f"One of {', '.join(VERSIONS)}.", show_default=False),
]

Limit = Annotated[
    str,
    typer.Option(
        help="Limit: 4MB, 4MiB, bytes, 60% of the model's own, or min. Of the "
        + ", of the ".join(f"{info.short_figure} with {info.option}" for info in TARGETS.values())
        + " (of the memory of the process with --mem-of process)."
    ),
]
LimitToCompare = Annotated[str | None, typer.Option(help="A limit to compare with.")]
LimitToKeep = Annotated[str | None, typer.Option(help="A limit that the rewritten peak must keep.")]
FailAbove = Annotated[
    str | None,
    typer.Option(
        help="A memory budget, such as 4MB: measure what --mem-of says, and exit with 7 if it is "
        "above this size in one of the models."
    ),
]
BudgetOf = Annotated[
    str | None,
    typer.Option(
        help="With --fail-above. runs (the default, as --mem of rewrite): what runs add to the "
        "loaded session, with default session options. process: that and what loading it adds. "
        "activations: what is allocated in a run, with --session recipe."
    ),
]
Sarif = Annotated[
    Path | None, typer.Option(help="With --fail-above. Write the verdicts there as SARIF 2.1.0.")
]
Junit = Annotated[
    Path | None, typer.Option(help="With --fail-above. Write the verdicts there as JUnit XML.")
]

Limits = Annotated[
    list[str], typer.Option("--mem", help="Limit, as `rewrite` takes it; repeatable.")
]
Sessions = Annotated[
    list[str], typer.Option("--session", help="Target, as `rewrite` takes it; repeatable.")
]
Runtimes = Annotated[
    list[str], typer.Option("--runtime", help="Target, as `rewrite` takes it; repeatable.")
]
Table = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="Table to write, .csv or .parquet; beside it lies a journal of the finished runs, "
        "which are not done again.",
    ),
]
Keep = Annotated[
    Path | None, typer.Option(help="Folder for the files that are made (default: none is kept).")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=4096,
        help="Runs at once, as far as processors and memory permit (1: beside each other they "
        "disturb the times that they measure). With --scheduler: of all workers.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="tcp://...",
        help="Address of a Dask scheduler, whose workers do the runs (pip install "
        "'onnxremat[dask]').",
    ),
]

Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write.")]
EmitPlan = Annotated[
    Path | None,
    typer.Option(
        help="JSON file with order and buffer offsets (written beside the model with --runtime "
        "generic)."
    ),
]
Html = Annotated[Path | None, typer.Option(help="Write a report with a plot there.")]
Second = Annotated[
    Path | None,
    typer.Option(
        "--with", help="With --html. A second file, such as a rewritten one, in the same picture."
    ),
]
Anonymous = Annotated[
    bool,
    typer.Option(
        "--anonymous", help="With --html. Names of tensors, nodes and files are replaced there."
    ),
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print results and errors, and nothing on the way.")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", help="Tell on standard error what is run, measured and planned."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, and no other text there.")
]

Runtime = Annotated[
    str,
    typer.Option(
        help=" ".join(
            [f"{DEFAULT.runtime}, or another:"]
            + [
                f"{info.runtime}: {info.summary}."
                for info in TARGETS.values()
                if info.runtime != DEFAULT.runtime
            ]
        )
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        help=" ".join(
            f"{info.session}{' (the default)' if info is DEFAULT else ''}: {info.summary}."
            for info in TARGETS.values()
            if info.runtime == DEFAULT.runtime
        )
    ),
]
Order = Annotated[
    str,
    typer.Option(
        help="Who keeps the order of the nodes. priority: a session option in the file. default: "
        "their positions alone, for orders that ONNX Runtime's default can give (with "
        "--no-recompute)."
    ),
]
Optimize = Annotated[
    str,
    typer.Option(
        help="none, basic, extended or all: ONNX Runtime optimizes the model first, and what it "
        "makes is planned."
    ),
]
Portable = Annotated[
    bool,
    typer.Option(
        help="With --session stock. The file is for any processor, and for WebAssembly, where it "
        "may need no more of the one heap than the original; or in the form that the kind of this "
        "processor computes with: that is loaded faster, in less memory, and not asked for a heap.",
    ),
]
EmbedWeights = Annotated[
    bool,
    typer.Option(
        "--embed-weights",
        help="With --session stock. Weights stay in the file; otherwise they lie in FILE.data "
        "beside it, which is mapped.",
    ),
]
MemOf = Annotated[
    str | None,
    typer.Option(
        help="With --session stock. runs (the default): what runs add to the loaded session. "
        "process: that and what loading it adds."
    ),
]
MaxSlowdown = Annotated[
    str | None,
    typer.Option(
        help="With --session stock. How much longer than the original the file may take: 10%."
    ),
]
Dim = Annotated[
    list[str],
    typer.Option(
        "--dim",
        metavar="NAME=VALUE",
        help="Size of the dimension of that name in all inputs, or of INPUT:AXIS; * stands for any "
        "text; repeatable.",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(help="An .npz file with the model inputs to measure with (default: random)."),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=256, help="Threads of the runtime (default: its own choice)."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the planner and of random inputs.")]

Planner = Annotated[str, typer.Option(help="A name from `onnxremat planners`.")]
FrontierSession = Annotated[
    str,
    typer.Option(
        help="recipe: what planners state of the activation peak. stock: files are made for "
        "default sessions, and memory of the process and time measured against the original's."
    ),
]
Slowdowns = Annotated[
    str | None,
    typer.Option(help="With --session stock: what files may take longer, such as 2%,10%,35%."),
]
Planners = Annotated[
    str | None, typer.Option(help="Names from `onnxremat planners`, or tiles, with commas between.")
]
Budgets = Annotated[
    int | None,
    typer.Option(min=1, max=100, help="Limits between the smallest peak and the own one (6)."),
]
Recompute = Annotated[
    bool, typer.Option("--recompute/--no-recompute", help="Whether nodes may run again.")
]
Tiling = Annotated[
    bool,
    typer.Option(
        "--tiling/--no-tiling",
        help="Whether ops may be cut into tiles where whole ops miss the limit or take longer.",
    ),
]
AllowRounding = Annotated[
    bool,
    typer.Option(
        "--allow-rounding",
        help="Ops may be replaced by others that need less workspace and round differently.",
    ),
]
AllowOp = Annotated[
    list[str], typer.Option(help="Custom op type that may be recomputed; repeatable.")
]
Costs = Annotated[str, typer.Option(help="Times of ops: model or measured.")]
TimeLimit = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=86400,
        help="Seconds of planning in all, whole ops and tiles; running, predicting and measuring "
        "come on top (with --session stock, one or two minutes).",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=10**9,
        help="Iterations of each search, instead of seconds: the same plan in each run.",
    ),
]
TimeLimitEach = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        max=86400,
        help="Seconds for each planner and limit (2), or for each file (10).",
    ),
]
MeasureLimit = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=86400,
        help="Seconds of measuring workspace, peaks and times, beyond the runs that have to be "
        "made; what they do not suffice for is estimated, and marked.",
    ),
]
RunLimit = Annotated[
    float,
    typer.Option(
        min=1,
        max=864000,
        help="Seconds after which a process that runs the model is held to run for ever.",
    ),
]
RunMemory = Annotated[
    str | None,
    typer.Option(
        help="Most memory that a process that runs the model may ask for, such as 2GB; by default "
        "what the machine has (Linux only)."
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Run both models and compare every bit.")
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Print every plan that was made, and why it was not taken, too."
    ),
]
Version = Annotated[bool, typer.Option("--version", help="Print the version.")]
