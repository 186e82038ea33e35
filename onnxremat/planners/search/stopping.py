"""How work that has no partial result is ended by a caller's `stop()`."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

Stop = Callable[[], bool]
"""Whether to stop now; asked now and then."""

CUT_SHORT = "cut short by the limits"
"""For the scope of a plan: more would have been tried with more time, or without a stop."""


class StoppedError(Exception):
    """The work was given up at a stop; the caller goes on with what it has."""


def never() -> bool:
    """No stop."""
    return False


def ask(stop: Stop) -> None:
    """Raise StoppedError if it is time to stop."""
    if stop():
        raise StoppedError


def asking(items: Iterable[T], stop: Stop) -> Iterator[T]:
    """The items, with the question whether to stop before each. Raises StoppedError."""
    for item in items:
        ask(stop)
        yield item
