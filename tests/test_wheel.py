"""The wheel: what it holds, that it runs outside the checkout, and how it is installed.

Installing it takes its dependencies from a package index, about a gigabyte: that is tried with
ONNXREMAT_INSTALL=1 in the environment, where the tool is there.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.contributing import ROOT

MOST_BYTES = 1_000_000
PACKAGES = {
    "onnxremat": ROOT / "onnxremat",
    "onnxremat_rewriters": ROOT / "rewriters/onnxremat_rewriters",
}
TOOLS = {
    "uv": (["tool", "install", "--python", sys.executable], ["tool", "uninstall", "onnxremat"]),
    "pipx": (["install", "--python", sys.executable], ["uninstall", "onnxremat"]),
}
"""How a command is installed from a wheel, and removed."""

EXTRAS = {"cuda", "dask", "dev", "docs", "olive"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def names(wheel: Path) -> list[str]:
    """The files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_it_holds_both_packages_whole_and_nothing_else(wheel: Path) -> None:
    there = {name for name in names(wheel) if ".dist-info/" not in name}
    tracked = ["git", "ls-files", "-z", *map(str, PACKAGES.values())]
    listed = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    ours = {path.removeprefix("rewriters/") for path in listed.split("\0") if path}
    if not ours:
        pytest.skip("this is no git checkout: there is no list of files to compare with")
    assert ours <= there
    assert {name.partition("/")[0] for name in there} == set(PACKAGES)
    assert not [name for name in there if name.endswith((".pyc", ".onnx", ".nbi", ".nbc"))]


def test_it_holds_types_licence_and_data(wheel: Path) -> None:
    there = names(wheel)
    assert {"onnxremat/py.typed", "onnxremat/targets/plan.schema.json"} <= set(there)
    assert "onnxremat_rewriters/recompute.py" in there
    assert any(name.endswith("licenses/LICENSE") for name in there)
    assert wheel.stat().st_size < MOST_BYTES


def test_its_extras_are_those_of_the_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (place,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        said = Parser().parsestr(archive.read(place).decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(said.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert set(project["optional-dependencies"]) >= EXTRAS


def test_it_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import onnxremat, onnxremat_rewriters, sys; print(onnxremat.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(site)


@pytest.mark.skipif(
    not os.environ.get("ONNXREMAT_INSTALL"), reason="installs from an index: ONNXREMAT_INSTALL=1"
)
@pytest.mark.parametrize("tool", TOOLS)
def test_it_is_installed_as_a_command_rewrites_and_is_removed(
    wheel: Path, unet: Path, tmp_path: Path, tool: str
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is missing")
    home, commands = tmp_path / "home", tmp_path / "bin"
    places = ("HOME", "UV_TOOL_DIR", "PIPX_HOME")
    bins = ("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= dict.fromkeys(places, str(home)) | dict.fromkeys(bins, str(commands))

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    install, remove = TOOLS[tool]
    run(tool, *install, wheel)
    command = commands / "onnxremat"
    assert "rewrite" in run(command, "--help")
    made = tmp_path / "small.onnx"
    limited = ("--session", "recipe", "--threads", "1", "--time-limit", "2", "--measure-limit", "1")
    run(command, "rewrite", unet, "--mem", "min", "-o", made, *limited)
    assert made.is_file()
    assert "identical" in run(command, "verify", unet, made, "--measure-limit", "1")
    run(tool, *remove)
    assert not command.exists()
