"""How does a script run as Python would run it, and how does its process end?

The script becomes the real `__main__`, so that pickling and spawned workers find what it defines. What it raises leaves
through the interpreter, which prints it, joins threads, runs exit handlers and sets the exit status as always; only
our own frames are cut off what is printed.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import functools
import importlib.machinery
import io
import os
import pkgutil
import runpy
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple

from tinker_deadlines.budgets import episode
from tinker_deadlines.limits import EXIT_GRACE_S, LAST_WORDS_S, LEAST_EXIT_GRACE_S
from tinker_deadlines.remember import remember
from tinker_deadlines.sdk import hook
from tinker_deadlines.show import stderr
from tinker_deadlines.show.display import Display

__all__ = ["INSTALL_VARIABLE", "Plan", "Target", "launch", "problem_with"]

# Read by the hook that installs us in spawned worker processes.
INSTALL_VARIABLE = "TINKER_DEADLINES_INSTALL"

_PACKAGE_DIR = __file__.removesuffix("launch.py")
_MACHINERY = ("<frozen runpy>", "<frozen importlib", runpy.__file__ or "<frozen runpy>")


class Target(NamedTuple):
    """What is run."""

    name: str
    """The path of a script, directory or zip file, or the name of a module."""
    args: tuple[str, ...] = ()
    is_module: bool = False


class Plan(NamedTuple):
    """A run: what, within which wall, and how it ends."""

    target: Target
    display: Display
    wall_s: float | None = None
    exit_grace_s: float = EXIT_GRACE_S
    run: str | None = None
    """The name under which the run is kept, so that it can be gone on with; `None` where it is not."""


def problem_with(target: Target) -> str | None:
    """One sentence on why this cannot be run; `None` if it can, as far as can be seen before it is."""
    if target.is_module:
        return None  # Python's own words and status for a module that does not exist come from looking for it
    try:
        if not Path(target.name).is_dir():
            with Path(target.name).open("rb"):
                pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"the script {target.name!r} cannot be opened: {reason}"
    return None


def launch(plan: Plan) -> None:
    """Runs the target with every Tinker call bounded; raises what it raises. Called once in a process, near its end."""
    os.environ[INSTALL_VARIABLE] = "1"
    display = plan.display
    ending = _Ending(plan.exit_grace_s, display)
    atexit.register(display.finish)
    display.start()
    _dump_on_sigquit(display)
    ending.watch_sigterm()
    hook.install_on_import(then=functools.partial(remember, command=plan.target.name))
    if plan.run is not None:
        display.say(f"the run is kept as {plan.run}; after a crash, go on with: {_command(plan)}")
    if plan.wall_s is not None:
        # Never left: threads and exit handlers that outlive the main code are inside the wall as well.
        episode(plan.wall_s, name="--wall").__enter__()
    try:
        _run(plan.target)
    except BaseException as error:
        _cut_our_frames(error)
        ending.begin(error)
        raise
    ending.begin(None)


def _command(plan: Plan) -> str:
    target = plan.target
    words = ["tinker-deadlines", "run", "--resume", str(plan.run), *(["-m"] if target.is_module else []), target.name]
    return shlex.join([*words, *target.args])


# The script ---------------------------------------------------------------------------------------------------------


def _run(target: Target) -> None:
    main = _fresh_main()
    sys.argv = [target.name, *target.args]
    if target.is_module:
        _replace_path0(str(Path.cwd()))
        sys.argv[0] = "-m"  # what Python shows while it looks for the module
        _run_by_runpy(target.name, alter_argv=True)
    elif _is_container(target.name):
        _replace_path0(None)
        sys.path.insert(0, _absolute(target.name))
        _run_by_runpy("__main__", alter_argv=False)
    else:
        _replace_path0(str(Path(target.name).resolve().parent))
        _execute(_code_of(target.name, main), main.__dict__)


def _absolute(path: str) -> str:
    return os.path.join(Path.cwd(), path)  # noqa: PTH118  a Path would drop the "./" that Python keeps


def _fresh_main() -> ModuleType:
    """Makes an empty `__main__`; the one before, whose code still runs, is kept alive by it being our caller."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _replace_path0(directory: str | None) -> None:
    """Puts the script's directory where Python had put ours; under `-P` and `-I` Python puts none."""
    if sys.flags.safe_path:
        return
    del sys.path[:1]
    if directory is not None:
        sys.path.insert(0, directory)


def _is_container(path: str) -> bool:
    """Whether a directory or a zip file is to be run, by the same question that Python asks."""
    return pkgutil.get_importer(path) is not None


def _run_by_runpy(name: str, *, alter_argv: bool) -> None:
    # What `python -m` itself calls, in every supported version; `runpy.run_module` would take `__main__` away again.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _code_of(path: str, main: ModuleType) -> CodeType:
    file = _absolute(path)
    main.__file__ = file
    main.__dict__["__cached__"] = None
    with io.open_code(file) as stream:
        code: CodeType | None = pkgutil.read_code(stream)  # a .pyc file
    if code is not None:
        main.__loader__ = importlib.machinery.SourcelessFileLoader("__main__", file)
        return code
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    with io.open_code(file) as stream:
        source = stream.read()
    return compile(source, file, "exec", dont_inherit=True)


def _execute(code: CodeType, names: dict[str, Any]) -> None:
    exec(code, names)


# What is printed of an error ----------------------------------------------------------------------------------------


def _cut_our_frames(error: BaseException) -> None:
    """Has the interpreter print the error, and what it is chained to, without the frames of the launcher."""
    printed = sys.excepthook  # the script's own, if it set one

    def print_without_our_frames(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Any:
        for each in _chain(value):
            each.__traceback__ = _without_our_frames(each.__traceback__)
        return printed(kind, value, value.__traceback__)

    if not isinstance(error, SystemExit):
        sys.excepthook = print_without_our_frames


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups among them, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the launcher at its top, and without what stands between the script and the SDK.

    One that ends in our own code is kept from the script on: it shows a mistake of ours, or of an argument to us.
    """
    frames = list(_steps(trace))
    started = [number for number, step in enumerate(frames) if step.tb_frame.f_code in _LAUNCHERS]
    frames = frames[started[-1] + 1 :] if started else frames
    while frames and (_is_ours(frames[0]) or _file_of(frames[0]).startswith(_MACHINERY)):
        frames.pop(0)
    if frames and not _is_ours(frames[-1]):
        frames = [step for step in frames if not _is_ours(step)]
    trace = None
    for step in reversed(frames):
        trace = TracebackType(trace, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return trace


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _file_of(step: TracebackType) -> str:
    return step.tb_frame.f_code.co_filename


def _is_ours(step: TracebackType) -> bool:
    # The scripts of the demo lie with us and are nevertheless scripts.
    return _file_of(step).startswith(_PACKAGE_DIR) and not _file_of(step).startswith(_PACKAGE_DIR + "demo")


_LAUNCHERS = (_run.__code__, _run_by_runpy.__code__, _execute.__code__, _code_of.__code__)


# How the process ends -----------------------------------------------------------------------------------------------


class _Ending:
    """Watches the time between the end of the script's main code and that of the process."""

    def __init__(self, grace_s: float, display: Display) -> None:
        self._grace_s = max(grace_s, LEAST_EXIT_GRACE_S)
        self._display = display
        self._pid = os.getpid()
        self._status = 0
        self._once = threading.Lock()
        self._why = ""
        self._with_stacks = False
        self._speak = threading.Event()
        self._spoken = threading.Event()
        # Registered before anything of the script's, so that it runs after all of it.
        atexit.register(self._at_the_very_end)

    def begin(self, error: BaseException | None) -> None:
        """Starts the grace: the main code has ended, by this error or by none."""
        if os.getpid() != self._pid:
            return  # a forked child that ran to the end of the script: its process is its own affair
        self._status = _status_of(error)
        if isinstance(error, KeyboardInterrupt):
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGINT, self._on_second_sigint)
        # Both are started now: an interpreter that is shutting down starts no thread any more.
        with contextlib.suppress(RuntimeError):
            for work, name in ((self._watch, "exit-grace"), (self._say_last_words, "last-words")):
                threading.Thread(target=work, name=f"tinker-deadlines-{name}", daemon=True).start()

    def _watch(self) -> None:
        # Real time on purpose: this is about the process, not about calls.
        threading.Event().wait(min(self._grace_s, threading.TIMEOUT_MAX))
        if self._speak_once(
            f"tinker-deadlines: the script's main code ended {self._grace_s:g} s ago, but its process did not: it is "
            f"held by {holders()}. Ending it now with status {self._status} (see --exit-grace).",
            with_stacks=True,
        ):
            os._exit(self._status)

    def _on_second_sigint(self, signal_number: int, frame: FrameType | None) -> None:
        if self._speak_once("tinker-deadlines: ended at once by a second Ctrl-C"):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def watch_sigterm(self) -> None:
        """Has SIGTERM finish the run's sessions before it ends the process, unless the script handles it itself."""
        with contextlib.suppress(ValueError):  # not the main thread
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, signal_number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            # On a thread, because the main one may hold any lock now.
            last = threading.Thread(target=self._close_and_say, name="tinker-deadlines-sigterm", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: sessions are being finished
                last.start()
                last.join(2 * LAST_WORDS_S)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _close_and_say(self) -> None:
        shared = sys.modules.get("tinker_deadlines.sdk.shared")
        if shared is not None:
            with contextlib.suppress(Exception):
                shared.close_at_exit("interrupted")
        self._display.finish()

    def _speak_once(self, why: str, *, with_stacks: bool = False) -> bool:
        """Says why the process is ended, within a bounded time; false when that is being done already."""
        if not self._once.acquire(blocking=False):
            return False
        self._why, self._with_stacks = why, with_stacks
        self._speak.set()
        self._spoken.wait(LAST_WORDS_S)
        return True

    def _say_last_words(self) -> None:
        self._speak.wait()
        self._display.stop_live()
        if self._with_stacks:
            stderr.dump_stacks()
        stderr.say(self._why)
        self._display.finish()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._spoken.set()

    def _at_the_very_end(self) -> None:
        """Hands the watch over to faulthandler: from here on no thread of Python's runs any more."""
        if os.getpid() == self._pid:
            with contextlib.suppress(Exception):
                faulthandler.dump_traceback_later(max(self._grace_s, LAST_WORDS_S), exit=True, file=stderr.fileno())


def holders() -> str:
    """What keeps the process from ending, as far as it can be told."""
    main = threading.main_thread()
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]
    if threads:
        names = ", ".join(f"{thread.name} ({thread.ident or 0:#x})" for thread in threads)
        return f"the non-daemon thread{'s' * (len(threads) > 1)} {names}"
    processes = sys.modules.get("multiprocessing.process")
    children = sorted(child.name for child in getattr(processes, "_children", ()) if not child.daemon)
    if children:
        return f"the child process{'es' * (len(children) > 1)} {', '.join(children)}"
    return "an exit handler or a destructor (see the main thread's stack)"


def _status_of(error: BaseException | None) -> int:
    """The exit status that Python gives a script that ended with this."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _dump_on_sigquit(display: Display) -> None:
    r"""Has SIGQUIT (Ctrl-\) print all stacks and the calls in flight, and the process go on."""
    if not hasattr(signal, "SIGQUIT"):
        return

    def print_calls(signal_number: int, frame: FrameType | None) -> None:
        display.print_calls()

    with contextlib.suppress(Exception):  # no standard error, or not the main thread
        signal.signal(signal.SIGQUIT, print_calls)
        # The stacks come from C: also from a process whose interpreter is held up. The calls follow when it can.
        faulthandler.register(signal.SIGQUIT, file=stderr.fileno(), all_threads=True, chain=True)
