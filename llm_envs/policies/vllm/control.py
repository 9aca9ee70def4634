"""Query model servers and change their weights: plain blocking calls, made from threads.

Answers become facts (`ServerFacts`). Functions that send no requests decide whether these are acceptable.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.errors import InvalidConfigError, LLMEnvsError, ModelError
from llm_envs.policies.answers import Answer
from llm_envs.policies.vllm.exchange import ServedCheckpoint
from llm_envs.policies.vllm.formats import EXTENSION, SERVE_COMMAND
from llm_envs.policies.vllm.http import RetryableError, check_url, import_httpx, is_local, read_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "CHANGING",
    "CONTROLS",
    "PROBE_TEXT",
    "SGLangControl",
    "ServerControl",
    "ServerFacts",
    "ServerState",
    "VLLMControl",
    "WholeFn",
    "check_facts",
    "check_settings",
    "check_updatable",
    "side_by_side",
]

_LOG = logging.getLogger(__name__)

CHANGING = " (changing)"
"""After the tag of weights while a server loads them, so that it does not count as having them."""
WholeFn = Callable[[ServedCheckpoint], ServedCheckpoint | None]
"""Weights with deltas -> the same as a full checkpoint, or None if they are not at hand."""

# Time to load a large checkpoint from a slow disk. After that the server counts as dead.
_LOAD_S = 1800.0
# Until another process sends weights or brings a restarted server up to date, which it looks for more often.
_WAIT_S, _WAIT_POLL_S = 60.0, 0.1
# The first `/server_info` is slow, because the server examines the machine.
_ASK_S = 120.0
# Above this, a log-probability means certainty. With top_k=1 it must be that high if filters are included.
_CERTAIN = -1e-4
# Tokenizers differ in digits, accents, other scripts and white space.
PROBE_TEXT = "Answer: 3141 + 59 = 3200; naïve Übung, 数学.\n  def f(x):\n\treturn x"
_PROBE_IDS = ((11, 7, 5, 3), (4, 9, 6, 8), (10, 5, 12, 7))


@dataclass(frozen=True)
class ServerFacts:
    """A server's description of itself. None means that it does not report the field."""

    url: str
    model: str
    """The name that requests use."""
    root: str
    """The folder or hub name that it was started on."""
    max_model_len: int
    process: str | None = None
    """Different after each start."""
    logprobs_mode: str | None = None
    device: str | None = None
    extension: str | None = None
    tag: str | None = None
    """The tag that the last writer gave to the weights."""
    is_dev: bool = False
    """Whether HTTP requests can change its weights."""
    dtype: str | None = None
    transfer: str | None = None
    """The backend of vLLM's weight transfer."""
    adapters: frozenset[str] = frozenset()
    """Names of the adapters that it has loaded."""
    max_lora_rank: int | None = None
    """None: it takes no adapters."""
    max_loras: int | None = None
    """Adapters in a batch."""

    @property
    def has_extension(self) -> bool:
        """Whether its workers have our methods."""
        return self.extension == EXTENSION


@dataclass(eq=False)
class ServerState:
    """A server as its client knows it."""

    url: str
    facts: ServerFacts | None = None
    is_trusted: bool = False
    """Whether it was identified after its last failure."""
    connects: int = 0
    """Number of connections made to it so far."""
    checked: int = 0
    """Value of `connects` when it was last identified."""
    version: int = 0
    salt: str = ""
    """Of the server's prefix cache: each checkpoint has another one."""
    is_loading: bool = False
    seen_s: float = 0.0
    """Time of its last answer."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is identified or loads weights."""
    asking: Future[None] | None = None
    """The current or last identification, shared by all turns that need it."""

    @property
    def process(self) -> str | None:
        """Different after each start; None if it is not known."""
        return None if self.facts is None else self.facts.process

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Let no turn begin here in the block."""
        self.is_loading = True
        try:
            yield
        finally:
            self.is_loading = False

    async def note_connection(self, event: str, info: Mapping[str, Any]) -> None:
        """Count the connections that a client makes."""
        if event == "connection.connect_tcp.complete":
            self.connects += 1


class ServerControl(ABC):
    """How to query one kind of server and make it load weights, by blocking JSON requests.

    Args:
        headers: Sent with every request.
        quick_s: Seconds in which a server must answer simple questions; after that it counts as hung.
        use_proxy: Whether to use the environment's proxies for these servers.
    """

    def __init__(self, headers: Mapping[str, str], quick_s: float = 15.0, *, use_proxy: bool = True) -> None:
        self.quick_s = quick_s
        self._httpx = import_httpx()
        self._client = self._httpx.Client(
            headers=dict(headers), timeout=_ASK_S, follow_redirects=True, trust_env=use_proxy
        )

    @abstractmethod
    def facts(self, url: str) -> ServerFacts:
        """Ask a server for its facts."""

    @abstractmethod
    def update_to(self, facts: ServerFacts, checkpoint: ServedCheckpoint, whole_fn: WholeFn) -> ServedCheckpoint:
        """Make a server load a checkpoint and tag its weights; return what it has loaded, by the same tag.

        Args:
            facts: The server's facts.
            checkpoint: The weights.
            whole_fn: Writes the same weights as a full checkpoint, for a server that cannot apply its deltas.
        """

    @abstractmethod
    def resume(self, facts: ServerFacts) -> None:
        """Resume a server that was left paused, because its answer was lost."""

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, url: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = _ASK_S) -> Answer:
        """GET, or POST a body; return the answer, or raise as `http.read_answer` does."""
        try:
            if body is None:
                response = self._client.get(url, timeout=timeout_s)
            else:
                response = self._client.post(url, json=body, timeout=timeout_s)
        except (self._httpx.HTTPError, self._httpx.StreamError) as error:
            raise RetryableError(f"{url}: {type(error).__name__}: {error}") from error
        return read_answer(url, response, self._client.headers)

    def tokenize(self, facts: ServerFacts, text: str) -> list[int] | None:
        """Return a text's ids as the server sees them; None if it cannot be asked."""
        return None

    def greedy_logps(self, facts: ServerFacts) -> list[float] | None:
        """Return log-probabilities of tokens sampled with top_k=1; None if they would prove nothing."""
        return None

    def check(self, facts: ServerFacts, model: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
        """Do what `check_facts` does, with what the server answers to a few questions."""
        ours = tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"]
        greedy = None if facts.logprobs_mode is not None else self.greedy_logps(facts)
        theirs = self.tokenize(facts, PROBE_TEXT)
        check_facts(facts, model, greedy_logps=greedy, server_ids=theirs, our_ids=list(ours))

    def ask_if_there(self, url: str, body: Mapping[str, Any] | None = None) -> Answer | None:
        """Do what `ask` does; None if the server does not know the path."""
        try:
            return self.ask(url, body)
        except ModelError:
            return None


class VLLMControl(ServerControl):
    """`vllm serve`; weights can be changed if it was started with `VLLM_SERVER_DEV_MODE=1`."""

    def facts(self, url: str) -> ServerFacts:
        """Ask a server for its facts."""
        first, *adapters = self.ask(f"{url}/v1/models", timeout_s=self.quick_s)["data"].items()
        info = self.ask_if_there(f"{url}/server_info?config_format=json")
        tag = None if info is None else self.ask_if_there(f"{url}/weight_info")

        def said(*path: str) -> Any:
            """Return a setting of the server; None if it does not report it."""
            field = info
            for name in ("vllm_config", *path):
                field = field[name] if field else None
            return field.value if field else None

        return ServerFacts(
            url=url,
            model=first["id"].text(),
            root=(first["root"] or first["id"]).text(),
            max_model_len=first["max_model_len"].whole(1),
            process=said("instance_id"),
            logprobs_mode=said("model_config", "logprobs_mode"),
            device=said("device_config", "device"),
            extension=said("parallel_config", "worker_extension_cls"),
            tag=tag["weight_version"].text() if tag is not None and tag["weight_version"] else None,
            is_dev=info is not None,
            dtype=said("model_config", "dtype"),
            transfer=said("weight_transfer_config", "backend"),
            adapters=frozenset(model["id"].text() for model in adapters),
            max_lora_rank=said("lora_config", "max_lora_rank"),
            max_loras=said("lora_config", "max_loras"),
        )

    def tokenize(self, facts: ServerFacts, text: str) -> list[int] | None:
        """Return a text's ids as the server sees them."""
        body = {"model": facts.model, "prompt": text, "add_special_tokens": False}
        answer = self.ask_if_there(f"{facts.url}/tokenize", body)
        return None if answer is None else answer["tokens"].ids(None)

    def greedy_logps(self, facts: ServerFacts) -> list[float] | None:
        """Return log-probabilities of tokens sampled with top_k=1."""
        logps: list[float] = []
        for ids in _PROBE_IDS:
            body = {"model": facts.model, "prompt": list(ids), "max_tokens": 4, "temperature": 1.0, "top_k": 1}
            answer = self.ask(f"{facts.url}/v1/completions", body | {"logprobs": 0, "seed": 0})
            listed = answer["choices"].items()[0]["logprobs"]["token_logprobs"]
            logps += listed.logps(len(listed.items()))
        return logps

    def update_to(self, facts: ServerFacts, checkpoint: ServedCheckpoint, whole_fn: WholeFn) -> ServedCheckpoint:
        """Change the weights between two steps. Running turns are frozen meanwhile and continue afterwards.

        If that fails, running turns are aborted, because the workers may have different weights by then, and the server
        stays paused until it is brought up to date.
        """
        if checkpoint.path is None:
            if (whole := whole_fn(checkpoint)) is None:
                return self._wait_for(facts, checkpoint)
            checkpoint = whole
        with self._changing(facts, checkpoint.tag):
            try:
                self._load(facts, checkpoint)
            except LLMEnvsError as error:
                self._ask_twice(f"{facts.url}/health")  # a server that is down needs no other file
                if not checkpoint.deltas or (whole := whole_fn(checkpoint)) is None:
                    raise
                _LOG.warning("%s refused a delta and gets the full weights. %s", facts.url, error)
                checkpoint = whole
                self._load(facts, checkpoint)
        return checkpoint

    @contextmanager
    def all_changing(self, servers: Sequence[ServerFacts], tag: str) -> Iterator[None]:
        """Do what `update_to` does before and after, for several servers whose weights the block changes together."""
        noted = [facts for facts in servers if facts.has_extension]
        with ExitStack() as changing:
            for facts in servers:
                changing.enter_context(self._changing(facts, tag))
            for facts in noted:
                self._call(facts, "llm_envs_note", {"tag": None})
            yield
            for facts in noted:
                self._call(facts, "llm_envs_note", {"tag": tag})

    def _wait_for(self, facts: ServerFacts, checkpoint: ServedCheckpoint) -> ServedCheckpoint:
        """Wait until another process has sent these weights."""
        deadline_s = time.monotonic() + _WAIT_S
        while self.ask(f"{facts.url}/weight_info")["weight_version"].value != checkpoint.tag:
            if time.monotonic() > deadline_s:
                raise RetryableError(
                    f"{facts.url} lacks the weights of version {checkpoint.version}, and the process that has them has "
                    f"not sent them for {_WAIT_S:g} s."
                )
            time.sleep(_WAIT_POLL_S)
        return checkpoint

    def resume(self, facts: ServerFacts) -> None:
        """Resume a server that was left paused."""
        self._ask_twice(f"{facts.url}/resume", {})

    def _ask_twice(self, url: str, body: Mapping[str, Any] | None = None) -> None:
        try:
            self.ask_if_there(url, body)
        except RetryableError:  # a server that has reported an error closes the connection
            self.ask_if_there(url, body)

    def _load(self, facts: ServerFacts, checkpoint: ServedCheckpoint) -> None:
        if facts.has_extension:
            whole = {"folder": str(checkpoint.path), "whole_tag": checkpoint.whole_tag}
            self._call(facts, "llm_envs_bring_up", whole | {"deltas": _described(checkpoint, facts)})
        else:
            self._call(facts, "reload_weights", {"weights_path": str(checkpoint.path)})

    def _call(self, facts: ServerFacts, method: str, kwargs: Mapping[str, Any]) -> None:
        """Call a method of all workers."""
        self.ask(f"{facts.url}/collective_rpc", {"method": method, "kwargs": kwargs}, timeout_s=_LOAD_S)

    def _set_tag(self, facts: ServerFacts, tag: str) -> None:
        self.ask(f"{facts.url}/update_weight_version", {"new_version": tag})

    @contextmanager
    def _changing(self, facts: ServerFacts, tag: str) -> Iterator[None]:
        """Pause a server whose weights the block changes; it has the tag afterwards."""
        try:
            self.ask_if_there(f"{facts.url}/pause?mode=keep", {})
            self._set_tag(facts, tag + CHANGING)
            yield
            self._set_tag(facts, tag)
        except BaseException:
            with suppress(LLMEnvsError):
                self._ask_twice(f"{facts.url}/pause?mode=abort", {})
            raise
        self.resume(facts)


def _described(checkpoint: ServedCheckpoint, facts: ServerFacts) -> list[dict[str, str]]:
    """Return the deltas for a server's workers: by path on this machine, elsewhere the bytes of those it lacks."""
    deltas = [{"tag": delta.tag, "sha256": delta.sha256} for delta in checkpoint.deltas]
    tags = [checkpoint.whole_tag, *(delta.tag for delta in checkpoint.deltas)]
    n_there = tags.index(facts.tag) if facts.tag in tags else 0
    for number, (delta, described) in enumerate(zip(checkpoint.deltas, deltas, strict=True)):
        if is_local(facts.url):
            described["path"] = str(delta.path)
        elif number >= n_there:
            try:
                described["data"] = base64.b64encode(delta.path.read_bytes()).decode()
            except OSError as error:
                raise ModelError(f"{delta.path} cannot be read: {error.strerror}") from error
    return deltas


class SGLangControl(ServerControl):
    """SGLang's server. Tested against the contract of its HTTP server, not with its engine.

    Its log-probabilities never include filters, so `SGLangFormat` refuses requests with filters.
    """

    def facts(self, url: str) -> ServerFacts:
        """Ask a server for its facts."""
        model = self.ask(f"{url}/get_model_info", timeout_s=self.quick_s)
        server = self.ask_if_there(f"{url}/server_info") or self.ask(f"{url}/get_server_info")  # its earlier name
        names = ("context_length", "max_context_length", "max_req_input_len")  # by the server's front end and version
        length = next(filter(None, map(server.__getitem__, names)), server["max_total_num_tokens"])
        path, tag, device = model["model_path"].text(), model["weight_version"].value, server["device"].value
        return ServerFacts(url, path, path, length.whole(1), tag=tag, device=device, is_dev=True)

    def update_to(self, facts: ServerFacts, checkpoint: ServedCheckpoint, whole_fn: WholeFn) -> ServedCheckpoint:
        """Load weights from a folder that the server can read; this server takes no deltas."""
        body = {"model_path": str(checkpoint.path), "weight_version": checkpoint.tag, "flush_cache": True}
        answer = self.ask(f"{facts.url}/update_weights_from_disk", body, timeout_s=_LOAD_S)
        if answer["success"].value is not True:
            raise ModelError(f"{facts.url} did not load {str(checkpoint.path)!r}: {answer['message'].value}")
        return checkpoint

    def resume(self, facts: ServerFacts) -> None:
        """Do nothing: this server is not paused."""


CONTROLS: Mapping[str, type[ServerControl]] = {"vllm": VLLMControl, "sglang": SGLangControl}
"""By the kind of server."""


def check_facts(
    facts: ServerFacts,
    model: str | None,
    *,
    greedy_logps: Sequence[float] | None = None,
    server_ids: Sequence[int] | None = None,
    our_ids: Sequence[int] = (),
) -> None:
    """Check that a server has the trainer's model and reports log-probabilities that can be trained on.

    Args:
        facts: The server's facts.
        model: The model that it must have: its name there, or the path that it was started with. None accepts any.
        greedy_logps: From `ServerControl.greedy_logps`, if the server does not report its mode.
        server_ids: A text's ids as the server sees them; None skips this.
        our_ids: The same text's ids as we see them.

    Raises:
        ModelError: If the server is unsuitable. The message has the right command.
    """
    command = SERVE_COMMAND.format(model=model or facts.root)
    if model is not None and not _is_same_model(model, facts):
        raise ModelError(
            f"{facts.url} serves {facts.model!r} (started on {facts.root!r}), not {model!r}. Start it as: {command}"
        )
    mode = facts.logprobs_mode
    if mode is None and greedy_logps is not None and not all(_CERTAIN <= logp <= -_CERTAIN for logp in greedy_logps):
        mode = "raw_logprobs, or another"
    if mode not in (None, "processed_logprobs"):
        raise ModelError(
            f"{facts.url} has the logprobs mode {mode}: its log-probabilities are not from the distribution "
            f"that it samples from. Start it as: {command}"
        )
    if server_ids is not None and list(server_ids) != list(our_ids):
        raise ModelError(
            f"{facts.url} does not tokenize like the trainer's tokenizer ({list(server_ids)[:8]}... against "
            f"{list(our_ids)[:8]}...): it has another model's tokenizer. Start it as: {command}"
        )


def check_settings(
    urls: Sequence[str], server: str, max_concurrency: int, timeout_s: float, max_retries: int, health_s: float
) -> None:
    """Check a client's settings.

    Raises:
        InvalidConfigError: If one is out of range.
    """
    for url in urls:
        check_url(url, "the server's URL")
    if server not in CONTROLS:
        raise InvalidConfigError(f"server is {server!r}; it must be 'vllm' or 'sglang'.")
    if max_concurrency < 1 or max_retries < 0 or not timeout_s > 0 or not health_s > 0:
        raise InvalidConfigError(
            f"{max_concurrency=}, {max_retries=}, {timeout_s=}, {health_s=}: they must be at least 1 and 0, and "
            "above 0."
        )


def side_by_side(function: Callable[[ServerState], None], servers: Sequence[ServerState]) -> list[LLMEnvsError]:
    """Call a function for each server in parallel threads; return the errors."""

    def call(server: ServerState) -> LLMEnvsError | None:
        try:
            function(server)
        except LLMEnvsError as error:
            return error
        return None

    with ThreadPoolExecutor(len(servers)) as threads:
        return [error for error in threads.map(call, servers) if error is not None]


def check_updatable(facts: ServerFacts) -> None:
    """Check that a server's weights can be changed.

    Raises:
        ModelError: If it was not started for that. The message has the right command.
    """
    command = SERVE_COMMAND.format(model=facts.root)
    if not facts.is_dev:
        raise ModelError(
            f"{facts.url} cannot change its weights: it was started without VLLM_SERVER_DEV_MODE=1. Nothing was "
            f"changed. Start it as: {command}"
        )
    if facts.tag is None:
        raise ModelError(
            f"{facts.url} does not say which weights it has (/weight_info): it is too old to follow a trainer. "
            "Nothing was changed. Update it."
        )
    if facts.device == "cpu" and not facts.has_extension:
        raise ModelError(
            f"{facts.url} runs on a CPU, where vLLM's own reload does not update a tied output layer. Nothing was "
            f"changed. Start it as: {command} --worker-extension-cls {EXTENSION}"
        )


def _is_same_model(model: str, facts: ServerFacts) -> bool:
    if model in (facts.model, facts.root):
        return True
    return Path(model).exists() and Path(facts.root).exists() and Path(model).resolve() == Path(facts.root).resolve()
