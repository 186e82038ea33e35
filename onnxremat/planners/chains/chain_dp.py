"""Optimal recomputation for a chain of stages, by dynamic programming over slots of memory.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2024, "Optimal re-materialization
strategies for heterogeneous chains", sections 3 and 4. Stages are numbered from 0 here (from 1 in
the paper), the loss being the last. Stage i reads a[i] and makes a[i + 1]; its backward reads
delta[i + 1], a[i] and abar[i], all that its forward saved, and makes delta[i].

`persistent_sequence` is C_MP (theorem 4.8, algorithms 3 and 4): a stored value is kept until the
backward that reads it. `floating_sequence` is C_FL (theorem 4.7, algorithms 1 and 2): the deepest
stored value may move on. The chain and the simulator of sequences are in `chains.chain_model`.

Deviations. (1) Equation 2 of the paper misses one case: the floating value moves from s to r and
nothing else is stored, which costs the forward times from s to r - 1 and C_FL(r, t, l, m - w_r-1 +
w_s-1). It covers the r > s of equation 3 too, and is itself a repetition of the move from s to
s + 1. So tables are indexed by the whole memory, a[s] included, which a move leaves as it is, and
the minimum over (r, s', t') becomes one over t': O(n^4) steps instead of O(n^6) for n stages.
Values may move on to smaller ones, too (equation 2 and corollary 4.5 have larger ones only). (2)
Memory is rounded to slots so that stored values, one by one, and what an operation needs beside
them, as one number, take no fewer than they are: the limit is never exceeded. (3) C_MP rounds long
times to units (see LONGEST_TIME), C_FL none.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.planners.chains.chain_model import Chain, ChainStep, Operation, Operations
from onnxremat.planners.chains.chain_times import LONGEST_TIME, NO_TIME
from onnxremat.planners.search.engine import usable_processors

SLOTS = 500
"""Into how many slots memory is cut (section 5.2)."""

PARALLEL_FROM = 96
"""Stages from which on the tables of C_MP are filled by several threads."""

DIAGONAL_SECONDS, CELL_SECONDS = 1e-3, 3e-5
"""Of work, counted for a diagonal of tiles of C_MP, and for a row of slots of C_FL."""


def _slots(size: int, slot_bytes: int) -> int:
    return -(-size // slot_bytes)


@dataclass(frozen=True)
class _Slotted:
    """A chain in slots."""

    chain: Chain
    slot_bytes: int
    slots: int
    activation: tuple[int, ...]

    @staticmethod
    def of(chain: Chain, limit_bytes: int, slots: int) -> "_Slotted":
        """The smallest slots of whole bytes so that there are at most `slots` up to the limit."""
        slot_bytes = max(1, _slots(limit_bytes, slots))
        activation = tuple(_slots(size, slot_bytes) for size in chain.activation_bytes)
        return _Slotted(chain, slot_bytes, max(limit_bytes, 0) // slot_bytes, activation)

    def in_slots(self, size: int) -> int:
        return max(_slots(size, self.slot_bytes), 0)

    def after_saving(self, i: int) -> int:
        """How many slots less, a[i + 1] included, there are once abar[i] is held beside a[i]."""
        saved = self.in_slots(self.chain.saved_bytes[i])
        return max(self.activation[i] + saved - self.activation[i + 1], 0)

    def enough_for_keeping(self, i: int, gradient: int) -> int:
        """Slots, a[i] included, that F_none or F_ck of stage i need while a delta is held."""
        needed = self.chain.gradient_bytes[gradient] + self.chain.keeping_bytes(i)
        return self.activation[i] + self.in_slots(needed)

    def enough_for_saving(self, i: int, gradient: int) -> int:
        """Slots, a[i] included, that F_all needs while a delta is held, and then B of stage i."""
        needed = self.chain.gradient_bytes[gradient] + self.chain.saving_bytes(i)
        return self.activation[i] + self.in_slots(max(needed, self.chain.backing_bytes(i)))


Ints = npt.NDArray[np.int32]


class PersistentTable:
    """C_MP of every part of a chain and every number of slots up to a limit.

    [s, t, m]: the forward times before stage s, and C_MP(s, t) in m slots, a[s] included. One
    table answers for every limit below its own. O(n ** 3 * slots) time with n stages,
    O(n ** 2 * slots) memory. Raises StoppedError if it is not filled by the deadline.
    """

    def __init__(
        self, chain: Chain, limit_bytes: int, slots: int = SLOTS, deadline: Deadline = ENDLESS
    ) -> None:
        self.chain = chain
        self.slotted = _Slotted.of(chain, limit_bytes, slots)
        n, count = chain.stages, self.slotted.slots + 1
        self.unit = max(1, -(-n * chain.one_pass_time() // LONGEST_TIME))
        self.forward = [round(time / self.unit) for time in chain.forward_times]
        self.backward = [round(time / self.unit) for time in chain.backward_times]
        self.before = [0, *accumulate(self.forward)]
        self.table: Ints = np.empty((n, n, count), dtype=np.int32)
        self.columns: Ints = np.empty((n, n, count), dtype=np.int32)
        self.keeping = self._keeping()
        self.saving = np.zeros((n, n), dtype=np.int64)
        for s in range(n):
            self.saving[s, s:] = [self.slotted.enough_for_saving(s, t + 1) for t in range(s, n)]
        self.after_saving = [self.slotted.after_saving(i) for i in range(n)]
        self._fill(deadline)

    def _keeping(self) -> npt.NDArray[np.int64]:
        """[s, t]: slots, a[s] included, for the forwards from s to t - 1 while delta[t + 1] is
        held."""
        chain, n = self.chain, self.chain.stages
        result = np.zeros((n, n), dtype=np.int64)
        gradient = np.array(chain.gradient_bytes[1:], dtype=np.int64)
        alone = [chain.activation_bytes[j] + chain.keeping_bytes(j) for j in range(n)]
        for s in range(n - 1):
            most = np.maximum.accumulate(np.array([chain.keeping_bytes(s), *alone[s + 1 : n - 1]]))
            needed = np.maximum(gradient[s + 1 :] + most, 0)
            slots = -(-needed // self.slotted.slot_bytes)
            result[s, s + 1 :] = self.slotted.activation[s] + slots
        return result

    def _fill(self, deadline: Deadline) -> None:
        """By square tiles: those of a diagonal need shorter parts of the chain only, and the
        compiled loops let threads share them."""
        from onnxremat.planners.chains import chain_kernels as _chain_kernels

        tiles = -(-self.chain.stages // _chain_kernels.TILE)
        threads = usable_processors() if self.chain.stages >= PARALLEL_FROM else 1
        costs = _chain_kernels.Costs(*(np.array(values, dtype=np.int64) for values in (
            self.before, self.backward, self.slotted.activation, self.after_saving,
            self.keeping, self.saving,
        )))  # fmt: skip
        with ThreadPoolExecutor(threads) as pool:
            for d in range(tiles):
                deadline.ask()
                deadline.worked(DIAGONAL_SECONDS)
                jobs = [
                    pool.submit(
                        _chain_kernels.fill_tiles, self.table, self.columns, d, k, threads, costs
                    )
                    for k in range(threads)
                ]
                for job in jobs:
                    job.result()

    def makespans(self) -> npt.NDArray[np.float64]:
        """By the number of slots: the least makespan, infinite if there are too few."""
        row = self.table[0, self.chain.stages - 1]
        return np.where(row >= NO_TIME, np.inf, row * float(self.unit))

    def sequence(self, slots: int | None = None) -> Operations | None:
        """A persistent sequence of the least makespan within a number of slots (None: all).

        None if there is none: not with values rounded up to slots. O(n) for each decision.
        """
        start = (0, self.chain.stages - 1, self.slotted.slots if slots is None else slots)
        if self.table[start] >= NO_TIME:
            return None
        result: list[Operation] = []
        todo: list[Operation | tuple[int, int, int]] = [start]
        while todo:
            part = todo.pop()
            if isinstance(part, Operation):
                result.append(part)
                continue
            s, t, m = part
            cut = self._cut(s, t, m)
            if cut == s:
                result.append(Operation(ChainStep.FORWARD_ALL, s))
                todo.append(Operation(ChainStep.BACKWARD, s))
                if s < t:
                    todo.append((s + 1, t, m - self.after_saving[s]))
                continue
            result.append(Operation(ChainStep.FORWARD_KEEP, s))
            result += [Operation(ChainStep.FORWARD_NONE, i) for i in range(s + 1, cut)]
            todo.append((s, cut - 1, m))
            todo.append((cut, t, m - self.slotted.activation[s]))
        return tuple(result)

    def _cut(self, s: int, t: int, m: int) -> int:
        """The next stage whose input is stored (s: it is stage s itself, saved as a whole)."""
        if s == t:
            return s
        best = self.table[s, t, m]
        if m >= self.saving[s, t]:
            left = m - self.after_saving[s]
            if left >= 0 and self.table[s + 1, t, left] + self.backward[s] == best:
                return s
        after = self.columns[t, s + 1 : t + 1, m - self.slotted.activation[s]]
        return s + 1 + int(np.argmin(after + self.table[s, s:t, m]))


def persistent_sequence(chain: Chain, limit_bytes: int, slots: int = SLOTS) -> Operations | None:
    """A memory-persistent sequence of the least makespan within a limit (theorem 4.8), or None.

    Exact if the limit has at most `slots` units; else sizes are rounded up. See PersistentTable.
    """
    return PersistentTable(chain, limit_bytes, slots).sequence()


class FloatingTable:
    """C_FL of every part of a chain and every number of slots up to a limit.

    [s, t, l, m]: from a[s] and delta[l + 1] to delta[t], a[s] being used up, in m slots with a[s].
    O(n ** 4 * slots) time and O(n ** 3 * slots) memory with n stages. Raises StoppedError if
    it is not filled by the deadline.
    """

    def __init__(
        self, chain: Chain, limit_bytes: int, slots: int = SLOTS, deadline: Deadline = ENDLESS
    ) -> None:
        self.chain = chain
        self.slotted = _Slotted.of(chain, limit_bytes, slots)
        n = chain.stages
        self.table = np.full((n, n, n, self.slotted.slots + 1), np.inf)
        for d in range(n):
            for s in range(n - d):
                deadline.ask()
                deadline.worked((d + 1) * CELL_SECONDS)
                for t in range(s, s + d + 1):
                    self._fill(s, t, s + d)

    def _fill(self, s: int, t: int, last: int) -> None:
        table, slotted, chain = self.table, self.slotted, self.chain
        row, total = table[s, t, last], self.slotted.slots + 1
        if s == t:
            enough = slotted.enough_for_saving(s, last + 1)
            time = chain.forward_times[s] + chain.backward_times[s]
            if s == last:
                row[enough:] = time
                return
            after = slotted.after_saving(s)
            first = max(enough, after)
            if first < total:
                row[first:] = time + table[s + 1, s + 1, last, first - after : total - after]
        if s == last:
            return
        enough, forward = slotted.enough_for_keeping(s, last + 1), chain.forward_times[s]
        if enough >= total:
            return
        if t > s:
            np.minimum(row[enough:], forward + table[s + 1, t, last, enough:], out=row[enough:])
        if t < last:
            held = slotted.activation[s]
            deep = table[s + 1, t + 1 : last + 1, last, enough - held : total - held]
            rest = table[s, t, t:last, enough:]
            np.minimum(row[enough:], forward + (deep + rest).min(axis=0), out=row[enough:])

    def makespans(self) -> npt.NDArray[np.float64]:
        """By the number of slots: the least makespan, infinite if there are too few."""
        result: npt.NDArray[np.float64] = self.table[0, 0, self.chain.stages - 1]
        return result

    def sequence(self, slots: int | None = None) -> Operations | None:
        """A sequence of the least makespan within a number of slots (None: all), or None."""
        start = (0, 0, self.chain.stages - 1, self.slotted.slots if slots is None else slots)
        if not np.isfinite(self.table[start]):
            return None
        result: list[Operation] = []
        todo: list[Operation | tuple[int, int, int, int]] = [start]
        while todo:
            part = todo.pop()
            if isinstance(part, Operation):
                result.append(part)
            else:
                operations, parts = self._step(*part)
                result += operations
                todo += reversed(parts)
        return tuple(result)

    def _step(
        self, s: int, t: int, last: int, m: int
    ) -> tuple[list[Operation], list[Operation | tuple[int, int, int, int]]]:
        """The first operation of a part of a sequence, and what follows."""
        table, slotted, chain = self.table, self.slotted, self.chain
        best, forward = table[s, t, last, m], chain.forward_times[s]
        saving, backward = Operation(ChainStep.FORWARD_ALL, s), Operation(ChainStep.BACKWARD, s)
        if s == last:
            return [saving, backward], []
        if s == t and m >= slotted.enough_for_saving(s, last + 1):
            left = m - slotted.after_saving(s)
            if left >= 0 and (
                table[s + 1, s + 1, last, left] + forward + chain.backward_times[s] == best
            ):
                return [saving], [(s + 1, s + 1, last, left), backward]
        if t > s and forward + table[s + 1, t, last, m] == best:
            return [Operation(ChainStep.FORWARD_NONE, s)], [(s + 1, t, last, m)]
        left = m - slotted.activation[s]
        both = table[s + 1, t + 1 : last + 1, last, left] + table[s, t, t:last, m]
        cut = t + 1 + int(np.argmin(both))
        keeping = [Operation(ChainStep.FORWARD_KEEP, s)]
        return keeping, [(s + 1, cut, last, left), (s, t, cut - 1, m)]


def floating_sequence(chain: Chain, limit_bytes: int, slots: int = SLOTS) -> Operations | None:
    """A sequence of the least makespan of all valid ones within a limit (theorem 4.7), or None.

    Exact if the limit has at most `slots` units; else sizes are rounded up. See FloatingTable.
    """
    return FloatingTable(chain, limit_bytes, slots).sequence()
