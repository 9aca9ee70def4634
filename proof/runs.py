"""The runs: every one a value, with its seeds fixed in advance. A run is repeated by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["CREDIT", "DISTILLATION", "LONG", "LONG_TASKS", "RUNS", "SUMMARIES", "Run"]


@dataclass(frozen=True)
class Run:
    """A training from a warm start, for each of its seeds, measured before and after on the same test episodes."""

    name: str
    task: str
    """Of `proof.tasks.TASKS`."""
    table: Literal[
        "grpo", "suite", "algorithms", "ppo", "long", "dpo", "credit", "real", "summaries", "agents", "distillation"
    ]
    """Of the document."""
    kind: Literal["grpo", "ppo-shared", "ppo-separate", "dpo-offline", "pairwise", "switching"] = "grpo"
    """Of `proof.kinds.KINDS`: which trainer."""
    named: str = "grpo"
    """Of `functional.algorithm.ALGORITHMS`, or `tree` (`kinds.TREE`), for GRPO's trainer."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of that algorithm with other values."""
    per_turn_gamma: float | None = None
    """Discount of per-turn credit, in place of the algorithm's advantages."""
    algorithms: Mapping[int, str] = field(default_factory=dict)
    """Which algorithm holds from which generation on, where a run switches."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What samples in training. Measuring is done with transformers always."""
    seeds: tuple[int, ...] = (0,)
    """Of the training: of its episodes and its sampling. The warm start and the test episodes are the same for all."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the trainer's configuration."""
    trains_summaries: bool = True
    """Whether summaries that the model writes of its history are trained on, where its task asks for them."""
    teacher: str | None = None
    """Name of another run, whose first seed's model is the reference of the KL."""
    agent: str | None = None
    """File in examples/agents whose agent plays, in training and in measuring; None: the environment itself."""
    measure_every: int = 0
    """Optimizer steps between two measurements on the test episodes while training; 0: only after it."""
    lora_rank: int | None = None
    """Of an adapter to train; None trains all weights."""

    @property
    def weights(self) -> str:
        """Which weights are trained, for the tables."""
        return f"LoRA, rank {self.lora_rank}" if self.lora_rank else "all"

    @property
    def algorithm(self) -> str:
        """What it is called in the tables."""
        if self.algorithms:
            return ", ".join(f"{name} from step {start + 1}" for start, name in self.algorithms.items())
        if self.kind != "grpo":
            return self.kind
        if self.table == "credit" and self.per_turn_gamma is None:
            return f"whole episode, rate {self.settings['learning_rate']:g}"
        return self.named if self.per_turn_gamma is None else f"turn, discount {self.per_turn_gamma:g}"


_SHORT = {"max_steps": 30, "per_device_train_batch_size": 128, "num_generations": 8, "learning_rate": 6e-4}
_GENTLE = {**_SHORT, "max_steps": 60, "learning_rate": 3e-4, "warmup_steps": 5}
_FAMILY = {**_GENTLE, "max_steps": 40}
# PPO: one episode of each seed. A limit of turns is part of these tasks, so an episode that it ends is bootstrapped by
# nothing: with gamma 1 and the value of what might follow, running out of turns would cost nothing.
_PPO = {
    "max_steps": 40,
    "per_device_train_batch_size": 128,
    "learning_rate": 3e-4,
    "warmup_steps": 5,
    "bootstrap_truncated": False,
}
# Long replies: PPO's defaults, and what they were before: a lambda that counts tokens, for the critic too.
_LONG = {
    "max_steps": 40,
    "per_device_train_batch_size": 64,
    "learning_rate": 3e-4,
    "warmup_steps": 5,
    "value_learning_rate": 1e-3,
}
_BY_TOKEN = {**_LONG, "discount": "token", "lam": 0.95, "value_lam": 0.95}
_SHARED = {**_PPO, "value_learning_rate": 1e-3}
_SEPARATE = {**_PPO, "value_learning_rate": 3e-4}
# Pairs: the best and the worst of eight episodes of a seed; for DPO of 600 groups, for pairwise of the step's 16.
_OFFLINE = {
    "max_steps": 60,
    "per_device_train_batch_size": 16,
    "groups_per_round": 600,
    "num_generations": 8,
    "learning_rate": 1e-4,
    "warmup_steps": 5,
}
_ANCHORED = {**_OFFLINE, "ld_alpha": 0.0, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 1.0]}
_PAIRWISE = {**_FAMILY, "learning_rate": 2e-4}
# The same loss for the three, one value a token: they differ in the advantages alone.
_LETTERS = {
    "max_steps": 40,
    "per_device_train_batch_size": 8,  # one group: few episodes are where credit matters
    "num_generations": 8,
    "learning_rate": 1e-3,
}
_NOTES = {**_GENTLE, "max_steps": 40, "per_device_train_batch_size": 64, "learning_rate": 1e-4}
_BY_TOKENS = {"normalisation": "token"}
# The pretrained model: 32 episodes a step, 16 at a time.
_REAL = {
    "max_steps": 24,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "learning_rate": 3e-4,
    "warmup_steps": 2,
}
_REAL_SLOW = {**_REAL, "max_steps": 80}  # 24 were too few: docs/results/learning.md
# Longer rows: 8 at a time, or the logits of a step take 15 GB.
_REAL_LONG = {**_REAL, "max_steps": 16, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
_REAL_WHOLE = {**_REAL, "learning_rate": 1e-5}  # all weights
_REAL_PPO = {
    **{name: value for name, value in _REAL.items() if name != "num_generations"},
    "bootstrap_truncated": False,
    "value_learning_rate": 1e-3,
}
_REAL_DPO = {
    "max_steps": 12,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "groups_per_round": 64,
    "num_generations": 4,
    "learning_rate": 1e-4,
    "warmup_steps": 2,
}
# Agents: 64 episodes a step, each with a client and a thread.
_AGENTS = {**_GENTLE, "max_steps": 20, "per_device_train_batch_size": 64}
_TEACHER = {**_GENTLE, "max_steps": 300}
_STUDENT = _GENTLE
_ENGINES: tuple[tuple[Literal["transformers", "vllm"], str], ...] = (("transformers", ""), ("vllm", "-vllm"))
_FIVE = (0, 1, 2, 3, 4)

_THREE = (0, 1, 2)

LONG_TASKS = ("guess-aloud", "calculator-aloud")
LONG = ("ppo-token", "ppo-turn")
"""Beginnings of the names of PPO's runs on long replies: as it was by default, and as it is."""

SUMMARIES = ("summaries-untrained", "summaries-trained")
"""The baseline, whose summaries are sampled alike and left out of the loss, and what is compared with it."""

DISTILLATION = ("student-grpo", "student-distill")
"""The baseline, which learns from the task's reward, and what learns from a teacher: the same student otherwise."""

CREDIT = ("credit-trajectory", "credit-trajectory-slow", "credit-return-to-go", "credit-turn")
"""The baseline, and what is compared with it: first itself at a third of the learning rate, in case that is better."""


def _on_both_engines(kind: Any, table: Any, tasks: tuple[str, ...], settings: Mapping[str, Any]) -> list[Run]:
    """Return the runs of a kind, each with transformers and with vLLM."""
    return [
        Run(f"{kind}-{task}{suffix}", task, table, kind=kind, engine=engine, settings=settings)
        for engine, suffix in _ENGINES
        for task in tasks
    ]


_ALL = (
    Run("grpo-arithmetic", "arithmetic", "grpo", settings=_GENTLE),
    Run("grpo-calculator", "calculator", "grpo", settings=_GENTLE),
    Run("grpo-guess", "guess", "grpo", settings=_SHORT),
    Run("grpo-arithmetic-vllm", "arithmetic", "grpo", engine="vllm", settings=_GENTLE),
    Run("grpo-calculator-vllm", "calculator", "grpo", engine="vllm", settings=_GENTLE),
    Run("grpo-guess-vllm", "guess", "grpo", engine="vllm", settings=_SHORT),
    Run("grpo-function", "function", "suite", settings=_FAMILY),
    Run("grpo-path", "path", "suite", settings=_FAMILY),
    Run("grpo-knights", "knights", "suite", settings=_FAMILY),
    Run("grpo-acrostic", "acrostic", "suite", settings=_FAMILY),
    Run("grpo-fractions", "fractions", "suite", settings=_FAMILY),
    Run("dapo-guess", "guess", "algorithms", named="dapo", settings=_SHORT),
    Run("rloo-arithmetic", "arithmetic", "algorithms", named="rloo", settings=_GENTLE),
    Run("reinforce-guess", "guess", "algorithms", named="reinforce", settings=_GENTLE),
    Run("per-turn-guess", "guess", "algorithms", named="per_turn", settings=_GENTLE),
    Run(
        "switching-calculator",
        "calculator",
        "algorithms",
        kind="switching",
        algorithms={0: "grpo", 15: "pairwise", 30: "grpo"},
        settings={**_GENTLE, "max_steps": 45},
    ),
    *_on_both_engines("ppo-shared", "ppo", ("calculator", "guess"), _SHARED),
    *_on_both_engines("ppo-separate", "ppo", ("calculator", "arithmetic"), _SEPARATE),
    *(
        Run(f"{LONG[0]}-{task}", task, "long", kind="ppo-shared", seeds=_THREE, settings=_BY_TOKEN)
        for task in LONG_TASKS
    ),
    *(Run(f"{LONG[1]}-{task}", task, "long", kind="ppo-shared", seeds=_THREE, settings=_LONG) for task in LONG_TASKS),
    *_on_both_engines("dpo-offline", "dpo", ("calculator",), _OFFLINE),
    *_on_both_engines("dpo-offline", "dpo", ("guess",), _ANCHORED),  # docs/results/learning.md says why
    *_on_both_engines("pairwise", "dpo", ("calculator", "guess"), _PAIRWISE),
    Run("real-grpo-arithmetic", "arithmetic-real", "real", lora_rank=16, seeds=(3, 4, 5), settings=_REAL_SLOW),
    Run("real-grpo-calculator", "calculator-real", "real", lora_rank=16, seeds=(1,), settings=_REAL_LONG),
    Run("real-grpo-guess", "guess-real", "real", seeds=(1, 2, 3), settings=_REAL_WHOLE),
    Run("real-grpo-record", "record-real", "real", lora_rank=16, seeds=(1,), settings=_REAL_LONG),
    Run("real-grpo-guess-vllm", "guess-real", "real", engine="vllm", lora_rank=16, seeds=(1,), settings=_REAL),
    Run("real-ppo-guess", "guess-real", "real", kind="ppo-shared", lora_rank=16, seeds=(1,), settings=_REAL_PPO),
    Run(
        "real-dpo-calculator",
        "calculator-real",
        "real",
        kind="dpo-offline",
        lora_rank=16,
        seeds=(1,),
        settings=_REAL_DPO,
    ),
    Run(CREDIT[0], "letters", "credit", changes=_BY_TOKENS, seeds=_FIVE, settings=_LETTERS),
    Run(CREDIT[1], "letters", "credit", changes=_BY_TOKENS, seeds=_FIVE, settings={**_LETTERS, "learning_rate": 3e-4}),
    Run(CREDIT[2], "letters", "credit", changes=_BY_TOKENS, per_turn_gamma=1.0, seeds=_FIVE, settings=_LETTERS),
    Run(CREDIT[3], "letters", "credit", changes=_BY_TOKENS, per_turn_gamma=0.0, seeds=_FIVE, settings=_LETTERS),
    Run(SUMMARIES[0], "notes", "summaries", changes=_BY_TOKENS, trains_summaries=False, seeds=_FIVE, settings=_NOTES),
    Run(SUMMARIES[1], "notes", "summaries", changes=_BY_TOKENS, seeds=_FIVE, settings=_NOTES),
    Run("teacher-arithmetic", "arithmetic", "distillation", settings=_TEACHER),
    Run(DISTILLATION[0], "arithmetic", "distillation", seeds=_THREE, measure_every=5, settings=_STUDENT),
    Run(
        DISTILLATION[1],
        "arithmetic",
        "distillation",
        named="distill",
        teacher="teacher-arithmetic",
        seeds=_THREE,
        measure_every=5,
        settings=_STUDENT,
    ),
    *(
        Run(
            f"agents-{name}",
            "calculator",
            "agents",
            changes=_BY_TOKENS,
            agent=agent,
            engine="vllm",
            seeds=_THREE,
            settings=_AGENTS,
        )
        for name, agent in (("langchain", "langchain_agent"), ("sdk", "agents_sdk"))
    ),
)

RUNS: Mapping[str, Run] = MappingProxyType({run.name: run for run in _ALL})
