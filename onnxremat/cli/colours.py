"""What is coloured in a report: labels, sizes, and what is good or bad news.

Only the console decides whether anything is: there are no colours where standard output is no
terminal, where NO_COLOR is set, or where the terminal has none (TERM=dumb).
"""

import re

from rich.text import Text

_STYLES = {
    r"^[a-z][a-zA-Z -]*?(?=  |$)": "bold",
    r"\b\d+(\.\d+)? [kMGT]?B\b": "cyan",
    r"identical bit for bit|met as it is|\btaken$|it opens and runs": "green",
    r"\bDIFFER\b|\bimpossible\b|\brefused\b|\bnot planned\b": "red",
    "[\u2581-\u2588]+": "blue",
}
"""By pattern; later ones go over earlier ones."""


def coloured(report: str) -> Text:
    """A report with styles."""
    text = Text(report)
    for pattern, style in _STYLES.items():
        for match in re.finditer(pattern, report, re.MULTILINE):
            text.stylize(style, *match.span())
    return text
