"""Teach a model when to use the calculator, on a CPU: a tiny one in minutes, or a pretrained one within an hour.

Commands:  make demo            (or: python examples/demo.py --out runs/demo --seed 0)
           make demo-real       (or: python examples/demo.py --out runs/demo-real --model build/smollm2-135m)
Hardware:  2 CPU cores; samples with vLLM where it is installed, with transformers otherwise.
Expect:    of `make demo`, success on the test split about 0% untrained, below 60% after the warm-up, and above 85%
           after GRPO.

The model is warmed up on traces of mixed quality: half of them call the calculator, half guess. It then knows how to do
both; what reinforcement learning has to find is when the tool pays. Without `--model` the model has 0.50 M parameters,
random at first, and nothing is downloaded. With `--model` GRPO trains an adapter (LoRA).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import os
import random
import shutil
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; read when vLLM is imported
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import gymnasium as gym
import torch
import transformers
from peft import LoraConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from llm_envs import evaluate
from llm_envs.chat import ChatCodec
from llm_envs.evaluation import Evaluation
from llm_envs.parsers import format_answer
from llm_envs.policies import OraclePolicy, TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.report import plot_training_curves, write_report
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.tracking import jsonl_logger, read_metrics
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvSFTConfig, EnvSFTTrainer
from llm_envs.trainers.callbacks import LoggerCallback, ProgressLineCallback
from llm_envs.types import SamplingParams, Trajectory

ENV = "llm/Calculator-v0"
TINY = {
    "level": "easy",
    "traces": 12_000,
    "sft_steps": 600,
    "sft_batch": 64,
    "sft_learning_rate": 1e-3,
    "grpo_steps": 100,
    "grpo_groups": 16,
    "grpo_learning_rate": 4e-4,
    "micro_batch": 32,  # four micro-batches, each padded to its own longest row
    "max_turn_tokens": 24,
    "eval_episodes": 400,
}
"""The settings for the tiny model. Each is an option."""
PRETRAINED = TINY | {
    "traces": 64,
    "sft_steps": 16,
    "sft_batch": 8,
    "sft_learning_rate": 5e-5,
    "grpo_steps": 16,
    "grpo_groups": 4,
    "grpo_learning_rate": 3e-4,
    "micro_batch": 8,
    "max_turn_tokens": 48,
    "eval_episodes": 100,
}
"""The settings for `--model`."""
N_MEMBERS = 8
"""Episodes of a group."""
ROW_TOKENS = 96
"""Tokens of an episode, about."""
SAMPLED = 5.0
"""How many learned rows take as long as one that is sampled first, about: an episode of GRPO or of a measurement."""


class MixedPolicy:
    """Plays as the oracle does, or guesses at once: a coin decides for each episode."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._guesses = self._random.random() < 0.5

    def for_episode(self, seed: int) -> MixedPolicy:
        """Return the policy of one episode."""
        return MixedPolicy(seed)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Return the next action."""
        if self._guesses:
            return format_answer(f"{self._random.randrange(1, 10)}00")  # a round number
        return OraclePolicy().act(env, observation)


def make_model(args: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Make a tokenizer whose merges come from a few traces, and a model with random weights."""
    level = {"difficulty": args.level}
    traces = Collector(ENV, MixedPolicy(), codec=ChatCodec(tiny_tokenizer()), env_kwargs=level, progress=False)
    codec = ChatCodec(tiny_tokenizer())
    texts = [codec.tokenizer.decode(t.rows[0].ids) for group in traces.collect(50) for t in group]
    tokenizer = tiny_tokenizer(texts, vocab_size=1280, max_token_length=64)
    return tiny_model(tokenizer, n_layers=3, seed=args.seed), tokenizer


def collect_traces(codec: ChatCodec, args: argparse.Namespace) -> list[Trajectory]:
    """Collect what the model is warmed up on."""
    print(f"\nCollecting {args.traces} traces, of which half use the calculator and half guess", flush=True)
    level = {"difficulty": args.level}
    with Collector(ENV, MixedPolicy(), codec=codec, env_kwargs=level, seed=args.seed) as collector:
        trajectories = [t for group in collector.collect(args.traces) for t in group]
        print(collector.stats.summary())
    return trajectories


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path, args: argparse.Namespace) -> None:
    """Train on the traces."""
    traces = collect_traces(ChatCodec(tokenizer), args)
    print(f"\nWarm-up: {args.sft_steps} steps of {args.sft_batch} traces", flush=True)
    config = EnvSFTConfig(
        output_dir=str(out / "sft"),
        max_steps=args.sft_steps,
        per_device_train_batch_size=args.sft_batch,
        learning_rate=args.sft_learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=args.sft_steps // 30,
        gradient_checkpointing=False,
        logging_steps=math.ceil(args.sft_steps / 30),
        save_strategy="no",
        report_to="none",
        disable_tqdm=False,
        seed=args.seed,
    )
    shown = [
        LoggerCallback(jsonl_logger(out / "sft_metrics.jsonl")),
        ProgressLineCallback("warm-up", ["loss", "mean_token_accuracy"]),
    ]
    trainer = EnvSFTTrainer(model, args=config, source=traces, processing_class=tokenizer, callbacks=shown)
    trainer.train()


def reinforce(folder: Path, out: Path, use_vllm: bool, args: argparse.Namespace) -> None:
    """Train by GRPO on the train split; save the model into `out/model`."""
    print(f"\nGRPO: {args.grpo_steps} steps of {args.grpo_groups} groups of {N_MEMBERS} episodes", flush=True)
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    config = EnvGRPOConfig(
        output_dir=str(out / "grpo"),
        env_kwargs={"difficulty": args.level},
        max_steps=args.grpo_steps,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.grpo_groups * N_MEMBERS // args.micro_batch,
        num_generations=N_MEMBERS,
        max_completion_length=4 * args.max_turn_tokens,
        max_turn_tokens=args.max_turn_tokens,
        learning_rate=args.grpo_learning_rate,
        lr_scheduler_type="linear",
        gradient_checkpointing=False,
        use_vllm=use_vllm,
        vllm_max_model_length=1024 if use_vllm else None,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=False,
        seed=args.seed,
    )
    shown = [
        LoggerCallback(jsonl_logger(out / "metrics.jsonl")),
        ProgressLineCallback("GRPO", ["reward", "env/success", "env/tool_calls"]),
    ]
    trainer = EnvGRPOTrainer(str(folder), ENV, config, callbacks=shown, peft_config=adapter if args.model else None)
    trainer.train()
    trained = trainer.accelerator.unwrap_model(trainer.model)
    (trained.merge_and_unload() if args.model else trained).save_pretrained(out / "model")
    trainer.processing_class.save_pretrained(out / "model")
    trainer.close()


def announce(model: PreTrainedModel, args: argparse.Namespace) -> None:
    """Print what follows, and about how long it takes here: from the time of a few learned rows."""
    rows = torch.randint(0, model.config.vocab_size, (args.micro_batch, ROW_TOKENS))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        model(rows, labels=rows).loss.backward()
        seconds.append(time.perf_counter() - start)
    model.zero_grad()
    sampled = args.grpo_steps * args.grpo_groups * N_MEMBERS + 3 * args.eval_episodes
    n_rows = args.sft_steps * args.sft_batch + SAMPLED * sampled
    minutes = max(1, round(min(seconds) / args.micro_batch * n_rows / 60))
    plural = "s" if minutes > 1 else ""
    print(
        f"Six phases, about {minutes} minute{plural} on this machine: a model of {model.num_parameters():,} parameters "
        f"is measured on\n{args.eval_episodes} test problems, warmed up on {args.traces} traces ({args.sft_steps} "
        f"steps), measured, trained by GRPO ({args.grpo_steps} steps), measured;\na report is written.",
        flush=True,
    )


def measure(name: str, folder: Path, args: argparse.Namespace) -> Evaluation:
    """Play the test split."""
    policy = TransformersPolicy.from_pretrained(folder)
    settings = {
        "env_kwargs": {"difficulty": args.level},
        "sampling": SamplingParams(max_new_tokens=args.max_turn_tokens),
    }
    result = evaluate(ENV, policy, n=args.eval_episodes, codec=policy.codec, seed=1, max_concurrency=128, **settings)
    asyncio.run(policy.aclose())
    print(f"{name:>16}: {result}", flush=True)
    return result


def report(out: Path, results: dict[str, Evaluation], seconds: float) -> None:
    """Write the plot, the trajectories of the evaluations, the summary and the report."""
    keys = ["reward", "env/success", "env/tool_calls", "entropy"]
    plot_training_curves(read_metrics(out / "metrics.jsonl"), out / "reward.png", keys=keys, title=f"GRPO on {ENV}")
    summary = {name: {"success": r.success_rate, "interval": list(r.interval), "n": r.n} for name, r in results.items()}
    (out / "summary.json").write_text(json.dumps({"seconds": round(seconds, 1), "test": summary}, indent=2) + "\n")
    for name, result in results.items():
        with TrajectoryWriter(out / "trajectories" / name.replace(" ", "-")) as writer:
            for trajectory in result.trajectories:
                writer.write(trajectory)
    write_report([out], out / "report.html", tokenizer=out / "model")
    print(f"\nSuccess on the test split of {ENV}, with 95% intervals:")
    for name, r in results.items():
        print(f"  {name:<16} {r.success_rate:6.1%}   [{r.interval[0]:.1%}, {r.interval[1]:.1%}]   n={r.n}")
    command = os.path.relpath(Path(sys.executable).with_name("llm-envs"))
    print(
        f"{seconds:.0f} seconds in all. In {out}/: metrics.jsonl, trajectories/, reward.png, report.html, model/.\n"
        f"Play with it:  {command} play {ENV} --model {out}/model"
    )


def clear(out: Path) -> None:
    """Remove what an earlier demo left; refuse a folder that holds anything else."""
    marker = out / ".llm-envs-demo"
    if out.exists() and any(out.iterdir()) and not marker.exists():
        raise SystemExit(f"{out} is not empty and not of an earlier demo: give another --out.")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    marker.touch()


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="folder to write; an earlier demo's is replaced"
    )
    parser.add_argument(
        "--model", help="a pretrained model: a folder, or a name on a hub; default: a tiny model, made here"
    )
    parser.add_argument("--seed", type=int, default=0)
    for name, value in TINY.items():
        text = f"default: {value}, with --model {PRETRAINED[name]}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), help=text)
    parser.add_argument(
        "--policy", choices=["auto", "vllm", "transformers"], default="auto", help="what samples in GRPO"
    )
    args = parser.parse_args()
    for name, value in (PRETRAINED if args.model else TINY).items():
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))

    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    use_vllm = args.policy == "vllm" or (args.policy == "auto" and importlib.util.find_spec("vllm") is not None)
    print(f"Sampling with {'vLLM' if use_vllm else 'transformers'} during GRPO.", flush=True)
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        torch.set_num_threads(1)  # threads that wait for each other are slow where other processes have the cores
        print("This machine is busy: one thread.", flush=True)
    start = time.perf_counter()
    clear(args.out)
    folders = {
        "untrained": args.out / "untrained",
        "after warm-up": args.out / "warm",
        "after GRPO": args.out / "model",
    }
    results: dict[str, Evaluation] = {}

    def finish(name: str) -> None:
        results[name] = measure(name, folders[name], args)

    model, tokenizer = (load_model(args.model), load_tokenizer(args.model)) if args.model else make_model(args)
    announce(model, args)
    for part in (model, tokenizer):
        part.save_pretrained(folders["untrained"])
    finish("untrained")
    warm_up(model, tokenizer, args.out, args)
    for part in (model, tokenizer):
        part.save_pretrained(folders["after warm-up"])
    finish("after warm-up")
    reinforce(folders["after warm-up"], args.out, use_vllm, args)
    finish("after GRPO")
    report(args.out, results, time.perf_counter() - start)


if __name__ == "__main__":
    main()
