"""`Malloc`: what the C library of a child does with memory that is freed."""

from enum import Enum
from types import MappingProxyType


class Malloc(Enum):
    """Each by what the environment of the child says to glibc; elsewhere all are the usual one."""

    USUAL = MappingProxyType[str, str]({})
    """It keeps what it thinks fit: what a user of stock settings sees."""
    RETURNING = MappingProxyType({
        "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536",
    })  # fmt: skip
    """It gives blocks of 64 KB and more back to the system."""
    ONE_HEAP = MappingProxyType({
        "MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**60),
    })  # fmt: skip
    """It has one heap, which grows at its end and never shrinks, as that of WebAssembly."""
