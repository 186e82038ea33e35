"""The arena that ONNX Runtime takes memory from: how much it reserves for a sequence of requests.

A *region* is memory taken from the system; it is cut into *chunks*, each in use or free. A request
is rounded up to 256 bytes and gets the smallest free chunk that fits, the one at the lowest
address among equals. The chunk is cut if what is left is as large as the request, or at least
`max_dead_bytes`; otherwise all of it is handed out. A freed chunk merges with free neighbours in
its region. If no chunk fits, a region is added; none is given back.

With NEXT_POWER_OF_TWO regions double: 1 MB at first, more if the request needs it, up to 1 GB.
With SAME_AS_REQUESTED a region is as large as the request that asked for it.

Source: `BFCArena` of ONNX Runtime (core/framework/bfc_arena.cc). Its bins only speed the search
up: they are ordered by size, so the first chunk that fits is the smallest one of all. Size and
sequence of the regions equal the log of 1.31.1 on 21 models, in the first run and in later ones.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from onnxremat.core.errors import OnnxrematError

MIN_CHUNK_BYTES = 256
PAGE_BYTES = 4096
TABLE_SHARE = 32
"""The arena keeps 8 bytes for every 256 of a region, all written: a 32nd of what is reserved."""
_TOP_ADDRESS = 1 << 46


class ExtendStrategy(StrEnum):
    """How large a new region is (`arena_extend_strategy`)."""

    NEXT_POWER_OF_TWO = "kNextPowerOfTwo"
    SAME_AS_REQUESTED = "kSameAsRequested"


@dataclass(frozen=True)
class ArenaSettings:
    """The runtime's settings of an arena, with its defaults. `limit_bytes` None means no limit
    (`max_mem` of the CPU's arena, `gpu_mem_limit` of CUDA's)."""

    extend: ExtendStrategy = ExtendStrategy.NEXT_POWER_OF_TWO
    limit_bytes: int | None = None
    initial_chunk_bytes: int = 1 << 20
    max_dead_bytes: int = 128 << 20
    max_power_of_two_bytes: int = 1 << 30


CPU_ARENA = ArenaSettings()
"""What `enable_cpu_mem_arena` turns on."""


@dataclass(frozen=True)
class RegionUse:
    """A region of an arena: its size, and for each page whether it was written (1) or not (0)."""

    nbytes: int
    pages: bytes


class ArenaFullError(OnnxrematError):
    """A request that does not fit under the limit of the arena."""


@dataclass(slots=True)
class _Chunk:
    address: int
    nbytes: int
    region: "_Region"
    before: "_Chunk | None" = None
    behind: "_Chunk | None" = None
    free: bool = True


@dataclass(slots=True)
class _Region:
    address: int
    nbytes: int
    touched: bytearray


class Arena:
    """An arena while it is used. `allocate` answers the address that `free` takes.

    `reserved_bytes`: of all regions. `in_use_bytes`: of the chunks handed out. `touched_bytes`:
    pages of regions that were ever written, the part of them that is resident. O(log chunks) a
    request, and a byte for every page.
    """

    def __init__(self, settings: ArenaSettings = CPU_ARENA) -> None:
        self.settings = settings
        self.regions_bytes: list[int] = []
        self.reserved_bytes = 0
        self.in_use_bytes = 0
        self.peak_in_use_bytes = 0
        self.touched_bytes = 0
        self._next_region_bytes = round_up(settings.initial_chunk_bytes, MIN_CHUNK_BYTES)
        self._free: list[tuple[int, int]] = []  # (bytes, address) of the free chunks, ascending
        self._chunks: dict[int, _Chunk] = {}
        self._bottom = _TOP_ADDRESS
        self._regions: list[_Region] = []

    def allocate(self, nbytes: int, *, touch: bool = True) -> int:
        """The address of `nbytes`; all of them are written unless `touch` is false.

        Nothing is taken for 0 bytes. Raises ArenaFullError if the limit is in the way.
        """
        if nbytes == 0:
            return 0
        wanted = round_up(nbytes, MIN_CHUNK_BYTES)
        position = bisect_left(self._free, (wanted, 0))
        if position == len(self._free):
            self._extend(wanted)
            position = bisect_left(self._free, (wanted, 0))
        _, address = self._free.pop(position)
        chunk = self._chunks[address]
        left = chunk.nbytes - wanted
        if left >= wanted or left >= self.settings.max_dead_bytes:
            self._split(chunk, wanted)
        chunk.free = False
        self.in_use_bytes += chunk.nbytes
        self.peak_in_use_bytes = max(self.peak_in_use_bytes, self.in_use_bytes)
        if touch:
            self.touch(address, 0, nbytes)
        return address

    def free(self, address: int) -> None:
        """Give back what `allocate` answered."""
        if address == 0:
            return
        chunk = self._chunks[address]
        if chunk.free:
            raise ValueError(f"address {address} was given back before")
        chunk.free = True
        self.in_use_bytes -= chunk.nbytes
        if chunk.behind is not None and chunk.behind.free:
            self._take(chunk.behind)
            self._merge(chunk, chunk.behind)
        if chunk.before is not None and chunk.before.free:
            self._take(chunk.before)
            chunk = chunk.before
            self._merge(chunk, self._behind(chunk))
        insort(self._free, (chunk.nbytes, chunk.address))

    def touch(self, address: int, offset: int, nbytes: int) -> None:
        """Count the pages of `nbytes` at `offset` behind an allocated address as written."""
        if nbytes == 0 or address == 0:
            return
        region = self._chunks[address].region
        start = address - region.address + offset
        pages = slice(start // PAGE_BYTES, -(-(start + nbytes) // PAGE_BYTES))
        fresh = region.touched.count(0, pages.start, pages.stop)
        if fresh:
            region.touched[pages] = b"\1" * (pages.stop - pages.start)
            self.touched_bytes += fresh * PAGE_BYTES

    def pages(self) -> list[bytes]:
        """For each region, in the order they were added, which pages were ever written: 1 or 0."""
        return [bytes(region.touched) for region in self._regions]

    def _extend(self, wanted: int) -> None:
        nbytes = self._region_bytes(wanted)
        self._bottom -= round_up(nbytes, PAGE_BYTES)
        region = _Region(self._bottom, nbytes, bytearray(-(-nbytes // PAGE_BYTES)))
        self._chunks[region.address] = _Chunk(region.address, nbytes, region)
        insort(self._free, (nbytes, region.address))
        self.reserved_bytes += nbytes
        self.regions_bytes.append(nbytes)
        self._regions.append(region)

    def _region_bytes(self, wanted: int) -> int:
        settings = self.settings
        available = None
        if settings.limit_bytes is not None:
            available = settings.limit_bytes - self.reserved_bytes
            available -= available % MIN_CHUNK_BYTES
            if wanted > available:
                raise ArenaFullError(
                    f"{wanted} bytes are asked for, but the arena may take {available} more"
                )
        if settings.extend is ExtendStrategy.SAME_AS_REQUESTED:
            return wanted
        enlarged = False
        while wanted > self._next_region_bytes:
            self._next_region_bytes *= 2
            enlarged = True
        nbytes = self._next_region_bytes
        if not enlarged:
            self._next_region_bytes = min(2 * nbytes, settings.max_power_of_two_bytes)
        return nbytes if available is None else min(nbytes, available)

    def _split(self, chunk: _Chunk, nbytes: int) -> None:
        rest = _Chunk(
            chunk.address + nbytes, chunk.nbytes - nbytes, chunk.region, chunk, chunk.behind
        )
        if chunk.behind is not None:
            chunk.behind.before = rest
        chunk.behind = rest
        chunk.nbytes = nbytes
        self._chunks[rest.address] = rest
        insort(self._free, (rest.nbytes, rest.address))

    def _take(self, chunk: _Chunk) -> None:
        del self._free[bisect_left(self._free, (chunk.nbytes, chunk.address))]

    def _merge(self, chunk: _Chunk, behind: _Chunk) -> None:
        chunk.nbytes += behind.nbytes
        chunk.behind = behind.behind
        if chunk.behind is not None:
            chunk.behind.before = chunk
        del self._chunks[behind.address]

    def _behind(self, chunk: _Chunk) -> _Chunk:
        if chunk.behind is None:
            raise ValueError("a chunk's neighbours disagree")
        return chunk.behind


@dataclass(frozen=True)
class ArenaRequest:
    """Take `nbytes` under the name `key`, or give back what that name has (`nbytes` None)."""

    key: int | str
    nbytes: int | None = None


@dataclass(frozen=True)
class ArenaUse:
    """What a sequence of requests made of an arena: bytes of all regions (and of each, as they
    were added), the most bytes handed out at once, and bytes of the pages written."""

    reserved_bytes: int
    peak_in_use_bytes: int
    touched_bytes: int
    regions_bytes: tuple[int, ...]


def simulate(requests: Iterable[ArenaRequest], settings: ArenaSettings = CPU_ARENA) -> ArenaUse:
    """Serve `requests` in order from a new arena.

    Raises ArenaFullError if the limit is in the way, ValueError if a name is taken twice or given
    back without being taken.
    """
    arena = Arena(settings)
    held: dict[int | str, int] = {}
    for request in requests:
        if request.nbytes is None:
            if request.key not in held:
                raise ValueError(f"{request.key!r} holds nothing that could be given back")
            arena.free(held.pop(request.key))
        elif request.key in held:
            raise ValueError(f"{request.key!r} holds memory already")
        else:
            held[request.key] = arena.allocate(request.nbytes)
    return ArenaUse(
        arena.reserved_bytes,
        arena.peak_in_use_bytes,
        arena.touched_bytes,
        tuple(arena.regions_bytes),
    )


def round_up(nbytes: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not less than `nbytes`."""
    return -(-nbytes // unit) * unit
