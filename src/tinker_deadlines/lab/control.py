"""How is a proxy in another process asked and healed? On `/lab/proxy/`, the paths it keeps to itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import parse_qs

from tinker_deadlines.lab.exchange import Exchange

CONTROL_PREFIX = "/lab/proxy/"


async def answer_control(exchange: Exchange, reset: Callable[[], None]) -> None:
    """Answers `GET log`, `POST heal` (`?name=` or `{"name": …}`; none heals all) and `POST reset`."""
    wanted = exchange.path.removeprefix(CONTROL_PREFIX)
    method = {"log": "GET", "heal": "POST", "reset": "POST"}.get(wanted)
    if method is None:
        await exchange.answer_json(404, {"detail": f"{exchange.path} is not one of log, heal and reset"})
    elif exchange.method != method:
        await exchange.answer_json(405, {"detail": f"{exchange.path} takes {method}, not {exchange.method}"})
    elif wanted == "log":
        await exchange.answer_json(200, {"records": [record.as_dict() for record in exchange.core.log.records()]})
    elif wanted == "reset":
        reset()
        await exchange.answer_json(200, {"reset": True})
    else:
        await _heal(exchange)


async def _heal(exchange: Exchange) -> None:
    try:
        healed = exchange.core.matcher.heal(_name(exchange))
    except ValueError as error:
        await exchange.answer_json(404, {"detail": str(error)})
    else:
        await exchange.answer_json(200, {"healed": healed})


def _name(exchange: Exchange) -> str | None:
    query = parse_qs(exchange.target.partition(b"?")[2].decode("ascii", "replace"))
    if "name" in query:
        return query["name"][-1]
    if not exchange.body.strip():
        return None
    try:
        document = json.loads(exchange.body)
    except ValueError:
        raise ValueError('the body is not JSON; send {"name": "…"}, or nothing to heal all') from None
    name = document.get("name") if isinstance(document, dict) else None
    if name is not None and not isinstance(name, str):
        raise ValueError(f"'name' is {name!r}, but must be the name of a rule")
    return name
