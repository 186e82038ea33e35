"""What the product states that it does not do: refusals that are right of models that run.

Every row: a pattern of the message, the exit code, and the limit in words, which `docs/models.md`
explains. A refusal that fits no row is a fault.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class StatedLimit:
    """A kind of model that is refused, and how its refusal reads."""

    name: str
    exit_code: int
    message: re.Pattern[str]


def _limit(name: str, exit_code: int, message: str) -> StatedLimit:
    return StatedLimit(name, exit_code, re.compile(message))


STATED_LIMITS = (
    _limit("an input is a sequence or an optional value", 5, r"is no tensor but has type"),
    _limit(
        "results are random: two runs differ",
        6,
        r"cannot be compared: the original itself gives different bits",
    ),
)


def stated(exit_code: int | None, message: str) -> StatedLimit | None:
    """The limit that a refusal is about, None if it is about none."""
    for limit in STATED_LIMITS:
        if limit.exit_code == exit_code and limit.message.search(message):
            return limit
    return None
