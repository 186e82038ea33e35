"""Optimal chains: the paper's own examples, exhaustive search, and limits that are kept."""

import random
from itertools import pairwise

import pytest

from onnxremat.planners.chains.chain_dp import (
    FloatingTable,
    PersistentTable,
    floating_sequence,
    persistent_sequence,
)
from onnxremat.planners.chains.chain_model import (
    Chain,
    ChainStep,
    Operation,
    SequenceError,
    chain_of,
    simulate,
)
from tests.planners.chain_search import least_makespan, random_chain

BOTH = [persistent_sequence, floating_sequence]


def toy() -> Chain:
    """Table 2 of the paper: sizes in hundredths of MiB, times in hundredths of ms."""
    return chain_of(
        forward_times=(160, 220, 244, 251, 210, 143, 0),
        backward_times=(305, 448, 509, 493, 421, 334, 0),
        activation_bytes=(763, 954, 1068, 1106, 1068, 954, 763, 0),
        saved_bytes=(954, 1068, 1108, 1066, 954, 763, 0),
        backward_overhead_bytes=(2001, 2764, 3099, 3099, 2764, 1908, 0),
    )


def counter_example(n: int) -> Chain:
    """Figure 4 of the paper with k = n - 2; its limit is 15."""
    return chain_of((n - 2, 2, *[0] * n), [0] * (n + 2), (0, 1, *[3] * n, 4))


def parse(text: str) -> list[Operation]:
    return [
        Operation(ChainStep(kind), int(i) - 1)
        for kind, _, i in map(lambda w: w.partition("^"), text.split())
    ]


@pytest.mark.parametrize("solve", BOTH)
def test_the_toy_example_of_the_paper(solve) -> None:  # type: ignore[no-untyped-def]
    limited, free = solve(toy(), 9000), solve(toy(), 11_000)
    assert simulate(toy(), limited).makespan == 4742
    assert simulate(toy(), limited).peak_bytes == 8675
    assert simulate(toy(), free).makespan == 3738 == toy().one_pass_time()


def test_the_printed_sequence_of_the_toy_example_has_a_slip() -> None:
    """Section 3.2 prints an F_all of stage 3 where F_none is meant: that one exceeds the limit."""
    middle = "F_all^4 F_all^5 F_all^6 F_all^7 B^7 B^6 B^5 B^4 F_ck^1 F_none^2 F_all^3 B^3"
    end = "F_all^1 F_all^2 B^2 B^1"
    printed = simulate(toy(), parse(f"F_ck^1 F_none^2 F_all^3 {middle} {end}"))
    meant = simulate(toy(), parse(f"F_ck^1 F_none^2 F_none^3 {middle} {end}"))
    assert (printed.makespan, printed.peak_bytes) == (4742, 9745)
    assert (meant.makespan, meant.peak_bytes) == (4742, 8675)


@pytest.mark.parametrize("n", [4, 5, 8, 12])
def test_the_counter_example_of_figure_4(n: int) -> None:
    chain = counter_example(n)
    persistent, floating = (simulate(chain, solve(chain, 15) or ()) for solve in BOTH)
    assert persistent.makespan == 3 * n - 2
    assert floating.makespan == 2 * n + 2
    assert (floating.makespan < persistent.makespan) == (n >= 5)
    assert max(persistent.peak_bytes, floating.peak_bytes) <= 15


@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_is_better(seed: int) -> None:
    """C_MP against all memory-persistent sequences, C_FL against all valid ones. Thousands of
    chains: `benchmarks.training_planners`."""
    source = random.Random(seed)
    for _ in range(40):
        chain, limit = random_chain(source, source.randint(1, 5))
        for solve, persistent in ((persistent_sequence, True), (floating_sequence, False)):
            found = solve(chain, limit)
            best = least_makespan(chain, limit, persistent=persistent)
            assert (found is None) == (best is None)
            if found is not None:
                run = simulate(chain, found)
                assert run.makespan == best
                assert run.peak_bytes <= limit


def test_the_case_that_equation_2_misses() -> None:
    """The floating value moves on and nothing else is stored (see the module)."""
    chain = chain_of((1, 1), (1, 1), (3, 1, 1), (1, 1), (0, 0, 0))
    # From a[0] and delta[2] to delta[1], F_none of stage 0 first; as printed: impossible.
    assert FloatingTable(chain, 6).table[0, 1, 1, 6] == 3
    chain = Chain(
        forward_times=(3, 6, 5, 1),
        backward_times=(2, 4, 3, 3),
        activation_bytes=(6, 1, 3, 0, 2),
        saved_bytes=(1, 3, 0, 2),
        gradient_bytes=(6, 1, 0, 4, 0),
        forward_overhead_bytes=(0, 1, 0, 0),
        saving_overhead_bytes=(0, 3, 2, 0),
        backward_overhead_bytes=(0, 1, 0, 1),
    )
    found = simulate(chain, floating_sequence(chain, 15) or ())
    assert found.makespan == 47 == least_makespan(chain, 15, persistent=False)
    assert found.peak_bytes <= 15  # The equations as printed give 50, as C_MP does.


@pytest.mark.parametrize("slots", [1, 2, 7, 20])
def test_rounding_to_slots_never_exceeds_the_limit(slots: int) -> None:
    source = random.Random(slots)
    found = 0
    for _ in range(150):
        chain, limit = random_chain(source, source.randint(1, 7))
        for sequence in (
            persistent_sequence(chain, 2 * limit, slots),
            floating_sequence(chain, 2 * limit, slots),
        ):
            if sequence is not None:
                found += 1
                assert simulate(chain, sequence).peak_bytes <= 2 * limit
    assert found > 0 or slots < 7


def test_one_table_answers_for_every_smaller_limit() -> None:
    chain, limit = random_chain(random.Random(5), 6)
    for make in (PersistentTable, FloatingTable):
        table = make(chain, 2 * limit)
        spans = table.makespans()
        assert all(a >= b for a, b in pairwise(spans))
        for slots, span in enumerate(spans):
            sequence = table.sequence(slots)
            if sequence is None:
                assert span == float("inf")
            else:
                run = simulate(chain, sequence)
                assert run.makespan == span
                assert run.peak_bytes <= slots


def test_long_chains_and_large_numbers() -> None:
    source = random.Random(1)
    sizes = [source.randint(1_000_000, 4_000_000) for _ in range(121)]
    saved = [3 * size for size in sizes[1:]]
    times = [source.randint(10**6, 10**9) for _ in range(120)]
    chain = chain_of(times, [2 * t for t in times], sizes, saved)
    limit = sum(saved) // 3
    run = simulate(chain, persistent_sequence(chain, limit) or ())
    assert run.peak_bytes <= limit
    assert chain.one_pass_time() < run.makespan < 1.3 * chain.one_pass_time()
    everything = simulate(chain, persistent_sequence(chain, 2 * sum(saved)) or ())
    assert everything.makespan == chain.one_pass_time()


@pytest.mark.parametrize(
    "wrong", ["B^1", "F_none^2", "F_all^1 F_all^2 B^2", "F_all^9", "F_none^1 F_all^1"]
)
def test_wrong_sequences_are_refused(wrong: str) -> None:
    with pytest.raises(SequenceError):
        simulate(chain_of((1, 1), (1, 1), (1, 1, 1)), parse(wrong))


def test_wrong_chains_are_refused() -> None:
    for arguments in (
        ((), (), (1,)),
        ((1,), (1, 1), (1, 1)),
        ((1,), (1,), (1,)),
        ((1,), (-1,), (1, 1)),
        ((1,), (1,), (1, 5), (2,)),
        ((1,), (1,), (1, 1), None, None, (-3,)),
    ):
        with pytest.raises(ValueError, match=r"stage|chain|negative"):
            chain_of(*arguments)
