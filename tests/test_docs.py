"""Does the documentation tell the truth? Its Python runs against a lab, its commands exist, its links lead somewhere.

A page's `python` blocks are one script, run in order; a block that starts with `# test_….py` is a file for pytest.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tinker_deadlines.lab import Lab

ROOT = Path(__file__).resolve().parent.parent
# The pages of the lab are tested where the lab is.
_PAGES = ("index", "tutorial", "policies", "liveness", "recovery", "errors", "testing")
PAGES = [ROOT / name for name in ("README.md", *(f"docs/{page}.md" for page in _PAGES))]
ALL_PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def blocks_of(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(command: list[str], lab: Lab, place: Path, warnings: str = "error") -> None:
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "TINKER_BASE_URL": lab.url, "TINKER_API_KEY": "tml-lab", "PYTHONWARNINGS": warnings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_on_the_page_runs(page: Path, tinker_lab: Lab, tmp_path: Path) -> None:
    """Every Python block of the page works, in the order of the page, with its own assertions."""
    # A model of the lab takes the place of the real one; nothing else is changed.
    blocks = [block.replace("Qwen/Qwen3-8B", tinker_lab.base_model) for block in blocks_of(page, "python")]
    script = "\n".join(block for block in blocks if not block.startswith("# test_"))
    # The SDK leaves its connections to the end of the process, where Python warns of each.
    script = f"import warnings\nwarnings.simplefilter('ignore', ResourceWarning)\n{script}"
    (tmp_path / "page.py").write_text(script, encoding="utf-8")
    run([sys.executable, "page.py"], tinker_lab, tmp_path)


@pytest.mark.parametrize("page", [ROOT / "docs" / "testing.md"], ids=lambda page: page.stem)
def test_tests_on_the_page_pass(page: Path, tinker_lab: Lab, tmp_path: Path) -> None:
    """Test files that the page shows pass, in a project that has nothing but the package."""
    files = [block for block in blocks_of(page, "python") if block.startswith("# test_")]
    assert files
    for block in files:
        name = block.split("\n", 1)[0].removeprefix("# ").strip()
        (tmp_path / name).write_text(block, encoding="utf-8")
    run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."],
        tinker_lab,
        tmp_path,
        warnings="",
    )


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the repository names one that exists."""
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    files = [target for target in targets if not target.startswith(("http:", "https:", "mailto:"))]
    assert [target for target in files if not (page.parent / target).exists()] == []


def commands_of(page: Path) -> list[str]:
    lines = "".join([*blocks_of(page, "sh"), *blocks_of(page, "console")]).splitlines()
    return [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_make_targets_on_the_page_exist(page: Path) -> None:
    """`make …` in a shell block names a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = [shlex.split(line)[1] for line in commands_of(page) if line.startswith("make ")]
    assert [target for target in named if target not in targets] == []


def test_options_on_the_pages_exist() -> None:
    """Every `tinker-deadlines COMMAND --option` that the documentation shows is one that the command has."""
    shown: dict[str, set[str]] = {}
    for page in ALL_PAGES:
        for line in commands_of(page):
            words = shlex.split(line)
            if "tinker-deadlines" not in words[:1] or len(words) < 2 or words[1].startswith("-"):
                continue
            # What follows the script belongs to the script.
            ours = words[2 : next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))]
            shown.setdefault(words[1], set()).update(word for word in ours if word.startswith("--"))
    assert set(shown) <= {"run", "lab", "demo", "record", "replay", "explain"}
    for command, options in shown.items():
        told = subprocess.run(
            [sys.executable, "-m", "tinker_deadlines", command, "--help"],
            env={**os.environ, "COLUMNS": "300"},
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        ).stdout
        assert [option for option in options if option not in told] == []
