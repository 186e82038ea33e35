"""Which node held what: the allocations of one run of a marked model, put together node by node.

A tracer tells every allocation and every release in the order in which they happened. The marks
(see `marks`) cut that sequence into one *segment* for each node, from the mark before it to its
own. In a segment `begin_bytes` are held from earlier on; `made_bytes` of what it allocates are
still held at its end (outputs, and what a kernel keeps for the next run), and what the peak has
beyond both is workspace:

    workspace = peak_bytes - begin_bytes - made_bytes

Inputs that die at a node are released after it ran, before its mark. Only the standard library is
needed here: the child process reads the records.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

RELEASES = frozenset((1, 5, 15))
"""memray's numbers of what gives memory back: pymalloc's free, free, munmap."""
_LOOK_EVERY = 1 << 16


@dataclass(frozen=True, slots=True)
class Segment:
    """What was held while one node ran, marks and all that was there before the run excluded."""

    begin_bytes: int
    peak_bytes: int
    made_bytes: int

    @property
    def workspace_bytes(self) -> int:
        """What was held beside earlier values and what the node leaves."""
        return max(self.peak_bytes - self.begin_bytes - self.made_bytes, 0)


@dataclass(frozen=True)
class HeapTrace:
    """The segments of a run. `held_bytes` has what was held when the segment with the highest peak
    began, by the segment that allocated it. `complete`: all records were read; if not, segments are
    missing at the end."""

    segments: tuple[Segment, ...]
    held_bytes: dict[int, int]
    complete: bool

    @property
    def peak_segment(self) -> int:
        """The segment with the highest peak, the first of equal ones. ValueError if there is
        none."""
        if not self.segments:
            raise ValueError("there are no segments")
        return max(range(len(self.segments)), key=lambda s: (self.segments[s].peak_bytes, -s))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `from_dict` reverses it."""
        return {
            "segments": [[s.begin_bytes, s.peak_bytes, s.made_bytes] for s in self.segments],
            "held_bytes": sorted(self.held_bytes.items()),
            "complete": self.complete,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "HeapTrace":
        """The trace that `to_dict` wrote."""
        segments = tuple(Segment(*numbers) for numbers in data["segments"])
        return cls(segments, dict(data["held_bytes"]), data["complete"])


def read_trace(
    records: Iterable[Any],
    mark_bytes: int,
    thread: int,
    stop: Callable[[int], bool] = lambda _: False,
) -> HeapTrace:
    """Put the records of a run together, each with `address`, `size`, `allocator` and `tid`.

    An allocation of `mark_bytes` in `thread` ends a segment; what follows the last one is a segment
    without a mark. Releases of what was allocated before the run are not counted. `stop(records
    read)` turning true ends reading; it is asked now and then. O(records + segments * makers held).
    """
    trace = _Trace()
    alive: dict[int, tuple[int, int]] = {}
    held = peak = 0
    nothing = (0, 0)
    live, current = trace.live, trace.current
    for number, record in enumerate(records, 1):
        if number % _LOOK_EVERY == 0 and stop(number):
            return trace.result(complete=False)
        address = record.address
        if record.allocator in RELEASES:
            size, segment = alive.pop(address, nothing)
            if size:
                held -= size
                live[segment] -= size
            continue
        size = record.size
        if size == mark_bytes and record.tid == thread:
            trace.mark(held, peak)
            peak, live, current = held, trace.live, trace.current
            continue
        alive[address] = (size, current)
        live[current] += size
        held += size
        if held > peak:  # noqa: PLR1730 - a call for each of millions of records takes longer
            peak = held
    trace.mark(held, peak)
    return trace.result(complete=True)


class _Trace:
    """The segments so far. `live` has what is held by the segment that allocated it; a segment
    whose values are all gone stays in it while it is the current one."""

    def __init__(self) -> None:
        self.current = 0
        self.live: dict[int, int] = {0: 0}
        self._begin = 0
        self._at_begin: dict[int, int] = {}
        self._worst, self._held_at_worst = -1, dict[int, int]()
        self._segments: list[Segment] = []

    def mark(self, held: int, peak: int) -> None:
        """The current segment ends with `held` bytes, after at most `peak`."""
        self._segments.append(Segment(self._begin, peak, self.live[self.current]))
        if peak > self._worst:
            self._worst, self._held_at_worst = peak, self._at_begin
        self._begin = held
        self._at_begin = {s: nbytes for s, nbytes in self.live.items() if nbytes}
        self.live = dict(self._at_begin)
        self.current += 1
        self.live[self.current] = 0

    def result(self, *, complete: bool) -> HeapTrace:
        return HeapTrace(tuple(self._segments), self._held_at_worst, complete)
