"""PPO on environments: `EnvGRPOTrainer` with a critic in the place of the group's baseline.

Playing, rewards, sampling and the policy's loss are GRPO's. This module adds the critic,
its advantages per token, and its loss.

Invariants:
1. A step is a token that the policy wrote. GAE skips the environment's tokens: they have no value, advantage or loss.
2. Only states in which the policy chooses a token are valued. With `bootstrap_truncated` the value of the next turn's
   prompt follows an episode that a limit of turns or time cut; nothing follows a limit of tokens.
3. Values, advantages and returns come from the weights that sampled, for every pass over the generation.
4. The critic is not part of `model`: neither the policy's files nor the weights for a sampling engine include it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, get_scheduler

from llm_envs.errors import InvalidConfigError
from llm_envs.sources.source import Envs
from llm_envs.trainers.forward.trunk import captured_states
from llm_envs.trainers.functional.algorithm import PPO, Algorithm
from llm_envs.trainers.functional.masking import masked_moments, masked_whiten, trim_padding
from llm_envs.trainers.grpo.trainer import EnvGRPOTrainer
from llm_envs.trainers.ppo.config import EnvPPOConfig
from llm_envs.trainers.ppo.critic import CRITIC_FOLDER, CriticOptimizer, load_critic
from llm_envs.trainers.ppo.estimates import critic_loss, estimate, explained_variance
from llm_envs.trainers.ppo.final_states import next_prompt, with_next_prompts
from llm_envs.trainers.settings.unused import refuse_unused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["EnvPPOConfig", "EnvPPOTrainer"]


class EnvPPOTrainer(EnvGRPOTrainer):
    """Train a language model by PPO on an environment ("Proximal Policy Optimization Algorithms", arXiv 1707.06347).

    Args:
        model: A folder, a name on a hub, or a loaded model (a PEFT model too).
        env: The environment; see `EnvGRPOTrainer`.
        args: Settings; None takes the defaults.
        critic: None: a value head on the policy's trunk. A folder, a name or a loaded model: a critic with a separate
            trunk, which must have the policy's vocabulary. A folder `critic` that a run saved: that critic.
        **kwargs: Arguments of `EnvGRPOTrainer`. An `algorithm` sets the policy's loss and the KL, in the loss or in the
            reward: "ppo", or `replace(PPO, kl_coef=0.05, kl_in="reward")`. The critic computes the advantages.

    The attribute `critic` is the critic. Checkpoints and `save_model` write it to a folder of that name.

    Raises:
        InvalidConfigError: If settings contradict one another, or the critic's vocabulary differs.
        ModelError: If the model cannot be trained on conversations, or `critic` cannot be used as a critic.
    """

    _tag_names = ["trl", "ppo", "llm-envs"]
    _kind = "ppo"
    _known_algorithms: Mapping[str, Algorithm] = {"ppo": PPO}
    args: EnvPPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel,
        env: Envs | Dataset,
        args: EnvPPOConfig | None = None,
        *,
        critic: str | Path | PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        if args is not None and not isinstance(args, EnvPPOConfig):
            raise InvalidConfigError(f"args is a {type(args).__name__}; use EnvPPOConfig, which has the critic's.")
        if args is not None and args.bootstrap_truncated and kwargs.get("context_fn") is not None:
            raise InvalidConfigError(
                "bootstrap_truncated values the prompt of a turn that is not played, and only the context_fn could say "
                "what that is: leave bootstrap_truncated off."
            )
        args = args or EnvPPOConfig(output_dir=f"{env.split('/')[-1] if isinstance(env, str) else 'llm-envs'}-PPO")
        super().__init__(model, env, args, **kwargs)
        policy: Any = self.accelerator.unwrap_model(self.model)
        self.critic = load_critic(critic, policy, self.processing_class, trust_remote_code=args.trust_remote_code).to(
            self.accelerator.device
        )
        refuse_unused(args, [(not self.critic.is_shared, "the critic has a separate trunk", ("value_trains_trunk",))])
        if self.critic.trunk is not None and args.gradient_checkpointing:
            self.critic.trunk.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        # All processes must start from the same critic, and DDP does not wrap it.
        for parameter in self.critic.parameters() if self.accelerator.num_processes > 1 else ():
            torch.distributed.broadcast(parameter.data, src=0)
        self._critic_optimizer: CriticOptimizer | None = None
        self.add_callback(_CriticStep(self))

    @property
    def is_warming_up(self) -> bool:
        """Whether only the critic learns in this step."""
        return self.state.global_step < self.args.value_warmup_steps

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play and score as GRPO does, then compute the advantages from the critic's values."""
        output = super()._generate_and_score_completions(inputs)
        episodes = self.generation.episodes
        args, mask_BT = self.args, output["completion_mask"] * output["tool_mask"]
        values_BT, bootstrap_E, follows_E = self._values(output)
        estimates = estimate(
            episodes.trajectories,
            episodes.turn_rewards,
            values_BT,
            bootstrap_E,
            mask_BT,
            gamma=args.gamma,
            lam=args.lam,
            value_lam=args.value_lam,
            lam_alpha=args.lam_alpha,
            by_turn=args.discount == "turn",
            penalties_BT=output.get("kl_penalties"),
        )
        output["old_values"], output["returns"] = values_BT, estimates.returns_BT
        output["advantages"] = estimates.advantages_BT
        if args.whiten_advantages:
            # Moments over all processes: the result must not depend on which process played an episode.
            output["advantages"] = masked_whiten(estimates.advantages_BT, mask_BT, total=self._total)
        self._log_values(values_BT, estimates.returns_BT, bootstrap_E[follows_E], mask_BT)
        self._record_generation(output, bootstraps=bootstrap_E.tolist())
        return output

    @torch.no_grad()
    def _values(self, output: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the critic's values of the states before each token, (B, T), and after each episode, (E,).

        The latter is 0 where no next turn was possible: where the third tensor, (E,), is False.
        """
        training = self._mode == "train"
        size = self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size
        prompts = self._next_prompts()
        ids, mask = with_next_prompts(
            output, self.last_trajectories, prompts, pad_id=int(self.processing_class.pad_token_id)
        )
        n_prompt, n_tokens = output["prompt_ids"].shape[1], output["completion_ids"].shape[1]
        parts = []
        if self.critic.is_shared:
            self._causal_and_layout(self.model)  # it may try the model, whose states then are not these
        for start in range(0, len(ids), size):
            chunk = ids[start : start + size], mask[start : start + size]
            if self.critic.is_shared:
                with self._whole_activations(), captured_states(self.accelerator.unwrap_model(self.model)) as states:
                    # The pass is made for the hidden states, so ask for the log-probability of one token only.
                    self._get_per_token_logps_and_entropies(self.model, *chunk, 1)
                parts.append(self.critic.read(states[0]))
            else:
                parts.append(self._separate_values(*chunk))
        values = torch.cat(parts)
        last = mask.shape[1] - 1 - mask.flip(1).long().argmax(1)  # the last token that is not padding
        final = values.gather(1, last[:, None]).squeeze(1)[: len(prompts)]
        follows_E = torch.tensor([prompt is not None for prompt in prompts], dtype=torch.bool, device=final.device)
        # A critic's output at a token is the value of the state after it: the state before the first completion token
        # is at the prompt's last column.
        return values[:, n_prompt - 1 : n_prompt - 1 + n_tokens], final.where(follows_E, 0.0), follows_E

    def _next_prompts(self) -> list[Any]:
        """Return for each episode the prompt of the turn that a limit prevented, or None (see `next_prompt`)."""
        args, codec = self.args, self._player.collector.codec
        assert codec is not None  # a trainer's policy plays in tokens
        limits = {
            "max_row_tokens": self._policy.max_model_len,
            "max_completion_tokens": self.max_completion_length,
        }
        return [
            next_prompt(trajectory, codec, **limits) if args.bootstrap_truncated else None
            for trajectory in self.last_trajectories
        ]

    def _separate_values(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with self.accelerator.autocast():
            values: torch.Tensor = self.critic(ids, mask)
        return values

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the sum of the policy's loss and the weighted critic's loss."""
        inputs = trim_padding(inputs)
        # A shared critic reads the hidden states of the policy's forward pass, which must run inside the block.
        if self.critic.is_shared:
            self._causal_and_layout(model)
            with captured_states(self.accelerator.unwrap_model(model)) as states:
                loss = super()._compute_loss(model, inputs)
            detached = self.is_warming_up or not self.args.value_trains_trunk
            values = self.critic.read(states[0].detach() if detached else states[0])
        else:
            loss = super()._compute_loss(model, inputs)
            values = self._separate_values(
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            )
        n_prompt, n_tokens = inputs["prompt_ids"].shape[1], inputs["completion_ids"].shape[1]
        mask_BT = inputs["completion_mask"] * inputs["tool_mask"]
        loss_of_values, mean_loss, stopped = critic_loss(
            values[:, n_prompt - 1 : n_prompt - 1 + n_tokens],
            inputs,
            mask_BT,
            clip=self.args.value_clip,
            denominator=self._shares.denominator("token", mask_BT, inputs["num_items_in_batch"], constant=1.0),
        )
        self._add_means(mask_BT.sum(), {"value/loss": mean_loss, "value/clip_fraction": stopped})
        # Times 0 rather than left out: DDP expects a gradient for every parameter. `step_critic` drops these zeros.
        warming_up = self.is_warming_up and self._mode == "train"
        return (0.0 if warming_up else 1.0) * loss + self.args.value_coef * loss_of_values

    def _total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over the processes."""
        total: torch.Tensor = self.accelerator.reduce(values, reduction="sum")
        return total

    def _log_values(
        self, values_BT: torch.Tensor, returns_BT: torch.Tensor, bootstraps: torch.Tensor, mask_BT: torch.Tensor
    ) -> None:
        """Log statistics of the critic's values on the latest generation, over all processes."""
        mean, variance = masked_moments(values_BT, mask_BT, total=self._total)
        mean_return, _ = masked_moments(returns_BT, mask_BT, total=self._total)
        explained, spread = explained_variance(values_BT, returns_BT, mask_BT, self._total)
        self._add_means(mask_BT.sum(), {"value/mean": mean, "value/return_mean": mean_return})
        n_bootstraps = torch.tensor(len(bootstraps), device=bootstraps.device)
        self._add_totals({"value/bootstrap_mean": (bootstraps.sum(), n_bootstraps)})
        metrics = self._metrics[self._mode]
        metrics["value/std"].append(variance.sqrt().item())
        metrics["value/return_std"].append(spread)
        metrics["value/explained_variance"].append(explained)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the policy's schedule, and the critic's optimizer (AdamW) with a schedule of the same kind."""
        # Created here because transformers calls this method with the final number of steps.
        args: Any = self.args
        critic_optimizer = torch.optim.AdamW(
            [parameter for parameter in self.critic.parameters() if parameter.requires_grad],
            lr=args.value_learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
        )
        schedule = get_scheduler(
            args.lr_scheduler_type,
            optimizer=critic_optimizer,
            num_warmup_steps=args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        self._critic_optimizer = CriticOptimizer(
            self.critic, critic_optimizer, schedule, max_grad_norm=args.max_grad_norm or 0.0
        )
        return super().create_scheduler(num_training_steps, optimizer)

    def _further_norms(self) -> list[float]:
        """Return the norm of the critic's gradient, averaged over the processes: one bad gradient skips both steps."""
        assert self._critic_optimizer is not None
        norm = self._critic_optimizer.clip(self.accelerator)
        self._metrics["train"]["value/grad_norm"].append(norm)
        return [norm]

    def step_critic(self) -> None:
        """Step the critic on the gradients of this step; during the value warm-up, drop the policy's."""
        assert self._critic_optimizer is not None
        self._metrics["train"]["value/learning_rate"].append(self._critic_optimizer.learning_rate)
        self._critic_optimizer.step(skip=self._is_skipped)
        if self.is_warming_up:
            model: Any = self.model
            model.zero_grad(set_to_none=True)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as TRL does, and the critic in a folder `critic` beside it."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self.critic.save(Path(output_dir or self.args.output_dir or ".") / CRITIC_FOLDER)

    def _trained_modules(self) -> dict[str, torch.nn.Module]:
        """Return the policy and the critic."""
        return super()._trained_modules() | {"the critic": self.critic}

    def _save_own(self, folder: Path) -> None:
        """Save what GRPO saves, and the state of the critic's optimizer."""
        if self.args.should_save and not self.args.save_only_model and self._critic_optimizer is not None:
            self._critic_optimizer.save(folder / CRITIC_FOLDER)
        super()._save_own(folder)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load GRPO's checkpoint, and the critic."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.critic.load(Path(checkpoint) / CRITIC_FOLDER)
            if self._critic_optimizer is not None:
                self._critic_optimizer.load(Path(checkpoint) / CRITIC_FOLDER)


class _CriticStep(TrainerCallback):
    """Steps the critic just before the policy's step, when all gradients of the step are accumulated."""

    def __init__(self, trainer: EnvPPOTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.step_critic()
