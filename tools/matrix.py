"""Does the contract with the SDK hold in every supported version, on every supported Python?

Builds the wheel once, installs it with each SDK version into an environment of its own under `.matrix/`, runs the
tests marked `matrix` there, and prints a table. A Python that is not on this machine is said to be absent; a cell
that fails makes the whole command fail.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".matrix"
SDKS = ("0.25.0", "0.30.4", "0.36.0", "0.38.0")
PYTHONS = ("3.11", "3.12", "3.13")
CELL_LIMIT_S = 1800
# Tests wait for real servers, and two cells at a time may hold each other up for longer than a test allows. A few that
# failed are run once more when everything else is over, and the table says so.
MOST_TRIED_AGAIN = 2
# Leaves without taking the interpreter down in good order: by then, the SDK's daemon threads hold a hundred sessions
# that the tests have broken on purpose, and Python 3.11 may crash while it takes their modules away under them. How
# processes end is tested with processes of their own.
RUN_PYTEST = "import os, sys, pytest; code = pytest.main(); sys.stdout.flush(); sys.stderr.flush(); os._exit(code)"


class Cell(NamedTuple):
    """One SDK version on one Python."""

    sdk: str
    python: str
    quick: bool = False

    @property
    def name(self) -> str:
        """What its environment and its log are called."""
        return f"sdk-{self.sdk}-python-{self.python}"

    @property
    def log(self) -> Path:
        """Where everything goes that its commands say."""
        return PLACE / f"{self.name}.log"


class Verdict(NamedTuple):
    """How a cell ended: what the table shows, whether the command may succeed, and how many of its tests failed."""

    text: str
    good: bool
    failed: int = 0


def main() -> int:
    """Runs the cells that were asked for; 0 when none failed and at least one ran."""
    options = read_options()
    cells = [Cell(sdk, python, options.quick) for python in options.python for sdk in options.sdk]
    if options.quick:
        # The oldest SDK, the last one before 0.38, and the newest on each later Python. The newest SDK on the oldest
        # Python is what the whole suite runs on anyway.
        cells = [
            cell for cell in cells if (cell.python == PYTHONS[0]) != (cell.sdk == SDKS[-1]) and cell.sdk != SDKS[1]
        ]
    interpreters = {python: find_python(python) for python in options.python}
    PLACE.mkdir(exist_ok=True)
    wheel = build_wheel()

    def try_cell(cell: Cell) -> Verdict:
        interpreter = interpreters[cell.python]
        if interpreter is None:
            return Verdict("absent", good=True)
        started = time.monotonic()
        verdict = run_cell(cell, interpreter, wheel)
        print(f"{cell.name}: {verdict.text} ({time.monotonic() - started:.0f} s)", flush=True)
        return verdict

    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = dict(zip(cells, pool.map(try_cell, cells), strict=True))
    for cell, verdict in verdicts.items():
        if 0 < verdict.failed <= MOST_TRIED_AGAIN:
            verdicts[cell] = try_again(cell, verdict)
    print_table(verdicts, options)
    for python in (python for python, found in interpreters.items() if found is None):
        print(f"Python {python} was not found on this machine: its cells were not run.")
    for cell in (cell for cell, verdict in verdicts.items() if not verdict.good):
        print(f"\n--- the end of {cell.log.relative_to(ROOT)}:\n{tail_of(cell.log)}")
    ran = [cell for cell in cells if interpreters[cell.python] is not None]
    return 0 if ran and all(verdict.good for verdict in verdicts.values()) else 1


def read_options() -> argparse.Namespace:
    """Reads which cells to run, and how many at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sdk", nargs="+", default=SDKS, help="SDK versions (default: all that are supported)")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="Python versions (default: all supported)")
    parser.add_argument("--quick", action="store_true", help="some cells, and without recovery")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="cells at a time")
    return parser.parse_args()


def find_python(version: str) -> str | None:
    """Finds an interpreter of this version that can make environments: on the path, then among pyenv's."""
    found = [path for folder in os.get_exec_path() if (path := Path(folder) / f"python{version}").exists()]
    roots = [Path(root) for root in (os.environ.get("PYENV_ROOT"), pyenv_root(), Path.home() / ".pyenv") if root]
    for root in roots:
        found += sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)
    check = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
    for path in found:
        said = subprocess.run([path, "-c", check], capture_output=True, text=True, check=False).stdout.strip()
        if said == version:
            return str(path)
    return None


def pyenv_root() -> str | None:
    """Asks pyenv, where there is one, for the folder of its versions."""
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return None
    return subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False).stdout.strip() or None


def build_wheel() -> Path:
    """Builds the wheel that every cell installs."""
    shutil.rmtree(PLACE / "dist", ignore_errors=True)
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", PLACE / "dist", ROOT]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"The wheel cannot be built:\n{done.stdout}{done.stderr}")
    return next((PLACE / "dist").glob("*.whl"))


def run_cell(cell: Cell, interpreter: str, wheel: Path) -> Verdict:
    """Sets up the cell's environment, unless it is there from last time, and runs its tests."""
    cell.log.write_text("")
    try:
        set_up(cell, interpreter, wheel)
    except subprocess.CalledProcessError as error:
        return Verdict(f"not installed (exit {error.returncode})", good=False)
    except subprocess.TimeoutExpired:
        return Verdict(f"not installed within {CELL_LIMIT_S} s", good=False)
    try:
        code = run(tests_of(cell), cell.log)
    except subprocess.TimeoutExpired:
        return Verdict(f"not finished in {CELL_LIMIT_S} s", good=False)
    # What the interpreter says on its way out may come after pytest's closing line.
    closing = re.findall(r"^\d+ .* in [\d.]+s.*$", cell.log.read_text(errors="replace"), re.MULTILINE)
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", closing[-1] if closing else "")
    said = ", ".join(" ".join(count) for count in counts)
    if code and "failed" not in said and "error" not in said:
        said = f"{said}, then ended with {code}" if said else f"ended with {code}"
    failed = next((int(number) for number, what in counts if what == "failed"), 0)
    return Verdict(said, good=code == 0, failed=0 if "error" in said else failed)


def tests_of(cell: Cell) -> list[str | Path]:
    """The command that runs a cell's tests on what is installed there, which is never `src/`."""
    place = PLACE / cell.name
    return [
        place / "bin" / "python", "-c", RUN_PYTEST, "-m", "matrix", "-p", "no:xdist", "-q",
        # It takes a minute of each cell, and little of it depends on the version.
        *(["--ignore=tests/recovery"] if cell.quick else []),
        "-o", f"cache_dir={place / 'pytest_cache'}",
    ]  # fmt: skip


def try_again(cell: Cell, verdict: Verdict) -> Verdict:
    """Runs the few tests of a cell that failed once more, alone."""
    try:
        code = run([*tests_of(cell), "--last-failed"], cell.log)
    except subprocess.TimeoutExpired:
        return Verdict(f"{verdict.text}, and not finished in {CELL_LIMIT_S} s alone", good=False)
    text = f"{verdict.text}, {'which passed' if code == 0 else 'again'} when run alone"
    print(f"{cell.name}: {text}", flush=True)
    return Verdict(text, good=code == 0, failed=verdict.failed)


def set_up(cell: Cell, interpreter: str, wheel: Path) -> None:
    """Makes the environment of a cell; one that fits is kept, and only our own wheel is installed anew."""
    place = PLACE / cell.name
    python = place / "bin" / "python"
    recipe = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + interpreter.encode()).hexdigest()
    stamp = place / "recipe"
    pip = [python, "-m", "pip", "install", "-qq", "--no-compile"]
    if not stamp.exists() or stamp.read_text() != recipe:
        shutil.rmtree(place, ignore_errors=True)
        run([interpreter, "-m", "venv", place], cell.log, check=True)
        run([*pip, "--upgrade", "pip>=25.1"], cell.log, check=True)
        run(
            [*pip, f"{wheel}[all]", f"tinker=={cell.sdk}", "--group", f"{ROOT}/pyproject.toml:test"],
            cell.log,
            check=True,
        )
        stamp.write_text(recipe)
    run([*pip, "--force-reinstall", "--no-deps", wheel], cell.log, check=True)


def run(command: list[str | Path], log: Path, *, check: bool = False) -> int:
    """Runs a command with its output in the cell's log."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PYTHONFAULTHANDLER"] = "1"
    with log.open("a") as output:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            timeout=CELL_LIMIT_S, check=check,
        )  # fmt: skip
    return done.returncode


def tail_of(log: Path, lines: int = 40) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-lines:])


def print_table(verdicts: dict[Cell, Verdict], options: argparse.Namespace) -> None:
    """Prints SDK versions down, Pythons across."""

    def shown(cell: Cell) -> str:
        verdict = verdicts.get(cell)
        return "not asked for" if verdict is None else verdict.text if verdict.good else f"FAILED: {verdict.text}"

    rows = [["tinker", *(f"Python {python}" for python in options.python)]]
    rows += [[sdk, *(shown(Cell(sdk, python)) for python in options.python)] for sdk in options.sdk]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
