"""HTTP to model servers: one client for each event loop, and the conversion of answers to exceptions."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from llm_envs.errors import (
    BridgeError,
    ContextFullError,
    InvalidConfigError,
    LLMEnvsError,
    ModelError,
    extra_needed,
    public_address,
)
from llm_envs.policies.answers import Answer, read_json
from llm_envs.policies.vllm.routing import retry_after_s

__all__ = [
    "API_KEY",
    "AsyncClients",
    "RetryableError",
    "bearer",
    "check_url",
    "error_of",
    "error_text",
    "import_httpx",
    "is_local",
    "read_answer",
    "server_root",
    "without_key",
]

API_KEY = "LLM_ENVS_API_KEY"
"""Environment variable with the key for servers and APIs. Its name is not a provider's, so that a command never sends
one company's key to another address."""

# The error is in the first lines of an answer; a proxy's error page may be long.
_MAX_ERROR_CHARACTERS = 500

# A connection may take this long. The caller limits the time of the answer.
_CONNECT_S = 10.0

Trace = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class RetryableError(BridgeError):
    """A request failed in a way that another attempt may not: no connection, 429, 5xx."""

    def __init__(self, message: str, asked_s: float | None = None, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.asked_s = asked_s
        """Seconds that the server asked to wait."""
        self.is_busy = is_busy
        """The server is overloaded (429) but not down."""


def import_httpx() -> Any:
    """Return the HTTP client's module.

    Raises:
        MissingExtraError: If it is not installed.
    """
    with extra_needed("policies on servers need httpx2: pip install 'llm-envs[train]'."):
        import httpx2
    return httpx2


def is_local(url: str) -> bool:
    """Return whether a URL is on this machine, where a proxy from the environment could not reach it."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or re.fullmatch(r"127(\.\d+){3}|::1", host) is not None


def check_url(url: str, name: str) -> None:
    """Check that a URL is usable.

    Raises:
        InvalidConfigError: If it is not. The message has its name.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidConfigError(f"{name} is {public_address(url)!r}; it must begin with http:// or https://.")
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0  # an invalid port raises
    except ValueError:
        is_whole = False
    if not is_whole:
        raise InvalidConfigError(f"{name} is {public_address(url)!r}; it has no host, or an invalid port.")
    if public_address(url) != url:
        raise InvalidConfigError(
            f"{name} has more than {public_address(url)}: a user or a password before its host, or a query behind it. "
            "Errors contain addresses and are stored with episodes. Leave it out; pass a key in "
            f"{API_KEY}, or as api_key=."
        )


def server_root(url: str) -> str:
    """Return a server's address without the path of its API, by which two spellings are the same."""
    return url.rstrip("/").removesuffix("/v1")


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header with the key; no header without a key or with an empty one.

    Raises:
        InvalidConfigError: If a header cannot contain it. The message does not show it: errors are stored with
            episodes.
    """
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable() and api_key == api_key.strip()):
        raise InvalidConfigError(
            "the API key begins or ends with a blank or a line break, or has characters that a header must not "
            "have: check its source."
        )
    return {"Authorization": f"Bearer {api_key}"}


def without_key(text: str, status: int, headers: Mapping[str, str]) -> str:
    """Return an answer's text. The key is removed from errors, because some servers repeat it."""
    key = headers.get("Authorization", "").removeprefix("Bearer ")
    return text if status == 200 or len(key) < 8 else text.replace(key, "***")  # shorter keys are words, not secrets


class AsyncClients:
    """One asynchronous client for each event loop, because connections belong to a loop.

    Args:
        headers: Sent with every request.
        max_concurrency: Maximum number of requests at one time.
        use_proxy: Whether to use the environment's proxies for these servers.
        n_more: Further connections, for checks meanwhile.
    """

    def __init__(
        self, headers: Mapping[str, str], max_concurrency: int, *, use_proxy: bool = True, n_more: int = 0
    ) -> None:
        self._use_proxy = use_proxy
        self._httpx = import_httpx()
        self._headers, self._max_concurrency = dict(headers), max_concurrency
        self._max_connections = max_concurrency + n_more
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()

    def slot(self) -> asyncio.Semaphore:
        """Return the running loop's semaphore of `max_concurrency`: `async with clients.slot()`."""
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrency))

    async def post(
        self, url: str, body: Mapping[str, Any], *, timeout_s: float | None = None, trace: Trace | None = None
    ) -> Answer:
        """Send JSON; return the answer. Cancelling closes the connection, which aborts the request there.

        Raises:
            RetryableError: If the connection fails, the answer is 429 or 5xx, or it takes longer than `timeout_s`.
            ContextFullError: If the server reports that the prompt does not fit.
            InvalidConfigError: If the server refuses the API key or the request.
            ModelError: If the server does not have the model, or answers with anything but JSON.
        """
        client = self._client()
        extensions = {} if trace is None else {"trace": trace}
        try:
            async with asyncio.timeout(timeout_s):
                response = await client.post(url, json=body, extensions=extensions)
        except TimeoutError:
            raise RetryableError(f"{url} did not answer within timeout_s={timeout_s:g} s.") from None
        except (self._httpx.HTTPError, self._httpx.StreamError) as error:
            raise RetryableError(f"{url}: {type(error).__name__}: {error}") from error
        return read_answer(url, response, self._headers)

    async def get(self, url: str, timeout_s: float, *, trace: Trace | None = None) -> str | None:
        """Return a page's text; None if the answer is an error, or late."""
        extensions = {} if trace is None else {"trace": trace}
        try:
            answer = await self._client().get(url, timeout=timeout_s, extensions=extensions)
            return str(answer.text) if answer.status_code == 200 else None
        except (self._httpx.HTTPError, self._httpx.StreamError):
            return None

    async def aclose(self) -> None:
        """Close the client of the running loop. Clients of loops that have ended hold no resources."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            timeout = self._httpx.Timeout(None, connect=_CONNECT_S)
            limits = self._httpx.Limits(
                max_connections=self._max_connections, max_keepalive_connections=self._max_connections
            )
            self._clients[loop] = self._httpx.AsyncClient(
                headers=self._headers,
                timeout=timeout,
                limits=limits,
                follow_redirects=True,
                trust_env=self._use_proxy,
            )
        return self._clients[loop]


def read_answer(url: str, response: Any, headers: Mapping[str, str]) -> Answer:
    """Return a response's answer, or raise the error for its status; `headers` are the request's."""
    status = response.status_code
    text = without_key(response.text, status, headers)
    if not 200 <= status < 300:
        raise error_of(status, text, f"{url} answered {status}: {error_text(text)}", retry_after_s(response.headers))
    try:
        return Answer(url, read_json(text) if text else None)
    except ValueError as error:  # another attempt would get the same page
        raise ModelError(
            f"{url} answered {status} with {text[:80]!r}, which is not JSON ({error}): check that this is the "
            "address of a model server or chat API, and not of another page."
        ) from error


def error_of(status: int, text: str, message: str = "", asked_s: float | None = None) -> LLMEnvsError:
    """Return the error for an answer, by its status and, for 400, by its text.

    Args:
        status: The HTTP status.
        text: The server's text.
        message: Of the error.
        asked_s: Seconds that the server asked to wait.
    """
    if status in (401, 403):
        return InvalidConfigError(
            f"{message}\nThe server expects another API key: pass api_key=..., or set {API_KEY} for a command."
        )
    if status == 404:
        return ModelError(f"{message}\nGET /v1/models lists its models; check the URL too.")
    if status in (408, 409, 425, 429) or status >= 500:  # overloaded, starting or broken
        return RetryableError(message, asked_s, is_busy=status == 429)
    is_about_length = any(words in text.lower() for words in ("context length", "context_length", "max_model_len"))
    return ContextFullError(message) if status in (400, 413, 422) and is_about_length else InvalidConfigError(message)


def error_text(text: str) -> str:
    """Return the error message from any of the formats that servers use."""
    try:
        data = read_json(text)
    except ValueError:
        return text.strip()[:_MAX_ERROR_CHARACTERS] or "nothing more"
    for key in ("error", "message", "detail"):
        if isinstance(data, dict) and data.get(key):
            data = data[key]
    return str(data)[:_MAX_ERROR_CHARACTERS]
