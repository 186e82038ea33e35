"""Times in the tables of C_MP (see `chains.chain_dp.PersistentTable` and
`chains.chain_kernels`)."""

NO_TIME = 1 << 29
"""Infinite, in tables of 32-bit integers."""

LONGEST_TIME = 1 << 28
"""Makespans in a table stay below it. Times are rounded to units so that n passes over the chain
do: where n passes take fewer units of the caller, nothing is rounded."""
