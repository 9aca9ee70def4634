"""A tiny model that calls tools, made in seconds: an oracle's episodes in the model's own format, and a plain loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from families import family_tokenizer
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from llm_envs.chat import ChatCodec
from llm_envs.data import sft_rows
from llm_envs.policies import OraclePolicy, TransformersPolicy
from llm_envs.rollout import Collector
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams, Trajectory

ENV = "llm/Calculator-v0"
SAMPLING = SamplingParams(max_new_tokens=48)


def make_tool_model(folder: Path, template: str | None = None, *, steps: int = 60) -> None:
    """Save a model that has read an oracle's episodes of the calculator, and its tokenizer.

    Args:
        folder: Where to.
        template: Name of one of TRL's chat templates, whose special tokens it gets; None: the tiny model's own.
        steps: Steps of 16 episodes. It learns to call, not to calculate.
    """
    tokenizer = _tokenizer(template)
    codec = ChatCodec(tokenizer)
    with Collector(ENV, OraclePolicy(), codec=codec, env_kwargs={"difficulty": "easy"}, progress=False) as collector:
        rows = sft_rows([t for group in collector.collect(320) for t in group])
    model = tiny_model(tokenizer, hidden_size=64, n_heads=2, max_length=512, seed=1).train()
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads on so little work wait for one another, on a busy machine for minutes
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        batch = _batch([rows[(16 * step + i) % len(rows)] for i in range(16)])
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(n_threads)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _batch(rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    ids, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), -100)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[i, :n], labels[i, :n], mask[i, :n] = torch.tensor(row["input_ids"]), torch.tensor(row["labels"]), 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def _tokenizer(template: str | None) -> PreTrainedTokenizerBase:
    """Return a tokenizer that writes the calculator's episodes in few tokens."""
    plain = tiny_tokenizer() if template is None else family_tokenizer(template)
    codec = ChatCodec(plain)
    with Collector(ENV, OraclePolicy(), codec=codec, env_kwargs={"difficulty": "easy"}, progress=False) as collector:
        texts = [codec.decode(t.rows[0].ids) for group in collector.collect(50) for t in group]
    if template is None:
        return tiny_tokenizer(texts, vocab_size=900, max_token_length=64)
    special = {token.content: token for token in plain.added_tokens_decoder.values()}
    short = tiny_tokenizer([_cut(text, special) for text in texts], vocab_size=900, max_token_length=64)
    short.add_tokens([AddedToken(t, special=True, normalized=False) for t, a in special.items() if a.special], True)
    short.add_tokens([AddedToken(t, special=False, normalized=False) for t, a in special.items() if not a.special])
    short.eos_token, short.bos_token, short.chat_template = plain.eos_token, plain.bos_token, plain.chat_template
    return short


def _cut(text: str, special: dict[str, AddedToken]) -> str:
    """Cut a text at its special tokens, which no merge must span."""
    for token in special:
        text = text.replace(token, "<|endoftext|>")
    return text


def tool_folder(tmp_path_factory: Any) -> Path:
    """Return the folder of such a model: the body of a fixture."""
    folder: Path = tmp_path_factory.mktemp("model")
    make_tool_model(folder)
    return folder


def tool_policy(tmp_path_factory: Any) -> Iterator[TransformersPolicy]:
    """Yield a policy of such a model: the body of a fixture."""
    folder = tmp_path_factory.mktemp("model")
    make_tool_model(folder, steps=40)
    made = TransformersPolicy.from_pretrained(folder, max_batch_size=1)
    yield made
    asyncio.run(made.aclose())


def collected(env: Any, policy: TransformersPolicy) -> list[Trajectory]:
    """Play four groups of two episodes."""
    with Collector(env, policy, codec=policy.codec, sampling=SAMPLING, seed=5, progress=False) as collector:
        return [t for group in collector.collect(4, 2) for t in group]
