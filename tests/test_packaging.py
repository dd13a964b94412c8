"""Is what was installed complete? Metadata, type marker, entry points, and the hook that Python reads at its start."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import tinker_deadlines
from tinker_deadlines.limits import DEFAULT_DEADLINES_S

pytestmark = pytest.mark.matrix
DISTRIBUTION = importlib.metadata.distribution("tinker-deadlines")
HOOK = "tinker_deadlines_hook.pth"


def test_the_version_is_said_once() -> None:
    """The version of the distribution is that of the package."""
    assert DISTRIBUTION.version == tinker_deadlines.__version__


def test_the_core_depends_on_nothing() -> None:
    """Every requirement belongs to an extra."""
    assert [line for line in DISTRIBUTION.requires or () if "extra ==" not in line] == []


def test_the_extras_are_those_that_the_readme_names() -> None:
    """`cli`, `lab`, `record`, `postgres`, `recovery` and `all`."""
    assert sorted(DISTRIBUTION.metadata.get_all("Provides-Extra") or ()) == [
        "all",
        "cli",
        "lab",
        "postgres",
        "record",
        "recovery",
    ]


def test_type_checkers_may_read_the_package() -> None:
    """`py.typed` is installed."""
    assert importlib.resources.files("tinker_deadlines").joinpath("py.typed").is_file()


def test_entry_points_name_the_command_and_the_pytest_plugin() -> None:
    """The command and the fixtures are found by their names."""
    found = {(point.group, point.name): point.value for point in DISTRIBUTION.entry_points}
    assert found == {
        ("console_scripts", "tinker-deadlines"): "tinker_deadlines.cli:main",
        ("pytest11", "tinker_deadlines_lab"): "tinker_deadlines.lab.pytest_plugin",
    }


def hook() -> Path:
    return Path(sysconfig.get_path("purelib")) / HOOK


def test_the_hook_stands_where_python_reads_it() -> None:
    """The `.pth` file is in the root of site-packages, and is one line that starts with `import`."""
    (line,) = hook().read_text(encoding="utf-8").splitlines()
    assert line.startswith("import ")


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


WHO_DEFINES_SAMPLE = "import tinker; print(tinker.SamplingClient.sample.__code__.co_filename)"


def test_a_process_with_the_variable_is_bounded_when_it_imports_the_sdk() -> None:
    """`TINKER_DEADLINES_INSTALL=1` is all that a worker process needs."""
    assert "tinker_deadlines" in run_python(WHO_DEFINES_SAMPLE, TINKER_DEADLINES_INSTALL="1")


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_a_process_without_it_is_left_alone(value: str) -> None:
    """Any other value, or none, changes nothing."""
    assert "tinker_deadlines" not in run_python(WHO_DEFINES_SAMPLE, TINKER_DEADLINES_INSTALL=value)


def test_the_hook_imports_nothing_of_ours_unless_it_is_asked() -> None:
    """Every Python in the environment reads the hook at its start: it must cost nothing."""
    code = "import sys; print([name for name in sys.modules if name.startswith('tinker')])"
    assert run_python(code) == "[]"


ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_documented_limits_are_the_shipped_ones(page: str) -> None:
    """The table of limits in the README and the tutorial has each kind with its number of seconds."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert {kind: float(seconds) for kind, seconds in rows} == DEFAULT_DEADLINES_S


def test_the_change_log_tells_of_this_version() -> None:
    """CHANGELOG.md has a section for the version, or one for what is not released yet."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[(Unreleased|{re.escape(tinker_deadlines.__version__)})\]", text, re.MULTILINE)
