"""How long a child may take before it is held to run for ever, and how much memory.

A Loop need not end, and nothing tells before it runs. The first children of a model have
`Options.run_limit` seconds each, for opening it and, at most, three runs. What came to an end once
says what later ones need: they have that long again, LATER times over, if that is more. They do
more runs, under tools that slow them down, also of rewritten models, but never so much more. What a
child is told to spend comes on top.

A Loop that does not end may also keep what it makes. No child may ask for more memory than the
machine has, nor for more than `Options.run_memory`.
"""

from contextvars import ContextVar
from dataclasses import dataclass

RUN_SECONDS = 600.0
"""For a child, unless the user says how long."""

LATER = 20


@dataclass
class RunLimit:
    """`granted_seconds` and `memory_bytes` are the user's (None: what there is); `longest_seconds`
    is what a child took so far that came to its end."""

    granted_seconds: float = RUN_SECONDS
    memory_bytes: int | None = None
    longest_seconds: float = 0.0

    def seconds(self) -> float:
        """What the next child may take."""
        return max(self.granted_seconds, LATER * self.longest_seconds)

    def learn(self, seconds: float) -> None:
        """A child took so long, and ended by itself."""
        self.longest_seconds = max(self.longest_seconds, seconds)


_current: ContextVar[RunLimit] = ContextVar("run limit")


def limit_runs(seconds: float, memory_bytes: int | None = None) -> None:
    """From now on children have `seconds` each, and `memory_bytes` at most (None: what there is):
    another model, of which nothing is known yet."""
    _current.set(RunLimit(seconds, memory_bytes))


def current_limit() -> RunLimit:
    """The limit that holds in this thread, and what it has learned."""
    try:
        return _current.get()
    except LookupError:
        limit_runs(RUN_SECONDS)
        return _current.get()
