"""A workload whose turns and tokens are fixed in advance, for a model with random weights on a real engine.

A rollout fetches page after page with a tool that takes its time, and then answers. What the model says is forced: a
logits processor of vLLM leaves one token at each place, so that the engine does all of its work (a forward pass, a
draw, a log-probability for each token) and every rollout has the same turns of the same tokens, whoever asks for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.parsers import format_tool_call
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.tools import Tool

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from llm_envs.policies import VLLMEnginePolicy
    from llm_envs.types import Trajectory

QUESTION = "Fetch the pages one after another, and say at the end that you are done."
INSTRUCTIONS = "You are a careful reader who uses the tool."
ANSWER = "<answer>done</answer>"
PAGE = (
    "The page says: of the 4,812 entries that were counted in the first half of the year, 1,377 were returned to the "
    "sender, 206 were lost on the way, and the others are still waiting in the second room on the left."
)
MAX_LENGTH = 2048


def draw_latencies(n_rollouts: int, n_turns: int, mean_s: float, *, seed: int = 0) -> npt.NDArray[np.float64]:
    """Return how long each call of each rollout takes: shape (n_rollouts, n_turns), exponential, their mean exact."""
    drawn = np.random.default_rng(seed).exponential(size=(n_rollouts, n_turns))
    return mean_s * drawn / drawn.mean()


Waiting = Literal["async", "thread", "environment", "inline"]


class Book:
    """The pages of one run: how many a rollout fetches, and how long each call takes.

    Args:
        latencies_s: Seconds of each call: shape (rollouts, calls).
        waiting: Whether an asynchronous tool waits, a tool that has a thread during its call, or an environment that
            declares that it blocks and has its own thread; "inline" has none of these. None is an environment with
            a thread if there are latencies, and otherwise "inline".
    """

    def __init__(self, latencies_s: npt.NDArray[np.float64], waiting: Waiting | None = None) -> None:
        self.latencies_s = latencies_s
        self.n_turns = latencies_s.shape[1]
        self.waiting: Waiting = waiting or ("environment" if latencies_s.any() else "inline")
        self.blocking = self.waiting == "environment"
        self.begin()

    def begin(self) -> None:
        """Give the numbers of the rollouts from the first again."""
        self._numbers = count()

    def next_rollout(self) -> Iterator[float]:
        """Return the latencies of the next rollout's calls."""
        return iter(self.latencies_s[next(self._numbers) % len(self.latencies_s)].tolist())


def read_page(latencies: Iterator[float], page: int) -> str:
    """Wait as long as this call takes, and return the page: what the tool does on both sides."""
    latency_s = next(latencies)
    if latency_s:
        time.sleep(latency_s)
    return page_text(page)


def page_text(page: int) -> str:
    """Return a page."""
    return f"{page}: {PAGE}"


MAX_TURNS = 10_000
SYSTEM_PROMPT = f"{INSTRUCTIONS}\nYou have {MAX_TURNS} replies."
"""What the environment shows; TRL's side is given the same."""


class PagesEnv(ToolEnv):
    """Fetch as many pages as the book says, then answer."""

    difficulties: ClassVar = {"only": Difficulty("one level", chance_rate=1.0, disjoint_splits=False)}
    default_difficulty = "only"
    default_max_turns = MAX_TURNS
    problem_fields: ClassVar = {}
    instructions = INSTRUCTIONS

    def __init__(self, book: Book) -> None:
        self._book = book
        super().__init__()
        self.blocking = book.blocking

    def make_tools(self) -> Sequence[Tool | Callable[..., Any]]:
        def fetch(page: int) -> str:
            """Fetch a page.

            Args:
                page: Number of the page.
            """
            return read_page(self._latencies, page)

        async def fetch_async(page: int) -> str:
            if latency_s := next(self._latencies):
                await asyncio.sleep(latency_s)
            return page_text(page)

        if self._book.waiting == "async":
            fetch_async.__name__, fetch_async.__doc__ = fetch.__name__, fetch.__doc__
            return [fetch_async]
        return [Tool(fetch, parallel=self._book.waiting == "thread")]

    def generate(self) -> dict[str, Any]:
        return {}

    def begin(self) -> None:
        self._latencies = self._book.next_rollout()

    def prompt(self) -> str:
        return QUESTION

    def is_correct(self, answer: str) -> bool:
        return answer == "done"

    def next_action(self) -> str:
        return reply_text(self.n_turns, self._book.n_turns)


class make_pages_env:
    """Make environments of one book; it says itself that they wait, so that they are made in a thread as well."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.blocking = book.blocking

    def __call__(self, **kwargs: Any) -> PagesEnv:
        return PagesEnv(self.book)


def collect_pages(policy: VLLMEnginePolicy, book: Book, n_rollouts: int) -> tuple[float, list[Trajectory]]:
    """Collect rollouts of a book, all at once; return the seconds that it took, and the episodes."""
    from llm_envs.rollout import Collector

    make = make_pages_env(book)
    with Collector(make, policy, codec=policy.codec, max_concurrency=n_rollouts, progress=False) as collector:
        started = time.perf_counter()
        groups = collector.collect(n_rollouts)
        seconds = time.perf_counter() - started
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    for trajectory in trajectories:
        if not trajectory.is_success:
            raise SystemExit(f"a rollout failed: {trajectory.error or trajectory.stop_reason}")
    return seconds, trajectories


def reply_text(turn: int, n_turns: int) -> str:
    """Return what the model says in a turn."""
    return format_tool_call("fetch", page=turn + 1) if turn < n_turns else ANSWER


def pages_tokenizer() -> PreTrainedTokenizerBase:
    """Make a tokenizer of about four characters a token, with the template of Qwen 2.5, which TRL knows to parse."""
    from trl.chat_template_utils import qwen2_5_chat_template

    texts = [PAGE, QUESTION, INSTRUCTIONS, *(reply_text(turn, 9) for turn in range(10))] * 8
    tokenizer = tiny_tokenizer([*texts, qwen2_5_chat_template], vocab_size=900, max_token_length=4)
    tokenizer.chat_template = qwen2_5_chat_template
    return tokenizer


def save_model(folder: Path, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> int:
    """Save a model with random weights and its tokenizer; return its number of parameters."""
    model = tiny_model(tokenizer, max_length=MAX_LENGTH, **settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def forced_replies(tokenizer: PreTrainedTokenizerBase) -> type:
    """Return a logits processor for `load_engine(..., logits_processors=[...])` that forces the replies.

    The number of pages that a rollout fetches is read from its attribute `n_turns` as requests arrive.
    """
    from vllm.v1.sample.logits_processor import LogitsProcessor
    from vllm.v1.sample.logits_processor.builtin import process_dict_updates

    result_id = tokenizer.convert_tokens_to_ids("<tool_response>")
    end_id = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def reply_ids(turn: int, n_turns: int) -> list[int]:
        return [*tokenizer.encode(reply_text(turn, n_turns), add_special_tokens=False), end_id]

    class ForcedReplies(LogitsProcessor):
        n_turns: ClassVar[int] = 1

        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
            self._open: dict[int, tuple[list[int], list[int]]] = {}
            self._replies: dict[tuple[int, int], list[int]] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            process_dict_updates(self._open, batch_update, self._begin)

        def _begin(self, params: Any, prompt_ids: list[int] | None, output_ids: list[int]) -> Any:
            key = (prompt_ids or []).count(result_id), self.n_turns
            if key not in self._replies:
                self._replies[key] = reply_ids(*key)
            return self._replies[key], output_ids

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            if self._open:
                rows = list(self._open)
                ids = [reply[min(len(output), len(reply) - 1)] for reply, output in self._open.values()]
                chosen = logits[rows, ids]
                logits[rows] = float("-inf")
                logits[rows, ids] = chosen
            return logits

    return ForcedReplies
