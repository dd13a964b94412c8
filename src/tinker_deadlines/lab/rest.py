"""What can be listed and managed? Sessions, training runs and checkpoints, as the SDK's REST client asks for them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse

from .engine import Engine
from .refusal import unknown
from .responses import Handler, body_of, number
from .sessions import Session
from .store import SECTIONS, Checkpoint, Missing, Run
from .training import expiry
from .wire import Json, whole

PAGE = 20  # the SDK's own default; a request that names no limit gets this many
LINK_LIFETIME_S = 3600

T = TypeVar("T")


# ---- sessions ----------------------------------------------------------------------------------------------------


async def list_sessions(engine: Engine, request: Request) -> Any:
    sessions = [session.session_id for session in engine.sessions.all()]
    return {"sessions": _page(request, sessions)}


async def get_session(engine: Engine, request: Request) -> Any:
    session = engine.sessions.find(request.path_params["session"])
    return {
        "training_run_ids": session.models,
        "sampler_ids": session.samplers,
        "user_metadata": session.user_metadata,
        "display_name": session.display_name,
    }


async def search_sessions(engine: Engine, request: Request) -> Any:
    body = await body_of(request)
    wanted = body.get("display_name")
    found = [s for s in engine.sessions.all() if wanted is None or wanted in (s.display_name or "")]
    limit = whole(body, "limit", PAGE)
    return {"sessions": [_summary(engine, session) for session in found[:limit]], "next_cursor": None}


async def assign_project(engine: Engine, request: Request) -> Any:
    session = engine.sessions.find(request.path_params["session"])
    session.project_id = (await body_of(request)).get("project_id")
    return None


async def export_trace(engine: Engine, request: Request) -> Any:
    """The lab's trace of a session is its part of the execution log."""
    session = engine.sessions.find(request.path_params["session"])
    return {"status": "ready", "url": f"{request.base_url}lab/executions?session={session.session_id}"}


def _summary(engine: Engine, session: Session) -> Json:
    checkpoints = [c for run in session.models for c in engine.store.checkpoints(run)]
    return {
        "session_id": session.session_id,
        "created_at": _time(session.created_s),
        "owner": "lab",
        "project_id": session.project_id or "lab",
        "status": session.status,
        "checkpoints_count": len(checkpoints),
        "display_name": session.display_name,
        "user_metadata": session.user_metadata,
        "checkpoint_storage_bytes": sum(c.size_bytes for c in checkpoints),
    }


# ---- training runs -----------------------------------------------------------------------------------------------


async def list_training_runs(engine: Engine, request: Request) -> Any:
    runs = engine.store.runs()
    shown = [_run_json(engine, run) for run in _page(request, runs)]
    return {"training_runs": shown, "cursor": _cursor(request, len(runs))}


async def get_training_run(engine: Engine, request: Request) -> Any:
    return _run_json(engine, _found(lambda: engine.store.run(request.path_params["run"])))


def _run_json(engine: Engine, run: Run) -> Json:
    checkpoints = engine.store.checkpoints(run.run)
    last = {section: [c for c in checkpoints if c.section == section][-1:] for section in SECTIONS}
    model = engine.trainer.find(run.run)
    return {
        "training_run_id": run.run,
        "base_model": run.base_model,
        "model_owner": "lab",
        "is_lora": True,
        "corrupted": False,
        "lora_rank": run.lora.get("rank"),
        "last_request_time": _time(model.last_request_s if model else run.created_s),
        "last_checkpoint": _json_or_none(last["weights"]),
        "last_sampler_checkpoint": _json_or_none(last["sampler_weights"]),
        "user_metadata": run.user_metadata,
    }


# ---- checkpoints -------------------------------------------------------------------------------------------------


async def list_run_checkpoints(engine: Engine, request: Request) -> Any:
    run = request.path_params["run"]
    _found(lambda: engine.store.run(run))
    return {"checkpoints": [_checkpoint_json(c) for c in engine.store.checkpoints(run)], "cursor": None}


async def list_user_checkpoints(engine: Engine, request: Request) -> Any:
    checkpoints = engine.store.checkpoints()[::-1]
    shown = [_checkpoint_json(c) for c in _page(request, checkpoints)]
    return {"checkpoints": shown, "cursor": _cursor(request, len(checkpoints))}


async def delete_checkpoint(engine: Engine, request: Request) -> Any:
    _found(lambda: engine.store.delete(_path(request)))


async def publish_checkpoint(engine: Engine, request: Request) -> Any:
    _found(lambda: engine.store.change(_path(request), public=True))


async def unpublish_checkpoint(engine: Engine, request: Request) -> Any:
    _found(lambda: engine.store.change(_path(request), public=False))


async def set_checkpoint_ttl(engine: Engine, request: Request) -> Any:
    expires_s = expiry(await body_of(request))
    _found(lambda: engine.store.change(_path(request), expires_s=expires_s))


async def weights_info(engine: Engine, request: Request) -> Any:
    path = str((await body_of(request)).get("tinker_path"))
    checkpoint = _found(lambda: engine.store.checkpoint(path))
    lora = checkpoint.lora
    return {
        "base_model": checkpoint.base_model,
        "is_lora": True,
        "lora_rank": lora["rank"],
        "train_unembed": lora["train_unembed"],
        "train_mlp": lora["train_mlp"],
        "train_attn": lora["train_attn"],
        "optimizer_config": {"type": "adamw"},
    }


async def copy_weights(engine: Engine, request: Request) -> Any:
    """Copies a checkpoint into another run: the caller's, or a new one that nobody trains."""
    body = await body_of(request)
    checkpoint, arrays = _found(lambda: engine.store.load(str(body.get("source_path"))))
    session = str(body.get("session_id") or "") or f"session_{uuid.uuid4().hex[:12]}"
    run = f"{session}:train:{whole(body, 'model_seq_id', 0)}"
    now_s = time.time()
    engine.store.save_run(Run(run, session, checkpoint.base_model, checkpoint.lora, now_s))
    copy = replace(checkpoint, run=run, created_s=now_s, expires_s=expiry(body), public=False)
    return {"tinker_path": engine.store.save(copy, arrays).path}


async def archive(engine: Engine, request: Request) -> Any:
    """The SDK takes the address and the time of expiry from a redirect."""
    link = _link(engine, request)
    return RedirectResponse(link, 302, headers={"Expires": _http_time(time.time() + LINK_LIFETIME_S)})


async def external_weights_urls(engine: Engine, request: Request) -> Any:
    link = _link(engine, request)
    return {"urls": {"adapter.npz": link}, "expires": _time(time.time() + LINK_LIFETIME_S)}


async def download(engine: Engine, request: Request) -> Any:
    path = _path(request)
    return FileResponse(_found(lambda: engine.store.file(path)), media_type="application/octet-stream")


# ---- accounts ----------------------------------------------------------------------------------------------------


async def who_am_i(engine: Engine, request: Request) -> Any:
    now = _time(time.time())
    return {"key_id": 1, "name": "lab", "note": "the lab takes any key", "details": {"created_at": now}}


async def nothing_billed(engine: Engine, request: Request) -> Any:
    return {"data": [], "sessions": {}}


async def nothing_audited(engine: Engine, request: Request) -> Any:
    return {"entries": []}


# ---- helpers -----------------------------------------------------------------------------------------------------


def _found(look: Callable[[], T]) -> T:
    try:
        return look()
    except Missing as missing:
        raise unknown(str(missing)) from None


def _path(request: Request) -> str:
    return "tinker://{run}/{section}/{name}".format(**request.path_params)


def _link(engine: Engine, request: Request) -> str:
    path = _path(request)
    _found(lambda: engine.store.checkpoint(path))
    return f"{request.base_url}lab/files/{path.removeprefix('tinker://')}"


def _page(request: Request, items: list[T]) -> list[T]:
    offset = number(request, "offset", 0)
    return items[offset : offset + number(request, "limit", PAGE)]


def _cursor(request: Request, total: int) -> Json:
    return {"offset": number(request, "offset", 0), "limit": number(request, "limit", PAGE), "total_count": total}


def _json_or_none(checkpoints: list[Checkpoint]) -> Json | None:
    return _checkpoint_json(checkpoints[0]) if checkpoints else None


def _checkpoint_json(checkpoint: Checkpoint) -> Json:
    return {
        "checkpoint_id": f"{checkpoint.section}/{checkpoint.name}",
        "checkpoint_type": SECTIONS[checkpoint.section],
        "time": _time(checkpoint.created_s),
        "tinker_path": checkpoint.path,
        "size_bytes": checkpoint.size_bytes,
        "public": checkpoint.public,
        "user_metadata": checkpoint.user_metadata,
        "expires_at": None if checkpoint.expires_s is None else _time(checkpoint.expires_s),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _http_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")


_RUN = "training_runs/{run}"
_CHECKPOINT = f"{_RUN}/checkpoints/{{section}}/{{name}}"

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/lab/files/{run}/{section}/{name}", download),
    ("GET", "sessions", list_sessions),
    ("POST", "sessions/search", search_sessions),
    ("GET", "sessions/{session}", get_session),
    ("PUT", "sessions/{session}/project", assign_project),
    ("GET", "sessions/{session}/trace_export", export_trace),
    ("GET", "training_runs", list_training_runs),
    ("GET", _RUN, get_training_run),
    ("GET", f"{_RUN}/checkpoints", list_run_checkpoints),
    ("DELETE", _CHECKPOINT, delete_checkpoint),
    ("POST", f"{_CHECKPOINT}/publish", publish_checkpoint),
    ("DELETE", f"{_CHECKPOINT}/publish", unpublish_checkpoint),
    ("PUT", f"{_CHECKPOINT}/ttl", set_checkpoint_ttl),
    ("GET", f"{_CHECKPOINT}/archive", archive),
    ("GET", f"{_CHECKPOINT}/external_weights_urls", external_weights_urls),
    ("GET", "checkpoints", list_user_checkpoints),
    ("POST", "weights_info", weights_info),
    ("POST", "copy_weights", copy_weights),
    ("GET", "auth/apikey/me", who_am_i),
    ("DELETE", "auth/apikey/me", who_am_i),
    ("GET", "billing/usage/events", nothing_billed),
    ("GET", "billing/usage/checkpoints/current", nothing_billed),
    ("GET", "audit", nothing_audited),
)
