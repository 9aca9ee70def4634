"""What the collector adds to the engine: its tokens/s against a bare loop that has the engine do the same work.

    python benchmarks/rollout_vs_engine.py [--check] [--out FILE] [--episodes N] [--pairs N]

Needs vLLM (on a CPU `VLLM_CPU_KVCACHE_SPACE=1`). A model of about 30 million random parameters plays
`llm/Calculator-v0`, 64 episodes at once: what it says is noise, so that every episode has 4 replies, and every reply
has 24 tokens (`min_tokens`). A first, unmeasured run notes each prompt. Then two sides alternate on one engine:

- ours: `Collector.collect` with environments, parsing, templates, trajectories, and each of them written to disk;
- bare: `add_request` and `step` in one thread, with the noted prompts, and the same sampling parameters, seeds and
  log-probabilities. It is as continuous as ours: a conversation's next turn goes in as soon as its last is finished,
  and the next conversation as soon as one ends. It throws away what comes out.

The prefix cache is emptied before each run. The ratio is the median of the ratios of the pairs; with `--check` the exit
code is 1 if it is below 0.95.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import numpy.typing as npt
from measuring import Column, Figure, Report, finish, make_parser
from pages import MAX_LENGTH, pages_tokenizer, save_model

from llm_envs.policies import VLLMEnginePolicy, load_engine
from llm_envs.policies.vllm.engine_format import to_vllm
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.types import Sampled, SamplingParams

ENV_ID = "llm/Calculator-v0"
CONCURRENCY = 64
TURNS = 4
TURN_TOKENS = 24
MIN_SHARE = 0.95
SAMPLING = SamplingParams(max_new_tokens=TURN_TOKENS, extra={"min_tokens": TURN_TOKENS})
METHOD = (
    "A model of random weights plays `llm/Calculator-v0`, 64 episodes at once, 4 replies of 24 tokens each. *Bare* is "
    "a loop of `add_request` and `step` that has the same engine sample the same turns with the same parameters, seeds "
    "and log-probabilities, as continuously, without environments, parsing or storage. The two alternate; the share is "
    "the median over the pairs. Held: 0.95."
)
COLUMNS = [
    Column("parameters", "parameters", ",d"),
    Column("episodes", "episodes"),
    Column("tokens", "sampled tokens", ",d"),
    Column("pairs", "pairs"),
    Column("bare_tokens_per_s", "bare, tokens/s", ",.0f"),
    Column("ours_tokens_per_s", "ours, tokens/s", ",.0f"),
    Column("share", "share", ".3f"),
    Column("lowest", "lowest", ".3f"),
    Column("highest", "highest", ".3f"),
]


@dataclass
class Notes:
    """A policy that notes what it is asked for: the turns of each conversation, in order."""

    policy: VLLMEnginePolicy
    conversations: dict[str, list[tuple[list[int], SamplingParams, int]]] = field(default_factory=dict)

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        self.conversations.setdefault(session, []).append((prompt_ids.tolist(), params, seed))
        return await self.policy.sample(prompt_ids, params, seed=seed, session=session)


def collect(policy: Any, codec: Any, n_episodes: int, concurrency: int) -> float:
    """Collect and store; return the seconds that it took."""
    with (
        tempfile.TemporaryDirectory() as folder,
        TrajectoryWriter(Path(folder) / "run") as writer,
        Collector(
            ENV_ID,
            policy,
            codec=codec,
            sampling=SAMPLING,
            env_kwargs={"max_turns": TURNS},
            max_concurrency=concurrency,
            progress=False,
            on_trajectory=writer.write,
        ) as collector,
    ):
        started = time.perf_counter()
        groups = collector.collect(n_episodes)
        seconds = time.perf_counter() - started
    for group in groups:
        for trajectory in group.trajectories:
            n_tokens = sum(int(row.mask.sum()) for row in trajectory.rows)
            if n_tokens != TURNS * TURN_TOKENS:
                what = trajectory.error or trajectory.stop_reason
                raise SystemExit(f"an episode has {n_tokens} tokens in {len(trajectory.turns)} turns ({what})")
    return seconds


def replay(
    llm: Any, conversations: list[list[tuple[list[int], SamplingParams, int]]], stop_ids: Any, concurrency: int
) -> float:
    """Have the bare engine sample the same turns; return the seconds that it took."""
    turns = [
        [({"prompt_token_ids": ids}, to_vllm(params, params.max_new_tokens, seed, stop_ids)) for ids, params, seed in c]
        for c in conversations
    ]
    engine, waiting, n_tokens = llm.llm_engine, deque(range(len(turns))), 0

    def add(conversation: int, turn: int) -> None:
        engine.add_request(f"{conversation}-{turn}", *turns[conversation][turn])

    started = time.perf_counter()
    for _ in range(min(concurrency, len(waiting))):
        add(waiting.popleft(), 0)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if not output.finished:
                continue
            n_tokens += len(output.outputs[0].token_ids)
            conversation, turn = map(int, output.request_id.split("-"))
            if turn + 1 < len(turns[conversation]):
                add(conversation, turn + 1)
            elif waiting:
                add(waiting.popleft(), 0)
    seconds = time.perf_counter() - started
    if n_tokens != len(turns) * TURNS * TURN_TOKENS:
        raise SystemExit(f"the bare loop sampled {n_tokens} tokens of {len(turns) * TURNS * TURN_TOKENS}")
    return seconds


def measure(llm: Any, n_episodes: int, n_pairs: int, concurrency: int = CONCURRENCY) -> dict[str, Any]:
    """Alternate the two sides on one engine."""
    policy = VLLMEnginePolicy(llm, llm.get_tokenizer())
    notes = Notes(policy)
    collect(notes, policy.codec, n_episodes, concurrency)
    conversations = list(notes.conversations.values())

    def ours() -> float:
        llm.reset_prefix_cache()
        gc.collect()
        return collect(policy, policy.codec, n_episodes, concurrency)

    def bare() -> float:
        llm.reset_prefix_cache()
        gc.collect()
        return replay(llm, conversations, policy.codec.stop_token_ids, concurrency)

    pairs = []
    for index in range(n_pairs):
        seconds = {side: side() for side in ((bare, ours) if index % 2 == 0 else (ours, bare))}
        pairs.append((seconds[bare], seconds[ours]))
        print(f"bare {pairs[-1][0]:.2f} s, ours {pairs[-1][1]:.2f} s")
    shares = [bare_s / ours_s for bare_s, ours_s in pairs]
    bare_s, ours_s = (statistics.median(side) for side in zip(*pairs, strict=True))
    n_tokens = n_episodes * TURNS * TURN_TOKENS
    return {
        "episodes": n_episodes,
        "tokens": n_tokens,
        "pairs": n_pairs,
        "bare_tokens_per_s": round(n_tokens / bare_s),
        "ours_tokens_per_s": round(n_tokens / ours_s),
        "share": round(statistics.median(shares), 4),
        "lowest": round(min(shares), 4),
        "highest": round(max(shares), 4),
    }


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--width", type=int, default=768, help="of the model's layers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        n_parameters = save_model(
            Path(scratch), pages_tokenizer(), hidden_size=options.width, n_layers=6, n_heads=options.width // 64
        )
        llm = load_engine(scratch, dtype="float32", enforce_eager=False, max_model_len=MAX_LENGTH)
    row = {"parameters": n_parameters} | measure(llm, options.episodes, options.pairs)
    figures = [
        Figure("collector against the bare engine", row["share"], "of its tokens/s", at_least=MIN_SHARE),
        Figure("collector on vLLM", row["ours_tokens_per_s"], "tokens/s"),
    ]
    title = "The collector against the bare engine"
    return finish(Report("rollout_vs_engine", title, METHOD, COLUMNS, [row], figures), options)


if __name__ == "__main__":
    sys.exit(main())
