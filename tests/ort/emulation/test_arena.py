"""The emulated arena keeps its own invariants, and reserves what ONNX Runtime's arena reserves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxremat.ort.emulation.arena import (
    MIN_CHUNK_BYTES,
    Arena,
    ArenaFullError,
    ArenaRequest,
    ArenaSettings,
    ExtendStrategy,
    round_up,
    simulate,
)

MB = 1 << 20
EXACT = ArenaSettings(extend=ExtendStrategy.SAME_AS_REQUESTED)
SIZES = st.lists(st.integers(0, 3 * MB), min_size=1, max_size=40)


def take(*sizes: int) -> list[ArenaRequest]:
    return [ArenaRequest(i, nbytes) for i, nbytes in enumerate(sizes)]


def test_regions_double_and_grow_with_the_request() -> None:
    assert simulate(take(256)).regions_bytes == (MB,)
    assert simulate(take(MB, MB, 2 * MB)).regions_bytes == (MB, 2 * MB, 4 * MB)
    assert simulate(take(5 * MB, 8 * MB, 8 * MB)).regions_bytes == (8 * MB, 8 * MB, 16 * MB)


def test_doubling_ends_at_the_largest_power_of_two() -> None:
    settings = ArenaSettings(max_power_of_two_bytes=4 * MB)
    assert simulate(take(*[4 * MB] * 4), settings).regions_bytes == (4 * MB,) * 4
    assert simulate(take(16 * MB), settings).regions_bytes == (16 * MB,)


def test_exact_regions_are_as_large_as_their_request() -> None:
    used = simulate(take(1000, 3 * MB), EXACT)
    assert used.regions_bytes == (1024, 3 * MB)


def test_a_chunk_is_cut_only_if_the_rest_is_as_large_as_the_request() -> None:
    arena = Arena(EXACT)
    whole = arena.allocate(3 * MB)
    arena.free(whole)
    arena.allocate(2 * MB)
    assert arena.in_use_bytes == 3 * MB
    small = Arena(ArenaSettings(extend=ExtendStrategy.SAME_AS_REQUESTED, max_dead_bytes=1))
    small.free(small.allocate(3 * MB))
    small.allocate(2 * MB)
    assert small.in_use_bytes == 2 * MB


def test_the_smallest_chunk_that_fits_is_taken() -> None:
    arena = Arena(EXACT)
    large, small = arena.allocate(8 * MB), arena.allocate(4 * MB)
    arena.free(large)
    arena.free(small)
    assert arena.allocate(3 * MB) == small


def test_neighbours_merge_within_a_region_only() -> None:
    arena = Arena(EXACT)
    first, second = arena.allocate(MB), arena.allocate(MB)
    arena.free(first)
    arena.free(second)
    arena.allocate(2 * MB)
    assert arena.reserved_bytes == 4 * MB
    arena = Arena()
    held = [arena.allocate(256 * 1024) for _ in range(4)]
    for address in (held[0], held[2], held[1], held[3]):
        arena.free(address)
    assert arena.allocate(MB) == held[0]
    assert arena.reserved_bytes == MB


def test_a_limit_cuts_regions_and_then_refuses() -> None:
    settings = ArenaSettings(limit_bytes=3 * MB + 100)
    assert simulate(take(MB, MB), settings).reserved_bytes == 3 * MB
    with pytest.raises(ArenaFullError, match=f"{2 * MB} bytes are asked for"):
        simulate(take(2 * MB, 2 * MB), settings)


def test_nothing_is_taken_for_nothing() -> None:
    assert simulate(take(0)).reserved_bytes == 0


def test_pages_count_once_written() -> None:
    arena = Arena()
    address = arena.allocate(10_000)
    assert arena.touched_bytes == 3 * 4096
    arena.free(address)
    arena.allocate(5_000)
    assert arena.touched_bytes == 3 * 4096
    block = arena.allocate(100_000, touch=False)
    arena.touch(block, 50_000, 10)
    assert arena.touched_bytes <= 5 * 4096


def test_wrong_requests_are_named() -> None:
    with pytest.raises(ValueError, match="'a' holds nothing"):
        simulate([ArenaRequest("a")])
    with pytest.raises(ValueError, match="'a' holds memory already"):
        simulate([ArenaRequest("a", 1), ArenaRequest("a", 1)])
    arena = Arena()
    address = arena.allocate(1)
    arena.allocate(1)
    arena.free(address)
    with pytest.raises(ValueError, match="given back before"):
        arena.free(address)


@given(SIZES, st.data())
def test_chunks_never_overlap_and_everything_can_be_given_back(
    sizes: list[int], data: st.DataObject
) -> None:
    arena = Arena()
    held: dict[int, int] = {}
    for nbytes in sizes:
        address = arena.allocate(nbytes)
        if address:
            for other, length in held.items():
                assert address + nbytes <= other or other + length <= address
            held[address] = nbytes
        if held and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(held)))
            arena.free(gone)
            del held[gone]
        assert sum(round_up(n, MIN_CHUNK_BYTES) for n in held.values()) <= arena.in_use_bytes
        assert arena.in_use_bytes <= arena.reserved_bytes == sum(arena.regions_bytes)
    for address in held:
        arena.free(address)
    assert arena.in_use_bytes == 0
    before = arena.reserved_bytes
    for nbytes in sorted(arena.regions_bytes, reverse=True):
        arena.allocate(nbytes)
    assert arena.reserved_bytes == before


PROBE = """
import json, sys
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto, helper
sizes = json.loads(sys.argv[1])
nodes = [helper.make_node("Expand", ["x", f"s{i}"], [f"v{i}"]) for i in range(len(sizes))]
weights = [onnx.numpy_helper.from_array(np.array([n], np.int64), f"s{i}") for i, n in enumerate(sizes)]
graph = helper.make_graph(
    nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
    [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [n]) for i, n in enumerate(sizes)],
    weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
options.enable_mem_pattern = False
ort.set_default_logger_severity(1)
session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
session.run(None, {"x": np.ones(1, np.float32)})
"""


@pytest.mark.parametrize(
    "elements", [[10, 300_000, 70, 1_000_000], [64] * 5 + [262_144] * 9, [500_000, 2_000_000, 1]]
)
def test_regions_are_those_of_the_runtime(elements: list[int], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(elements)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    added = [
        int(line.split("Extended allocation by ")[1].split()[0])
        for line in done.stderr.splitlines()
        if "Extended allocation by " in line
    ]
    assert simulate(take(*[4 * n for n in elements])).regions_bytes == tuple(added)
