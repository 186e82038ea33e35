"""Every command and piece of code that a page shows is run, or says why it is not."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from onnxremat.cli.app import app
from tests.contributing import ROOT
from tests.shown import CODE, RUNNABLE, Block, blocks, shortened, without_numbers

DOCUMENTS = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES = [page for page in DOCUMENTS if blocks(page)]
ALL = bool(os.environ.get("ONNXREMAT_DOCUMENTS"))
"""Whether what takes long is run, too, and everything as it is shown."""

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SECONDS = 900 if ALL else 60
SHIMS = {
    "python": f'exec "{sys.executable}" "$@"\n',
    "onnxremat": f'exec "{sys.executable}" -m onnxremat "$@"\n',
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One in which `python` and `onnxremat` are those that are tested."""
    folder = tmp_path_factory.mktemp("bin")
    for name, script in SHIMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'rewriters'}"}


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_what_a_page_shows_does_what_it_says(
    page: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    for block in blocks(page):
        assert block.mark == "not run" or block.language in RUNNABLE, f"{block.place}: say why not"
        if block.mark in ("not run", "run when asked"):
            assert block.reason, f"{block.place}: the mark has no reason"
        if block.mark == "not run" or (block.mark == "run when asked" and not ALL):
            continue
        done = _run(block, tmp_path, environment)
        assert done.returncode == block.exit_code, (
            f"{block.place} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        if ALL:
            printed = set(map(without_numbers, (done.stdout + done.stderr).split("\n")))
            for line in block.said:
                assert without_numbers(line) in printed, f"{block.place}: not printed: {line}"


def _run(
    block: Block, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    if block.language == "python":
        command = [sys.executable, "-c", block.text]
    else:
        commands = block.commands if ALL else shortened(block.commands)
        command = ["bash", "-euo", "pipefail", "-c", commands]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _shown_commands(page: Path) -> list[list[str]]:
    """The words behind `onnxremat` in each command of a page, those between backticks included."""
    text = page.read_text(encoding="utf-8")
    inline = re.findall(r"`(onnxremat [^`]+)`", text)
    lines = [
        one for block in blocks(page) for one in block.commands.replace("\\\n", " ").split("\n")
    ]
    found = []
    for line in [*inline, *lines]:
        for part in re.split(r"&&|\|\||[|;]", line):
            words = shlex.split(part, comments=True) if "onnxremat " in part else []
            starts = [at for at, word in enumerate(words) if Path(word).name == "onnxremat"]
            if starts and len(words) > starts[0] + 1:
                found.append(words[starts[0] + 1 :])
    return found


@pytest.mark.parametrize("page", DOCUMENTS, ids=_name)
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    for name, *words in _shown_commands(page):
        if name.startswith("-") or not name.islower():
            continue  # --version, or COMMAND in a sentence
        assert name in COMMANDS, name
        known = {
            option for one in COMMANDS[name].params for option in (*one.opts, *one.secondary_opts)
        }
        given = {word for word in words if word.startswith("-") and word != "-"}
        assert given - {"--help"} <= known, f"{name}: {given - known}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=_name)
def test_no_command_hides_from_these_tests(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    hidden = re.findall(r"^ {4,}(?:\$ )?(?:onnxremat|python|pip|npm|uv|pipx) .*", text, re.M)
    assert not hidden, "put it into a fenced block"
    for found in re.finditer(r"^( *)```\n(.*?)^\1```", page.read_text("utf-8"), re.M | re.S):
        assert not re.search(r"^\s*\$ ", found[2], re.M), "a console needs its language: console"


def test_marks_are_understood(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: why -->\n```sh\nfalse\n```\n\ntext\n```python\n1\n```\n"
        "<!-- exit code 4 -->\n```console\n$ one \\\n  two\nsaid\n$ three\n```\n",
        encoding="utf-8",
    )
    first, second, third = blocks(page)
    assert (first.mark, first.reason, first.line) == ("not run", "why", 2)
    assert (second.mark, second.language, second.exit_code) == ("", "python", 0)
    assert (third.exit_code, third.commands) == (4, "one \\\n  two\nthree\n")
    assert third.said == ["said"]
    assert set(RUNNABLE) < set(CODE)


def test_commands_are_shortened_by_what_stands_first() -> None:
    short = shortened("python -m models unet --size 96 -o a && onnxremat rewrite a --mem 60%")
    assert short.startswith(
        "python -m models unet --size 32 --levels 2 --base 8 --size 96 -o a && "
    )
    assert "rewrite --time-limit 0.3 --measure-limit 0 --threads 1 a --mem 60%" in short
