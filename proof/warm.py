"""Warm starts, kept and shared among the runs: a tiny model trained on traces of mixed quality, or a pretrained one."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.measuring import describe_versions
from llm_envs import evaluate
from llm_envs.agents import AgentEnv
from llm_envs.chat import ChatCodec
from llm_envs.cli.agent_option import load_agent
from llm_envs.evaluation import Evaluation
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector
from llm_envs.testing import real_model
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer
from llm_envs.types import SamplingParams
from proof.tasks import TEST_SEED, WARM_SEED, Task, describe_task

__all__ = ["measure", "played_env", "warm_start"]


def warm_start(name: str, task: Task, cache: Path, agent: str | None = None) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a task's warm model, trained if it is not in the cache, and what was measured of it.

    Args:
        name: Of the task.
        task: What to play, and how much to train.
        cache: Folder of all warm starts.
        agent: Plays the test episodes, as in `Run`.

    Returns:
        The model's folder, and `settings`, `versions`, `seconds`, `outcomes` (see `measure`).
    """
    folder, settings = cache / name, describe_task(task)
    record = folder / "warm.json"
    if record.exists():
        kept = json.loads(record.read_text(encoding="utf-8"))
        if kept["settings"] == settings:
            return folder, _by_agent(folder, task, kept, agent)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Warm start of {name}: {task.sft_steps} steps on {task.n_traces} traces", flush=True)
    started = perf_counter()
    model, tokenizer = _load_model() if task.is_pretrained else _make_model(task)
    if task.copying_steps:
        _learn_to_copy(model, task.copying_steps)
    if task.sft_steps:
        _train(model, tokenizer, task, folder)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    seconds = perf_counter() - started
    kept = {
        "settings": settings,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "versions": describe_versions(),
        "seconds": round(seconds, 1),
        "outcomes": measure(folder, task),
    }
    record.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return folder, _by_agent(folder, task, kept, agent)


def _by_agent(folder: Path, task: Task, kept: dict[str, Any], agent: str | None) -> dict[str, Any]:
    """Return a warm start with the outcomes of an agent in place of the environment's; they are kept in the folder."""
    if agent is None:
        return kept
    record = folder / f"{agent}.json"
    if not record.exists():
        record.write_text(json.dumps(measure(folder, task, agent)) + "\n", encoding="utf-8")
    return {**kept, "outcomes": json.loads(record.read_text(encoding="utf-8"))}


def played_env(task: Task, agent: str | None) -> str | AgentEnv:
    """Return what is played: the task's environment, or an agent of examples/agents in it."""
    if agent is None:
        return task.env
    return AgentEnv(load_agent(f"examples/agents/{agent}.py:ENV").agent, task.env)


def measure(folder: Path, task: Task, agent: str | None = None) -> dict[str, list[float]]:
    """Play the test episodes, by themselves or with an agent, sampling as in training.

    Returns:
        By episode: `seeds`, `successes` (0 or 1) and `rewards`.
    """
    result = _evaluate(folder, task, agent)
    print(f"  {folder}: {result}", flush=True)
    if result.n != task.n_test:
        raise RuntimeError(f"{task.n_test - result.n} of {task.n_test} test episodes have no score: {result}")
    return {
        "seeds": [t.seed for t in result.trajectories],
        "successes": [int(t.is_success is True) for t in result.trajectories],
        "rewards": [round(t.reward, 6) for t in result.trajectories],
    }


def _evaluate(folder: Path, task: Task, agent: str | None) -> Evaluation:
    policy = TransformersPolicy.from_pretrained(folder)
    result = evaluate(
        played_env(task, agent),
        policy,
        n=task.n_test,
        codec=policy.codec,
        env_kwargs=task.env_kwargs,
        seed=TEST_SEED,
        sampling=SamplingParams(max_new_tokens=task.max_turn_tokens),
        max_concurrency=128,
        progress=False,
        context_fn=task.context_fn(),
    )
    asyncio.run(policy.aclose())
    return result


def _load_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = real_model()
    return load_model(folder), load_tokenizer(folder)


def _make_model(task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    codec = ChatCodec(tiny_tokenizer())
    with _collect_traces(task, codec) as traces:
        texts = [codec.tokenizer.decode(row.ids) for group in traces.collect(50) for t in group for row in t.rows]
    tokenizer = tiny_tokenizer(texts, vocab_size=task.vocab_size, max_token_length=64)
    return tiny_model(tokenizer, seed=WARM_SEED, **task.model), tokenizer


def _collect_traces(task: Task, codec: ChatCodec, **settings: Any) -> Collector:
    """Return a collector that plays the traces of a warm start."""
    settings = {"env_kwargs": task.env_kwargs, "context_fn": task.context_fn(), "progress": False, **settings}
    return Collector(task.env, task.warm_policy(), codec=codec, **settings)


def _learn_to_copy(model: PreTrainedModel, n_steps: int) -> None:
    """Train on random tokens that come twice, 8 to 63 of them, so that the second time can be read off the first."""
    generator = torch.Generator().manual_seed(WARM_SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    warmed = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 50) * (1 - step / n_steps))
    for _ in range(n_steps):
        n = int(torch.randint(8, 64, (1,), generator=generator))
        once = torch.randint(model.config.vocab_size, (64, n), generator=generator)
        logits = model(torch.cat([once, once], 1)).logits[:, n:-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), once[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmed.step()
    print(f"  loss of copies {loss:.3f}", flush=True)


def _train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, folder: Path) -> None:
    codec = ChatCodec(tokenizer)
    with _collect_traces(task, codec, seed=WARM_SEED) as collector:
        traces = [t for group in collector.collect(task.n_traces) for t in group]
    config = EnvSFTConfig(
        output_dir=str(folder / "sft"),
        max_steps=task.sft_steps,
        per_device_train_batch_size=8 if task.is_pretrained else 64,
        learning_rate=task.sft_learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(20, task.sft_steps // 2),
        gradient_checkpointing=False,
        logging_steps=max(task.sft_steps // 5, 1),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=WARM_SEED,
    )
    trainer = EnvSFTTrainer(model, args=config, source=traces, processing_class=tokenizer)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    losses = [f"{entry['loss']:.3f}" for entry in trainer.state.log_history if "loss" in entry]
    print(f"  loss {', '.join(losses)}", flush=True)
    shutil.rmtree(folder / "sft", ignore_errors=True)
