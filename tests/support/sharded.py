"""Trainers under FSDP2 on CPUs: `accelerate launch --config_file fsdp2.yaml sharded.py MODEL OUT EPISODES PART...`.

accelerate shards on accelerators only, and takes several processes on CPUs for DDP whatever its configuration says.
Here it is told that these CPUs are accelerators; torch shards on them by gloo as it does elsewhere.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from launched import speak_when_asked
from ranks import ENGINE, ENV, GROUPS, RANK, VALUES, Parts, adapter, error_of, weights_of
from torch.distributed.tensor import DTensor

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOConfig,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
)


def take_cpus_for_accelerators() -> None:
    """Before the first settings are made."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = lambda self, *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)


def whole(model: Any) -> dict[str, torch.Tensor]:
    """Return a sharded model's weights, gathered."""
    state = model.state_dict()
    return {name: (v.full_tensor() if isinstance(v, DTensor) else v).detach().clone() for name, v in state.items()}


def share(model: Any) -> float:
    """Return the part of the weights that this process holds."""
    weights = list(model.parameters())
    held = sum(w.to_local().numel() if isinstance(w, DTensor) else w.numel() for w in weights)
    return held / sum(w.numel() for w in weights)


class Sharded(Parts):
    """The parts that are trained sharded."""

    def said(self, trainer: Any, **others: Any) -> dict[str, Any]:
        trainer.save_model(str(self.out / f"{self.name}-saved"))
        is_fsdp = trainer.accelerator.distributed_type == DistributedType.FSDP
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        weights = whole(trainer.model)
        return {"fsdp": is_fsdp, "share": share(trainer.model), "weights": weights, "losses": losses, **others}

    def sft(self) -> dict[str, Any]:
        args = self.settings(EnvSFTConfig, padding_free=True)  # each process probes the model before the first step
        trainer = EnvSFTTrainer(self.model, args=args, source=self.episodes)
        trainer.train()
        return self.said(trainer)

    def dpo_offline(self) -> dict[str, Any]:
        args = self.settings(EnvDPOConfig)
        trainer = EnvDPOTrainer(self.model, args=args, source=self.episodes, peft_config=adapter())
        trainer.train()
        return self.said(trainer)

    def refused(self) -> dict[str, Any]:
        """The transformers policy."""
        args = self.settings(EnvGRPOConfig, GROUPS)
        return {"grpo": error_of(lambda: EnvGRPOTrainer(self.model, ENV, args), InvalidConfigError)}

    # With a vLLM engine on each process, which is handed the gathered weights.

    def engine(self, trainer: Any) -> dict[str, Any]:
        trainer.train()
        trainer.close()
        gaps = [e["sampling/sampling_logp_difference/max"] for e in trainer.state.log_history if "reward" in e]
        return self.said(trainer, gaps=gaps)

    def engine_lora(self) -> dict[str, Any]:
        args = self.settings(EnvGRPOConfig, GROUPS, ENGINE)
        return self.engine(EnvGRPOTrainer(self.model, ENV, args, peft_config=adapter()))

    def engine_ppo(self) -> dict[str, Any]:
        trainer = EnvPPOTrainer(self.model, ENV, self.settings(EnvPPOConfig, VALUES, ENGINE))
        return self.engine(trainer) | {"critic": weights_of(trainer.critic)}


def main() -> None:
    speak_when_asked()
    take_cpus_for_accelerators()
    model, out, episodes, *names = sys.argv[1:]
    parts = Sharded(model, Path(out), episodes)
    for name in names:
        torch.save(parts.run(name), parts.out / f"{name}-{RANK}.pt")
        print(f"{name} is done on process {RANK}", flush=True)


if __name__ == "__main__":
    main()
