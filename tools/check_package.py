"""Do the wheel and the sdist work for somebody who has neither the repository nor the SDK?

Builds both, looks into them, and installs each into an empty environment: without extras, where importing works and
the command says in one sentence what it needs; and with them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
IN_WHEEL = ("tinker_deadlines/py.typed", "tinker_deadlines/__init__.py", "tinker_deadlines_hook.pth")
IN_SDIST = (
    "src/tinker_deadlines/py.typed",
    "src/tinker_deadlines_hook.pth",
    "tests/conftest.py",
    "docs/index.md",
    "benchmarks/run.py",
    "tools/matrix.py",
    "Makefile",
    "mkdocs.yml",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
)
USED_WITHOUT_EXTRAS = """
import sys
from concurrent.futures import Future
import tinker_deadlines
future = Future()
future.set_result(7)
assert tinker_deadlines.wait_with_deadline("sample", future) == 7
assert tinker_deadlines.call_with_deadline("connect", lambda: 7) == 7
assert "tinker" not in sys.modules
"""


def main() -> int:
    """Builds and tries everything; the first thing that is wrong ends it with a sentence."""
    wheel, sdist = build()
    look_into(wheel, sdist)
    with tempfile.TemporaryDirectory() as place:
        for archive in (wheel, sdist):
            try_without_extras(archive, Path(place) / archive.suffix.strip("."))
        try_with_extras(wheel, Path(place) / "whl")
    print(f"{wheel.name} and {sdist.name} are complete, install cleanly and work.")
    return 0


def build() -> tuple[Path, Path]:
    """Builds the sdist, the wheel from it, and checks their metadata."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    wheel, sdist = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def look_into(wheel: Path, sdist: Path) -> None:
    """Checks that both hold what they must, and nothing that is not meant for them."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expect(not set(IN_WHEEL) - names, f"the wheel lacks {sorted(set(IN_WHEEL) - names)}")
    expect(any(name.endswith("licenses/LICENSE") for name in names), "the wheel lacks its licence")
    strangers = {name.split("/")[0] for name in names} - {"tinker_deadlines", "tinker_deadlines_hook.pth"}
    expect(len(strangers) == 1, f"the wheel holds more than the package: {sorted(strangers)}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    expect(not set(IN_SDIST) - inside, f"the sdist lacks {sorted(set(IN_SDIST) - inside)}")


def try_without_extras(archive: Path, place: Path) -> None:
    """Installs an archive alone: the library works, the command says what it needs."""
    run(sys.executable, "-m", "venv", place)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "-qq", archive)
    frozen = run(python, "-m", "pip", "list", "--format=freeze").lower().split()
    others = [line for line in frozen if not line.startswith(("pip=", "setuptools=", "tinker-deadlines="))]
    expect(not others, f"{archive.name} installs more than itself: {others}")
    run(python, "-W", "error", "-c", USED_WITHOUT_EXTRAS)
    told = subprocess.run([place / "bin" / "tinker-deadlines", "--help"], capture_output=True, text=True, check=False)
    said = (told.stdout + told.stderr).strip()
    expect(told.returncode == 2, f"without the cli extra the command ended with {told.returncode}: {said}")
    expect("tinker-deadlines[cli]" in said and len(said.splitlines()) == 1, f"no plain sentence, but: {said}")
    hooked = subprocess.run(
        [python, "-c", "print('quiet')"],
        env={**os.environ, "TINKER_DEADLINES_INSTALL": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    expect(hooked.stdout + hooked.stderr == "quiet\n", f"the .pth hook without the SDK says {hooked.stderr}")


def try_with_extras(wheel: Path, place: Path) -> None:
    """Adds the extra of the command line: help and version. The other extras are tried in every cell of the matrix."""
    run(place / "bin" / "python", "-m", "pip", "install", "-qq", "--no-compile", f"{wheel}[cli]")
    command = place / "bin" / "tinker-deadlines"
    expect("run" in run(command, "--help"), "the help does not name the commands")
    expect(wheel.name.split("-")[1] in run(command, "--version"), "the version is not that of the wheel")


def run(*command: str | Path) -> str:
    """Runs a command that must succeed; returns what it said."""
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=DIST if DIST.exists() else ROOT, env=variables,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    expect(done.returncode == 0, f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(fact: bool, otherwise: str) -> None:
    """Ends the check with a sentence when something is wrong."""
    if not fact:
        sys.exit(f"The package is not right: {otherwise}")


if __name__ == "__main__":
    sys.exit(main())
