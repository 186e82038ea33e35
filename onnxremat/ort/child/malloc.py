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
