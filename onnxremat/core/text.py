"""Text from files and users, made fit for one line of a terminal.

Names in a model are whatever its author wrote. A terminal obeys some characters (escape sequences
move the cursor, clear the screen, change the title), line breaks make lines that look like this
program's own, and marks of direction turn a line around.
"""

ELLIPSIS = " ... "


def printable(text: str, longest: int | None = None) -> str:
    """`text` on one line: what is not printable stands as its Python escape (`\\x1b`, `\\n`).

    Of more than `longest` characters the middle is left out. What is printable already comes back
    unchanged, so that to do it twice is to do it once.
    """
    if longest is not None:
        text = _shortened(text, 10 * longest)  # An escape has ten characters at most.
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if longest is None else _shortened(text, longest)


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = (longest - len(ELLIPSIS)) // 2
    return text[: longest - len(ELLIPSIS) - end] + ELLIPSIS + text[len(text) - end :]
