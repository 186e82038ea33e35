"""What loading a session leaves to the C library's allocator, and runs take from there.

Loading needs memory for a while: the file's content, the graph's description, weights before they
are packed. What is freed stays resident in part, and the arena's first regions may come to lie in
it: a first run then seems to take next to nothing. This follows from sizes and sequence of all the
blocks that were ever freed, so it is not emulated but tried: a child opens the session, does not
run it, takes blocks of the sizes that the arena's regions will have, writes the pages that will be
written, and looks by how much less than that its resident memory grows.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx

from benchmarks.instruments import slack_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.emulation.arena import RegionUse
from onnxremat.ort.recipe import Recipe


def load_slack(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    uses: Sequence[Sequence[RegionUse]],
) -> tuple[int, ...]:
    """Bytes that need not become resident any more, for each state of the arena in `uses`.

    A state is the regions in the order they were added; a later state has those of the one before
    it in front, and their written pages. The allocator is left at its defaults. 0 where the system
    has no such allocator to ask (other than Linux). Raises ModelError if the runtime refuses.
    """
    states = [
        [{"bytes": use.nbytes, "written": list(written_pages(use))} for use in state]
        for state in uses
    ]
    source = ModelSource(model=model, base_dir=Path(base_dir))
    with run_job(
        slack_actions.slack, [source], [recipe], inputs, options={"states": states}
    ) as job:
        return tuple(job.answer["slack_bytes"])


def written_pages(use: RegionUse) -> Iterator[tuple[int, int]]:
    """First page and count of every run of written pages."""
    pages = use.pages
    start = pages.find(b"\1")
    while start >= 0:
        end = pages.find(b"\0", start)
        end = len(pages) if end < 0 else end
        yield start, end - start
        start = pages.find(b"\1", end)
