"""Teach a tiny model when to reach for the calculator: from nothing to a trained tool user, on a CPU, in minutes.

Command:   make demo            (or: python examples/demo.py --out runs/demo --seed 0)
Hardware:  2 CPU cores; samples with vLLM where it is installed, with transformers otherwise. Nothing is downloaded.
Expect:    success on the test split about 0% untrained, below 60% after the warm-up, above 90% after GRPO.

A model of 0.50 M parameters is warmed up on traces of mixed quality: half of them call the calculator, half guess. It
then knows how to do both; what reinforcement learning has to find is when the tool pays.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
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
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from llm_envs import evaluate
from llm_envs.chat import ChatCodec
from llm_envs.evaluation import Evaluation
from llm_envs.parsers import format_answer
from llm_envs.policies import OraclePolicy, TransformersPolicy
from llm_envs.report import plot_training_curves, write_episode_page
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.tracking import jsonl_logger, read_metrics
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvSFTConfig, EnvSFTTrainer
from llm_envs.trainers.callbacks import LoggerCallback, ProgressLineCallback
from llm_envs.types import SamplingParams, Trajectory

ENV = "llm/Calculator-v0"
LEVEL = {"difficulty": "easy"}
MAX_TURN_TOKENS = 24


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


def make_model(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Make a tokenizer whose merges come from a few traces, and a model with random weights."""
    traces = Collector(ENV, MixedPolicy(), codec=ChatCodec(tiny_tokenizer()), env_kwargs=LEVEL, progress=False)
    codec = ChatCodec(tiny_tokenizer())
    texts = [codec.tokenizer.decode(t.rows[0].ids) for group in traces.collect(50) for t in group]
    tokenizer = tiny_tokenizer(texts, vocab_size=1280, max_token_length=64)
    return tiny_model(tokenizer, n_layers=3, seed=seed), tokenizer


def collect_traces(codec: ChatCodec, n: int, seed: int) -> list[Trajectory]:
    """Collect what the model is warmed up on."""
    print(f"\nCollecting {n} traces, of which half use the calculator and half guess", flush=True)
    with Collector(ENV, MixedPolicy(), codec=codec, env_kwargs=LEVEL, seed=seed) as collector:
        trajectories = [t for group in collector.collect(n) for t in group]
        print(collector.stats.summary())
    return trajectories


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path, args: argparse.Namespace) -> None:
    """Train on the traces."""
    traces = collect_traces(ChatCodec(tokenizer), args.traces, args.seed)
    print(f"\nWarm-up: {args.sft_steps} steps of 64 traces", flush=True)
    config = EnvSFTConfig(
        output_dir=str(out / "sft"),
        max_steps=args.sft_steps,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        gradient_checkpointing=False,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
    )
    shown = [
        LoggerCallback(jsonl_logger(out / "sft_metrics.jsonl")),
        ProgressLineCallback("warm-up", ["loss", "mean_token_accuracy"]),
    ]
    trainer = EnvSFTTrainer(model, args=config, source=traces, processing_class=tokenizer, callbacks=shown)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


def reinforce(folder: Path, out: Path, use_vllm: bool, args: argparse.Namespace) -> None:
    """Train by GRPO on the train split; save the model into `out/model`."""
    print(f"\nGRPO: {args.grpo_steps} steps of 16 groups of 8 episodes", flush=True)
    config = EnvGRPOConfig(
        output_dir=str(out / "grpo"),
        env_kwargs=LEVEL,
        max_steps=args.grpo_steps,
        per_device_train_batch_size=32,  # four micro-batches, each padded to its own longest row
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=96,
        max_turn_tokens=MAX_TURN_TOKENS,
        learning_rate=4e-4,
        lr_scheduler_type="linear",
        gradient_checkpointing=False,
        use_vllm=use_vllm,
        vllm_max_model_length=256 if use_vllm else None,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
    )
    shown = [
        LoggerCallback(jsonl_logger(out / "metrics.jsonl")),
        ProgressLineCallback("GRPO", ["reward", "env/success", "env/tool_calls"]),
    ]
    trainer = EnvGRPOTrainer(str(folder), ENV, config, callbacks=shown)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.save_model(str(out / "model"))
    trainer.close()


def measure(name: str, folder: Path, n: int) -> Evaluation:
    """Play the test split."""
    policy = TransformersPolicy.from_pretrained(folder)
    sampling = SamplingParams(max_new_tokens=MAX_TURN_TOKENS)
    result = evaluate(
        ENV, policy, n=n, codec=policy.codec, env_kwargs=LEVEL, seed=1, sampling=sampling, max_concurrency=128
    )
    asyncio.run(policy.aclose())
    print(f"{name:>16}: {result}", flush=True)
    return result


def report(out: Path, results: dict[str, Evaluation], tokenizer: PreTrainedTokenizerBase, seconds: float) -> None:
    """Write the plot, the episodes page, the trajectories of the evaluations and the summary."""
    keys = ["reward", "env/success", "env/tool_calls", "entropy"]
    plot_training_curves(read_metrics(out / "metrics.jsonl"), out / "reward.png", keys=keys, title=f"GRPO on {ENV}")
    samples = {name: list(result.trajectories[:8]) for name, result in results.items()}
    write_episode_page(out / "episodes.html", samples, title=ENV, decode_token=lambda token: tokenizer.decode([token]))
    summary = {name: {"success": r.success_rate, "interval": list(r.interval), "n": r.n} for name, r in results.items()}
    (out / "summary.json").write_text(json.dumps({"seconds": round(seconds, 1), "test": summary}, indent=2) + "\n")
    for name, result in results.items():
        with TrajectoryWriter(out / "trajectories" / name.replace(" ", "-")) as writer:
            for trajectory in result.trajectories:
                writer.write(trajectory)
    print(f"\nSuccess on the test split of {ENV} (easy), with 95% intervals:")
    for name, r in results.items():
        print(f"  {name:<16} {r.success_rate:6.1%}   [{r.interval[0]:.1%}, {r.interval[1]:.1%}]   n={r.n}")
    command = os.path.relpath(Path(sys.executable).with_name("llm-envs"))
    print(
        f"{seconds:.0f} seconds in all. In {out}/: metrics.jsonl, trajectories/, reward.png, episodes.html, model/.\n"
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--traces", type=int, default=12_000, help="warm-up traces")
    parser.add_argument("--sft-steps", type=int, default=600)
    parser.add_argument("--grpo-steps", type=int, default=100)
    parser.add_argument("--eval-episodes", type=int, default=400)
    parser.add_argument(
        "--policy", choices=["auto", "vllm", "transformers"], default="auto", help="what samples in GRPO"
    )
    args = parser.parse_args()

    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    use_vllm = args.policy == "vllm" or (args.policy == "auto" and importlib.util.find_spec("vllm") is not None)
    print(f"Sampling with {'vLLM' if use_vllm else 'transformers'} during GRPO.", flush=True)
    start = time.perf_counter()
    clear(args.out)
    folders = {
        "untrained": args.out / "untrained",
        "after warm-up": args.out / "warm",
        "after GRPO": args.out / "model",
    }
    results: dict[str, Evaluation] = {}

    def finish(name: str) -> None:
        results[name] = measure(name, folders[name], args.eval_episodes)

    model, tokenizer = make_model(args.seed)
    print(f"Made a model of {sum(p.numel() for p in model.parameters()):,} parameters.")
    for part in (model, tokenizer):
        part.save_pretrained(folders["untrained"])
    finish("untrained")
    warm_up(model, tokenizer, args.out, args)
    for part in (model, tokenizer):
        part.save_pretrained(folders["after warm-up"])
    finish("after warm-up")
    reinforce(folders["after warm-up"], args.out, use_vllm, args)
    finish("after GRPO")
    report(args.out, results, tokenizer, time.perf_counter() - start)


if __name__ == "__main__":
    main()
