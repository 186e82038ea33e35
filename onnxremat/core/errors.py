"""The errors onnxremat raises, and the exit code each one ends the command with.

Every error carries one line for people, of bounded length and with nothing in it that a terminal
obeys, whatever names of a model it cites. "Proved impossible", "no plan in time" and "not
supported" are different classes, because what the user can do about each is different.
"""

from typing import TYPE_CHECKING, ClassVar

from onnxremat.core.text import printable

if TYPE_CHECKING:
    from onnxremat.core.attempt import Attempt

LONGEST_MESSAGE = 2000
"""Characters of a message; the middle of a longer one is left out."""


def about(model: object, message: str) -> str:
    """A message that names the model that it is about, where several were given."""
    return message if str(model) in message else f"{model}: {message}"


class OnnxrematError(Exception):
    """Base of every error raised on purpose. `exit_code` is what the command line returns;
    `attempts` are the plans that were made for a limit that none of them kept."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", attempts: "tuple[Attempt, ...]" = ()) -> None:
        super().__init__(printable(message, LONGEST_MESSAGE))
        self.attempts = attempts


class UsageError(OnnxrematError):
    """An option, size, dimension name or path that cannot be used as given."""

    exit_code: ClassVar[int] = 2


class InfeasibleError(OnnxrematError):
    """No schedule can meet the limit; the message names the bound and what sets it."""

    exit_code: ClassVar[int] = 3


class NoPlanFoundError(OnnxrematError):
    """The limit is above the lower bound, but no plan that meets it was found in time."""

    exit_code: ClassVar[int] = 4


class ModelError(OnnxrematError):
    """The file is not a valid or supported model, or the runtime refuses it."""

    exit_code: ClassVar[int] = 5


class VerificationError(OnnxrematError):
    """The rewritten model differs from the original, or uses more memory than promised."""

    exit_code: ClassVar[int] = 6


class LimitExceededError(OnnxrematError):
    """`--fail-above`: a model takes more than the given size."""

    exit_code: ClassVar[int] = 7


class Interrupted(OnnxrematError):
    """Ctrl-C before any plan met the limit."""

    exit_code: ClassVar[int] = 130
