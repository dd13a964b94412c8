"""Is the house in order? What may import what, how large things are, and what `import tinker_deadlines` costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinker_deadlines

PACKAGE = "tinker_deadlines"
# Not the installed package: where that is a wheel, it is the same files, but the rules are for the people who edit.
SOURCE = Path(__file__).resolve().parent.parent / "src" / PACKAGE
# A room may import from itself and from rooms to its left. Rooms that are not built yet have their place already.
_BELOW = "clock calls home limits errors classification attribution policy budgets waiting liveness recovery sdk"
_ABOVE = "record remember replay show lab testing launch demo cli"
ROOMS = f"{_BELOW} {_ABOVE}".split()
EXEMPT = ("__init__", "__main__")
HEAVY = ("tinker", "numpy", "sqlalchemy", "plotly", "opentelemetry.sdk", "rich", "typer", "httpx", "asyncio")
MAX_IMPORT_S = 0.1
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 50

MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, absolute, with its line: at the top, in functions, for type checkers."""
    package = [PACKAGE, *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                # A module (`from tinker_deadlines import clock`) or a name of one: either way it starts with the room.
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield node.lineno, str(argument.value)


def test_every_module_is_in_a_room_that_is_known() -> None:
    """A module that stands outside the house's list of rooms has no place in the order of imports."""
    assert {room_of(path) for path in MODULES} - {*ROOMS, *EXEMPT} == set()


def test_no_import_runs_backwards() -> None:
    """A module imports only from its own room and from those before it, lazily and for type checkers too."""
    backwards = []
    for path in MODULES:
        room = room_of(path)
        if room in EXEMPT:
            continue
        for line, module in imports_of(path):
            parts = module.split(".")
            if parts[0] != PACKAGE:
                continue
            target = parts[1] if len(parts) > 1 else ""
            if target not in ROOMS:
                backwards.append(f"{name_of(path)}:{line} imports {module} from the package itself, not from a room")
            elif ROOMS.index(target) > ROOMS.index(room):
                backwards.append(f"{name_of(path)}:{line} imports {module}, which comes after {room}")
    assert backwards == []


def test_only_the_sdk_room_and_the_lab_import_tinker() -> None:
    """Everything else works without the SDK; the demo's script is a training script like any other."""
    elsewhere = [
        f"{name_of(path)}:{line} imports {module}"
        for path in MODULES
        if room_of(path) not in ("sdk", "lab", "demo")
        for line, module in imports_of(path)
        if module.split(".")[0] == "tinker"
    ]
    assert elsewhere == []


def test_private_names_of_the_sdk_are_imported_in_one_module() -> None:
    """`sdk/private.py` alone imports names of tinker that start with an underscore, or asks for them by string."""
    elsewhere = []
    for path in MODULES:
        if path == SOURCE / "sdk" / "private.py":
            continue
        for line, module in imports_of(path):
            parts = module.split(".")
            if parts[0] == "tinker" and any(part.startswith("_") for part in parts):
                elsewhere.append(f"{name_of(path)}:{line} imports {module}")
            elif parts[0] == "tinker" and "internal_client_holder" in module:
                elsewhere.append(f"{name_of(path)}:{line} imports {module}, a private module of the SDK")
    assert elsewhere == []


def run_python(code: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.matrix
def test_importing_the_package_imports_nothing_heavy() -> None:
    """`import tinker_deadlines` costs a program that never meets the SDK next to nothing."""
    loaded = run_python(
        "import sys; before = set(sys.modules); import tinker_deadlines; print(*(set(sys.modules) - before))"
    ).split()
    found = [name for name in loaded if any(name == heavy or name.startswith(heavy + ".") for heavy in HEAVY)]
    assert found == []


def test_importing_the_package_takes_less_than_a_tenth_of_a_second() -> None:
    """The best of several runs, in CPU time of a new process, so that a busy machine does not matter."""
    code = "import time; t = time.process_time(); import tinker_deadlines; print(time.process_time() - t)"
    assert min(float(run_python(code)) for _ in range(5)) < MAX_IMPORT_S


@pytest.mark.parametrize("name", tinker_deadlines.__all__)
@pytest.mark.matrix
def test_every_public_name_is_there_and_documented(name: str) -> None:
    """Each name in `__all__` can be had; functions and classes say what they do, under their public path."""
    value = getattr(tinker_deadlines, name)
    if inspect.isroutine(value) or isinstance(value, type):
        assert inspect.getdoc(value), f"{name} has no docstring"
        first = (inspect.getdoc(value) or "").splitlines()[0]
        assert first.endswith((".", "?", ":", "`")) or len(first) > 60
    if isinstance(value, type) and issubclass(value, BaseException):
        assert value.__module__ == PACKAGE, "tracebacks show the public path"


def test_the_public_names_are_sorted_and_the_same_for_type_checkers() -> None:
    """`__all__` is sorted, and is what `__init__.py` defines and imports, lazily loaded names included."""
    tree = tree_of(SOURCE / "__init__.py")
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
        for alias in node.names
    }
    assert set(tinker_deadlines.__all__) == imported
    shown = ast.literal_eval(
        next(
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
        )
    )
    # As ruff sorts it: constants, classes, then functions.
    assert shown == sorted(shown, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """The lazy loading of names does not swallow mistakes."""
    with pytest.raises(AttributeError, match="no attribute 'instal'"):
        _ = tinker_deadlines.instal  # type: ignore[attr-defined]


def test_type_checked_names_match_the_public_ones() -> None:
    """`tests/typing/api.py`, which mypy checks, uses every public name."""
    tree = ast.parse((Path(__file__).parent / "typing" / "api.py").read_text(encoding="utf-8"))
    used = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE
        for alias in node.names
    }
    assert used == set(tinker_deadlines.__all__)


def test_modules_are_short() -> None:
    """A module answers one question, in at most 600 lines."""
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_functions_are_short() -> None:
    """A function has at most 50 lines, its docstring not counted."""
    long = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
                docstring = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1 if has_docstring else 0
                length = (node.end_lineno or 0) - node.lineno + 1 - docstring
                if length > MAX_FUNCTION_LINES:
                    long[f"{name_of(path)}:{node.lineno} {node.name}"] = length
    assert long == {}


def test_every_module_says_in_its_first_line_what_it_is_about() -> None:
    """The first line of each module is a sentence or a question."""
    speechless = [
        name_of(path)
        for path in MODULES
        if not (ast.get_docstring(tree_of(path)) or "").split("\n")[0].rstrip().endswith((".", "?", ":"))
    ]
    assert speechless == []


# Names of numbers that are seconds. A constant 0 or an infinite one is no policy.
SECONDS = ("_s", "_S", "timeout", "seconds", "delay")


def test_every_number_of_seconds_stands_in_limits() -> None:
    """Outside of the lab and of `limits.py` no literal number of seconds is given a name or passed as a time limit."""
    literal = []
    for path in MODULES:
        if room_of(path) in ("limits", "lab", "demo", "testing"):
            continue
        for node in ast.walk(tree_of(path)):
            for name, value in named_values(node):
                if (
                    isinstance(value, ast.Constant)
                    and isinstance(value.value, (int, float))
                    and value.value not in (0, -1, True, False)
                    and name.endswith(SECONDS)
                ):
                    literal.append(f"{name_of(path)}:{value.lineno} {name} = {value.value}")
    assert literal == []


def named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The values that a node gives to a name: assignments, keyword arguments, defaults of arguments, sleeps."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value
    elif isinstance(node, ast.arguments):
        named = [*node.posonlyargs, *node.args]
        yield from zip((arg.arg for arg in named[len(named) - len(node.defaults) :]), node.defaults, strict=True)
        yield from (
            (arg.arg, value) for arg, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value is not None
        )
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep":
        yield from (("delay", argument) for argument in node.args[:1])


@pytest.mark.parametrize("room", [room for room in ROOMS if (SOURCE / f"{room}.py").exists()])
def test_modules_name_what_they_offer(room: str) -> None:
    """`__all__` of each single-module room names things that exist."""
    module = importlib.import_module(f"{PACKAGE}.{room}")
    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
    assert missing == []
