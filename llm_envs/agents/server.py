"""A server in front of a token policy, with the APIs of OpenAI and Anthropic. It records every session as an episode.

1. Replies are kept as the token ids that were sampled, with log-probabilities and versions, and never encoded again.
2. A request belongs to the session in its path (`/s/<session>/v1/...`), or in the header `X-Session-Id`, or to the
   session "default". Requests of one session run concurrently.
3. Without the token (a bearer's, or `x-api-key`) nothing is answered but 401, and a connection gives way to new ones
   (`connections`). The server listens on the loopback unless told otherwise.
4. A request ends in one response: an answer, or an error in OpenAI's form. If the client disconnects first, its
   sampling is cancelled and leaves no turn. A reply that was sampled counts as received, even if the connection breaks
   while it is sent.
5. A stream begins when its reply is complete: the policies have no streams of tokens. Its pieces are of text.
6. After `stop`, nothing of the server is left in the event loop, and no session answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from llm_envs.agents import messages, responses
from llm_envs.agents.connections import Strangers, counted
from llm_envs.agents.requests import ChatRequest, RequestError, chat_answer, chat_chunks, read_chat_request
from llm_envs.agents.session import MODEL, PolicySession
from llm_envs.chat.context import Codec
from llm_envs.errors import BridgeError, InvalidConfigError, extra_needed
from llm_envs.policies.base import Policy
from llm_envs.problems import is_number
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.token_transcript import History
from llm_envs.sources.source import EpisodeSpec
from llm_envs.types import SamplingParams, StopReason, Trajectory

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["Endpoint", "PolicyServer"]

Log = logging.getLogger(__name__)

_SESSION = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CHILD = "child"
BODY_S = 60.0
"""Seconds that a client has to send its request."""
_WAITING, _ACCEPTED_AT_ONCE = 1024, 100
"""Connections that the system keeps for the server, and how many it accepts in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a session's requests go."""

    base_url: str
    """For `OPENAI_BASE_URL`: ends with /v1."""
    api_key: str = field(repr=False)
    """For `OPENAI_API_KEY`."""

    @property
    def anthropic_url(self) -> str:
        """For `ANTHROPIC_BASE_URL`, with the same key: Anthropic's clients add /v1 themselves."""
        return self.base_url.removesuffix("/v1")

    @property
    def child(self) -> Endpoint:
        """For an agent's children: in the same session, and not trained on by default."""
        return Endpoint(f"{self.anthropic_url}/{_CHILD}/v1", self.api_key)


class PolicyServer:
    """Serves a token policy by OpenAI's chat completions and responses APIs and by Anthropic's messages API.

    Use it as an asynchronous context manager, or call `start` and `stop`, all in the event loop of the policy.

    Args:
        policy: A token policy.
        codec: Encodes and decodes text.
        sampling: How the policy samples where a request does not say.
        limits: The budgets of each session. `max_policy_s` is the time limit of a request, 600 s by default.
        history: See `EpisodeRecord`.
        seed: Run seed of the sampling, for requests without their own.
        host: Address to listen on.
        port: Port to listen on; 0: a free one.
        token: The bearer token; None: a random one.
        opens_sessions: Whether a request may open a session by naming it. False: only `add` does.
        max_sessions: Most sessions at once.
        session_s: Seconds without a request after which a session ends unscored, when another one needs its place.
        max_body_bytes: Largest request.
        on_trajectory: Called with each session that ends (`TrajectoryWriter.write`).

    Raises:
        InvalidConfigError: If a setting is wrong, or the policy takes no token ids.
        MissingExtraError: If starlette or uvicorn is not installed.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        codec: Codec,
        sampling: SamplingParams | None = None,
        limits: RolloutLimits | None = None,
        history: History = "append",
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        opens_sessions: bool = True,
        max_sessions: int = 1024,
        session_s: float = 3600.0,
        max_body_bytes: int = 16 * 2**20,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> None:
        if max_sessions < 1 or max_body_bytes < 1 or not session_s > 0 or token == "":
            raise InvalidConfigError(
                f"PolicyServer: {max_sessions=}, {max_body_bytes=}, {session_s=}: the numbers must be at least 1, "
                "the seconds above 0, and a token that is given not empty."
            )
        self.policy, self.codec, self.history, self.seed = policy, codec, history, seed
        self.sampling, self.limits = sampling or SamplingParams(), limits or RolloutLimits(max_policy_s=600.0)
        self.host, self.port = host, port
        self.token = token or secrets.token_urlsafe(24)
        self.opens_sessions, self.max_sessions, self.session_s = opens_sessions, max_sessions, session_s
        self.max_body_bytes, self.on_trajectory = max_body_bytes, on_trajectory
        self.sessions: dict[str, PolicySession] = {}
        self.strangers = Strangers()
        self._server: Any = None
        self._running: set[asyncio.Task[Any]] = set()
        if opens_sessions:
            self._make_session("probe")  # reports a wrong policy now
        self._app = _app(self)

    @property
    def url(self) -> str:
        """The address, without a path."""
        return f"http://{self.host}:{self.port}"

    def endpoint(self, session: str) -> Endpoint:
        """Return where a session's requests go."""
        return Endpoint(f"{self.url}/s/{session}/v1", self.token)

    def add(self, name: str, session: PolicySession) -> Endpoint:
        """Serve a session, and return where its requests go.

        Raises:
            InvalidConfigError: If the name is taken or has other characters than letters, digits, ".", "_" and "-".
        """
        if name in self.sessions or not _SESSION.fullmatch(name):
            raise InvalidConfigError(f"the session {name!r:.140} is open already, or has a character that no path has.")
        self.sessions[name] = session
        return self.endpoint(name)

    def remove(self, name: str) -> PolicySession:
        """Serve a session no longer, and return it."""
        session = self.sessions.pop(name)
        session.close()
        return session

    def end(self, name: str, reward: float | None = None, *, is_success: bool | None = None) -> Trajectory:
        """End a session and return its trajectory.

        Args:
            name: The session.
            reward: Its reward; None leaves it unscored.
            is_success: None: whether the reward is at least 1.

        Raises:
            KeyError: If no such session is open.
        """
        session = self.sessions[name]
        if reward is not None:
            session.pay(reward, {"reward": reward})
        success = bool(reward is not None and reward >= 1) if is_success is None else is_success
        try:
            trajectory = session.trajectory(
                stop_reason=StopReason.ERROR if session.failure else StopReason.TERMINATED,
                is_success=success,
                error=session.failure,
                unscored_because=None if reward is not None or session.failure else "no reward was given",
                metadata={"session": name},
            )
            if self.on_trajectory is not None:
                self.on_trajectory(trajectory)
        except BaseException:  # it stays, so that it can be ended when there is room on the disk again
            del session.payments[len(session.payments) - (reward is not None) :]
            raise
        self.remove(name)
        return trajectory

    async def start(self) -> None:
        """Listen.

        Raises:
            BridgeError: If the address is not free.
        """
        import uvicorn

        try:
            listener = socket.create_server((self.host, self.port), backlog=_WAITING)
        except OSError as error:
            raise BridgeError(f"cannot listen on {self.host}:{self.port}: {error.strerror or error}.") from error
        self.port = listener.getsockname()[1]
        # An agent may run a tool for long between two requests: a connection that is closed just as it asks again would
        # be an error in it.
        kept = {"timeout_keep_alive": 3600, "lifespan": "off", "ws": "none"}
        # h11 limits the headers of a request. With proxy_headers a client could choose the address that it is known by.
        # The backlog is also how many connections asyncio accepts before it reads what they send.
        safe = {"http": "h11", "proxy_headers": False, "backlog": _ACCEPTED_AT_ONCE}
        config = uvicorn.Config(self._app, log_config=None, access_log=False, **kept, **safe)  # type: ignore[arg-type]
        config.load()
        config.http_protocol_class = counted(config.http_protocol_class, self.strangers)  # type: ignore[assignment]
        # Not `Server.serve`: it takes over the signals of the process, and ends only at its next tick.
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])
        listener.listen(_WAITING)

    def stop(self) -> None:
        """Stop listening and cancel what is running. Never waits; harmless when repeated."""
        for name in list(self.sessions):
            self.sessions.pop(name).close()
        server, self._server = self._server, None
        if server is None:
            return
        for task in self._running:
            task.cancel()
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()

    async def __aenter__(self) -> PolicyServer:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.stop()
        await asyncio.gather(*self._running, return_exceptions=True)

    # The requests.

    async def models(self, request: Request) -> Response:
        """Answer `GET /v1/models`."""
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "llm-envs"}
        return _plain({"object": "list", "data": [model]})

    async def chat(self, request: Request) -> Response:
        """Answer `POST /v1/chat/completions`."""
        body, session = await self._json(request), self._session(request)
        asked = _read(request, session, body)
        id_, replies = await self._unless_disconnected(request, session.chat(asked))
        if not asked.stream:
            return _plain(chat_answer(asked, id_, replies, session.codec))
        chunks = map(json.dumps, chat_chunks(asked, id_, replies, session.codec))
        return _stream(f"data: {text}\n\n" for text in chain(chunks, ["[DONE]"]))

    async def responses(self, request: Request) -> Response:
        """Answer `POST /v1/responses`."""
        body, session = await self._json(request), self._session(request)
        chat = responses.to_chat_body(body, session.conversations)
        asked = _read(request, session, chat)
        id_, (reply,) = await self._unless_disconnected(request, session.chat(asked))
        answer = responses.response_answer(asked, body, id_, reply)
        if body.get("store") is not False:
            # Instructions hold for one response, so the next one does not inherit them.
            kept = chat["messages"][bool(body.get("instructions")) :]
            session.conversations[answer["id"]] = [*kept, *responses.chat_messages(answer["output"])]
        return _events(responses.response_events(answer)) if asked.stream else _plain(answer)

    async def messages(self, request: Request) -> Response:
        """Answer `POST /v1/messages`."""
        body, session = await self._json(request), self._session(request)
        asked = _read(request, session, messages.to_chat_body(body))
        id_, (reply,) = await self._unless_disconnected(request, session.chat(asked))
        answer = messages.message_answer(asked, id_, reply)
        return _events(messages.message_events(answer)) if asked.stream else _plain(answer)

    async def count_tokens(self, request: Request) -> Response:
        """Answer `POST /v1/messages/count_tokens`."""
        body, session = await self._json(request), self._session(request)
        asked = read_chat_request(messages.to_chat_body(body))
        return _plain({"input_tokens": session.count_tokens(asked)})

    async def end_session(self, request: Request) -> Response:
        """Answer `POST /s/<session>/end`: give the reward, and get the trajectory."""
        name, body = self._session_name(request), await self._json(request)
        body = body if isinstance(body, dict) else {}
        reward, is_success = body.get("reward"), body.get("is_success")
        if (reward is not None and not is_number(reward)) or not isinstance(is_success, bool | None):
            given = f"reward={json.dumps(reward)[:40]}, is_success={json.dumps(is_success)[:40]}"
            what = f"{given}: a finite number or null, a bool or null."
            raise RequestError(400, what, "invalid_reward")
        if name not in self.sessions or not self.opens_sessions:
            raise RequestError(404, f"no session {name!r} can be ended here.", "session_not_found")
        return _plain(self.end(name, reward, is_success=is_success).to_dict())

    def _make_session(self, name: str) -> PolicySession:
        spec = EpisodeSpec("session", {}, self.seed, f"{self.seed}-{name}")
        return PolicySession(
            spec,
            self.policy,
            self.codec,
            self.sampling,
            self.limits,
            self.history,
            self.seed,
            requests_decide=True,
        )

    def _session_name(self, request: Request) -> str:
        name = str(request.path_params.get("session") or request.headers.get("x-session-id") or "default")
        if not _SESSION.fullmatch(name):
            raise RequestError(
                400, f"the session {name!r:.140} must be 1 to 128 of A-Z a-z 0-9 . _ -", "invalid_session"
            )
        return name

    def _session(self, request: Request) -> PolicySession:
        name = self._session_name(request)
        session = self.sessions.get(name)
        if session is None and not self.opens_sessions:
            raise RequestError(404, f"the session {name!r} is not open.", "session_not_found")
        if session is None:
            self._make_room()
            session = self.sessions[name] = self._make_session(name)
        return session

    def _make_room(self) -> None:
        if len(self.sessions) < self.max_sessions:
            return
        for name, session in list(self.sessions.items()):
            if not session.n_active and session.sampler.clock.seconds - session.last_active_s > self.session_s:
                self.end(name)
        if len(self.sessions) >= self.max_sessions:
            what = (
                f"{len(self.sessions)} sessions are open, max_sessions={self.max_sessions}: end some (POST /s/ID/end)."
            )
            raise RequestError(429, what, "too_many_sessions")

    async def _json(self, request: Request) -> Any:
        """Read a request's body, within the limits of size and time."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    size += len(part)
                    if size > self.max_body_bytes:
                        what = f"the request has more than max_body_bytes={self.max_body_bytes} bytes."
                        raise RequestError(413, what, "request_too_large")
                    parts.append(part)
        except TimeoutError:
            raise RequestError(408, f"the request did not arrive within {BODY_S:g} s.", "request_timeout") from None
        try:
            return json.loads(b"".join(parts) or b"{}", parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise RequestError(400, f"the body is not JSON: {error}.", "invalid_json") from error

    async def _unless_disconnected(self, request: Request, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of `work`; if the client disconnects first, cancel it."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        self._running.add(task)
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
                raise RequestError(499, "the client has disconnected.", "disconnected")
            return task.result()
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or not current.cancelling():  # the server stops, and cancelled the sampling
                raise RequestError(503, "the server stops.", "server_stops") from None
            raise
        finally:
            gone.cancel()
            task.cancel()
            self._running.discard(task)


def _read(request: Request, session: PolicySession, body: Any) -> ChatRequest:
    """Check a request, and find out whether a child asks."""
    asked = read_chat_request(body)
    is_child = request.url.path.startswith(f"/s/{request.path_params.get('session')}/{_CHILD}/")
    return replace(asked, child=_CHILD if is_child else session.child_of(asked.model, request.headers))


def _plain(answer: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response in ASCII, which can hold any text, also a lone surrogate, which UTF-8 cannot."""
    from starlette.responses import Response

    text = json.dumps(answer, allow_nan=False)
    return Response(text, status, headers, media_type="application/json")


def _finite(text: str) -> float:
    """Read a number of JSON. Others than finite ones could not be written again."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.40} is not a finite number")
    return value


def _events(events: Iterator[dict[str, Any]]) -> Response:
    """Return a stream of events whose names are their types."""
    return _stream(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _stream(texts: Iterator[str]) -> Response:
    from starlette.responses import StreamingResponse

    async def sent() -> AsyncIterator[str]:
        for text in texts:
            yield text

    return StreamingResponse(sent(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _app(server: PolicyServer) -> Starlette:
    """Return the application.

    Raises:
        MissingExtraError: If starlette or uvicorn is not installed.
    """
    with extra_needed("PolicyServer needs starlette and uvicorn: pip install 'llm-envs[agents]'."):
        import uvicorn  # noqa: F401  # `start` needs it: say so now
        from starlette.applications import Starlette
        from starlette.routing import Route

    routes = []
    for prefix in ("", "/s/{session}", f"/s/{{session}}/{_CHILD}"):
        routes.append(Route(f"{prefix}/v1/models", _guarded(server, server.models), methods=["GET"]))
        for path, answer in (
            ("chat/completions", server.chat),
            ("responses", server.responses),
            ("messages", server.messages),
            ("messages/count_tokens", server.count_tokens),
        ):
            routes.append(Route(f"{prefix}/v1/{path}", _guarded(server, answer), methods=["POST"]))
    routes.append(Route("/s/{session}/end", _guarded(server, server.end_session), methods=["POST"]))
    every = ["GET", "POST", "PUT", "DELETE", "PATCH"]
    routes.append(Route("/{path:path}", _guarded(server, _not_found), methods=every))
    return Starlette(routes=routes)


async def _not_found(request: Request) -> Response:
    what = (
        f"{request.method} {request.url.path} does not exist here. There are POST /v1/chat/completions, "
        "/v1/responses, /v1/messages and /v1/messages/count_tokens and GET /v1/models, also below /s/SESSION, and POST "
        "/s/SESSION/end."
    )
    raise RequestError(404, what, "not_found")


def _guarded(
    server: PolicyServer, answer: Callable[[Request], Coroutine[Any, Any, Response]]
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Check the token, and turn errors into responses."""
    expected = server.token.encode()

    async def guarded(request: Request) -> Response:
        started = time.perf_counter()
        try:
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            given = request.headers.get("x-api-key") or bearer
            if not secrets.compare_digest(given.encode(errors="replace"), expected):
                what = "the token is missing or wrong (OPENAI_API_KEY, ANTHROPIC_API_KEY)."
                raise RequestError(401, what, "invalid_api_key")
            server.strangers.remove(request.scope["client"])
            return await answer(request)
        except RequestError as error:
            # Retrying would not help, and OpenAI's clients would do so after 408, 409, 429 and 5xx.
            headers = {"x-should-retry": "false"} if error.code != "too_many_sessions" else {}
            Log.info("%s %s: %s", request.method, request.url.path, error)
            return _plain(error.to_dict(), error.status, headers)
        except Exception as error:
            Log.exception("a request failed after %.1f s", time.perf_counter() - started)
            failure = RequestError(500, f"{type(error).__name__}: {error}", "internal_error")
            return _plain(failure.to_dict(), 500, {"x-should-retry": "false"})

    return guarded
