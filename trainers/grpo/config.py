"""GRPO settings: TRL's and the environment's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from trl import GRPOConfig

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.vllm.http import check_url, server_root
from llm_envs.policies.vllm.transfer import TRANSPORTS
from llm_envs.trainers.engines.adapter_sync import LoraSync
from llm_envs.trainers.engines.servers import ServerSettings, WorkerSettings
from llm_envs.trainers.forward.tree_rows import FORWARDS, Forward
from llm_envs.trainers.functional.importance import ImportanceMode, importance_weights
from llm_envs.trainers.grpo.from_trl import algorithm_from_trl
from llm_envs.trainers.run.ranks import set_for_machine
from llm_envs.trainers.settings.checks import check_env_kwargs, check_values, read_numbers
from llm_envs.trainers.settings.unused import NamedSettings, grpo_cases, refuse_unused, without

__all__ = ["EnvGRPOConfig"]


@dataclass
@without(
    "the collector plays the episodes, see temperature, thinking, max_turns, vllm_server_urls, ...",
    *("generation_kwargs", "chat_template_kwargs", "cache_implementation", "max_tool_calling_iterations"),
    *("use_transformers_paged", "use_transformers_continuous_batching", "transformers_continuous_batching_config"),
    *("ds3_gather_for_generation", "log_multimodal", "vllm_structured_outputs_regex", "vllm_group_port"),
    *("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout"),
)
@without(
    "it belongs to a loss that only TRL's own trainer has",
    *("sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg"),
    *("vespo_lambda_neg", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
)
@without("RewardSettings.weights has names", "reward_weights")
@without("its name is now vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap")
class EnvGRPOConfig(NamedSettings, WorkerSettings, ServerSettings, GRPOConfig):
    """TRL's `GRPOConfig` with settings for environments. TRL's fields keep their meaning.

    Fields of TRL that never have an effect in this trainer cannot be given. If you change one that has no effect with
    your other settings, an error is raised.
    """

    env_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of gym.make, such as {'difficulty': 'easy'} (a JSON object). An environment that has no "
            "splits wants {'split': None}."
        },
    )
    logging_steps: float = field(
        default=1, metadata={"help": "Optimizer steps between two entries of the metrics (TRL's default: 10)."}
    )
    num_train_seeds: int | None = field(
        default=None,
        metadata={
            "help": "Distinct seeds of the train split: the rows of one epoch. None: each row of a data set once, as "
            "many as the problems that a task declares, or 10,000."
        },
    )
    num_eval_seeds: int = field(
        default=64,
        metadata={
            "help": "Distinct seeds of the test split that an evaluation plays, if eval_strategy asks; fewer if the "
            "split has fewer problems."
        },
    )
    eval_server_urls: list[str] | None = field(
        default=None,
        metadata={
            "help": "Addresses of `vllm serve` processes that play evaluations during the training, with the weights "
            "of the evaluation's step. None: an evaluation pauses the training, unless the training's servers play it "
            "with the adapter of its step (lora_sync)."
        },
    )
    max_turns: int | None = field(
        default=None, metadata={"help": "Turns an episode may have; None: the environment's."}
    )
    max_turn_tokens: int | None = field(
        default=None, metadata={"help": "Tokens one turn may have; None: max_completion_length."}
    )
    max_episode_s: float | None = field(default=None, metadata={"help": "Seconds an episode may take in all."})
    max_step_s: float | None = field(default=None, metadata={"help": "Seconds one step of the environment may take."})
    max_function_s: float | None = field(
        default=None,
        metadata={
            "help": "Seconds that one call of a function of yours (reward, filter, context, advantages) may take, then "
            "the run ends. None: half of ddp_timeout."
        },
    )
    max_concurrency: int | str = field(
        default=128,
        metadata={"help": "Concurrent episodes on each process. auto: as many as raise the throughput."},
    )
    thinking: bool | None = field(
        default=None, metadata={"help": "Passed to the chat template as enable_thinking; None: the template's default."}
    )
    history: Literal["append", "template"] = field(
        default="append",
        metadata={
            "help": "What the model sees of its earlier turns: append, its own words as it wrote them, one row an "
            "episode; template, what the chat template makes of them, a new row where that differs."
        },
    )
    use_training_template: bool = field(
        default=False, metadata={"help": "Whether TRL's training version of the chat template is used."}
    )
    max_refills: int = field(
        default=10,
        metadata={
            "help": "Groups played for each one wanted, where a group_filter drops some; then its place is empty."
        },
    )
    disable_dropout: bool = field(
        default=True,
        metadata={
            "help": "Whether dropout is off, in adapters too (TRL's default: False). With it the trained policy is not "
            "the one that sampled, and old, new and reference log-probabilities differ by masks."
        },
    )
    logps_tolerance: float | None = field(
        default=0.1,
        metadata={
            "help": "Largest mean gap in nats between sampled and recomputed log-probabilities of the first batch; "
            "above it training stops. Masking and template bugs cost nats, bf16 about 0.01. None: no guard."
        },
    )
    async_generations: int = field(
        default=0,
        metadata={
            "help": "Generations that are played while the trainer steps on an earlier one, under weights of up to as "
            "many generations ago. Needs use_vllm."
        },
    )
    lora_sync: LoraSync = field(
        default="merged",
        metadata={
            "help": "What vLLM gets of an adapter that is trained: merged, weights with it merged; adapter, only its "
            "tensors, and merged weights where vLLM cannot have it."
        },
    )
    keep_sampling_mask: bool = field(
        default=False,
        metadata={
            "help": "Whether training is over the tokens that top_p, top_k and min_p left to choose from at sampling "
            "(DeepSeek-V3.2's Keep Sampling Mask); not with use_vllm or a repetition_penalty."
        },
    )
    forward: Forward = field(
        default="auto",
        metadata={
            "help": "How the rows of a micro-batch are computed: padded; prefix_tree, each token that rows share once "
            "and no padding; auto, prefix_tree on a CPU if it is exact for the model, else padded."
        },
    )
    max_tokens_per_micro_batch: int | None = field(
        default=None,
        metadata={
            "help": "The most tokens of one forward and backward pass; a micro-batch with more is computed in parts, "
            "of rows that begin alike. The gradient is the same. None: no limit."
        },
    )
    save_trajectories: bool = field(
        default=True, metadata={"help": "Whether every episode is written to output_dir/trajectories."}
    )
    # TRL's default masks long episodes as off-policy; truncating each token's ratio does not.
    vllm_importance_sampling_mode: ImportanceMode = field(
        default="token_truncate",
        metadata={
            "help": "See TRL; multi-turn episodes want the default of this class. Beyond TRL's: turn_truncate, "
            "turn_mask, geometric_truncate, geometric_mask (the geometric mean of the ratios of a turn, or of a row)."
        },
    )

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "env_kwargs"]

    def __post_init__(self) -> None:
        """Set the defaults of this machine, then check our fields."""
        read_numbers(self)
        set_for_machine(self)
        self.env_kwargs = check_env_kwargs(self.env_kwargs)
        self._start_trl()
        refuse_unused(self, grpo_cases(self))
        algorithm_from_trl(self)  # refuses what cannot be said
        steps, group = int(self.steps_per_generation or 1), int(self.num_generations or 1)  # set by TRL just now
        eval_group, n_groups = int(self.num_generations_eval or group), int(self.generation_batch_size or 1) // group
        is_torn = self.per_device_train_batch_size * steps % group
        is_eval_torn = self.eval_strategy != "no" and self.per_device_eval_batch_size % eval_group
        # Neither a model that trains nor actors with older weights can play ahead.
        most_ahead, n_ahead = math.inf if self.use_vllm and self.ray is None else 0, self.async_generations
        is_ahead = type(n_ahead) is int and 0 <= n_ahead <= most_ahead
        whole = f"one that, times steps_per_generation={steps}, is a multiple of num_generations={group}"
        check_values(
            self,
            (
                "max_completion_length",
                (self.max_completion_length or 0) >= 1,
                "the tokens of a whole episode, at least 1",
            ),
            ("learning_rate", self.learning_rate >= 0, "0 or more"),
            ("async_generations", is_ahead, "0 or more, and 0 without use_vllm or with ray"),
            ("temperature", self.temperature > 0, "above 0, so that samples differ"),
            ("vllm_mode", self.vllm_mode in ("colocate", "server"), "colocate or server"),
            ("vllm_transport", self.vllm_transport in TRANSPORTS, f"one of {', '.join(TRANSPORTS)}"),
            ("max_refills", self.max_refills >= 1, "at least 1"),
            ("max_tokens_per_micro_batch", (self.max_tokens_per_micro_batch or 1) >= 1, "at least 1, or None"),
            ("forward", self.forward in FORWARDS, f"one of {', '.join(FORWARDS)}"),
            ("per_device_train_batch_size", not is_torn, f"{whole}: a process plays whole groups"),
            ("per_device_eval_batch_size", not is_eval_torn, f"a multiple of num_generations_eval={eval_group}"),
            (
                "num_train_seeds",
                (self.num_train_seeds or n_groups) >= n_groups,
                f"at least {n_groups}: a generation's groups",
            ),
        )
        self._check_evaluation()
        self._check_sampling_mask()
        self._check_importance_sampling()

    def _start_trl(self) -> None:
        """Let TRL check its fields and set the sizes of a generation."""
        GRPOConfig.__post_init__(self)

    def _check_evaluation(self) -> None:
        """Check the servers of the evaluation."""
        if self.eval_server_urls is None:
            return
        urls, others = (
            [value] if isinstance(value, str) else value or []
            for value in (self.eval_server_urls, self.vllm_server_urls)
        )
        for url in urls:
            check_url(url, "eval_server_urls")
        shared = {server_root(url) for url in urls} & {server_root(url) for url in others}
        has_port = self.use_vllm and self.vllm_mode == "server" and ":" in (self.vllm_transfer_address or "")
        check_values(
            self,
            ("eval_server_urls", bool(urls), "one address or more, or None"),
            ("eval_server_urls", not shared, "other servers than vllm_server_urls, whose weights change meanwhile"),
            ("ray", self.ray is None, "None with eval_server_urls: actors play on the training's servers only"),
            (
                "metric_for_best_model",
                self.metric_for_best_model is None,
                "None with eval_server_urls, whose number comes some steps later (load_best_model_at_end and "
                "reduce_lr_on_plateau set it)",
            ),
            ("vllm_transfer_address", not has_port, "HOST with eval_server_urls: two groups of servers need two ports"),
        )

    def _check_sampling_mask(self) -> None:
        has_mask = self.keep_sampling_mask
        check_values(
            self,
            ("use_vllm", not (has_mask and self.use_vllm), "False with keep_sampling_mask, which vLLM does not report"),
            ("repetition_penalty", not has_mask or self.repetition_penalty == 1, "1 with keep_sampling_mask"),
        )
        leaves_out = self.top_p < 1 or bool(self.top_k) or bool(self.min_p)
        no_filter = (not leaves_out, "no filter (top_p, top_k, min_p) leaves a token out", ("keep_sampling_mask",))
        refuse_unused(self, [no_filter])

    def _check_importance_sampling(self) -> None:
        if not (self.use_vllm and self.vllm_importance_sampling_correction):
            return
        one, mode = torch.ones(1, 1), self.vllm_importance_sampling_mode
        low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        try:  # on a dummy batch: it checks the bounds
            importance_weights(one, one, one, mode=mode, maximum=high, minimum=low)
        except ValueError as error:
            raise InvalidConfigError(f"vllm_importance_sampling_...: {error}") from error
