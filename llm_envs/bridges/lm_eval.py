"""lm-evaluation-harness: its tasks, answered by a policy of ours, before, during and after a training.

scores = harness_scores(policy, ["gsm8k", "arc_easy"], limit=200)
trainer.add_callback(HarnessCallback(trainer, ["my_task"], task_folder="tasks"))   # with each evaluation
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.policies.base import Policy, TokenPolicy
from llm_envs.problems import is_number
from llm_envs.rollout.sync import SyncRunner
from llm_envs.sources.mixture import derive_seed
from llm_envs.types import Sampled, SamplingParams

with extra_needed("lm-evaluation-harness needs `lm-eval`: pip install 'llm-envs[evals]'."):
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
    from lm_eval.tasks import TaskManager
    from transformers import TrainerCallback

__all__ = ["HarnessCallback", "PolicyLM", "harness_scores"]

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_HANDLED = {"until", "max_gen_toks", "do_sample"}


class PolicyLM(LM):
    """A policy as a language model of the harness, for `lm_eval.simple_evaluate(model=PolicyLM(policy))`.

    `generate_until` samples with the policy; all requests of a call are in flight together. Log-likelihoods are the
    harness's own, of the policy's model, so a policy without a model in this process cannot give them.

    Args:
        policy: A token policy with a `tokenizer`.
        tokenizer: Its tokenizer, if the policy has none.
        seed: Seed of the sampling, for tasks that do not decode greedily.
        max_gen_toks: Tokens of a reply where the task does not say.
        batch_size: Sequences scored together.

    Raises:
        InvalidConfigError: If the policy takes no token ids, or has no tokenizer and none is given.
    """

    def __init__(
        self, policy: Policy, tokenizer: Any = None, *, seed: int = 0, max_gen_toks: int = 256, batch_size: int = 8
    ) -> None:
        super().__init__()
        self.policy: Any = policy
        self.tokenizer: Any = getattr(policy, "tokenizer", None) if tokenizer is None else tokenizer
        if not isinstance(policy, TokenPolicy) or self.tokenizer is None:
            raise InvalidConfigError(
                f"PolicyLM: {type(policy).__name__} must be a token policy (TransformersPolicy, VLLMEnginePolicy, "
                "VLLMServerPolicy), with its tokenizer or one that you pass."
            )
        self.seed, self.max_gen_toks, self.batch_size = seed, max_gen_toks, batch_size
        self._runner = SyncRunner()
        self._scorer: Any = None

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a reply for each request, up to its stop strings. A context that is too long loses its beginning."""

        async def sample_all() -> list[str]:
            return await asyncio.gather(*map(self._generate, range(len(requests)), [r.args for r in requests]))

        with _in_eval_mode(self.policy):
            return self._runner.run(sample_all)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether greedy decoding would write it.

        Raises:
            InvalidConfigError: If the policy has no model in this process.
        """
        scorer = self._make_scorer()
        with _in_eval_mode(self.policy):
            return list(scorer.loglikelihood(requests, disable_tqdm=disable_tqdm))

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text; see `loglikelihood`."""
        scorer = self._make_scorer()
        with _in_eval_mode(self.policy):
            return list(scorer.loglikelihood_rolling(requests, disable_tqdm=disable_tqdm))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation."""
        text = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return str(text)

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name, for caches."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template, for caches."""
        return None if chat_template is False else str(self.tokenizer.get_chat_template())

    async def _generate(self, index: int, arguments: tuple[str, dict[str, Any]]) -> str:
        context, settings = arguments
        wanted = normalize_gen_kwargs(settings, self.max_gen_toks)
        if unknown := wanted.keys() - _HANDLED - set(_SAMPLING):
            raise InvalidConfigError(
                f"PolicyLM: the task generates with {sorted(unknown)}; a policy knows {', '.join(_SAMPLING)}."
            )
        n_new, stops = wanted["max_gen_toks"], tuple(stop for stop in wanted["until"] if stop)
        start = self.tokenizer.bos_token
        # As the harness encodes a context: no second start token in front of a template's.
        encoding = {"add_special_tokens": False} if start and context.startswith(start) else {}
        ids = np.array(self.tokenizer.encode(context, **encoding), np.int32)
        most = getattr(self.policy, "max_model_len", None)
        if most is not None:
            if n_new >= most:
                raise InvalidConfigError(f"PolicyLM: max_gen_toks={n_new} fills the model's context of {most} tokens.")
            ids = ids[-(most - n_new) :]
        params = SamplingParams(
            max_new_tokens=n_new,
            stop_strings=stops,
            **{name: wanted[name] for name in _SAMPLING if name in wanted},
        )
        if not wanted["do_sample"]:
            params = SamplingParams(max_new_tokens=n_new, stop_strings=stops, temperature=0.0)
        seed = derive_seed(self.seed, "harness", index)
        sampled: Sampled = await self.policy.sample(ids, params, seed=seed, session=f"harness-{seed}")
        text = self.tokenizer.decode(sampled.token_ids, skip_special_tokens=True)
        reply = str(postprocess_generated_text(text, list(stops), None))
        self.cache_hook.add_partial("generate_until", arguments, reply)
        return reply

    def _make_scorer(self) -> Any:
        if self._scorer is None:
            model = getattr(self.policy, "model", None)
            if not hasattr(model, "forward"):
                raise InvalidConfigError(
                    f"PolicyLM: {type(self.policy).__name__} cannot score given texts, which multiple-choice and "
                    "perplexity tasks need: play them with TransformersPolicy, or choose tasks that generate."
                )
            self._scorer = HFLM(pretrained=model, tokenizer=self.tokenizer, batch_size=self.batch_size)
        return self._scorer


def harness_scores(
    policy: Policy | PolicyLM, tasks: Sequence[str], *, task_folder: str | Path | None = None, **settings: Any
) -> dict[str, float]:
    """Return the metrics of tasks of the harness, as flat numbers: `{"harness/gsm8k/exact_match,strict-match": 0.4}`.

    Args:
        policy: A token policy, or a `PolicyLM`.
        tasks: Names of tasks, or of groups.
        task_folder: A folder with YAML files of further tasks.
        **settings: Of `lm_eval.simple_evaluate`: `limit`, `num_fewshot`, `apply_chat_template`, ...
    """
    model = policy if isinstance(policy, PolicyLM) else PolicyLM(policy)
    manager = TaskManager(include_path=None if task_folder is None else str(task_folder))
    settings = {"log_samples": False, "bootstrap_iters": 0} | settings
    results = simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, **settings)["results"]
    return {
        f"harness/{task}/{name.removesuffix(',none')}": float(value)
        for task, metrics in results.items()
        for name, value in metrics.items()
        if is_number(value) and "_stderr" not in name and name not in ("sample_len", "sample_count")
    }


class HarnessCallback(TrainerCallback):
    """Measure the model in training on tasks of the harness, with each evaluation of its trainer.

    Every process measures the entire task. Not for models whose forward pass needs all processes (FSDP, ZeRO-3).

    Args:
        trainer: A trainer whose `model` is the policy's and whose `processing_class` is its tokenizer.
        tasks: As for `harness_scores`.
        **settings: As for `harness_scores`.
    """

    def __init__(self, trainer: Any, tasks: Sequence[str], **settings: Any) -> None:
        self.trainer, self.tasks, self.settings = trainer, tuple(tasks), settings

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Log the scores, and add them to the evaluation's metrics as `eval_harness/...`."""
        from llm_envs.policies.transformers import TransformersPolicy

        policy = TransformersPolicy(self.trainer.model, self.trainer.processing_class)
        model = PolicyLM(policy)
        try:
            scores = harness_scores(model, self.tasks, **self.settings)
        finally:
            model._runner.run(policy.aclose)
        named = {f"eval_{name}": value for name, value in scores.items()}
        if metrics is not None:
            metrics |= named
        self.trainer.log(named)


@contextmanager
def _in_eval_mode(policy: Any) -> Iterator[None]:
    """Put the policy's model into eval mode: it may be the model in training."""
    model: Any = getattr(policy, "model", None)
    was_training = bool(getattr(model, "training", False))
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()
