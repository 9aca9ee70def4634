"""What every process runs in tests/processes: `accelerate launch ... ranks.py MODEL OUT EPISODES PART...`.

Each part trains something small and writes what this process has of it to `OUT/PART-RANK.pt`, for the test to compare.
On process 1 no episode ends before process 0 has played its whole share (`Later`): whatever was gathered while episodes
run would wait for ever.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from dense_env import DenseEnv
from launched import speak_when_asked
from peft import LoraConfig
from trainings import PLAYED, QUIET
from transformers import TrainerCallback

from llm_envs.errors import InvalidConfigError, ModelError, ProcessFailedError, TimeLimitError
from llm_envs.policies.inference import token_logps
from llm_envs.rollout import EnvChoice, read_trajectories
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOConfig,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
    RewardSettings,
)
from llm_envs.trainers.functional.references import KLTriggeredUpdate, ReferenceUpdateFn, create_ema_update, frozen_copy
from llm_envs.types import Trajectory

RANK = int(os.environ.get("RANK", "0"))
PATIENCE_S = 120.0
"""A file that does not come in this time never will."""
SMALL: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "optim": "sgd",  # its steps are as the gradients are: what is equal up to rounding stays so
    "learning_rate": 0.3,
    "lr_scheduler_type": "linear",
    **QUIET,
}
FEW: dict[str, Any] = PLAYED | {"max_turn_tokens": 6}
GROUPS: dict[str, Any] = {
    **FEW,
    "gradient_accumulation_steps": 2,
    "num_generations": 2,
    "scale_rewards": "batch",
    "num_eval_seeds": 3,
    "per_device_eval_batch_size": 2,
    "num_generations_eval": 2,
}
VALUES: dict[str, Any] = {
    **FEW,
    "gradient_accumulation_steps": 2,
    "value_warmup_steps": 1,
    "value_learning_rate": 1e-2,
    "adam_epsilon": 1e-3,  # the critic's AdamW: so its steps are as small gradients are, too, and rounding stays small
}
ENGINE: dict[str, Any] = {
    "use_vllm": True,
    "vllm_max_model_length": 192,
    "vllm_gpu_memory_utilization": 0.1,
    "max_steps": 3,
}


class Later:
    """Files by which process 1 knows that process 0 has played its share."""

    folder: Path | None = None
    n_played = 0
    fails = False
    turns = 2

    @classmethod
    def reset(cls, folder: Path | None, *, fails: bool = False, turns: int = 2) -> None:
        cls.folder, cls.n_played, cls.fails, cls.turns = folder, 0, fails, turns
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def listen(cls, trainer: Any) -> None:
        """Have process 0 say when it has played."""
        play = trainer.collector.play

        def follow(*args: Any, **kwargs: Any) -> Any:
            out = play(*args, **kwargs)
            if RANK == 0 and cls.folder is not None:
                (cls.folder / str(cls.n_played)).touch()
            cls.n_played += 1
            return out

        trainer.collector.play = follow

    @classmethod
    def wait(cls) -> None:
        if RANK == 0 or cls.folder is None:
            return
        limit = time.monotonic() + PATIENCE_S
        while not (cls.folder / str(cls.n_played)).exists():
            if time.monotonic() > limit:
                raise TimeoutError("process 0 does not finish: something is gathered while episodes run")
            time.sleep(0.01)


class LaterEnv(DenseEnv):
    """DenseEnv whose steps wait on process 1; there it may fail, or have more turns."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        Later.wait()
        if Later.fails and RANK == 1:
            raise ConnectionError("the tool's server is gone")
        observation, reward, _, _, info = super().step(action)
        n_turns = Later.turns if RANK == 1 else 2
        return observation, reward, self.n_turns == n_turns, False, info


ENV = EnvChoice("later", factory=LaterEnv)


def adapter() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def weights_of(module: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def batches_of(trainer: Any) -> list[dict[str, Any]]:
    """Keep what a trainer learns from: its batches' numbers, in the order of the episodes."""
    kept: list[dict[str, Any]] = []
    original = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        output = original(inputs)
        mask = (output["completion_mask"] * output["tool_mask"]).bool()
        advantages = output["advantages"]
        kept.append(
            {
                "n_rows": len(mask),
                "n_tokens": int(mask.sum()),
                "items": int(output["num_items_in_batch"]),
                "advantages": advantages.clone(),
                "on_tokens": advantages[mask] if advantages.ndim == 2 else None,
                "rewards": torch.tensor([t.reward for t in trainer.last_trajectories]),
                "groups": [t.group_id for t in trainer.last_trajectories],
                "status": [t.status for t in trainer.last_trajectories],
                "texts": [t.messages[1].content for t in trainer.last_trajectories if len(t.messages) > 1],
            }
        )
        return output

    trainer._generate_and_score_completions = keep
    return kept


def gaps_of(trainer: Any) -> list[float]:
    """Keep, generation by generation, the largest gap between sampled and recomputed log-probabilities."""
    gaps: list[float] = []
    play = trainer._player.play

    def compare(*args: Any, **kwargs: Any) -> Any:
        played = play(*args, **kwargs)
        model = trainer.accelerator.unwrap_model(trainer.model)
        rows = [t.rows[0] for t in played]
        model.eval()
        scored = token_logps(model, [row.ids for row in rows])
        model.train()
        gaps.append(float(max(np.abs(a - row.logps)[row.mask].max() for a, row in zip(scored, rows, strict=True))))
        return played

    trainer._player.play = compare
    return gaps


def numbers_of(trainer: Any, **others: Any) -> dict[str, Any]:
    """What is the same on every process."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    logged = [
        {key: value for key, value in entry.items() if "runtime" not in key and "per_second" not in key}
        for entry in trainer.state.log_history
    ]
    return {"weights": weights_of(model), "step": trainer.state.global_step, "logged": logged, **others}


class AfterEachStep(TrainerCallback):
    """Calls a function after each optimizer step."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.function()


def error_of(function: Callable[[], Any], kinds: type[Exception] | tuple[type[Exception], ...]) -> str:
    """Return the kind and message of what a function raises."""
    try:
        function()
    except kinds as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


class Parts:
    """The parts by name, each with a folder of its own.

    Args:
        model: Folder of the model.
        out: Where everything is written.
        episodes: Folder of a run to learn from.
        played: By step, the episodes that are learned from in place of playing.
        **changes: Of every part's settings.
    """

    def __init__(
        self,
        model: str,
        out: Path,
        episodes: str,
        played: Mapping[int, Sequence[Trajectory]] | None = None,
        **changes: Any,
    ) -> None:
        self.model, self.out, self.episodes = model, out, episodes
        self.played, self.changes, self.name = played, changes, ""

    def run(self, name: str) -> dict[str, Any]:
        self.name = name
        numbers: dict[str, Any] = getattr(self, name)()
        return numbers

    def settings(self, kind: type[Any], *parts: dict[str, Any], **changes: Any) -> Any:
        merged: dict[str, Any] = {"output_dir": str(self.out / self.name), **SMALL}
        for part in (*parts, changes, self.changes):
            merged |= part
        return kind(**merged)

    def begin(self, **how: Any) -> None:
        Later.reset(self.out / self.name / "played", **how)

    def follow(self, trainer: Any) -> Any:
        """Let the trainer play, or learn from what was played."""
        Later.listen(trainer)
        if self.played is None:
            return trainer
        play, player, played = trainer._player.play, trainer._player, self.played

        def replay(rows: Any, *, mode: str, step: int, **further: Any) -> Any:
            if mode == "eval":
                return play(rows, mode=mode, step=step, **further)
            player.played = list(played[step])
            return list(played[step])

        player.play = replay
        return trainer

    # The four trainers.

    def sft(self) -> dict[str, Any]:
        trainer = EnvSFTTrainer(self.model, args=self.settings(EnvSFTConfig), source=self.episodes)
        trainer.train()
        oracle = EnvSFTTrainer(self.model, "llm/Arithmetic-v0", self.settings(EnvSFTConfig, num_episodes=9))
        played = read_trajectories(self.episodes)
        unequal = error_of(
            lambda: EnvSFTTrainer(self.model, args=self.settings(EnvSFTConfig), source=played[RANK:]),
            InvalidConfigError,
        )
        return numbers_of(trainer, rows=len(trainer.train_dataset), oracle=len(oracle.train_dataset), unequal=unequal)

    def dpo_offline(self) -> dict[str, Any]:
        trainer = EnvDPOTrainer(self.model, args=self.settings(EnvDPOConfig), source=self.episodes)
        trainer.train()
        played = read_trajectories(self.episodes)
        unequal = error_of(
            lambda: EnvDPOTrainer(self.model, args=self.settings(EnvDPOConfig), source=played[4 * RANK :]),
            InvalidConfigError,
        )
        return numbers_of(trainer, rows=len(trainer.train_dataset), unequal=unequal)

    def grpo(self, hooks: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> dict[str, Any]:
        self.begin()
        saving = {"save_strategy": "steps", "save_steps": 1}
        trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS, saving, changes), **hooks)
        batches = batches_of(self.follow(trainer))
        trainer.train()
        evaluated = trainer.evaluate()
        trainer.close()
        return numbers_of(trainer, batches=batches, evaluated=evaluated["eval_env/reward"])

    def pairwise(self) -> dict[str, Any]:
        """The best of each group against the worst, and the initial weights as the reference."""
        return self.grpo({"algorithm": "pairwise", "ref_model_fn": frozen_copy}, scale_rewards="group")

    def tree(self) -> dict[str, Any]:
        """`grpo` again, as a prefix tree."""
        return self.grpo(forward="prefix_tree")

    def resumed(self) -> dict[str, Any]:
        """The second step of `grpo` again, from its checkpoint."""
        self.begin()
        trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS))
        batches = batches_of(self.follow(trainer))
        trainer.train(resume_from_checkpoint=str(self.out / "grpo" / "checkpoint-1"))
        trainer.close()
        return numbers_of(trainer, batches=batches)

    def inside(self) -> dict[str, Any]:
        """Two steps on one generation, and the second one again, from the checkpoint between them."""
        self.begin()
        saving = {"save_strategy": "steps", "save_steps": 1, "num_iterations": 2, "scale_rewards": "group"}
        whole, resumed = (
            EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS, saving), algorithm="grpo")
            for _ in range(2)
        )
        self.follow(whole).train()
        resumed.train(resume_from_checkpoint=str(self.out / "inside" / "checkpoint-1"))
        for trainer in (whole, resumed):
            trainer.close()
        return numbers_of(whole, resumed=weights_of(resumed.model), generations=resumed.algorithms.n_generations)

    def ppo(self, critic: str | None = None, **changes: Any) -> dict[str, Any]:
        self.begin()
        trainer = EnvPPOTrainer(self.model, ENV, self.settings(EnvPPOConfig, VALUES, changes), critic=critic)
        batches = batches_of(self.follow(trainer))
        trainer.train()
        trainer.close()
        return numbers_of(trainer, batches=batches, critic=weights_of(trainer.critic))

    def ppo_separate(self) -> dict[str, Any]:
        return self.ppo(self.model)

    # References that move.

    def reference(self, update: ReferenceUpdateFn | None = None, **kwargs: Any) -> dict[str, Any]:
        """A reference that is the policy of a while ago, under a penalty for leaving it."""
        self.begin()
        args = self.settings(EnvGRPOConfig, GROUPS, beta=0.1, max_steps=3)
        update = update or KLTriggeredUpdate(1e-4)
        trainer = EnvGRPOTrainer(self.model, ENV, args, reference_update_fn=update, **kwargs)
        batches = batches_of(self.follow(trainer))
        trainer.train()
        trainer.close()
        reference = (
            None if trainer.ref_model is None else weights_of(trainer.accelerator.unwrap_model(trainer.ref_model))
        )
        updates = [entry["reference/updates"] for entry in trainer.state.log_history if "reference/updates" in entry]
        return numbers_of(trainer, batches=batches, updates=updates[-1], ref=reference)

    def reference_lora(self) -> dict[str, Any]:
        return self.reference(create_ema_update(0.5), peft_config=adapter())

    # What differs between the processes, and what fails on one.

    def forks(self) -> dict[str, Any]:
        """Every turn is a row of its own, and process 1 has more turns."""
        self.begin(turns=3)

        def last_only(messages: Any) -> Any:
            return [messages[0], messages[-1]] if len(messages) > 1 else messages

        trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS), context_fn=last_only)
        batches = batches_of(self.follow(trainer))
        trainer.train()
        trainer.close()
        return numbers_of(trainer, batches=batches)

    def failing(self) -> dict[str, Any]:
        """No episode of process 1 comes to its end."""
        self.begin(fails=True)
        trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS))
        batches = batches_of(self.follow(trainer))
        trainer.train()
        trainer.close()
        return numbers_of(trainer, batches=batches)

    def skipped(self) -> dict[str, Any]:
        """In the first step, the gradient of process 1 is not finite: neither takes it, and the critic does not."""
        self.begin()
        trainer = EnvPPOTrainer(self.model, ENV, self.settings(EnvPPOConfig, VALUES, value_warmup_steps=0))
        start, after = weights_of(trainer.model), []
        parameter = next(p for p in trainer.model.parameters() if p.requires_grad)
        is_bad = lambda: RANK == 1 and trainer.state.global_step == 0  # noqa: E731
        parameter.register_hook(lambda gradient: gradient * float("nan") if is_bad() else gradient)
        trainer.add_callback(
            AfterEachStep(lambda: after.append(weights_of(trainer.model) | weights_of(trainer.critic)))
        )
        self.follow(trainer).train()
        trainer.close()
        first = [torch.equal(value, start[name]) for name, value in after[0].items() if name in start]
        head = float(after[0]["head.weight"].abs().max())
        return numbers_of(trainer, critic=weights_of(trainer.critic), unchanged=all(first), head=head)

    def errors(self) -> dict[str, Any]:
        """What one process finds stops both, with an error on each."""
        Later.reset(None)
        said: dict[str, Any] = {}
        trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS))
        with torch.no_grad():  # away from the uniform distribution, on which temperature has no effect
            for parameter in trainer.model.parameters():
                parameter.mul_(3)
        if RANK == 1:
            trainer.collector.sampling = replace(trainer.collector.sampling, temperature=0.5)
        said["guard"] = error_of(trainer.train, ModelError)
        trainer.close()

        def unpaid(trajectory: Any) -> float:
            if RANK == 1:
                raise ZeroDivisionError("a reward function of the user's")
            return 0.0

        trainer = EnvGRPOTrainer(
            self.model, ENV, self.settings(EnvGRPOConfig, GROUPS), rewards=RewardSettings(reward_fns={"unpaid": unpaid})
        )
        said["reward"] = error_of(trainer.train, (ProcessFailedError, ZeroDivisionError))
        trainer.close()

        def endless(trajectory: Any) -> float:
            if RANK == 1:
                time.sleep(PATIENCE_S * 100)
            return 0.0

        args = self.settings(EnvGRPOConfig, GROUPS, max_function_s=0.5)
        trainer = EnvGRPOTrainer(self.model, ENV, args, rewards=RewardSettings(reward_fns={"endless": endless}))
        said["endless"] = error_of(trainer.train, (ProcessFailedError, TimeLimitError))
        trainer.close()
        trainer = EnvGRPOTrainer(self.model, ENV, args, trajectory_filter=lambda t: bool(endless(t)))
        said["endless_filter"] = error_of(trainer.train, (ProcessFailedError, TimeLimitError))
        trainer.close()

        def unfiltered(group: Any) -> bool:
            if RANK == 0:
                raise KeyError("a filter of the user's")
            return True

        trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS), group_filter=unfiltered)
        said["filter"] = error_of(trainer.train, (ProcessFailedError, KeyError))
        trainer.close()
        said["too_long"] = error_of(
            lambda: EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS, max_episode_s=1800.0)),
            InvalidConfigError,
        )
        trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS, max_concurrency=4))
        said["limit"] = trainer.collector.limits.max_episode_s
        trainer.close()
        return said

    # With a vLLM engine on each process.

    def servers(self) -> dict[str, Any]:
        """The same on servers that both processes share, and generations that are played ahead."""
        urls = os.environ["SERVER_URLS"].split()
        engine = {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": urls, "max_steps": 3}
        said = self.engines(engine, {"grpo": "gloo", "ppo": "checkpoint", "pairwise": "delta"})
        for n, transport in ((1, "checkpoint"), (4, "gloo")):
            self.name = f"ahead-{n}"
            self.begin()
            Later.reset(None)  # whose turn it is would be counted by generations, one after the other
            ahead = engine | {"async_generations": n, "max_steps": 6, "logging_steps": 1, "vllm_transport": transport}
            trainer = EnvGRPOTrainer(self.model, ENV, self.settings(EnvGRPOConfig, GROUPS, ahead))
            trainer.train()
            by_group = is_in_a_group(trainer)
            trainer.close()
            said[self.name] = numbers_of(trainer, by_group=by_group)
            logs = [entry for entry in trainer.state.log_history if "loss" in entry]
            said[self.name]["ages"] = [entry.get("sampling/staleness_max") for entry in logs]
        return said

    def adapters(self) -> dict[str, Any]:
        """An adapter as such: an engine on each process; servers, whose base is another one (PiSSA); played ahead."""
        said = {"engine": self.adapter_as_such("engine", ENGINE)}
        server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": os.environ["SERVER_URLS"].split()}
        said["server"] = self.adapter_as_such("server", server | {"max_steps": 3}, init_lora_weights="pissa")
        Later.reset(None)
        ahead = server | {"max_steps": 6, "async_generations": 2}
        said["ahead"] = self.adapter_as_such("ahead", ahead, init_lora_weights="pissa")
        return said

    def adapter_as_such(self, name: str, engine: dict[str, Any], **lora: Any) -> dict[str, Any]:
        self.name = f"adapter-{name}"
        config = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", **lora)
        args = self.settings(EnvGRPOConfig, GROUPS, engine, lora_sync="adapter")
        trainer = EnvGRPOTrainer(self.model, ENV, args, peft_config=config)
        turns: list[list[list[int]]] = []
        gaps = gaps_of(trainer) if name != "ahead" else []
        if name != "ahead":
            self.begin()
            self.follow(trainer)
        play = trainer._player.play

        def note(*given: Any, **further: Any) -> Any:
            played = play(*given, **further)
            turns.append([[span.version for span in turn.weight_versions] for t in played for turn in t.turns])
            return played

        trainer._player.play = note
        trainer.train()
        policy: Any = trainer._policy
        shelf, sends = policy.shelf, trainer.vllm_generation._sends_adapter
        present = shelf.present.version
        loaded = (
            len(shelf._loaded) if not hasattr(policy, "facts") else len(policy._control.facts(policy.urls[0]).adapters)
        )
        trainer.close()
        return numbers_of(trainer, gaps=gaps, turns=turns, sends=sends, loaded=loaded, present=present)

    def shards(self) -> dict[str, Any]:
        """The same on one engine for both processes: each has half of every layer."""
        return self.engines(ENGINE | {"vllm_tensor_parallel_size": 2})

    def engines(self, engine: dict[str, Any] = ENGINE, transports: dict[str, str] | None = None) -> dict[str, Any]:
        """Each trainer that plays, and what its engine's log-probabilities differ by from those of its weights.

        Args:
            engine: Settings of all of them.
            transports: How each sends its weights to servers.
        """
        said: dict[str, Any] = {}

        def of(name: str) -> dict[str, Any]:
            return engine if transports is None else engine | {"vllm_transport": transports[name]}

        makers: dict[str, Callable[[], Any]] = {
            "grpo": lambda: EnvGRPOTrainer(
                self.model, ENV, self.settings(EnvGRPOConfig, GROUPS, of("grpo")), peft_config=adapter()
            ),
            "ppo": lambda: EnvPPOTrainer(self.model, ENV, self.settings(EnvPPOConfig, VALUES, of("ppo"))),
            "pairwise": lambda: EnvGRPOTrainer(
                self.model,
                ENV,
                self.settings(EnvGRPOConfig, GROUPS, of("pairwise"), scale_rewards="group"),
                algorithm="pairwise",
            ),
        }
        for name, make in makers.items():
            self.name = f"engine-{name}"
            self.begin()
            trainer = make()
            base = weights_of(trainer.model)
            gaps = gaps_of(self.follow(trainer))
            share = engine_share(trainer)
            if engine.get("vllm_tensor_parallel_size"):  # without a turn between them, at another pace on each process
                for _ in range(3):
                    time.sleep(0.3 * RANK)
                    trainer.vllm_generation.sync_weights()
            trainer.train()
            by_group = is_in_a_group(trainer)
            trainer.close()
            numbers = numbers_of(
                trainer,
                by_group=by_group,
                share=share,
                gaps=gaps,
                texts=[t.messages[1].content for t in trainer.last_trajectories],
            )
            numbers["versions"] = [s.version for t in trainer.last_trajectories for s in t.turns[0].weight_versions]
            numbers["changed"] = [key for key, value in numbers["weights"].items() if not torch.equal(value, base[key])]
            said[name] = numbers
        return said


def is_in_a_group(trainer: Any) -> bool:
    """Return whether the last weights went to servers through a process group with their workers."""
    return getattr(getattr(trainer._policy, "_transfer", None), "_engine", None) is not None


def engine_share(trainer: Any) -> float | None:
    """Return the share of the layers' outputs that this process's engine computes; None with servers."""
    llm = getattr(trainer._policy, "llm", None)
    if llm is None:
        return None
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    layers = [layer for layer in model.modules() if hasattr(layer, "output_size_per_partition")]
    return sum(layer.output_size_per_partition for layer in layers) / sum(layer.output_size for layer in layers)


def main() -> None:
    speak_when_asked()
    model, out, episodes, *names = sys.argv[1:]
    parts = Parts(model, Path(out), episodes)
    for name in names:
        torch.save(parts.run(name), parts.out / f"{name}-{RANK}.pt")
        print(f"{name} is done on process {RANK}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
