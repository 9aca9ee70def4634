"""PPO on environments: `EnvGRPOTrainer` with a critic in the place of the group's baseline.

What is played, paid and sampled is GRPO's here, and the policy's loss is TRL's clipped ratio. Ours are the critic,
the advantages of tokens that it makes, and its loss.

Invariants:
1. A step is a token that the policy wrote: the environment's tokens are no time, and have no value, advantage or loss.
2. The value of an episode's final state counts where the episode was truncated, and nowhere else. It is taken where
   the policy would speak next: behind the final observation and the template's opening of an assistant turn.
3. Values, advantages and returns are those of the weights that sampled, for every pass over the generation.
4. The critic is no part of `model`: it is in none of the policy's files, nor in what a sampling engine is handed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback, get_scheduler
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.rollout.source import Envs
from llm_envs.trainers.functional.kl import k1
from llm_envs.trainers.functional.masking import masked_whiten, trim_padding
from llm_envs.trainers.grpo import EnvGRPOTrainer
from llm_envs.trainers.ppo_config import EnvPPOConfig
from llm_envs.trainers.ppo_loss import (
    critic_loss,
    estimate,
    explained_variance,
    global_moments,
    policy_statistics,
    token_count,
)
from llm_envs.trainers.value_head import CRITIC_FOLDER, CriticOptimizer, captured_states, load_critic

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainerControl, TrainerState, TrainingArguments

__all__ = ["EnvPPOConfig", "EnvPPOTrainer"]


class EnvPPOTrainer(EnvGRPOTrainer):
    """Train a language model by PPO on an environment ("Proximal Policy Optimization Algorithms", arXiv 1707.06347).

    Args:
        model: A folder, a name on a hub, or a loaded model (a PEFT model too).
        env: What is played; see `EnvGRPOTrainer`.
        args: Settings; None takes the defaults.
        critic: None: a value head on the policy's trunk. A folder, a name or a loaded model: a critic with a trunk of
            its own, whose vocabulary must be the policy's. A folder `critic` that a run saved: that critic.
        **kwargs: The others of `EnvGRPOTrainer`, but for `advantage_fn`, `algorithm` and `algorithm_schedule`:
            advantages are the critic's. Rewards may come
            from `reward_fns`, `shaping_fns` and `aggregate`; `kl_fn` estimates the KL, in the loss or the reward.

    The critic is `critic`; checkpoints and `save_model` write it to a folder of that name.

    Raises:
        InvalidConfigError: If settings contradict one another, or the critic's vocabulary differs.
        ModelError: If the model cannot be trained on conversations, or no critic can be made of what is given.
    """

    _tag_names = ["trl", "ppo", "llm-envs"]
    _kind = "ppo"
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
        for name in ("advantage_fn", "algorithm", "algorithm_schedule"):
            if kwargs.get(name) is not None:
                raise InvalidConfigError(f"{name}: the critic makes PPO's advantages; EnvGRPOTrainer takes one.")
        if args is not None and not isinstance(args, EnvPPOConfig):
            raise InvalidConfigError(f"args is a {type(args).__name__}; use EnvPPOConfig, which has the critic's.")
        args = args or EnvPPOConfig(output_dir=f"{env.split('/')[-1] if isinstance(env, str) else 'llm-envs'}-PPO")
        super().__init__(model, env, args, **kwargs)
        policy: Any = self.accelerator.unwrap_model(self.model)
        self.critic = load_critic(critic, policy, self._tokenizer, trust_remote_code=args.trust_remote_code).to(
            self.accelerator.device
        )
        if self.critic.trunk is not None and args.gradient_checkpointing:
            self.critic.trunk.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        for parameter in self.critic.parameters() if self.accelerator.num_processes > 1 else ():
            torch.distributed.broadcast(parameter.data, src=0)
        self._opening = self._assistant_opening()
        self._critic_optimizer: CriticOptimizer | None = None
        self._scored = torch.zeros(())
        self.add_callback(_CriticStep(self))

    def _assistant_opening(self) -> list[int]:
        """Return what the template writes before the assistant speaks."""
        codec: Any = self._player.collector.codec
        ids: list[int] = self._tokenizer.encode(codec.template.generation_prompt, add_special_tokens=False)
        return ids

    @property
    def is_warming_up(self) -> bool:
        """Whether the critic alone learns in this step."""
        return self.state.global_step < self.args.value_warmup_steps

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play and score as GRPO does, then let the critic make the advantages."""
        output = super()._generate_and_score_completions(inputs)
        if len(self.last_trajectories) == len({t.group_id for t in self.last_trajectories}):
            self._metrics[self._mode].pop("frac_reward_zero_std", None)  # of groups of one it says nothing
        args, mask_BT = self.args, output["completion_mask"] * output["tool_mask"]
        values_BT, final_values_B = self._values(output)
        estimates = estimate(
            self._credit.trajectories,
            self._credit.turn_rewards,
            values_BT,
            final_values_B,
            mask_BT,
            gamma=args.gamma,
            lam=args.lam,
            by_turn=args.discount == "turn",
            penalties_BT=self._kl_penalties(output, mask_BT),
            bootstraps=args.bootstrap_truncated,
        )
        output["old_values"], output["returns"] = values_BT, estimates.returns_BT
        output["advantages"] = estimates.advantages_BT
        if args.whiten_advantages:
            moments = global_moments(estimates.advantages_BT, mask_BT, self._total)
            output["advantages"] = masked_whiten(estimates.advantages_BT, mask_BT, moments=moments)
        self._log_values(values_BT, estimates.returns_BT, estimates.bootstrap_E, mask_BT)
        return output

    def _kl_penalties(self, output: dict[str, Any], mask_BT: torch.Tensor) -> torch.Tensor | None:
        """Return beta times each token's KL, where that counts in the reward; GRPO's part has logged its mean."""
        if self.args.kl_in != "reward":
            return None
        logps_BT = output.get("old_per_token_logps")
        logps_BT = output["sampling_per_token_logps"] if logps_BT is None else logps_BT
        kl_BT: torch.Tensor = (self._hooks.kl_fn or k1)(logps_BT, output["ref_per_token_logps"], mask_BT)
        return self.beta * kl_BT.detach()

    @torch.no_grad()
    def _values(self, output: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the critic's values of the states before each token, (B, T), and of each row's final state, (B,)."""
        training = self._mode == "train"
        size = self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size
        ids, mask = self._with_openings(output)
        n_prompt, n_tokens = output["prompt_ids"].shape[1], output["completion_ids"].shape[1]
        parts = []
        for start in range(0, len(ids), size):
            chunk = ids[start : start + size], mask[start : start + size]
            if self.critic.is_shared:
                with captured_states(self.accelerator.unwrap_model(self.model)) as states:
                    self._get_per_token_logps_and_entropies(self.model, *chunk, 1)
                parts.append(self.critic.read(states[0]))
            else:
                parts.append(self._separate_values(*chunk))
        values = torch.cat(parts)
        final = mask.shape[1] - 1 - mask.flip(1).long().argmax(1)  # the last that is no padding
        return values[:, n_prompt - 1 : n_prompt - 1 + n_tokens], values.gather(1, final[:, None]).squeeze(1)

    def _with_openings(self, output: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and attention mask of whole rows, each with the opening of a further turn behind its last token.

        What follows a token changes nothing before it. A row that fills the model's context gets none.
        """
        opening = torch.tensor(self._opening, dtype=torch.long, device=output["prompt_ids"].device)
        n_rows, n_more = len(output["prompt_ids"]), len(opening)
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        ends = output["prompt_ids"].shape[1] + output["completion_mask"].sum(1)
        fits = mask.sum(1) + n_more <= self._policy.max_model_len
        ids = torch.cat([ids, ids.new_full((n_rows, n_more), int(self._tokenizer.pad_token_id))], dim=1)
        mask = torch.cat([mask, mask.new_zeros((n_rows, n_more))], dim=1)
        places = (ends[:, None] + torch.arange(n_more, device=ids.device))[fits]
        ids[fits] = ids[fits].scatter(1, places, opening.expand(len(places), -1))
        mask[fits] = mask[fits].scatter(1, places, mask.new_ones(places.shape))
        return ids, mask

    def _separate_values(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with self.accelerator.autocast():
            values: torch.Tensor = self.critic(ids, mask)
        return values

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the policy's loss and the critic's."""
        inputs = trim_padding(inputs)
        if self.critic.is_shared:
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
            denominator=self._denominator(inputs),
        )
        self._record("value/loss", mean_loss)
        self._record("value/clip_fraction", stopped)
        moved = policy_statistics(self._scored, inputs, mask_BT, clip_low=self.epsilon_low, clip_high=self.epsilon_high)
        for name, value in moved.items():
            self._record(f"policy/{name}", value)
        warming_up = self.is_warming_up and self._mode == "train"
        return (0.0 if warming_up else 1.0) * loss + self.args.value_coef * loss_of_values

    def _denominator(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return what makes of a sum over a micro-batch's tokens its part of the mean over a step's, as dapo has it."""
        n_micro = 1.0
        if self._mode == "train":
            n_micro = int(self.args.steps_per_generation or 1) / self.current_gradient_accumulation_steps
        return token_count(inputs, n_processes=self.accelerator.num_processes, n_micro_batches=n_micro)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's, and keep the log-probabilities to say how far the policy has moved."""
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._scored = result[0].detach()
        return result

    def _record(self, name: str, value: torch.Tensor) -> None:
        """Log the mean over the processes of a scalar."""
        self._metrics[self._mode][name].append(self.accelerator.gather(value.detach().float()).nanmean().item())

    def _total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over the processes."""
        total: torch.Tensor = self.accelerator.reduce(values, reduction="sum")
        return total

    def _log_values(
        self, values_BT: torch.Tensor, returns_BT: torch.Tensor, bootstrap_E: torch.Tensor, mask_BT: torch.Tensor
    ) -> None:
        """Log what the critic said of the latest generation, over all processes."""
        mean, variance = global_moments(values_BT, mask_BT, self._total)
        mean_return, _ = global_moments(returns_BT, mask_BT, self._total)
        explained, spread = explained_variance(values_BT, returns_BT, mask_BT, self._total)
        n, bootstrapped = self._total(torch.stack([(bootstrap_E != 0).sum().float(), bootstrap_E.sum()])).tolist()
        metrics = self._metrics[self._mode]
        metrics["value/mean"].append(mean.item())
        metrics["value/std"].append(variance.sqrt().item())
        metrics["value/return_mean"].append(mean_return.item())
        metrics["value/return_std"].append(spread)
        metrics["value/explained_variance"].append(explained)
        if n:
            metrics["value/bootstrap_mean"].append(bootstrapped / n)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the policy's schedule, and the critic's optimizer (AdamW) with a schedule of the same kind."""
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

    def step_critic(self) -> None:
        """Step the critic on the gradients of this step; in the value warm-up, take the policy's away."""
        assert self._critic_optimizer is not None
        self._metrics["train"]["value/learning_rate"].append(self._critic_optimizer.learning_rate)
        self._metrics["train"]["value/grad_norm"].append(self._critic_optimizer.step(self.accelerator))
        if self.is_warming_up:
            model: Any = self.model
            model.zero_grad(set_to_none=True)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as TRL does, and the critic in a folder `critic` beside it."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self.critic.save(Path(output_dir or self.args.output_dir or ".") / CRITIC_FOLDER)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save what GRPO saves, and the state of the critic's optimizer."""
        super()._save_checkpoint(model, trial)
        if self.args.should_save and not self.args.save_only_model and self._critic_optimizer is not None:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            self._critic_optimizer.save(folder / CRITIC_FOLDER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load what GRPO loads, and the critic."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.critic.load(Path(checkpoint) / CRITIC_FOLDER)
            if self._critic_optimizer is not None:
                self._critic_optimizer.load(Path(checkpoint) / CRITIC_FOLDER)


class _CriticStep(TrainerCallback):
    """Step the critic where the policy is stepped."""

    def __init__(self, trainer: EnvPPOTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer.step_critic()
