"""Sizes as people write them: `4MB` is 10^6 bytes, `4MiB` is 2^20."""

import math
import re
from dataclasses import dataclass

from onnxremat.core.errors import UsageError

LARGEST_SIZE = 2**63 - 1
"""Of a dimension, and of a number of bytes: files and runtimes count in 64 bits, with a sign."""

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_LARGEST_SHARE = 1e6
_LOOKS_LIKE_PERCENT = 100
"""Numbers up to this one, written without a unit, are no limit that any model keeps."""
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*|%)")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What `--mem` asks for: bytes, a share of the model's own peak, or the smallest reachable.

    Exactly one of `nbytes` and `share` is set, or neither for the smallest. `text` is what the
    user wrote.
    """

    text: str
    nbytes: int | None = None
    share: float | None = None

    @property
    def smallest(self) -> bool:
        """Whether the smallest reachable peak is asked for (`min`)."""
        return self.nbytes is None and self.share is None

    def resolve(self, own_peak_bytes: int) -> int | None:
        """The limit in bytes, rounded down; None for the smallest reachable."""
        if self.share is not None:
            return math.floor(own_peak_bytes * self.share)
        return self.nbytes


def parse_bytes(text: str, option: str) -> int:
    """Bytes in `4MB`, `4MiB`, `4096` and the like. Raises UsageError, naming `option`.

    >>> parse_bytes("4MB", "--mem"), parse_bytes("4MiB", "--mem"), parse_bytes("1.5 kB", "--mem")
    (4000000, 4194304, 1500)
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(
            f"{option}: {text!r} is not a size; write for example 4MB, 4MiB or 4000000"
        )
    amount = float(match[1]) * _UNITS[match[2].upper()]
    if amount > LARGEST_SIZE:
        raise UsageError(f"{option}: {text!r} is more than any machine has")
    nbytes = math.floor(amount)
    if nbytes <= 0:
        hint = ""
        if not match[2] and amount > 0:
            hint = f": it is less than a byte; write {100 * amount:g}% for a share"
        raise UsageError(f"{option}: {text!r} is not a positive size{hint}")
    return nbytes


def parse_limit(text: str | int, option: str = "--mem") -> MemoryLimit:
    """A limit as `4MB`, `60%` or `min`, or bytes as an integer. Raises UsageError.

    >>> parse_limit("60%").resolve(own_peak_bytes=1001)
    600
    >>> parse_limit("4MB").resolve(own_peak_bytes=1001)
    4000000
    >>> parse_limit("min").smallest
    True
    """
    written = str(text).strip()
    if written.lower() == "min":
        return MemoryLimit(written)
    match = _NUMBER.fullmatch(written)
    if match is not None and match[2] == "%":
        share = float(match[1]) / 100
        if not 0 < share <= _LARGEST_SHARE:
            raise UsageError(
                f"{option}: {written!r} is not a positive share of the model's peak, or a huge one"
            )
        return MemoryLimit(written, share=share)
    if match is None:
        raise UsageError(
            f"{option}: {written!r} is not a size; write for example 4MB, 4MiB, 4000000, 60% or min"
        )
    nbytes = parse_bytes(written, option)
    if isinstance(text, str) and not match[2] and nbytes <= _LOOKS_LIKE_PERCENT:
        raise UsageError(
            f"{option}: {written!r} would be bytes; write {written}% for a share of the model's "
            f"own peak, or {written}B"
        )
    return MemoryLimit(written, nbytes=nbytes)


def parse_share(text: str | None, option: str) -> float | None:
    """A share as `10%`, None for none. Raises UsageError, naming `option`.

    >>> parse_share("10%", "--max-slowdown"), parse_share(None, "--max-slowdown")
    (0.1, None)
    """
    if text is None:
        return None
    match = _NUMBER.fullmatch(text.strip())
    if match is not None and not match[2]:
        raise UsageError(f"{option}: {text!r} has no unit; write {text.strip()}% or another share")
    if match is None or match[2] != "%" or float(match[1]) / 100 > _LARGEST_SHARE:
        raise UsageError(f"{option}: {text!r} is not a share; write for example 10%")
    return float(match[1]) / 100


def format_bytes(nbytes: int) -> str:
    """`nbytes` for people, in powers of ten.

    >>> format_bytes(51_749_000), format_bytes(230_100), format_bytes(999)
    ('51.75 MB', '230.1 kB', '999 B')
    """
    if nbytes < 1000:
        return f"{nbytes} B"
    for unit, scale in (("kB", 10**3), ("MB", 10**6), ("GB", 10**9)):
        if nbytes < scale * 999.95 or unit == "GB":
            value = nbytes / scale
            return f"{value:.2f} {unit}" if value < 100 else f"{value:.1f} {unit}"
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """A duration for people.

    >>> format_seconds(0.000842), format_seconds(0.0123), format_seconds(1.5)
    ('842 us', '12.3 ms', '1.50 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"
