"""Which HTTP paths does the lab answer, and with what? The surface that the SDK's clients talk to."""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from . import rest
from .config import LabConfig
from .engine import Engine, try_again
from .promises import Failure, Promise
from .protobuf import Malformed
from .refusal import bad, unknown
from .responses import Handler, body_of, endpoint, plain_error
from .wire import PROTOBUF, decompress, encode, read_train_request

API = "/api/v1"
TOKEN_LIFETIME_S = 3600


def create_app(config: LabConfig) -> Starlette:
    """Returns the server as an ASGI application; it must be used on one event loop only."""
    routes = [
        Route(f"{API}/{path}" if not path.startswith("/") else path, endpoint(handler), methods=[method])
        for method, path, handler in (*ROUTES, *rest.ROUTES)
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: plain_error})
    app.state.engine = Engine(config)
    return app


# ---- service and sessions ----------------------------------------------------------------------------------------


async def health(engine: Engine, request: Request) -> Any:
    return {"status": "ok"}


async def client_config(engine: Engine, request: Request) -> Any:
    config = engine.config
    return {
        "pjwt_auth_enabled": config.jwt_auth,
        "proto_compress_fwdbwd": config.compress,
        "sample_use_retrieve_futures": config.retrieve_futures,
        "sample_join_sampling_session": config.join_sampling_sessions,
        "create_model_via_load_weights": True,
    }


async def dynamic_config(engine: Engine, request: Request) -> Any:
    return {"refresh_interval_sec": 300, "sample_cancel_enabled": True}


async def auth_token(engine: Engine, request: Request) -> Any:
    """Hands out a token in the form of a JWT; it is not signed and nobody checks it."""
    now = int(time.time())
    claims = {
        "iss": "tinker-lab",
        "sub": "tml:organization_user:lab",
        "org_id": "lab",
        "email": "lab@localhost",
        "iat": now,
        "exp": now + TOKEN_LIFETIME_S,
    }
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return {"jwt": ".".join([*encoded, "unsigned"])}


async def telemetry(engine: Engine, request: Request) -> Any:
    await request.body()
    return {"status": "accepted"}


async def capabilities(engine: Engine, request: Request) -> Any:
    return engine.bases.capabilities()


async def create_session(engine: Engine, request: Request) -> Any:
    session = engine.sessions.create(await body_of(request), _key(request))
    return {"type": "create_session", "session_id": session.session_id}


async def session_heartbeat(engine: Engine, request: Request) -> Any:
    engine.sessions.heartbeat((await body_of(request)).get("session_id"))
    return {"type": "session_heartbeat"}


async def finish_session(engine: Engine, request: Request) -> Any:
    engine.sessions.finish(request.path_params["session"], await body_of(request))
    return None


# ---- training ----------------------------------------------------------------------------------------------------


async def create_model(engine: Engine, request: Request) -> Any:
    return _accepted(engine.trainer.create(await body_of(request)))


async def unload_model(engine: Engine, request: Request) -> Any:
    return _accepted(engine.trainer.unload(await body_of(request)))


async def get_info(engine: Engine, request: Request) -> Any:
    return engine.trainer.info((await body_of(request)).get("model_id"))


async def forward_backward(engine: Engine, request: Request) -> Any:
    return _accepted(engine.trainer.train(await _train_request(request)))


async def forward(engine: Engine, request: Request) -> Any:
    only = dataclasses.replace(await _train_request(request), forward_only=True)
    return _accepted(engine.trainer.train(only))


async def optim_step(engine: Engine, request: Request) -> Any:
    return _accepted(engine.trainer.optim_step(await body_of(request)))


async def save_weights(engine: Engine, request: Request) -> Any:
    return _accepted(engine.trainer.save(await body_of(request), "SaveWeights", "weights"))


async def save_weights_external(engine: Engine, request: Request) -> Any:
    return _accepted(engine.trainer.save(await body_of(request), "SaveWeightsExternal", "external_weights"))


async def save_weights_for_sampler(engine: Engine, request: Request) -> Any:
    body = await body_of(request)
    if body.get("path") is not None:
        return _accepted(engine.trainer.save(body, "SaveWeightsForSampler", "sampler_weights"))
    return _accepted(engine.trainer.publish(body, engine.samplers.publisher(body)))


async def load_weights(engine: Engine, request: Request) -> Any:
    return _accepted(engine.trainer.load(await body_of(request)))


async def create_custom_loss(engine: Engine, request: Request) -> Any:
    raise bad("The lab runs custom losses on the client, as its client config says.")


# ---- sampling ----------------------------------------------------------------------------------------------------


async def create_sampling_session(engine: Engine, request: Request) -> Any:
    sampler = engine.samplers.create(await body_of(request))
    return {"type": "create_sampling_session", "sampling_session_id": sampler.sampler_id}


async def join_sampling_session(engine: Engine, request: Request) -> Any:
    return {"type": "join_sampling_session", "client_counter": engine.samplers.join(await body_of(request))}


async def get_sampler(engine: Engine, request: Request) -> Any:
    return engine.samplers.info(request.path_params["sampler"])


async def asample(engine: Engine, request: Request) -> Any:
    promise, sequence_ids = engine.samplers.sample(await body_of(request), _key(request))
    return {"request_id": promise.request_id, "sample_sequence_ids": sequence_ids}


# ---- futures -----------------------------------------------------------------------------------------------------


async def retrieve_future(engine: Engine, request: Request) -> Any:
    """Waits a bounded time for a result, and says "try again" when there is none yet."""
    body = await body_of(request)
    promise = engine.promises.get(str(body.get("request_id")))
    if not await engine.wait(promise.done, engine.config.poll_s):
        return JSONResponse(try_again(promise), 408)
    outcome = promise.outcome
    if isinstance(outcome, Failure):
        return {"error": outcome.error, "category": outcome.category}
    if outcome is None:
        raise unknown(f"The result of {promise.request_id!r} is not kept any more.")
    content, media_type = encode(outcome, request.headers.get("accept", ""))
    if body.get("allow_metadata_only") and len(content) > engine.config.inline_limit_bytes:
        return {"status": "complete_metadata", "response_payload_size": len(content)}
    return Response(content, media_type=media_type)


async def retrieve_futures(engine: Engine, request: Request) -> Any:
    return await engine.completed(await body_of(request))


async def cancel_future(engine: Engine, request: Request) -> Any:
    engine.samplers.cancel(engine.promises.get(str((await body_of(request)).get("request_id"))))
    return None


async def executions(engine: Engine, request: Request) -> Any:
    session = request.query_params.get("session")
    return [entry for entry in engine.executions() if session in (None, entry["session_id"])]


def _accepted(promise: Promise) -> Any:
    return {"request_id": promise.request_id, "model_id": promise.model_id or None}


def _key(request: Request) -> str | None:
    return request.headers.get("x-idempotency-key")


async def _train_request(request: Request) -> Any:
    if PROTOBUF not in request.headers.get("content-type", ""):
        raise bad(f"Training data must be sent as {PROTOBUF}.")
    body = decompress(await request.body(), request.headers.get("content-encoding", ""))
    try:
        return read_train_request(body)
    except (Malformed, UnicodeDecodeError) as error:
        raise bad(f"The training request cannot be read: {error}.") from None


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/healthz", health),
    ("GET", "healthz", health),
    ("GET", "/lab/executions", executions),
    ("POST", "client/config", client_config),
    ("POST", "client/dynamic_config", dynamic_config),
    ("POST", "auth/token", auth_token),
    ("POST", "telemetry", telemetry),
    ("GET", "get_server_capabilities", capabilities),
    ("POST", "create_session", create_session),
    ("POST", "session_heartbeat", session_heartbeat),
    ("POST", "sessions/{session}/finish", finish_session),
    ("POST", "create_model", create_model),
    ("POST", "unload_model", unload_model),
    ("POST", "get_info", get_info),
    ("POST", "forward", forward),
    ("POST", "forward_backward", forward_backward),
    ("POST", "optim_step", optim_step),
    ("POST", "save_weights", save_weights),
    ("POST", "save_weights_external", save_weights_external),
    ("POST", "save_weights_for_sampler", save_weights_for_sampler),
    ("POST", "load_weights", load_weights),
    ("POST", "create_custom_loss", create_custom_loss),
    ("POST", "create_sampling_session", create_sampling_session),
    ("POST", "join_sampling_session", join_sampling_session),
    ("GET", "samplers/{sampler}", get_sampler),
    ("POST", "asample", asample),
    ("POST", "retrieve_future", retrieve_future),
    ("POST", "retrieve_futures", retrieve_futures),
    ("POST", "cancel_future", cancel_future),
)
