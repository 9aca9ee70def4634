"""Evaluations that are played during the training: on other servers, or as another adapter on the same servers.

Invariants:
1. An evaluation plays the episodes of a blocking one: the same items, seeds and sampling seeds, with the weights of its
   step. Its number is logged under that step, whenever it is there.
2. One evaluation is under way at a time: its servers have the weights of one step.
3. Only playing runs in the second thread. Weights are sent, and rewards, logs and files made, between two steps.
4. If an evaluation fails, only its number is lost.
5. With several processes, evaluations pause the training: each would have to end its own at the same step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from transformers import TrainerCallback

from llm_envs.errors import LLMEnvsError
from llm_envs.policies.vllm.adapter_policy import AdapterPolicy
from llm_envs.rollout import Collector, EpisodeSpec
from llm_envs.rollout.sync import BackgroundLoop
from llm_envs.tracking.reasons import describe_reasons
from llm_envs.trainers.engines.engines import evaluation_servers
from llm_envs.trainers.engines.servers import ServerEngines
from llm_envs.trainers.episodes.generation import GenerationPlayer, close_policy
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.grpo.logs import LogsGenerations
from llm_envs.trainers.grpo.setup import temporarily
from llm_envs.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from llm_envs.trainers.episodes.rewards import EpisodeRewards

__all__ = ["EvaluatesInBackground"]

logger = logging.getLogger(__name__)

_HOW = "with eval_server_urls=[...] it would be played during the training"


@dataclass(eq=False)
class _Evaluation:
    """An evaluation under way."""

    state: dict[str, Any]
    """The trainer's state when it began: step, epoch, tokens."""
    algorithm: Algorithm
    sizes: list[int]
    """How many groups each of the data loader's batches has."""
    future: Future[tuple[list[TrajectoryGroup], float]]
    """The groups of all batches, and the seconds that they took."""
    adapter: AdapterPolicy | None
    """The adapter that it plays with; None on other servers."""

    def give_back(self) -> None:
        """Let the adapter be unloaded."""
        if self.adapter is not None:
            close_policy(self.adapter)


class EvaluatesInBackground(LogsGenerations):
    """Plays evaluations during the training where that is possible: a mixin before TRL's class."""

    _player: GenerationPlayer
    _eval_engine: ServerEngines | None = None
    _eval_collector: Collector | None = None
    _eval_loop: BackgroundLoop | None = None
    _evaluation: _Evaluation | None = None
    _is_owed = False
    """Whether the checkpoint was saved while its step's evaluation was played."""
    _has_said = False

    if TYPE_CHECKING:
        args: Any
        control: Any
        num_generations_eval: int | None
        vllm_generation: Any
        _policy: Any

        @property
        def _algorithm(self) -> Algorithm: ...
        def _start_collector(self, policy: Any) -> Collector: ...
        def _prepare_policy(self) -> None: ...
        def _rewarded(self, trajectories: Sequence[Trajectory], algorithm: Algorithm) -> EpisodeRewards: ...
        def _episode_rows(self, episodes: EpisodeRewards, n_rows: int) -> dict[str, Any]: ...
        def _n_further_rows(self, n_forks: int) -> int: ...

    def _start_evaluation(self) -> None:
        """Connect to the evaluation's servers, before the training."""
        if self.args.eval_server_urls is not None and self.accelerator.num_processes == 1:
            self._eval_engine = evaluation_servers(cast("Any", self))
        self.add_callback(_BetweenSteps(self))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as transformers does. If possible, only begin during a training, and return no metrics yet."""
        # transformers passes `ignore_keys` only; a callback of the user's may want another data set, or the number.
        if not self.is_in_train or args or kwargs.keys() - {"ignore_keys"}:
            return super().evaluate(*args, **kwargs)
        why = self._why_it_blocks()
        if not self._has_said and self.accelerator.is_main_process and why is not None:
            logger.warning("Each evaluation pauses the training: %s.", why)
        self._has_said = True
        if why is not None:
            return super().evaluate(*args, **kwargs)
        self.control.should_evaluate = False  # as transformers does after an evaluation
        if self._evaluation is not None:
            if not self._evaluation.future.done():
                logger.warning("The evaluation of step %d waits for the earlier one.", self.state.global_step)
            self._end_evaluation()
        self._begin_evaluation()
        return self._end_evaluation() if self.control.should_training_stop else {}

    def _why_it_blocks(self) -> str | None:
        """Return why an evaluation must pause the training; None if it need not."""
        args = self.args
        if self.hp_search_backend is not None:
            return "a search for hyperparameters needs each number immediately"
        if (n := self.accelerator.num_processes) > 1:
            return f"{n} processes train"
        if self._eval_engine is not None:
            return None
        if not (args.use_vllm and args.vllm_mode == "server" and args.lora_sync == "adapter" and args.ray is None):
            return _HOW
        if args.metric_for_best_model is not None:
            return f"metric_for_best_model={args.metric_for_best_model!r} needs each number immediately"
        self._prepare_policy()  # the servers may turn out not to take the adapter
        return None if self.vllm_generation.sends_adapter else f"the servers get merged weights; {_HOW}"

    def _begin_evaluation(self) -> None:
        """Send the weights of now to the evaluation's servers, and begin to play."""
        state, step = self.state, self.state.global_step
        try:
            policy = self._evaluation_policy()
        except (LLMEnvsError, OSError) as error:
            self._leave_out(step, str(error))
            return
        size = int(self.num_generations_eval or 1)
        rows = [list(batch) for batch in self.get_eval_dataloader()]
        batches = self._player.evaluation_specs(rows, step=step, group_size=size)
        if self._eval_collector is None:
            self._eval_collector = self._start_collector(policy)
        self._eval_collector.policy = policy
        self._eval_loop = self._eval_loop or BackgroundLoop()
        self._evaluation = _Evaluation(
            {name: getattr(state, name) for name in ("global_step", "epoch", "num_input_tokens_seen")},
            self._algorithm,
            [len(groups) for groups in batches],
            self._eval_loop.start(partial(_timed, self._eval_collector, [group for part in batches for group in part])),
            None if self._eval_engine is not None else policy,
        )

    def _evaluation_policy(self) -> Any:
        """Return a policy with the weights of now, which it keeps while further steps are taken."""
        if self._eval_engine is None:
            self._prepare_policy()
            return self._policy.with_adapter()
        self._eval_engine.sync_weights()
        return self._eval_engine.policy

    def _between_steps(self) -> None:
        """Begin the evaluation that a checkpoint owes, or end one that is played."""
        if self._is_owed:
            self._is_owed = False
            self.evaluate()
        elif self._evaluation is not None and self._evaluation.future.done():
            self._end_evaluation()

    def _end_evaluation(self) -> dict[str, float]:
        """Wait for the evaluation under way, log it under its step, and return what was logged."""
        if self._evaluation is None:
            return {}
        done, step = self._evaluation, self._evaluation.state["global_step"]
        try:
            groups, seconds = done.future.result()
            self._evaluation = None
        except Exception as error:  # episodes' own errors are data, so this is the collector's
            self._evaluation = None
            self._leave_out(step, f"{type(error).__name__}: {error}")
            return {}
        finally:
            done.give_back()
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        failures, n_played = self._player.count_failures(trajectories)
        message = f"{failures.total()} of {n_played} episodes failed: {describe_reasons(failures)}"
        if failures.total() == n_played:
            self._player.take_evaluation(groups)
            self._leave_out(step, message)
            return {}
        if failures:
            logger.warning("The evaluation of step %d: %s", step, message)
        return self._log_evaluation(done, groups, seconds)

    def _log_evaluation(self, done: _Evaluation, groups: Sequence[TrajectoryGroup], seconds: float) -> dict[str, float]:
        """Log what a blocking evaluation would log of the episodes, under the evaluation's step."""
        model, start = cast("Any", self.model), 0
        is_training = model.training
        model.eval()  # the mode decides where numbers go
        # The callbacks would answer that what is due at the present step is done. The table is the present step's.
        flags = {"should_log": False, "should_evaluate": False}
        try:
            with (
                temporarily(self.state, **done.state),
                temporarily(self.control, **flags),
                temporarily(self, log_completions=False),
            ):
                for n in done.sizes:
                    trajectories = self._player.take_evaluation(groups[start : start + n])
                    self._log_batch(trajectories, done.algorithm)
                    start += n
                self.log({"eval_runtime": round(seconds, 4)})
                metrics = {name: value for name, value in self.state.log_history[-1].items() if name != "step"}
                self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        finally:
            model.train(is_training)
        return metrics

    def _log_batch(self, trajectories: Sequence[Trajectory], algorithm: Algorithm) -> None:
        """Log one batch of an evaluation: numbers are means over batches, as in a blocking one."""
        episodes = self._rewarded(trajectories, algorithm)
        n_forks = sum(max(len(trajectory.rows) - 1, 0) for trajectory in trajectories)
        output = self._episode_rows(episodes, len(trajectories) + self._n_further_rows(n_forks))
        self._log_rows(output)
        self._log_rewards(episodes, output)
        for name, (total, n_items) in self._player.totals("eval").items():
            self._take("eval", f"env/{name}", total, n_items)

    @staticmethod
    def _leave_out(step: int, why: str) -> None:
        logger.error("The evaluation of step %d failed and is left out; the training continues. %s", step, why)

    def _drop_evaluation(self) -> None:
        """Stop an evaluation under way, without its number."""
        if self._evaluation is not None:
            self._evaluation.future.cancel()
            self._evaluation.give_back()
            self._evaluation = None

    def _settle_evaluation(self) -> bool:
        """Before a checkpoint, end an evaluation of an earlier step; return whether one of this step is under way."""
        if self._evaluation is not None and self._evaluation.state["global_step"] < self.state.global_step:
            self._end_evaluation()
        return self._evaluation is not None

    def _close_evaluation(self) -> None:
        """End the evaluation's thread, collector and clients."""
        self._drop_evaluation()
        if self._eval_loop is not None:
            self._eval_loop.close()
        if self._eval_collector is not None:
            self._eval_collector.close()
        if self._eval_engine is not None:
            close_policy(self._eval_engine.policy)
            self._eval_engine.close()


async def _timed(
    collector: Collector, groups: Sequence[tuple[EpisodeSpec, ...]]
) -> tuple[list[TrajectoryGroup], float]:
    """Play groups; return them and the seconds that they took."""
    began_s = time.monotonic()
    return await collector.aplay(groups), time.monotonic() - began_s


class _BetweenSteps(TrainerCallback):
    """Ends an evaluation that is played, between two steps; at the end of the training, any."""

    def __init__(self, trainer: EvaluatesInBackground) -> None:
        self._trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the evaluation that a checkpoint owes, or end one that is played."""
        self._trainer._between_steps()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the last step, wait for the evaluation under way."""
        if control.should_training_stop:
            self._trainer._end_evaluation()
