"""What can be set on a lab server?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from .latency import Latency
from .model import Shape

BASE_MODELS: Mapping[str, Shape] = MappingProxyType(
    {
        "tinker-lab/byte-tiny": Shape(),
        "tinker-lab/byte-small": Shape(width=48, mixer=64, hidden=96),
    }
)


@dataclass(frozen=True)
class LabConfig:
    """The settings of one server.

    Args:
        state: Where checkpoints and runs are kept.
        latency: How long calls take.
        session_cap: How many live sessions there may be; one more is refused. The service was seen to refuse at
            about 240.
        session_expiry_s: A session without a heartbeat for this long is over. The SDK sends one every 10 s.
        poll_s: How long `retrieve_future` waits before it answers "try again". The service waits about 45 s; the lab
            waits less so that tests move.
        base_models: Names and sizes of the base models.
        jwt_auth: Whether the SDK is told to exchange its key for a token, as the service does.
        retrieve_futures: Whether the SDK is told to poll for all samples of a session at once.
        compress: Whether the SDK is told to compress training requests.
        join_sampling_sessions: Whether the SDK is told to ask for the number of a copied sampler.
        inline_limit_bytes: Results larger than this are announced by their size first.
    """

    state: Path
    latency: Latency = field(default_factory=Latency)
    session_cap: int = 240
    session_expiry_s: float = 300.0
    poll_s: float = 5.0
    base_models: Mapping[str, Shape] = field(default_factory=lambda: BASE_MODELS)
    jwt_auth: bool = True
    retrieve_futures: bool = False
    compress: bool = False
    join_sampling_sessions: bool = False
    inline_limit_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        if ":" in str(self.state):
            # The SDK cuts a tokenizer's name at the first colon, and the lab's are paths in this directory.
            raise ValueError(f"The state directory must not have a colon in its path: {str(self.state)!r}.")
        if self.session_cap < 1:
            raise ValueError(f"session_cap must be at least 1, not {self.session_cap}.")
