"""Chains of stages: parameters, operations, and a simulator of their sequences.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2024, "Optimal re-materialization
strategies for heterogeneous chains", section 3. Stages are numbered from 0 here (from 1 in the
paper), the loss being the last. Stage i reads a[i] and makes a[i + 1]; its backward reads
delta[i + 1], a[i] and abar[i], all that its forward saved, and makes delta[i].

Deviations. A saved abar[i] may leave out values that a[i] holds too, and overheads may be negative:
a stage of a real graph passes values through and frees values while it runs. An F_all may have an
overhead of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class ChainStep(StrEnum):
    """The operations of table 1."""

    FORWARD_NONE = "F_none"
    """Make a[i + 1] and let go of a[i]."""
    FORWARD_KEEP = "F_ck"
    """Make a[i + 1] and keep a[i]."""
    FORWARD_ALL = "F_all"
    """Make abar[i] (a[i + 1] in it) and keep a[i]."""
    BACKWARD = "B"
    """Make delta[i]; let go of delta[i + 1], abar[i] and a[i]."""


class Operation(NamedTuple):
    """One step of a sequence: a kind and the stage it works on, from 0."""

    kind: ChainStep
    stage: int


Operations = tuple[Operation, ...]


@dataclass(frozen=True)
class Chain:
    """The parameters of n stages. Times in any one unit, sizes in bytes (or any one unit).

    `forward_times`, `backward_times`, `saved_bytes` (abar) and the overheads have n entries,
    `activation_bytes` (a) and `gradient_bytes` (delta) n + 1. `forward_overhead_bytes` is what
    F_none and F_ck hold beside a[i] and a[i + 1], `saving_overhead_bytes` what F_all holds beside
    a[i] and abar[i], `backward_overhead_bytes` what B holds beside what it reads and makes.

    Raises ValueError if lengths differ, a time or size is negative, a[i + 1] is larger than a[i]
    and abar[i] together, or an operation would hold less than nothing.
    """

    forward_times: tuple[int, ...]
    backward_times: tuple[int, ...]
    activation_bytes: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]
    forward_overhead_bytes: tuple[int, ...]
    saving_overhead_bytes: tuple[int, ...]
    backward_overhead_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        n = len(self.forward_times)
        each = (
            self.backward_times,
            self.saved_bytes,
            self.forward_overhead_bytes,
            self.saving_overhead_bytes,
            self.backward_overhead_bytes,
        )
        if n == 0:
            raise ValueError("a chain has at least one stage")
        if any(len(values) != n for values in each):
            raise ValueError(f"a chain of {n} stages needs {n} values of each kind")
        if len(self.activation_bytes) != n + 1 or len(self.gradient_bytes) != n + 1:
            raise ValueError(f"a chain of {n} stages has {n + 1} activations and gradients")
        sizes = (self.activation_bytes, self.saved_bytes, self.gradient_bytes)
        if min(min(values) for values in (self.forward_times, self.backward_times, *sizes)) < 0:
            raise ValueError("a time or size of a chain is negative")
        for i in range(n):
            if self.activation_bytes[i + 1] > self.activation_bytes[i] + self.saved_bytes[i]:
                raise ValueError(f"stage {i} saves less than it hands on")
            if min(self.keeping_bytes(i), self.saving_bytes(i), self.backing_bytes(i)) < 0:
                raise ValueError(f"an overhead of stage {i} is below what it holds")

    @property
    def stages(self) -> int:
        """How many stages there are, the loss included."""
        return len(self.forward_times)

    def keeping_bytes(self, i: int) -> int:
        """What F_none and F_ck of stage i need beside a[i] and delta."""
        return self.activation_bytes[i + 1] + self.forward_overhead_bytes[i]

    def saving_bytes(self, i: int) -> int:
        """What F_all of stage i needs beside a[i] and delta."""
        return self.saved_bytes[i] + self.saving_overhead_bytes[i]

    def backing_bytes(self, i: int) -> int:
        """What B of stage i needs beside a[i]."""
        gradients = self.gradient_bytes[i] + self.gradient_bytes[i + 1]
        return gradients + self.saved_bytes[i] + self.backward_overhead_bytes[i]

    def one_pass_time(self) -> int:
        """The makespan without recomputation."""
        return sum(self.forward_times) + sum(self.backward_times)


def chain_of(
    forward_times: Sequence[int],
    backward_times: Sequence[int],
    activation_bytes: Sequence[int],
    saved_bytes: Sequence[int] | None = None,
    gradient_bytes: Sequence[int] | None = None,
    forward_overhead_bytes: Sequence[int] | None = None,
    backward_overhead_bytes: Sequence[int] | None = None,
) -> Chain:
    """A chain as the paper writes it: one forward overhead; abar and delta are a, and overheads
    0, unless given."""
    nothing = (0,) * len(forward_times)
    forward_overhead = tuple(forward_overhead_bytes or nothing)
    return Chain(
        tuple(forward_times),
        tuple(backward_times),
        tuple(activation_bytes),
        tuple(activation_bytes[1:] if saved_bytes is None else saved_bytes),
        tuple(activation_bytes if gradient_bytes is None else gradient_bytes),
        forward_overhead,
        forward_overhead,
        tuple(backward_overhead_bytes or nothing),
    )


class SequenceError(ValueError):
    """A sequence that is not valid (definition 3.1); the message says why."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a sequence takes: its makespan, and the most that is held during an operation."""

    makespan: int
    peak_bytes: int


def simulate(chain: Chain, sequence: Sequence[Operation]) -> Simulation:
    """Run a sequence by table 1 and definition 3.4. O(operations).

    Raises SequenceError if an operation lacks an input or the sequence does not end with delta[0].
    """
    state = _ChainState(chain)
    makespan, peak = 0, state.held
    for operation in sequence:
        kind, i = operation
        state.require(operation)
        if kind is ChainStep.BACKWARD:
            makespan += chain.backward_times[i]
            made = chain.gradient_bytes[i] + chain.backward_overhead_bytes[i]
        else:
            makespan += chain.forward_times[i]
            keeps = kind is not ChainStep.FORWARD_ALL
            made = chain.keeping_bytes(i) if keeps else chain.saving_bytes(i)
        peak = max(peak, state.held + made)
        state.run(operation)
        peak = max(peak, state.held)
    if state.gradient != 0:
        raise SequenceError(f"the sequence ends with delta[{state.gradient}]")
    return Simulation(makespan, peak)


class _ChainState:
    """Which values are stored, and how many bytes they take."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.plain = {0}
        self.saved: set[int] = set()
        self.gradient = chain.stages
        self.held = chain.activation_bytes[0] + chain.gradient_bytes[chain.stages]

    def require(self, operation: Operation) -> None:
        kind, i = operation
        if not 0 <= i < self.chain.stages:
            raise SequenceError(f"{operation}: there is no such stage")
        inside = i - 1 in self.saved and kind is not ChainStep.FORWARD_NONE
        if i not in self.plain and not inside:
            raise SequenceError(f"{operation}: a[{i}] is not stored")
        if kind is ChainStep.BACKWARD and (i not in self.saved or self.gradient != i + 1):
            raise SequenceError(f"{operation}: abar[{i}] or delta[{i + 1}] is not stored")

    def run(self, operation: Operation) -> None:
        kind, i = operation
        chain = self.chain
        if kind is ChainStep.FORWARD_ALL:
            self._add(self.saved, i, chain.saved_bytes)
            return
        if kind is ChainStep.FORWARD_KEEP:
            self._add(self.plain, i + 1, chain.activation_bytes)
            return
        if kind is ChainStep.FORWARD_NONE:
            self._add(self.plain, i + 1, chain.activation_bytes)
        else:
            self.gradient = i
            self.held += chain.gradient_bytes[i] - chain.gradient_bytes[i + 1]
            self.saved.discard(i)
            self.held -= chain.saved_bytes[i]
        if i in self.plain:
            self.plain.discard(i)
            self.held -= chain.activation_bytes[i]

    def _add(self, stored: set[int], i: int, size: Sequence[int]) -> None:
        if i not in stored:
            stored.add(i)
            self.held += size[i]
