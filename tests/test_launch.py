"""Does a script run under `tinker-deadlines run` as plain Python runs it? The same script by both, compared."""

from __future__ import annotations

import py_compile
import re
import signal
import sys
import time
import zipfile
from pathlib import Path

import pytest

from running import PYTHON, RUN, WITHIN_S, run, start, without_machinery, without_numbers, write

QUIET = (*RUN, "--quiet")
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

SCRIPTS = {
    "argparse": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--limit"); parser.add_argument("-m"); parser.add_argument("words", nargs="*")
        print(vars(parser.parse_args()))
    """,
    "names": """
        import sys
        names = {key: value for key, value in globals().items() if key not in ("sys", "__loader__", "__builtins__")}
        print(names, type(__loader__), __builtins__, sys.path[:2], sys.argv)
        print(sys.modules["__main__"].__dict__ is globals())
    """,
    "raises": """
        def inner():
            1 / 0
        try:
            inner()
        except ZeroDivisionError as error:
            raise RuntimeError("chained") from error
    """,
    "raises a group": """
        def fail(text):
            try:
                raise KeyError(text)
            except KeyError:
                raise ValueError(text)
        errors = []
        for text in "ab":
            try:
                fail(text)
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup("several", errors)
    """,
    "exits with text": "import sys; sys.exit('sorry')",
    "exits with a number": "import sys; sys.exit(300)",
    "exits with nothing": "import sys; sys.exit()",
    "exits with an object": "import sys; sys.exit([1])",
    "interrupts itself": "raise KeyboardInterrupt",
    "does not compile": "x = 1\nif x\n    pass\n",
    "has an odd encoding": "# coding: latin-1\nprint('ok')\n",
    "has its own excepthook": """
        import sys, traceback
        sys.excepthook = lambda kind, error, trace: print("mine", kind, error, traceback.extract_tb(trace)[0].name)
        raise ValueError("x")
    """,
    "asyncio": """
        import asyncio
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            raise LookupError("from a coroutine")
        asyncio.run(main())
    """,
    "pickles its own class": """
        import pickle
        class Mine:
            pass
        data = pickle.dumps(Mine())
        print(data, type(pickle.loads(data)) is Mine)
    """,
    "spawns": """
        import multiprocessing as mp
        def square(x):
            return x * x
        if __name__ == "__main__":
            for method in ("spawn", "forkserver"):
                with mp.get_context(method).Pool(1) as pool:
                    print(pool.map(square, range(3)))
    """,
    "forks": """
        import os, sys
        if os.fork() == 0:
            print("child", flush=True)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        sys.exit(3)
    """,
    "threads and exit handlers": """
        import atexit, threading
        atexit.register(print, "exit handler")
        def work():
            threading.main_thread().join()
            print("thread after the main code")
        threading.Thread(target=work).start()
        print("main code")
    """,
    "raises in an exit handler": "import atexit; atexit.register(lambda: 1 / 0)",
    "reads standard input": "import sys; print(input(), sys.stdin.read())",
    "warns": "import warnings; warnings.warn('careful')\nprint('after')",
    "recurses": "def f(): f()\nf()",
    "uses os._exit": "import os; print('out', flush=True); os._exit(4)",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_under_python(name: str, tmp_path: Path) -> None:
    """Output, traceback and exit status of a script are those that plain Python gives."""
    write(tmp_path, "script.py", SCRIPTS[name])
    arguments = ("script.py", "--limit", "7", "-m", "x", "--", "words", "")
    stdin = "first\nsecond\n"
    plain, ours = (run(*how, *arguments, cwd=tmp_path, stdin=stdin) for how in (PYTHON, QUIET))
    assert (ours.stdout, without_numbers(ours.stderr)) == (plain.stdout, without_numbers(plain.stderr))
    assert ours.returncode == plain.returncode


@pytest.mark.parametrize("flags", [("-W", "error"), ("-X", "dev"), ("-O",), ("-P",), ("-I",), ("-u",)], ids=" ".join)
def test_the_interpreter_s_flags_keep_their_meaning(flags: tuple[str, ...], tmp_path: Path) -> None:
    """What is passed to Python itself holds for the script."""
    script = "import sys, warnings\nprint(sys.flags, sys.path[:1] == [sys.argv[1]])\nassert False\nwarnings.warn('x')\n"
    write(tmp_path, "script.py", script)
    command = ("script.py", str(tmp_path))
    plain = run(sys.executable, *flags, *command, cwd=tmp_path)
    ours = run(sys.executable, *flags, "-m", "tinker_deadlines", "run", "--quiet", *command, cwd=tmp_path)
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)


@pytest.mark.parametrize("path", ["./script.py", "sub/../script.py", "sub/link.py", "ABSOLUTE"])
def test_a_script_is_found_as_python_finds_it(path: str, tmp_path: Path) -> None:
    """`__file__` and `sys.argv[0]` follow from the path as it was written, `sys.path[0]` with links resolved."""
    write(tmp_path, "script.py", SCRIPTS["names"])
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.py").symlink_to("../script.py")
    name = str(tmp_path / "script.py") if path == "ABSOLUTE" else path
    plain, ours = (run(*how, name, cwd=tmp_path) for how in (PYTHON, QUIET))
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with relative imports, to be run with `-m`."""
    write(tmp_path, "pack/__init__.py", "")
    write(tmp_path, "pack/helper.py", "def double(x): return 2 * x\n")
    write(
        tmp_path,
        "pack/tool.py",
        """
        import multiprocessing as mp, pickle, sys
        from .helper import double
        class Mine: pass
        def square(x): return double(x) * x
        if __name__ == "__main__":
            print(__package__, __spec__.name, sys.argv, sys.path[0], double(2), pickle.dumps(Mine()))
            with mp.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [3]))
            raise ValueError("end")
        """,
    )
    write(tmp_path, "pack/__main__.py", "from . import helper; print('main', helper.double(4))\n")
    return tmp_path


@pytest.mark.parametrize("module", ["pack.tool", "pack", "pack.nothing", "nothing", "timeit"])
def test_a_module_runs_as_under_python(module: str, package: Path) -> None:
    """`run -m` runs a module with relative imports, a package's `__main__`, and one of the standard library."""
    arguments = ("-m", module, "-h", "--json")
    plain, ours = (run(*how, *arguments, cwd=package) for how in (PYTHON, QUIET))
    assert (ours.stdout, ours.stderr) == (plain.stdout, without_machinery(plain.stderr))
    assert ours.returncode == plain.returncode


@pytest.mark.parametrize("kind", ["directory", "zip", "pyc", "empty directory"])
def test_directories_zip_files_and_compiled_files_run(kind: str, tmp_path: Path) -> None:
    """What Python runs besides scripts runs here too."""
    source = write(tmp_path, "app/__main__.py", "import sys, other; print(other.x, sys.argv, sys.path[0], __file__)\n")
    write(tmp_path, "app/other.py", "x = 1\n")
    name = {"directory": "app", "zip": "app.zip", "pyc": "app/main.pyc", "empty directory": "empty"}[kind]
    (tmp_path / "empty").mkdir()
    py_compile.compile(str(source), str(tmp_path / "app/main.pyc"))
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for file in ("__main__.py", "other.py"):
            archive.write(tmp_path / "app" / file, file)
    plain, ours = (run(*how, name, "a", cwd=tmp_path) for how in (PYTHON, QUIET))
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)


def test_spawned_workers_are_told_to_install(tmp_path: Path) -> None:
    """The variable that gates the hook of worker processes is set, and the limits are in the environment."""
    write(tmp_path, "script.py", "import os; print(os.environ['TINKER_DEADLINES_INSTALL'])\n"
          "print(os.environ['WMO_TINKER_DEADLINE_OPTIM_STEP'])")  # fmt: skip
    done = run(*QUIET, "--limit", "optim_step=12.5", "script.py", cwd=tmp_path)
    assert done.stdout == "1\n12.5\n"


def test_the_sdk_is_bounded_before_the_script_sees_it(tmp_path: Path) -> None:
    """The first import of `tinker` gives the script methods that are bounded, and a clean traceback from below them."""
    write(tmp_path, "script.py", "import tinker\nprint(tinker.SamplingClient.sample.__closure__ is not None)\n"
          "print('tinker_deadlines.sdk.wrappers' in __import__('sys').modules)")  # fmt: skip
    done = run(*QUIET, "script.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_a_traceback_goes_from_the_script_to_the_sdk(tmp_path: Path) -> None:
    """Frames of ours between a script and what it calls are not printed; the error that was cut short is."""
    write(tmp_path, "script.py", """
        import tinker
        client = tinker.ServiceClient(base_url="http://127.0.0.1:9", api_key="tml-none")
        client.create_sampling_client(base_model="none")
    """)  # fmt: skip
    done = run(*QUIET, "--limit", "connect=0.5", "script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "tinker_deadlines.StuckCallError: Tinker call connect" in done.stderr
    assert 'script.py", line 4, in <module>' in done.stderr
    assert "tinker_deadlines/" not in done.stderr


# How it ends --------------------------------------------------------------------------------------------------------

STUCK_THREAD = """
    import sys, threading
    threading.Thread(target=threading.Event().wait, name="stuck-one").start()
    print("main code ends", flush=True)
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(5)", 5), ("1 / 0", 1), ("sys.exit('no')", 1)])
def test_a_process_that_does_not_end_is_ended(end: str, status: int, tmp_path: Path) -> None:
    """After the grace a stuck non-daemon thread is named, all stacks are printed, and the script's status holds."""
    write(tmp_path, "script.py", STUCK_THREAD + "    " + end)
    done = run(*RUN, "--exit-grace", "0.2", "script.py", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("main code ends\n", status)
    assert "held by the non-daemon thread stuck-one" in done.stderr
    assert re.search(r"Thread 0x\w+.*\n.*in wait\b", done.stderr)
    assert done.stderr.rstrip().endswith("no Tinker call was made")


def test_an_exit_grace_of_zero_does_not_wait(tmp_path: Path) -> None:
    """0 ends a process as soon as its main code has ended."""
    write(tmp_path, "script.py", STUCK_THREAD)
    began = time.monotonic()
    assert run(*RUN, "--exit-grace", "0", "script.py", cwd=tmp_path).returncode == 0
    assert time.monotonic() - began < WITHIN_S / 2


def test_an_orderly_exit_is_not_disturbed_by_a_short_grace(tmp_path: Path) -> None:
    """Idle pool threads and exit handlers are not taken for something that is stuck."""
    write(tmp_path, "script.py", """
        import atexit, concurrent.futures
        pool = concurrent.futures.ThreadPoolExecutor()
        print(pool.submit(int, "3").result())
        atexit.register(print, "exit handler")
    """)  # fmt: skip
    done = run(*QUIET, "--exit-grace", "5", "script.py", cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("3\nexit handler\n", "", 0)


def test_a_stuck_exit_handler_is_said_to_be_one(tmp_path: Path) -> None:
    """Where no thread holds the process, the sentence points at exit handlers, whose stack is printed."""
    write(tmp_path, "script.py", "import atexit, threading\natexit.register(threading.Event().wait)\n")
    done = run(*RUN, "--exit-grace", "0.2", "script.py", cwd=tmp_path)
    assert "held by an exit handler" in done.stderr
    assert done.returncode == 0


def test_a_stuck_child_process_is_named(tmp_path: Path) -> None:
    """Python waits for child processes that are no daemons; the sentence names them."""
    write(tmp_path, "script.py", """
        import multiprocessing, threading, os, signal
        def wait(parent):
            while os.getppid() == parent:
                threading.Event().wait(0.05)
        if __name__ == "__main__":
            multiprocessing.get_context("fork").Process(target=wait, args=(os.getpid(),), name="stuck-child").start()
    """)  # fmt: skip
    done = run(*RUN, "--exit-grace", "0.2", "script.py", cwd=tmp_path)
    assert "held by the child process stuck-child" in done.stderr


def test_a_hang_after_the_last_exit_handler_is_ended_too(tmp_path: Path) -> None:
    """A destructor that hangs while the interpreter is taken down, where no thread of Python's runs any more."""
    write(tmp_path, "script.py", """
        import sys, time
        class Stuck:
            def __del__(self, sleep=time.sleep):
                sleep(600)
        sys.stuck = Stuck()
    """)  # fmt: skip
    done = run(*RUN, "--exit-grace", "0.2", "script.py", cwd=tmp_path)
    assert "Timeout" in done.stderr
    assert "__del__" in done.stderr


# Signals ------------------------------------------------------------------------------------------------------------

WAITING = """
    import atexit, os, sys, threading, time
    main = threading.get_ident()
    def say():
        while sys._current_frames()[main].f_back.f_code.co_name != "wait":
            time.sleep(0.01)
        time.sleep(0.05)
        os.write(1, b"ready\\n")  # not print: a daemon thread that holds the stream's lock at exit is fatal to Python
    atexit.register(print, "exit handler")
    threading.Thread(target=say, daemon=True).start()
    threading.Event().wait()
"""


@posix
def test_ctrl_c_ends_a_script_as_under_python(tmp_path: Path) -> None:
    """The traceback is the script's own, exit handlers run, and the process is one that SIGINT killed."""
    write(tmp_path, "script.py", WAITING)
    ends = []
    for how in (PYTHON, QUIET):
        process = start(*how, "script.py", cwd=tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        ends.append((*process.communicate(timeout=WITHIN_S), process.returncode))
    assert ends[1] == ends[0]
    assert ends[1][2] == -signal.SIGINT


@posix
def test_ctrl_c_leaves_a_summary(tmp_path: Path) -> None:
    """The summary comes after the traceback."""
    write(tmp_path, "script.py", WAITING)
    process = start(*RUN, "script.py", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert re.search(r"KeyboardInterrupt\ntinker-deadlines \S+  no Tinker call was made\n$", stderr)


@posix
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """When the first has ended the main code and a thread holds the process, the second does not wait for it."""
    write(tmp_path, "script.py", """
        import os, threading
        threading.Thread(target=threading.Event().wait, name="stuck-one").start()
        def say():
            threading.main_thread().join()
            os.write(1, b"main code ended\\n")
        threading.Thread(target=say, daemon=True).start()
        print("ready", flush=True)
        threading.Event().wait()
    """)  # fmt: skip
    process = start(*RUN, "script.py", cwd=tmp_path)
    assert process.stdout is not None
    for line in ("ready\n", "main code ended\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=WITHIN_S / 2)
    assert "ended at once by a second Ctrl-C" in stderr
    assert process.returncode == -signal.SIGINT


@posix
def test_a_script_that_does_not_use_the_sdk_does_not_pay_for_it(tmp_path: Path) -> None:
    """Neither the SDK nor what the record needs is imported for it."""
    write(tmp_path, "script.py", """
        import sys
        print([name for name in ("tinker", "httpx", "numpy", "sqlalchemy") if name in sys.modules])
    """)  # fmt: skip
    process = start(*RUN, "--no-live", "script.py", cwd=tmp_path)
    stdout, _ = process.communicate(timeout=WITHIN_S)
    assert stdout == "[]\n"


def test_sigquit_prints_stacks_and_calls_and_goes_on(tmp_path: Path) -> None:
    r"""Ctrl-\ shows where every thread is and which calls are in flight, and the script goes on."""
    write(tmp_path, "script.py", """
        import threading, time
        from concurrent.futures import Future
        from tinker_deadlines import wait_with_deadline
        from tinker_deadlines.calls import board
        future = Future()
        thread = threading.Thread(target=wait_with_deadline, args=("optim_step", future), daemon=True)
        thread.start()
        while not board.pending():
            time.sleep(0.001)
        print("ready", flush=True)
        print(input(), flush=True)
    """)  # fmt: skip
    process = start(*RUN, "--no-live", "script.py", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGQUIT)
    seen = []
    while not seen or "optim_step" not in seen[-1]:
        seen.append(process.stderr.readline())
        assert seen[-1], f"it ended: {seen}"
    assert any("in flight, oldest first" in line for line in seen)
    assert any('script.py", line' in line for line in seen)
    stdout, _ = process.communicate("goes on\n", timeout=WITHIN_S)
    assert (stdout, process.returncode) == ("goes on\n", 0)
