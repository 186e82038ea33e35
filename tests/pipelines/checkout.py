"""What of the repository other tools install: a git repository of its own, or a folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_NEEDED = (
    *("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml", "action.yml"),
    *("onnxremat", "rewriters"),
)


def copied(folder: Path) -> Path:
    """The files that a package is built of."""
    folder.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in _NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def committed(folder: Path) -> str:
    """Make a git repository of a folder; its only commit."""
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for arguments in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "All"]):
        subprocess.run(["git", *arguments], cwd=folder, env=plain_environment(), check=True)
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, env=plain_environment(), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return found.stdout.strip()


def plain_environment() -> dict[str, str]:
    """This environment without what git sets for its hooks."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def offline_environment(**more: str) -> dict[str, str]:
    """One in which pip installs a folder alone: with no dependency and nothing from a network.
    What the package needs is found in the packages of this process."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    packages.append(sysconfig.get_path("purelib"))
    return plain_environment() | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(packages)),
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the wrong way round
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **more,
    }
