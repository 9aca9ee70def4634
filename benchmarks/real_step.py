"""GRPO with a pretrained model, part by part, beside TRL's own trainer on the same task, model and engine.

    python benchmarks/real_step.py [--out FILE] [--models NAME...] [--engines NAME...] [--steps N]
    python benchmarks/real_step.py --until REWARD [--task ID] [--difficulty LEVEL] [--tokens N] [--seeds N...]
    python benchmarks/real_step.py --dtype bfloat16 --episodes 256 --micro-batch 64 --tokens 128

Both trainers have the same settings, problems and rewards. TRL's takes a data set of prompts and a reward function,
which plays the environment's one step here. Its engine is `model.generate`, or vLLM in this process, started as ours
is, because TRL starts it only on an accelerator. All replies have the same length, so that the steps do the same work.
With `--until` they end where the model ends them, and a trainer stops when the mean reward of its last three steps is
at least that, and after `--steps` steps otherwise. Each trainer runs in a separate process.
The model `qwen-0.5b` is a shape of random weights: the layers of Qwen2.5-0.5B with the tokenizer of `make real-model`.

The parts of a step: sampling, with the environment's steps of ours; rewards (TRL's environment); scoring, which is
log-probabilities without gradients; sending weights to the engine; training, which is all the rest. The first step is
left out of the medians. Memory is the highest resident set (Linux), or with a GPU what is taken of the GPU's while the
optimizer steps.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import transformers
from measuring import Column, Report, finish, make_parser
from transformers import PrinterCallback, TrainerCallback

TASK = "llm/Arithmetic-v0"
SIDES: dict[str, tuple[bool, dict[str, Any]]] = {
    "EnvGRPOTrainer": (True, {}),
    "EnvGRPOTrainer, prefix_tree": (True, {"forward": "prefix_tree"}),
    "TRL's GRPOTrainer": (False, {}),
    "TRL's GRPOTrainer, seeds": (False, {"generation_kwargs": {"seed": 0}}),
}
"""Whether the trainer is ours, and its additional settings."""
GROUP_SIZE = 8
PARTS = ("sampling", "rewards", "scoring", "weights", "training")
REAL_MODEL = "build/smollm2-135m"
SHAPE = "qwen-0.5b"
METHOD = (
    "{episodes} episodes a step in groups of {group}, micro-batches of {micro_batch}, LoRA of rank 16, {dtype}. "
    "Medians over the steps after the first, in seconds. Tokens/s are sampled tokens over the time of sampling. "
    "*Seeds*: each request has one, as all of ours have. "
)
COLUMNS = [
    Column("model", "model"),
    Column("engine", "engine"),
    Column("trainer", "trainer"),
    Column("seed", "seed"),
    Column("steps", "steps"),
    Column("step", "step", ".1f"),
    *(Column(part, part, ".2f") for part in PARTS),
    Column("tokens_per_s", "tokens/s", ".0f"),
    Column("memory_gib", "memory, GiB", ".1f"),
    Column("of_trl", "of TRL's step", ".2f"),
    Column("until", "until"),
]


class Clock:
    """Adds up the seconds of methods by name; what runs inside another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    def follow(self, owner: Any, method: str, name: str | Callable[[], str | None]) -> None:
        """Time a method of an object; a function decides at each call what it counts as, None for not at all."""
        original = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            counted = name() if callable(name) else name
            if counted is None:
                return original(*args, **kwargs)
            started = time.perf_counter()
            self._inner.append(0.0)
            try:
                return original(*args, **kwargs)
            finally:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                whole = time.perf_counter() - started
                self.seconds[counted] += whole - self._inner.pop()
                if self._inner:
                    self._inner[-1] += whole

        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken


def trl_trainer(
    model: Any, tokenizer: Any, settings: dict[str, Any], engine: str, own: dict[str, Any], options: Any
) -> Any:
    """Return TRL's trainer, with the environment as its reward function."""
    import gymnasium as gym
    from trl import GRPOConfig, GRPOTrainer

    import llm_envs  # noqa: F401
    from llm_envs.trainers.engines.weight_sync import ColocatedEngine
    from llm_envs.trainers.stock_trl import prompt_dataset

    env_kwargs = env_settings(options)
    env = gym.make(options.task, split="train", **env_kwargs)

    def play(completions: list[Any], seed: list[int], **_: Any) -> list[float]:
        rewards = []
        for completion, env_seed in zip(completions, seed, strict=True):
            env.reset(seed=env_seed)
            rewards.append(float(env.step(completion[0]["content"])[1]))
        return rewards

    args = GRPOConfig(**settings, **own, loss_type="grpo", beta=0.0)
    rows = prompt_dataset(options.task, 4096, seed=args.seed, env_kwargs=env_kwargs)
    from peft import LoraConfig

    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = GRPOTrainer(model, play, args, rows, processing_class=tokenizer, peft_config=adapter)
    if engine == "vllm":
        trainer.vllm_generation = ColocatedEngine(
            trainer.model,
            trainer.accelerator,
            tokenizer,
            seed=args.seed,
            version=lambda: trainer.state.global_step,
            max_model_length=512,
            max_completion_length=options.tokens,
            generation_kwargs=args.generation_kwargs,
        )
        trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "colocate", -1
    return trainer


def our_trainer(
    model: Any, tokenizer: Any, settings: dict[str, Any], engine: str, own: dict[str, Any], options: Any
) -> Any:
    """Return ours."""
    from peft import LoraConfig

    from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

    vllm = {"use_vllm": True, "vllm_max_model_length": 512} if engine == "vllm" else {}
    args = EnvGRPOConfig(**settings, **vllm, **own, env_kwargs=env_settings(options), save_trajectories=False)
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return EnvGRPOTrainer(model, options.task, args, processing_class=tokenizer, peft_config=adapter)


def fix_lengths(trainer: Any, engine: str, n_tokens: int) -> None:
    """Let all replies of our trainer have so many tokens."""
    collector = trainer._player.collector
    if engine == "vllm":
        collector.sampling = replace(collector.sampling, extra={"min_tokens": n_tokens})
    else:
        collector.policy.codec.stop_token_ids = ()


def load(name: str, dtype: str) -> tuple[Any, Any]:
    """Return a model and its tokenizer."""
    from llm_envs.policies.inference import load_model, load_tokenizer

    if name != SHAPE:
        return load_model(name, dtype=dtype), load_tokenizer(name)
    from transformers import AutoModelForCausalLM, Qwen2Config

    tokenizer = load_tokenizer(REAL_MODEL)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)), tokenizer


def env_settings(options: Any) -> dict[str, Any]:
    """Return the environment's arguments."""
    return (
        {"difficulty": options.difficulty, "answer_form": "natural"}
        if options.task == TASK
        else {"difficulty": options.difficulty}
    )


def step_settings(folder: str, options: Any, seed: int) -> dict[str, Any]:
    """Return the settings that both trainers have."""
    return {
        "output_dir": folder,
        "max_steps": options.steps,
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.episodes // options.micro_batch,
        "num_generations": GROUP_SIZE,
        "max_completion_length": options.tokens,
        "learning_rate": options.learning_rate,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": options.dtype == "bfloat16",
        "seed": seed,
    }


class Steps(TrainerCallback):
    """Notes what each step took, and stops when enough replies are right."""

    def __init__(self, title: str, clock: Clock, until: float | None) -> None:
        self.title, self.clock, self.until = title, clock, until
        self.steps: list[dict[str, float]] = []
        self.rewards: list[float] = []
        self.n_tokens = self.gpu_bytes = 0

    @property
    def is_reached(self) -> bool:
        """Whether the mean reward of the last three steps is high enough."""
        return bool(self.until and len(self.rewards) >= 3 and statistics.fmean(self.rewards[-3:]) >= self.until)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()
        self.clock.take()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            self.gpu_bytes = max(self.gpu_bytes, total - free)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "reward" not in logs:
            return
        self.rewards.append(logs["reward"])
        self.steps.append({"step": time.perf_counter() - self.started, "tokens": self.n_tokens, **self.clock.take()})
        print(f"{self.title}: {self.steps[-1]['step']:.1f} s, reward {self.rewards[-1]:.3f}", flush=True)
        control.should_training_stop = self.is_reached or control.should_training_stop


def follow(trainer: Any, clock: Clock, notes: Steps, *, is_ours: bool, engine: str) -> None:
    """Time the parts of a trainer's steps, and count what it samples."""
    generate, is_generating = trainer._generate_and_score_completions, []

    def follow_generation(inputs: Any) -> Any:
        is_generating.append(True)
        output = generate(inputs)
        is_generating.pop()
        notes.n_tokens = int((output["completion_mask"] * output.get("tool_mask", 1)).sum())
        return output

    trainer._generate_and_score_completions = follow_generation
    clock.follow(trainer._player if is_ours else trainer, "play" if is_ours else "_generate", "sampling")
    clock.follow(trainer, "_calculate_rewards", "rewards")
    name = "_get_per_token_logps_and_entropies"
    clock.follow(trainer, name, lambda: "scoring" if is_generating else None)
    if engine == "vllm":
        clock.follow(trainer.vllm_generation, "sync_weights", "weights")
    trainer.add_callback(notes)
    trainer.remove_callback(PrinterCallback)


def run_child(name: str, side: str, engine: str, seed: int, options: Any, pipe: Connection) -> None:
    """Train, and send what each step's parts took."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    is_ours, own = SIDES[side]
    make = our_trainer if is_ours else trl_trainer
    if not (is_ours or options.until):
        least = {"min_tokens" if engine == "vllm" else "min_new_tokens": options.tokens}
        own = own | {"generation_kwargs": own.get("generation_kwargs", {}) | least}
    clock = Clock()
    notes = Steps(f"{side}, {engine}", clock, options.until)
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = load(name, options.dtype)
        trainer = make(model, tokenizer, step_settings(folder, options, seed), engine, own, options)
        if is_ours and not options.until:
            fix_lengths(trainer, engine, options.tokens)
        n_parameters = sum(p.numel() for name, p in trainer.model.named_parameters() if "lora" not in name)
        follow(trainer, clock, notes, is_ours=is_ours, engine=engine)
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        if is_ours:
            trainer.close()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    reached = f"{len(notes.steps)} steps, {seconds:.0f} s" if notes.is_reached else "not reached"
    pipe.send(
        {
            "steps": notes.steps,
            "memory_gib": (notes.gpu_bytes or int(peak[1]) * 2**10) / 2**30,
            "n_parameters": n_parameters,
            "until": reached if options.until else "",
        }
    )


def measure(name: str, side: str, engine: str, seed: int, options: Any) -> dict[str, Any]:
    """Return a row of the table."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_child, args=(name, side, engine, seed, options, theirs))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        raise SystemExit(f"{side} with {engine} ended before its time; its error is above") from None
    finally:
        process.join()
    steps = found["steps"][1:] or found["steps"]
    row = {part: statistics.median(s.get(part, 0.0) for s in steps) for part in ("step", *PARTS[:-1])}
    row["training"] = statistics.median(s["step"] - sum(s.get(part, 0.0) for part in PARTS[:-1]) for s in steps)
    row["tokens_per_s"] = statistics.median(s["tokens"] / s["sampling"] for s in steps)
    names = {"model": f"{Path(name).name}, {found['n_parameters'] / 1e6:.0f} M", "engine": engine}
    row = {key: round(value, 3) for key, value in row.items()}
    return (
        names
        | {"trainer": side, "seed": seed, "steps": len(found["steps"]), "memory_gib": found["memory_gib"]}
        | row
        | {"until": found["until"]}
    )


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--models", nargs="+", default=[REAL_MODEL], help=f"folders, or {SHAPE}")
    engines = ("transformers", "vllm") if importlib.util.find_spec("vllm") else ("transformers",)
    parser.add_argument("--engines", nargs="+", choices=("transformers", "vllm"), default=engines)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=tuple(SIDES))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--episodes", type=int, default=32, help="of a step")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--until", type=float, help="stop at this mean reward over three steps")
    parser.add_argument("--task", default=TASK)
    parser.add_argument("--difficulty", default="easy")
    parser.add_argument("--tokens", type=int, default=40, help="of a reply; with --until, at most")
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    rows = [
        measure(name, side, engine, seed, options)
        for name in options.models
        for engine in options.engines
        for seed in options.seeds
        for side in options.sides
        if engine == "vllm" or "seeds" not in side
    ]
    for row in rows:
        theirs = [
            each["step"]
            for each in rows
            if "TRL" in each["trainer"] and all(each[key] == row[key] for key in ("model", "engine", "seed"))
        ]
        row["of_trl"] = row["step"] / theirs[-1] if theirs else None  # with seeds, where vLLM has them
    work, name, hidden = f"`{options.task}` ({options.difficulty}), ", "real_step", ("seed", "until")
    if options.until:
        work += (
            f"until three steps have a mean reward of {options.until:g} (*until*: steps and wall time), replies of at "
            f"most {options.tokens} tokens, "
        )
        name, hidden = "real_until", PARTS
    else:
        work += f"replies of {options.tokens} tokens, "
    columns = [column for column in COLUMNS if column.key not in hidden]
    work += METHOD.format(
        episodes=options.episodes, group=GROUP_SIZE, micro_batch=options.micro_batch, dtype=options.dtype
    )
    return finish(Report(name, "A step with a pretrained model", work, columns, rows), options)


if __name__ == "__main__":
    sys.exit(main())
