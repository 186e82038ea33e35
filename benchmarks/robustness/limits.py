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
    _limit(
        "a value is a sequence, an optional value or a map",
        5,
        r"(input|value) .* is an? (sequence|optional|map)",
    ),
    _limit("a value is text", 5, r"holds elements of type 'string', whose bytes do not follow"),
    _limit("nothing is computed at run time", 5, r"the model computes nothing at run time"),
    _limit("an input is of a type that numpy cannot hand over", 5, r"cannot be fed from Python"),
    _limit(
        "a function is in a domain of the runtime's own operators",
        5,
        r"is in the domain '[^']*', where ONNX Runtime may have an operator",
    ),
    _limit(
        "a function has an operator that is another one in the model's operator set",
        5,
        r"its function .* in a model of operator set \d+, where that is another operator",
    ),
    _limit(
        "a stored tensor has more than 64 dimensions",
        5,
        r"has \d+ dimensions; values of at most 64",
    ),
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
