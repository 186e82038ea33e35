"""Placements by certificate: valid, not below the bound, and the smallest where they say so."""

import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from onnxremat.offsets import Block, Placement, check_placement, live_peak_bytes, place

ENDLESS = 1e9
"""Seconds for tests of what does not depend on the clock."""

# Found by search: every step is full, but the blocks of 9 bytes in all need an arena of 10.
LIFETIMES = ((0, 1), (0, 1), (0, 1), (0, 2), (2, 3), (1, 3), (1, 3), (2, 4), (1, 4), (1, 5), (3, 5), (4, 5))  # fmt: skip
SIZES = (3, 1, 3, 2, 1, 1, 1, 1, 2, 3, 3, 3)
ABOVE_ITS_PEAK = tuple(
    Block(nbytes, *lifetime) for nbytes, lifetime in zip(SIZES, LIFETIMES, strict=True)
)


@st.composite
def block_lists(draw: st.DrawFn, max_blocks: int = 25) -> list[Block]:
    steps = draw(st.integers(1, 12))
    blocks = []
    for _ in range(draw(st.integers(0, max_blocks))):
        start = draw(st.integers(0, steps - 1))
        end = draw(st.integers(start + 1, steps))
        blocks.append(Block(draw(st.integers(0, 300)), start, end))
    return blocks


def parts(total: int, most: int, rng: random.Random) -> list[int]:
    """Random positive numbers up to `most` that add up to `total`."""
    result = []
    while total:
        result.append(rng.randint(1, min(total, most)))
        total -= result[-1]
    return result


def full_blocks(arena: int, steps: int, most: int, rng: random.Random) -> list[Block]:
    """Blocks that take exactly `arena` bytes at every step, which may be impossible to place."""
    alive = [(nbytes, 0) for nbytes in parts(arena, most, rng)]
    blocks = []
    for step in range(1, steps):
        ending = rng.sample(alive, rng.randint(1, min(3, len(alive))))
        for nbytes, start in ending:
            alive.remove((nbytes, start))
            blocks.append(Block(nbytes, start, step))
        alive += [(nbytes, step) for nbytes in parts(sum(e[0] for e in ending), most, rng)]
    return blocks + [Block(nbytes, start, steps) for nbytes, start in alive]


def packed_blocks(arena: int, steps: int, count: int, rng: random.Random) -> list[Block]:
    """An arena over some steps cut into `count` blocks by straight cuts: it can be filled."""
    pieces = [(0, steps, arena)]
    while len(pieces) < count:
        areas = [(end - start) * nbytes for start, end, nbytes in pieces]
        start, end, nbytes = pieces.pop(rng.choices(range(len(pieces)), areas)[0])
        if rng.random() < 0.5 and end - start > 1:
            cut = rng.randint(start + 1, end - 1)
            pieces += [(start, cut, nbytes), (cut, end, nbytes)]
        elif nbytes > 1:
            cut = rng.randint(1, nbytes - 1)
            pieces += [(start, end, cut), (start, end, nbytes - cut)]
        else:
            pieces.append((start, end, nbytes))
    return [Block(nbytes, start, end) for start, end, nbytes in pieces]


def smallest_by_permutations(blocks: list[Block]) -> int:
    """The smallest arena: some order of stacking the blocks on each other reaches it."""
    smallest = sum(block.nbytes for block in blocks)
    for order in permutations(blocks):
        ends: list[tuple[Block, int]] = []
        for block in order:
            below = (e for b, e in ends if b.start < block.end and block.start < b.end)
            ends.append((block, max(below, default=0) + block.nbytes))
        smallest = min(smallest, max((end for _, end in ends), default=0))
    return smallest


def smallest_by_cp_sat(blocks: list[Block]) -> int:
    """The smallest arena, proved by a solver that shares nothing with ours."""
    model = cp_model.CpModel()
    most = sum(block.nbytes for block in blocks)
    arena = model.new_int_var(0, most, "arena")
    lives, places = [], []
    for i, block in enumerate(blocks):
        offset = model.new_int_var(0, most - block.nbytes, f"offset{i}")
        lives.append(
            model.new_fixed_size_interval_var(block.start, block.end - block.start, f"life{i}")
        )
        places.append(model.new_fixed_size_interval_var(offset, block.nbytes, f"place{i}"))
        model.add(offset + block.nbytes <= arena)
    model.add_no_overlap_2d(lives, places)
    model.add(arena >= live_peak_bytes(blocks))
    model.minimize(arena)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    assert solver.solve(model) == cp_model.OPTIMAL
    return int(solver.objective_value)


@settings(max_examples=150, deadline=None)
@given(block_lists(), st.sampled_from([1, 4, 64, 100]), st.integers(0, 3))
def test_placements_are_valid_aligned_and_not_below_the_live_peak(
    blocks: list[Block], alignment: int, seed: int
) -> None:
    placement = place(blocks, alignment_bytes=alignment, iterations=20, seconds=ENDLESS, seed=seed)
    check_placement(blocks, placement)
    for a, offset in zip(blocks, placement.offsets, strict=True):
        assert offset % alignment == 0
        for b, other in zip(blocks, placement.offsets, strict=True):
            if a is not b and a.nbytes and b.nbytes and a.start < b.end and b.start < a.end:
                assert offset + a.nbytes <= other or other + b.nbytes <= offset
    assert placement.arena_bytes >= placement.bound_bytes >= live_peak_bytes(blocks)
    assert placement.proved == (placement.arena_bytes == placement.bound_bytes)


@settings(max_examples=60, deadline=None)
@given(block_lists(max_blocks=6), st.integers(0, 3))
def test_tiny_arenas_are_the_smallest(blocks: list[Block], seed: int) -> None:
    placement = place(blocks, alignment_bytes=1, iterations=200, seconds=ENDLESS, seed=seed)
    assert placement.proved
    assert placement.arena_bytes == smallest_by_permutations(blocks)


@pytest.mark.parametrize("seed", range(60))
def test_full_arenas_are_the_smallest_too(seed: int) -> None:
    rng = random.Random(seed)
    blocks = full_blocks(rng.randint(5, 9), rng.randint(4, 6), rng.randint(2, 4), rng)
    placement = place(blocks, alignment_bytes=1, iterations=200, seconds=ENDLESS, seed=seed)
    check_placement(blocks, placement)
    assert placement.proved
    assert placement.arena_bytes == smallest_by_cp_sat(blocks)


def test_an_arena_above_the_live_peak_is_proved_the_smallest() -> None:
    assert live_peak_bytes(ABOVE_ITS_PEAK) == 9
    assert smallest_by_cp_sat(list(ABOVE_ITS_PEAK)) == 10
    placement = place(ABOVE_ITS_PEAK, alignment_bytes=1, iterations=200, seconds=ENDLESS)
    check_placement(ABOVE_ITS_PEAK, placement)
    assert (placement.arena_bytes, placement.bound_bytes, placement.proved) == (10, 10, True)
    impossible = place(
        ABOVE_ITS_PEAK, alignment_bytes=1, iterations=200, seconds=ENDLESS, capacity_bytes=9
    )
    assert impossible.bound_bytes > 9


def test_the_example_of_minimalloc_fills_its_capacity() -> None:
    lifetimes = [(0, 3), (3, 9), (0, 9), (9, 21), (0, 21)]
    placement = place([Block(4, *life) for life in lifetimes], alignment_bytes=1, seconds=ENDLESS)
    assert (placement.arena_bytes, placement.proved) == (12, True)


@pytest.mark.parametrize("seed", range(3))
def test_a_packing_without_a_gap_is_found_again(seed: int) -> None:
    blocks = packed_blocks(4096, 400, 100, random.Random(seed))
    placement = place(blocks, alignment_bytes=1, iterations=100, seconds=ENDLESS)
    check_placement(blocks, placement)
    assert (placement.arena_bytes, placement.method) == (4096, "search")
    assert place(blocks, alignment_bytes=1, iterations=0, seconds=ENDLESS).arena_bytes > 4096


def test_same_seed_and_iterations_same_placement() -> None:
    blocks = full_blocks(400, 60, 40, random.Random(1))
    first = place(blocks, alignment_bytes=1, iterations=6, seconds=ENDLESS, seed=5)
    again = place(blocks, alignment_bytes=1, iterations=6, seconds=ENDLESS, seed=5)
    check_placement(blocks, first)
    assert first == again


def test_more_iterations_are_no_worse_and_the_clock_cuts_short() -> None:
    blocks = full_blocks(400, 60, 40, random.Random(2))
    arenas = [
        place(blocks, alignment_bytes=1, iterations=n, seconds=ENDLESS).arena_bytes
        for n in (0, 5, 20)
    ]
    assert arenas == sorted(arenas, reverse=True)
    cut = place(blocks, alignment_bytes=1, seconds=0.0)
    check_placement(blocks, cut)
    assert cut.arena_bytes >= arenas[-1]


def test_capacity_ends_the_work() -> None:
    blocks = packed_blocks(4096, 400, 100, random.Random(7))
    roomy = place(blocks, alignment_bytes=1, capacity_bytes=10**6, seconds=ENDLESS)
    assert not roomy.proved
    small = place(blocks, alignment_bytes=1, capacity_bytes=4096, seconds=ENDLESS)
    assert small.arena_bytes == 4096
    hopeless = place(blocks, alignment_bytes=1, capacity_bytes=4095, seconds=ENDLESS)
    assert hopeless.bound_bytes > 4095
    check_placement(blocks, hopeless)


def test_nothing_and_empty_blocks_need_no_arena() -> None:
    for blocks in ([], [Block(0, 0, 3), Block(0, 1, 2)]):
        placement = place(blocks)
        check_placement(blocks, placement)
        assert (placement.arena_bytes, placement.proved) == (0, True)


def test_bad_blocks_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Block(-1, 0, 1)
    with pytest.raises(ValueError, match="over no step"):
        Block(1, 2, 2)
    with pytest.raises(ValueError, match="alignment"):
        place([], alignment_bytes=0)


def test_a_search_that_runs_out_of_room_gives_up_within_its_arrays() -> None:
    from onnxremat.offsets import _layout as at
    from onnxremat.offsets._problem import as_problem
    from onnxremat.offsets._search import restart, search

    problem = as_problem(packed_blocks(4096, 400, 100, random.Random(3)), 1)
    whole = at.new_state(problem.first, problem.stop, problem.size, problem.sections)
    n = len(problem.size)
    rooms = {"journal": 3 * n, "option": n + 2 * problem.sections + 20, "frame": 20}
    for part, room in rooms.items():
        array = getattr(whole, part)
        # A view of the beginning: what is written behind it would be seen.
        small = whole._replace(**{part: array[:room]})
        array[:] = 0
        restart(small)
        assert search(small, problem.peak, at.BY_CHOICES, 10**6, 10**9) == at.GAVE_UP
        assert array[:room].any()
        assert not array[room:].any()


PAIR = (Block(10, 0, 2), Block(10, 1, 3), Block(4, 2, 3))
GOOD = Placement((0, 16, 0), 32, 32, "by hand", 16)


def test_the_check_accepts_a_good_placement() -> None:
    check_placement(PAIR, GOOD)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (replace(GOOD, offsets=(0, 0, 16)), "blocks 0 and 1 overlap at step 1"),
        (replace(GOOD, offsets=(16, 16, 0)), "blocks 0 and 1 overlap"),
        (replace(GOOD, offsets=(0, 16, 16)), "blocks 1 and 2 overlap at step 2"),
        (replace(GOOD, offsets=(0, 8, 0)), "block 1 is at 8, which is not a multiple of 16"),
        (replace(GOOD, offsets=(0, -16, 0)), "block 1 is at -16"),
        (replace(GOOD, offsets=(0, 16)), "2 offsets for 3 blocks"),
        (replace(GOOD, arena_bytes=26), "the arena is given as 26 bytes"),
        (replace(GOOD, arena_bytes=48, bound_bytes=48), "the arena is given as 48 bytes"),
        (replace(GOOD, bound_bytes=16), "not between the live peak, 32, and the arena, 32"),
        (replace(GOOD, bound_bytes=48), "not between the live peak, 32, and the arena, 32"),
        (replace(GOOD, alignment_bytes=0), "the alignment is 0 bytes"),
    ],
)
def test_the_check_names_what_is_wrong(bad: Placement, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_placement(PAIR, bad)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_check_agrees_with_a_look_at_all_pairs(data: st.DataObject) -> None:
    blocks = data.draw(block_lists(max_blocks=8))
    offsets = tuple(data.draw(st.integers(0, 900)) for _ in blocks)
    meet = any(
        a.start < b.end and b.start < a.end and p < q + b.nbytes and q < p + a.nbytes
        for i, (a, p) in enumerate(zip(blocks, offsets, strict=True))
        for b, q in list(zip(blocks, offsets, strict=True))[:i]
        if a.nbytes and b.nbytes
    )
    ends = [p + a.nbytes for a, p in zip(blocks, offsets, strict=True) if a.nbytes]
    placement = Placement(offsets, max(ends, default=0), live_peak_bytes(blocks), "random", 1)
    if meet:
        with pytest.raises(ValueError, match=r"blocks \d+ and \d+ overlap"):
            check_placement(blocks, placement)
    else:
        check_placement(blocks, placement)


def test_importing_the_package_imports_no_compiler() -> None:
    code = "import sys, onnxremat.offsets; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
