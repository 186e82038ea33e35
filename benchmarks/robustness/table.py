"""The table of a run of the benchmark, in Markdown."""

import os
import platform
import sys
from collections.abc import Sequence

import onnx
import onnxruntime

import onnxremat
from benchmarks.robustness.judging import Line
from benchmarks.tables import commit, markdown

_HEADER = ("part", "what", "tried", "found", "does not hold", "verdict")
_MOST_WORDS, _MOST_FAULTS = 160, 60


def document(lines: Sequence[Line], reasons: str, seconds: float) -> str:
    """Where it was made, the lines, the reasons of refusals, and the faults one by one."""
    load = os.getloadavg()[0]
    parts = [
        f"Made at commit {commit()} with onnxremat {onnxremat.__version__}, onnx "
        f"{onnx.__version__}, ONNX Runtime {onnxruntime.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} processors, in {seconds / 60:.0f} minutes; "
        f"load at the end {load:.1f}. Command: `python -m benchmarks.robustness"
        f"{''.join(f' {word}' for word in sys.argv[1:])}`.",
        markdown(_HEADER, (_cells(line) for line in lines)),
    ]
    if reasons:
        parts += [
            "Models of the backend suite that ONNX Runtime runs, and why they are refused:",
            reasons,
        ]
    wrong = [fault for line in lines for fault in line.faults]
    if wrong:
        shown = [f"- {_plain(fault)}" for fault in wrong[:_MOST_FAULTS]]
        if len(wrong) > len(shown):
            shown.append(f"- and {len(wrong) - len(shown)} more")
        parts += ["What does not hold:", "\n".join(shown)]
    return "\n\n".join(parts) + "\n"


def reason_rows(reasons: Sequence[tuple[str, int, int, str]]) -> str:
    """The table of refusals, empty if there are none."""
    if not reasons:
        return ""
    rows = [(limit, str(code), str(count), names) for limit, code, count, names in reasons]
    return markdown(("limit", "exit code", "models", "such as"), rows)


def _cells(line: Line) -> tuple[str, ...]:
    verdict = "holds" if line.holds else "FAILED"
    return (line.part, line.what, str(line.count), line.found, str(len(line.faults)), verdict)


def _plain(text: str) -> str:
    """Short, and without what a terminal or Markdown would act on."""
    text = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text).replace("|", "\\|")
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 3] + "..."
