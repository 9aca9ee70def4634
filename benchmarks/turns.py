"""Turns of unequal length on the transformers policy: its joined batch, batch after batch, and `model.generate`.

    python benchmarks/turns.py [--check] [--out FILE] [--model DIR] [--rounds N] [--sides SIDE...] [--work WORK...]

Three ways to answer the same requests with the same model in this process:

- policy: `TransformersPolicy`, where a request joins the running batch at its next step;
- batches: the same sampler, batch after batch: the requests that wait when a batch ends are the next batch;
- generate: transformers' own `model.generate` with sampling, batch after batch, left-padded. It has no seeds for rows
  and computes no log-probabilities.

The work is two tasks, played by a collector, and a mix: episodes of three turns whose prompts and replies have lengths
fixed in advance, three quarters of them short. With a pretrained model (`make real-model`) replies end where the model
ends them; the fallback is a model of random weights. The sides take turns, and ratios are medians over the rounds. The
first two sides have equal seeds; where rounding turns no close choice they give equal turns, whose share is reported.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from measuring import Column, Figure, Report, finish, make_parser
from pages import pages_tokenizer, save_model

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import batch_generate, load_model, load_tokenizer
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.types import FinishReason, Sampled, SamplingParams

SIDES = ("policy", "batches", "generate")
CONCURRENCY = 16
N_EPISODES = {"mix": 16, "llm/GuessNumber-v0": 16, "llm/Calculator-v0": 16}
LIMITS = RolloutLimits(max_turns=3, max_turn_tokens=48)
REAL_MODEL = Path("build/smollm2-135m")
GATHER_S = 0.002
METHOD = (
    f"{CONCURRENCY} episodes at once, a model in float32. *Policy*: `TransformersPolicy`, whose requests join the "
    "running batch. *Batches*: the same sampler, batch after batch. *Generate*: `model.generate`, batch after batch, "
    "without seeds for rows or log-probabilities, so its turns are others. The tasks are played by a collector, at "
    "most 3 turns of at most 48 tokens; the mix has 3 turns an episode, 3/4 of 4 to 24 tokens and 1/4 of 96 to 192. "
    "Tokens/s are sampled tokens over wall time; ratios are medians over rounds in which the sides take turns. *Equal "
    "turns*: the share of turns that have the same tokens with policy and batches."
)
COLUMNS = [
    Column("work", "work"),
    Column("side", "side"),
    Column("rounds", "rounds"),
    Column("tokens", "sampled tokens", ",d"),
    Column("wall_s", "wall, s", ".1f"),
    Column("cpu_s", "CPU, s", ".1f"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("ratio", "policy is times as fast", ".2f"),
    Column("lowest", "lowest", ".2f"),
    Column("highest", "highest", ".2f"),
    Column("equal", "equal turns", ".3f"),
]
Ask = tuple[npt.NDArray[np.int32], SamplingParams, int]


@dataclass
class Batches:
    """A token policy that samples the waiting requests as one batch, and only then looks for new ones."""

    model: Any
    codec: ChatCodec
    sample_batch: Callable[[Batches, list[Ask]], list[Sampled]]
    _waiting: list[tuple[Ask, asyncio.Future[Sampled]]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    @property
    def max_model_len(self) -> int:
        return int(self.model.config.max_position_embeddings)

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        answer: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting.append(((prompt_ids, params, seed), answer))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            batch, self._waiting = self._waiting, []
            results = await asyncio.to_thread(self.sample_batch, self, [ask for ask, _ in batch])
            for (_, answer), sampled in zip(batch, results, strict=True):
                answer.set_result(sampled)


def by_batches(policy: Batches, asks: list[Ask]) -> list[Sampled]:
    """Sample a batch with our sampler."""
    prompts, params, seeds = zip(*asks, strict=True)
    limits = [p.max_new_tokens for p in params]
    same = replace(params[0], max_new_tokens=1)
    return batch_generate(
        policy.model, prompts, same, max_new_tokens=limits, seeds=seeds, stop_token_ids=policy.codec.stop_token_ids
    )


def by_generate(policy: Batches, asks: list[Ask]) -> list[Sampled]:
    """Sample a batch with `model.generate`, to the longest limit, and cut each row at its own."""
    width = max(len(prompt) for prompt, _, _ in asks)
    ids = torch.zeros(len(asks), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, (prompt, _, _) in enumerate(asks):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, width - len(prompt) :] = 1
    torch.manual_seed(asks[0][2] % 2**31)
    stops = list(policy.codec.stop_token_ids)
    output = policy.model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max(params.max_new_tokens for _, params, _ in asks),
        eos_token_id=stops or None,
        pad_token_id=0,
    )
    results = []
    for row, (_, params, _) in zip(output[:, width:].tolist(), asks, strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        kept = np.array(row[: min(end, params.max_new_tokens)], np.int32)
        reason = FinishReason.STOP if end <= params.max_new_tokens and row[end - 1] in stops else FinishReason.LENGTH
        results.append(Sampled(kept, np.zeros(len(kept), np.float32), reason, 0))
    return results


def make_policy(side: str, model: Any, tokenizer: Any) -> Any:
    """Return the policy of a side."""
    if side == "policy":
        return TransformersPolicy(model, tokenizer, gather_s=GATHER_S)
    return Batches(model, ChatCodec(tokenizer), by_batches if side == "batches" else by_generate)


def play_task(policy: Any, env_id: str) -> list[list[int]]:
    """Play episodes of a task; return the tokens of each turn."""
    with Collector(
        env_id,
        policy,
        codec=policy.codec,
        sampling=SamplingParams(),
        limits=LIMITS,
        max_concurrency=CONCURRENCY,
        progress=False,
    ) as collector:
        episodes = [t for group in collector.collect(N_EPISODES[env_id]) for t in group]
    rows = [(row, start, stop) for t in episodes for row in t.rows for start, stop in row.spans]
    return [row.ids[start:stop].tolist() for row, start, stop in rows]


def play_mix(policy: Any, n_vocabulary: int, n_episodes: int = N_EPISODES["mix"]) -> list[list[int]]:
    """Play episodes of three turns with lengths fixed in advance; return the tokens of each turn."""
    policy.codec.stop_token_ids = ()

    async def episode(index: int, room: asyncio.Semaphore) -> list[list[int]]:
        rng = np.random.default_rng(index)
        async with room:
            ids, turns = rng.integers(5, n_vocabulary, int(rng.integers(16, 64))).astype(np.int32), []
            for turn in range(3):
                n = int(rng.integers(96, 193) if rng.random() < 0.25 else rng.integers(4, 25))
                params = SamplingParams(max_new_tokens=n)
                sampled = await policy.sample(ids, params, seed=1000 * index + turn, session=str(index))
                turns.append(sampled.token_ids.tolist())
                heard = rng.integers(5, n_vocabulary, 12).astype(np.int32)
                ids = np.concatenate([ids, sampled.token_ids, heard])
            return turns

    async def run() -> list[list[int]]:
        room = asyncio.Semaphore(CONCURRENCY)
        return [
            turn for turns in await asyncio.gather(*[episode(i, room) for i in range(n_episodes)]) for turn in turns
        ]

    return asyncio.run(run())


def measure(work: str, sides: list[str], n_rounds: int, model: Any, tokenizer: Any) -> list[dict[str, Any]]:
    """Let the sides take turns on one kind of work; return a row for each."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    n_tokens: dict[str, list[int]] = {side: [] for side in sides}
    turns: dict[str, list[list[int]]] = {}
    play_mix(make_policy("policy", model, tokenizer), len(tokenizer), n_episodes=2)  # warms up
    for index in range(n_rounds):
        for side in sides if index % 2 == 0 else sides[::-1]:
            policy = make_policy(side, model, tokenizer)
            started, cpu_started = time.perf_counter(), time.process_time()
            turns[side] = play_mix(policy, len(tokenizer)) if work == "mix" else play_task(policy, work)
            seconds[side].append(time.perf_counter() - started)
            cpu[side].append(time.process_time() - cpu_started)
            n_tokens[side].append(sum(map(len, turns[side])))
            print(
                f"{work} {side}: {n_tokens[side][-1]} tokens in {seconds[side][-1]:.1f} s ({cpu[side][-1]:.1f} s CPU)",
                flush=True,
            )
    rows = []
    for side in sides:
        rates = [n / s for n, s in zip(n_tokens[side], seconds[side], strict=True)]
        row = {"work": work, "side": side, "rounds": n_rounds, "tokens": n_tokens[side][-1]}
        row |= {"wall_s": statistics.median(seconds[side]), "cpu_s": statistics.median(cpu[side])}
        row |= {"tokens_per_s": statistics.median(rates)}
        if side != "policy" and "policy" in sides:
            ours = [n / s for n, s in zip(n_tokens["policy"], seconds["policy"], strict=True)]
            ratios = [mine / other for mine, other in zip(ours, rates, strict=True)]
            row |= {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        if side == "batches" and "policy" in sides:
            same = [one == other for one, other in zip(turns["policy"], turns[side], strict=False)]
            row["equal"] = sum(same) / max(len(turns["policy"]), len(turns[side]))
        rows.append(row)
    return rows


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--model", type=Path, help="folder; else build/smollm2-135m, or else random weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--work", nargs="+", choices=list(N_EPISODES), default=list(N_EPISODES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or (REAL_MODEL if REAL_MODEL.is_dir() else None)
        if folder is None:
            folder = Path(scratch)
            save_model(folder, pages_tokenizer(), hidden_size=384, n_layers=6, n_heads=6)
        model, tokenizer = load_model(folder, dtype="float32"), load_tokenizer(folder)
        print(f"{folder}: {model.num_parameters():,} parameters")
        rows = [row for work in options.work for row in measure(work, options.sides, options.rounds, model, tokenizer)]
    figures = [
        Figure(f"joined turns against {row['side']}, {row['work']}", row["ratio"], "times as fast")
        for row in rows
        if "ratio" in row
    ]
    title = "Turns of unequal length"
    return finish(Report("turns", title, METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
