"""The page of an audit without a browser: what is in it, and what is not."""

import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onnxremat.cli.app import app
from onnxremat.cli.pages.audit_page import audit_html
from onnxremat.cli.pages.shell import page_data
from onnxremat.commands.anonymity import without_names
from onnxremat.core.errors import UsageError
from onnxremat.core.units import format_bytes
from tests.cli.inspections import MARK, inspection

MOST_BYTES = 2_000_000


def held(session: dict[str, Any], layer: int | None = None) -> list[int]:
    """The bytes of values in each step, of one layer by tensor or of all."""
    values, steps = session["values"], len(session["steps"]["name"])
    layers = session["stacks"]["tensor"]["layer"]
    change = [0] * (steps + 1)
    for i, nbytes in enumerate(values["bytes"]):
        if layer is None or layers[i] == layer:
            change[values["start"][i]] += nbytes
            change[values["end"][i]] -= nbytes
    return list(accumulate(change))[:-1]


def test_what_the_script_draws_adds_up_to_the_peak() -> None:
    made = inspection()
    data = page_data(audit_html(made))
    for told, timeline in zip(data["models"][0]["sessions"], made.first.timelines, strict=True):
        total = [a + b for a, b in zip(held(told), told["steps"]["work"], strict=True)]
        assert tuple(total) == timeline.live_bytes
        assert max(total) == total[told["peakStep"]] == told["peak"] == timeline.peak_bytes
        labels = told["stacks"]["tensor"]["labels"]
        assert len(labels) == 13 and labels[-1].endswith("others")
        layers = [held(told, i) for i in range(len(labels))]
        assert [sum(column) for column in zip(*layers, strict=True)] == held(told)


def test_words_and_tables_are_there_without_a_script() -> None:
    made = inspection()
    page = audit_html(made)
    text = re.sub(r"<[^>]*>", " ", page.partition("<script")[0])
    timeline = made.audit.timeline
    assert f"{format_bytes(timeline.peak_bytes)}  at step {timeline.peak_step + 1} of 60" in text
    biggest = timeline.values[timeline.held_at(timeline.peak_step)[0]]
    assert biggest.name[:20] in text and timeline.steps[biggest.maker].name[:20] in text
    for words in (
        "measured",
        "predicted",
        "can be made again",
        "while it is opened",
        "no schedule",
    ):
        assert words in text
    assert "private_model.onnx" in text


def test_names_are_escaped() -> None:
    made = inspection()
    step = made.first.timelines[0].steps[0]
    object.__setattr__(step, "name", '<img src="x">/<b>')
    page = audit_html(made)
    assert "<img" not in page


@pytest.mark.parametrize("second", [False, True])
def test_an_anonymous_page_has_no_name_of_the_model(second: bool) -> None:
    made = inspection(second=second)
    assert MARK in audit_html(made)
    page = audit_html(without_names(made))
    data = page_data(page)
    for text in (page, str(data)):
        assert MARK not in text.lower() and "secret" not in text.lower()
    assert {"MatMul", "Add", "custom1"} <= set(data["names"])
    assert data["models"][0]["sessions"][0]["peak"] == made.audit.timeline.peak_bytes


def test_neutral_names_are_the_same_everywhere_and_keep_scopes() -> None:
    made = inspection(second=True)
    told = without_names(made)
    assert told.second is not None and made.second is not None
    pairs = {}
    for before, after in (
        (made.first.timelines[0], told.first.timelines[0]),
        (made.second.timelines[0], told.second.timelines[0]),
        (made.audit.timeline, told.audit.timeline),
    ):
        assert before.live_bytes == after.live_bytes
        for one, other in zip(
            (*before.steps, *before.values), (*after.steps, *after.values), strict=True
        ):
            assert pairs.setdefault(one.name, other.name) == other.name
    assert len(set(pairs.values())) == len(pairs)
    scopes = {name.rpartition("/")[0] for name in (s.name for s in told.audit.timeline.steps)}
    assert len(scopes) == len({s.name.rpartition("/")[0] for s in made.audit.timeline.steps})


def test_a_page_asks_for_nothing_and_forbids_itself_to() -> None:
    page = audit_html(inspection())
    assert "default-src 'none'" in page
    assert not re.search(r"<(link|img|iframe)\b|<script[^>]*src=|@import|url\(", page)
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert addresses <= {"https://github.com/leeoniya/uPlot"}
    assert "Copyright (c) 2022 Leon Sorokin" in page


def test_twenty_thousand_nodes_are_less_than_two_megabytes() -> None:
    page = audit_html(inspection(20_000))
    assert len(page.encode()) < MOST_BYTES
    assert len(page_data(page)["models"][0]["sessions"][0]["steps"]["name"]) == 20_000


@pytest.mark.parametrize("words", [["--with", "b.onnx"], ["--anonymous"]])
def test_what_is_for_the_page_goes_with_it(words: list[str]) -> None:
    ended = CliRunner().invoke(app, ["audit", "a.onnx", *words])
    assert isinstance(ended.exception, UsageError) and f"{words[0]} goes with --html" in str(
        ended.exception
    )


def test_a_page_that_would_replace_the_model_is_refused(unet: Path) -> None:
    before = unet.read_bytes()
    for words in ([str(unet)], [str(unet.parent)]):
        ended = CliRunner().invoke(app, ["audit", str(unet), "--html", *words])
        assert isinstance(ended.exception, UsageError)
    assert unet.read_bytes() == before
