"""What every test starts from: no state of an earlier one, no settings of the machine, and nothing beyond loopback."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tinker_deadlines import clock
from tinker_deadlines.calls import board
from tinker_deadlines.limits import DEADLINE_ENV_PREFIX

# Set before any test module imports the SDK or the tokenizers it loads: both read some of these at import.
os.environ.update(
    TINKER_API_KEY="tml-test",
    TINKER_TELEMETRY="0",
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    DO_NOT_TRACK="1",
    NO_PROXY="127.0.0.1,localhost,::1",
    no_proxy="127.0.0.1,localhost,::1",
    NO_COLOR="1",
)
for _name in [name for name in os.environ if name.startswith((DEADLINE_ENV_PREFIX, "TINKER_DEADLINES_"))]:
    del os.environ[_name]
# A shell that starts us in the background has us ignore Ctrl-C, and our children with us: the tests of it need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")
# A test that forgets its own server reaches a port where nobody listens, not the service.
os.environ["TINKER_BASE_URL"] = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _fresh_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives each test an empty board, the machine's clock, the shipped limits and a state directory of its own."""
    for name in [name for name in os.environ if name.startswith(DEADLINE_ENV_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TINKER_DEADLINES_HOME", str(_home(tmp_path_factory)))
    board.clear()
    yield
    clock.use(None)
    board.clear()
    board.observers = ()
    logging.getLogger("tinker_deadlines").setLevel(logging.NOTSET)


def _home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "home"
