"""GRPO whole, in one file, from the primitives: no TRL, no trainer.

Command:   python examples/minimal_grpo_loop.py
Hardware:  one CPU core, about one minute. Nothing is downloaded: the model (0.3 M parameters) is made on the spot.
Expect:    success on the test split about 50% after the warm-up, above 90% after 25 steps of GRPO.

The task: name the last digit of a number. The warm-up shows replies of which half name the first one, so that the model
knows how to do both; what reinforcement learning finds out is which of the two pays.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch

from llm_envs import evaluate
from llm_envs.chat import ChatCodec
from llm_envs.parsers import format_answer
from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import Collector, PromptSource, PromptTask
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.functional.advantages import group_normalised
from llm_envs.trainers.functional.logits import logps_from_logits
from llm_envs.trainers.functional.losses import clipped_surrogate, negative_log_likelihood
from llm_envs.trainers.functional.masking import aggregate_loss
from llm_envs.types import Row, SamplingParams, TrajectoryGroup

NUMBERS = [{"prompt": str(n), "answer": str(n % 10)} for n in range(100, 1000)]
TASK = PromptTask(NUMBERS, lambda row, reply: float(reply.answer == row["answer"]))


class FirstOrLast:
    """Names the first or the last digit: a coin decides for each episode."""

    def __init__(self, place: int = 0) -> None:
        self.place = place

    def for_episode(self, seed: int) -> FirstOrLast:
        """Return the policy of one episode."""
        return FirstOrLast(random.Random(seed).choice([0, -1]))

    def act(self, env: Any, observation: str) -> str:
        """Return the reply."""
        return format_answer(observation[self.place])


def tensors(rows: list[Row]) -> tuple[torch.Tensor, ...]:
    """Return token ids, which of them are tokens at all, which the policy wrote, and how likely they were: (B, T)."""
    width = max(map(len, rows))
    ids_BT, mask_BT = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    attention_BT, old_logps_BT = torch.zeros_like(ids_BT), torch.zeros(len(rows), width)
    for b, row in enumerate(rows):
        ids_BT[b, : len(row)], mask_BT[b, : len(row)] = torch.tensor(row.ids), torch.tensor(row.mask)
        attention_BT[b, : len(row)], old_logps_BT[b, : len(row)] = 1, torch.tensor(row.logps)
    return ids_BT, attention_BT, mask_BT[:, 1:], old_logps_BT[:, 1:]  # nothing predicts the first token


def logps_of(model: Any, ids_BT: torch.Tensor, attention_BT: torch.Tensor) -> torch.Tensor:
    """Return log pi of each token but the first, given those before it: shape (B, T - 1)."""
    logits_BTV = model(input_ids=ids_BT, attention_mask=attention_BT, use_cache=False).logits
    return logps_from_logits(logits_BTV[:, :-1], ids_BT[:, 1:])


def warm_up_step(model: Any, optimizer: torch.optim.Optimizer, rows: list[Row]) -> float:
    """Make given replies likelier; return the loss."""
    ids_BT, attention_BT, mask_BT, _ = tensors(rows)
    loss_BT = negative_log_likelihood(logps_of(model, ids_BT, attention_BT), mask_BT)
    return descend(model, optimizer, aggregate_loss(loss_BT, mask_BT, "token"))


def grpo_step(model: Any, optimizer: torch.optim.Optimizer, groups: list[TrajectoryGroup]) -> float:
    """Make replies that earned more than others of their group likelier; return the loss."""
    episodes = [(number, t) for number, group in enumerate(groups) for t in group.scored]
    ids_BT, attention_BT, mask_BT, old_logps_BT = tensors([t.rows[0] for _, t in episodes])
    rewards_B = torch.tensor([t.reward for _, t in episodes])
    advantages_B = group_normalised(rewards_B, torch.tensor([number for number, _ in episodes]))
    logps_BT = logps_of(model, ids_BT, attention_BT)
    loss_BT = clipped_surrogate(logps_BT, old_logps_BT, advantages_B, mask_BT)
    return descend(model, optimizer, aggregate_loss(loss_BT, mask_BT, "sequence"))


def descend(model: Any, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    """Take one optimizer step; return the loss."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def main(arguments: list[str] | None = None) -> None:
    """Warm up, measure, reinforce, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm-up", type=int, default=150, help="supervised steps of 64 replies")
    parser.add_argument("--steps", type=int, default=25, help="GRPO steps of 16 groups of 8 episodes")
    parser.add_argument("--test-episodes", type=int, default=200)
    args = parser.parse_args(arguments)

    traces = Collector(PromptSource(TASK), FirstOrLast(), codec=ChatCodec(tiny_tokenizer()), progress=False)
    texts = [traces.codec.tokenizer.decode(t.rows[0].ids) for group in traces.collect(20) for t in group]
    tokenizer = tiny_tokenizer(texts, vocab_size=400)  # what all conversations share becomes a few tokens
    model, codec = tiny_model(tokenizer), ChatCodec(tokenizer)
    policy = TransformersPolicy(model, tokenizer)  # samples from the very model that is trained
    settings: dict[str, Any] = {"codec": codec, "sampling": SamplingParams(max_new_tokens=8), "progress": False}

    def measure(when: str) -> None:
        print(f"{when}: {evaluate(TASK, policy, n=args.test_episodes, **settings)}", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    with Collector(PromptSource(TASK), FirstOrLast(), codec=codec, progress=False) as collector:
        for step in range(1, args.warm_up + 1):
            loss = warm_up_step(model, optimizer, [t.rows[0] for group in collector.collect(64) for t in group])
            if step % 20 == 0:
                print(f"warm-up {step:>4}  loss {loss:.3f}", flush=True)
    measure("after the warm-up")

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    with Collector(PromptSource(TASK, seed=1), policy, **settings) as collector:
        for step in range(1, args.steps + 1):
            groups = collector.collect(16, group_size=8)
            loss = grpo_step(model, optimizer, groups)
            reward = sum(t.reward for group in groups for t in group.scored) / 128
            print(f"GRPO {step:>4}  reward {reward:.3f}  loss {loss:+.4f}", flush=True)
    measure("after GRPO")


if __name__ == "__main__":
    main()
