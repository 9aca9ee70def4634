"""A callback that watches a training for reward hacking; `llm_envs.evaluation.hacking` describes what it watches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.hacking import (
    Alarm,
    AlarmSettings,
    AlarmState,
    Observation,
    observe,
    sample_episodes,
    watch_episodes,
    watch_kl,
)
from llm_envs.rewards import RewardFn, score_trajectories
from llm_envs.rewards.functions import check_function
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout import derive_seed
from llm_envs.trainers.episodes.rewards import EpisodeRewards
from llm_envs.trainers.grpo.base import EpisodeTrainer
from llm_envs.trainers.run.ranks import function_limit, raise_on_all_ranks

__all__ = ["RewardHackingAlarm", "observe_sample"]

logger = logging.getLogger(__name__)

_STATE = "llm_envs_reward_hacking"
"""Key of our state in transformers'. If it were the name of a class, transformers would construct that class again."""


class RewardHackingAlarm(TrainerCallback):
    """Score a sample of the training episodes again, and warn or stop if the reward is likely to be exploited.

    Add it to an `EnvGRPOTrainer` or `EnvPPOTrainer`: `trainer.add_callback(RewardHackingAlarm(trainer, second_score))`.
    It watches the latest generation at the end of each optimizer step, and the metric `kl` if there is one. Checkpoints
    have its state, and a resumed training continues with it.

    Args:
        trainer: The trainer.
        second_score: A verifier or a judge that shares no code with the reward: an episode -> a number from 0 to 1, or
            None or a `JudgeError` for one that it cannot score, which then is not watched.
        settings: The limits of an honest training, and the error level; None takes the defaults.
        on_alarm: Whether to log a warning only, or to stop the training after the step as well.

    The attribute `alarms` has the alarms since the training began or resumed, `watched` what the alarm knows.

    Raises:
        InvalidConfigError: If `on_alarm` is neither "warn" nor "stop".
    """

    def __init__(
        self,
        trainer: EpisodeTrainer,
        second_score: RewardFn,
        settings: AlarmSettings | None = None,
        *,
        on_alarm: Literal["warn", "stop"] = "warn",
    ) -> None:
        if on_alarm not in ("warn", "stop"):
            raise InvalidConfigError(f"on_alarm is {on_alarm!r}; it must be 'warn' or 'stop'.")
        self.alarms: list[Alarm] = []
        self._trainer, self._on_alarm = trainer, on_alarm
        check_function(second_score, "second_score", ("trajectory",))
        self._second_score = limited(second_score, function_limit(trainer.args), "second_score")
        self._settings, self.watched = settings or AlarmSettings(), AlarmState()
        self._seen: EpisodeRewards | None = None
        self._late: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """In a resumed training, take the state from the checkpoint."""
        saved: Any = state.stateful_callbacks  # a dict, though transformers types it as a list
        if _STATE in saved:
            self.watched = AlarmState.from_dict(saved[_STATE])

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Watch the latest generation, once."""
        self._log(self._late)
        self._late = {}
        episodes = self._trainer.generations["train"].episodes
        if episodes is self._seen or not episodes.trajectories:  # several steps, or a resumed one, of one generation
            return
        self._seen = episodes
        with raise_on_all_ranks():
            seed = derive_seed(args.seed, "alarm", state.global_step)
            own = observe_sample(episodes, self._second_score, self._settings, seed=seed)
        # All processes see the same, so that all of them stop, or none.
        everyone: list[Observation] = gather_object(own)
        self.watched, metrics, alarms = watch_episodes(
            self.watched, everyone, step=state.global_step, settings=self._settings
        )
        self._log(metrics)
        self._tell(alarms, args, state, control)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        """Watch the KL that the trainer has logged."""
        if logs and logs.get("kl") is not None:  # None: TRL had nothing to average
            self.watched, metrics, alarms = watch_kl(
                self.watched, float(logs["kl"]), step=state.global_step, settings=self._settings
            )
            self._late = metrics  # TRL clears its metrics after this call
            self._tell(alarms, args, state, control)

    def _log(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._trainer._metrics["train"][name].append(value)

    def _tell(self, alarms: Sequence[Alarm], args: Any, state: TrainerState, control: TrainerControl) -> None:
        saved: Any = state.stateful_callbacks
        saved[_STATE] = self.watched.to_dict()
        self.alarms += alarms
        for alarm in alarms if state.is_world_process_zero else ():
            where = f"{args.output_dir}/trajectories/process-N"
            logger.warning(
                "%s Look at them with `llm-envs report %s`, and play on from them with "
                "`llm-envs branch %s --episode GROUP/MEMBER --turn 0 --model DIR`.",
                alarm,
                args.output_dir,
                where,
            )
        if alarms and self._on_alarm == "stop":
            control.should_training_stop = True


def observe_sample(
    episodes: EpisodeRewards, second_score: RewardFn, settings: AlarmSettings, *, seed: int
) -> list[Observation]:
    """Draw a sample of a generation's episodes, score it again, and return what the alarm needs of it.

    Args:
        episodes: The episodes with their training rewards.
        second_score: The second verifier or judge.
        settings: The alarm's settings.
        seed: Decides the sample.

    Raises:
        InvalidConfigError: If a second score is not a number from 0 to 1.
    """
    places = sample_episodes(episodes.trajectories, settings.sample_size, seed=seed)
    scores = score_trajectories([episodes.trajectories[place] for place in places], second_score)
    return [
        observe(
            episodes.trajectories[place],
            float(episodes.rewards[place]),
            sum(score.components.values()),
            settings.reward_range,
        )
        for place, score in zip(places, scores, strict=True)
        if score.components is not None
    ]
