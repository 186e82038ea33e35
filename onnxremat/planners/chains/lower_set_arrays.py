"""A family of lower sets as arrays, which `chains.strategies` makes and `chains.lower_set_kernels`
reads."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NO_CACHE = 1 << 62
"""More than any set keeps: no way within the budget."""

Ints = npt.NDArray[np.int64]


class Arrays(NamedTuple):
    """A family as the kernels read it: see `chains.lower_set_kernels`."""

    bits: npt.NDArray[np.uint64]
    mass: Ints
    span: Ints
    beside: Ints
    rim_start: Ints
    rim: Ints
    sizes: Ints
    times: Ints

    def only(self, chosen: npt.NDArray[np.bool_]) -> "Arrays":
        """Some of the sets."""
        lengths = np.diff(self.rim_start)
        return self._replace(
            bits=self.bits[chosen],
            mass=self.mass[chosen],
            span=self.span[chosen],
            beside=self.beside[chosen],
            rim_start=np.concatenate(([0], np.cumsum(lengths[chosen]))),
            rim=self.rim[np.repeat(chosen, lengths)],
        )
