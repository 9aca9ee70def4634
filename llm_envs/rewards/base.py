"""Reward functions: their form, how to make one from a text score, and how to combine several.

A reward function takes a trajectory and returns a number, several named numbers, or None for "unscored":

    RewardFn = (Trajectory) -> float | Mapping[str, float] | None
    TextFn   = (text, target) -> float

`lift` makes a reward function from a text score. A function that asks a model is more efficient in batches, so it also
has a method `score_batch` (`BatchRewardFn`). To reward a batch, call `score_trajectories`, which uses it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from llm_envs.errors import BridgeError, InvalidConfigError, JudgeError, SandboxError
from llm_envs.parsers import ParsedReply, Parser, parse_reply
from llm_envs.rewards.functions import ENDS_RUN, name_of, named_functions, read_score
from llm_envs.rewards.words import copied_words, final_reply, final_words, prompt_texts, split_words
from llm_envs.types import Trajectory

__all__ = [
    "BatchRewardFn",
    "CombinedReward",
    "RewardFn",
    "RewardFns",
    "Score",
    "Scored",
    "TextFn",
    "combine_rewards",
    "create_batch_reward",
    "lift",
    "named_rewards",
    "problem_field",
    "score_trajectories",
    "with_name",
]

Score = float | Mapping[str, float] | None
"""A reward, or its named parts, or None for unscored (which is not 0)."""
RewardFn = Callable[[Trajectory], Score]
"""A trajectory -> its score. If it raises one of `UNSCORED`, the trajectory is unscored too."""
RewardFns = RewardFn | Mapping[str, RewardFn] | Sequence[RewardFn]
"""One function, or several by name. In a list, each function has its own name (`with_name`, or `__name__`)."""
TextFn = Callable[[str, Any], float]
"""(text by the agent, target) -> score."""
Part = Literal["answer", "content", "text"]
Copies = Literal["count", "refuse", "drop"]

UNSCORED = (JudgeError, SandboxError, BridgeError)
"""Errors of the judging, not of the episode."""


@runtime_checkable
class BatchRewardFn(Protocol):
    """A reward function that scores many trajectories in one call."""

    def __call__(self, trajectory: Trajectory) -> Score:
        """Score one trajectory."""
        ...

    def score_batch(self, trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """Score all trajectories, in order; None means unscored."""
        ...


class Scored(NamedTuple):
    """The result of the reward functions for one trajectory."""

    components: dict[str, float] | None
    """Every part by its name; None if the trajectory could not be scored."""
    why: str | None = None
    """Why it could not be scored."""


def with_name(name: str, reward_fn: RewardFn) -> RewardFn:
    """Return the same function under another name, which logs and columns use for its part."""
    named = functools.partial(reward_fn)
    named.__dict__["__name__"] = name
    if isinstance(reward_fn, BatchRewardFn):
        named.__dict__["score_batch"] = reward_fn.score_batch
    return named


def named_rewards(reward_fns: RewardFns) -> dict[str, RewardFn]:
    """Return reward functions by name, checked (`functions.check_function`).

    Raises:
        InvalidConfigError: If the list is empty, two functions have the same name, or one does not take a trajectory.
    """
    named = named_functions(reward_fns, "reward function")
    if not named:
        raise InvalidConfigError("reward_fns is empty; give at least one reward function.")
    return named


# ----------------------------------------------------------------------------------------------------------------------
# A score of a text -> a reward function
# ----------------------------------------------------------------------------------------------------------------------


def lift(
    text_fn: TextFn,
    target: Any = None,
    *,
    of: Part = "answer",
    parser: Parser = parse_reply,
    copies: Copies = "count",
    max_words: int | None = None,
    missing: float = 0.0,
    name: str | None = None,
) -> RewardFn:
    """Make a reward function from a text score. It sees only the agent's last message.

    Args:
        text_fn: (text, target) -> score.
        target: The value to compare with, or a function of the trajectory that returns it (`problem_field`).
        of: "answer": the final answer; a message with tool calls has none. "content": the message without thinking and
            calls. "text": the message as it was written. A message with a problem (`ParsedReply.problems`) has none of
            these.
        parser: Parses the message.
        copies: How to treat passages copied from the prompt (`copied_words`). "count": like any other text. "refuse":
            an answer (or else content) that is only a copy of at least half of a prompt message counts as missing, and
            so does an answer copied together with the words around it (from an example). "drop": remove them first.
        max_words: An answer (or else content) with more words counts as missing; None means no limit.
        missing: The score if this text is missing or empty.
        name: Name of the part; None takes the name of `text_fn`.
    """
    if of not in ("answer", "content", "text") or copies not in ("count", "refuse", "drop"):
        raise InvalidConfigError(f"lift: of={of!r}, copies={copies!r}; known are answer, content, text and count, "
                                 "refuse, drop.")  # fmt: skip
    lifted = functools.partial(_lifted, text_fn, target, of, parser, copies, max_words, missing)
    return with_name(name or name_of(text_fn), lifted)


def _lifted(
    text_fn: TextFn,
    target: Any,
    of: Part,
    parser: Parser,
    copies: Copies,
    max_words: int | None,
    missing: float,
    trajectory: Trajectory,
) -> float:
    reply = final_reply(trajectory, parser)
    text = {"answer": reply.answer, "content": reply.content, "text": final_words(trajectory)}[of]
    if not text or not text.strip() or reply.problems or (of == "answer" and reply.tool_calls):
        return missing
    said = reply.answer or reply.content
    if max_words is not None and len(split_words(said)) > max_words:
        return missing
    if copies == "refuse" and _is_copied(reply, prompt_texts(trajectory)):
        return missing
    if copies == "drop":
        words = split_words(text)
        copied = copied_words(words, prompt_texts(trajectory))
        if any(copied):
            text = " ".join(word for word, is_copied in zip(words, copied, strict=True) if not is_copied)
            if not text:
                return missing
    return float(text_fn(text, target(trajectory) if callable(target) else target))


def _is_copied(reply: ParsedReply, prompts: Sequence[str]) -> bool:
    if _is_echo(reply.answer or reply.content, prompts):
        return True
    return reply.answer is not None and _is_inside_copy(reply.answer, reply.content, prompts)


def _is_echo(text: str, prompts: Sequence[str]) -> bool:
    """Return whether a text is only a copy of at least half of a message."""
    words = split_words(text)
    return any(
        2 * len(words) >= len(split_words(prompt)) and all(copied_words(words, [prompt])) for prompt in prompts if words
    )


def _is_inside_copy(answer: str, content: str, prompts: Sequence[str]) -> bool:
    """Return whether an answer is part of a longer copy: the words before and after it, its tags, are copied too."""
    words, inner = split_words(content), split_words(answer)
    starts = [i for i in range(len(words) - len(inner) + 1) if words[i : i + len(inner)] == inner]
    if not inner or not starts or len(inner) == len(words):
        return False
    first, last = max(starts[-1] - 1, 0), starts[-1] + len(inner) + 1
    return all(copied_words(words, prompts)[first:last])


def problem_field(name: str) -> Callable[[Trajectory], Any]:
    """Return a function that reads a field of the given problem, as the target for `lift`.

    A problem is recorded if it was given (`PromptSource`, `options={"problem": ...}`), but not if a seed drew it.
    """
    return functools.partial(_problem_field, name)


def _problem_field(name: str, trajectory: Trajectory) -> Any:
    problem = trajectory.metadata.get("options", {}).get("problem", {})
    if name not in problem:
        raise InvalidConfigError(
            f"{trajectory.env_id}, seed {trajectory.seed}: its problem has no field {name!r}; known: "
            f"{', '.join(map(str, problem)) or 'none, because it was drawn and not given'}."
        )
    return problem[name]


# ----------------------------------------------------------------------------------------------------------------------
# Several together
# ----------------------------------------------------------------------------------------------------------------------


def score_trajectories(
    trajectories: Sequence[Trajectory], reward_fns: RewardFns, *, on_error: Literal["raise", "unscored"] = "raise"
) -> list[Scored]:
    """Score trajectories with every reward function.

    A number becomes a part under the name of its function; named parts keep their names. If one function leaves a
    trajectory unscored (None, `JudgeError`, a lost sandbox or server), the trajectory has no score at all.

    Args:
        trajectories: Any. Those that are not `ok` stay unscored; no function sees them.
        reward_fns: One or several.
        on_error: For other exceptions and for other results (a text, NaN): raise, or leave the trajectory unscored.
            Mistakes of the settings (`functions.ENDS_RUN`) are always raised.

    Returns:
        A result for each, in order.

    Raises:
        InvalidConfigError: If two functions return a part with the same name, a function does not take a trajectory,
            or with `on_error="raise"` a score is not finite.
    """
    asked = [index for index, trajectory in enumerate(trajectories) if trajectory.status == "ok"]
    results = [Scored({}) if t.status == "ok" else Scored(None, f"the episode is {t.status}") for t in trajectories]
    for name, function in named_rewards(reward_fns).items():
        chosen = [trajectories[index] for index in asked]
        scores = _ask(function, chosen, on_error)
        for index, (score, why) in zip(asked, scores, strict=True):
            results[index] = _add(results[index], name, score, why, on_error)
        asked = [index for index in asked if results[index].components is not None]
    return results


def _ask(
    function: RewardFn, trajectories: Sequence[Trajectory], on_error: str
) -> list[tuple[Score, str | None]]:  # fmt: skip
    caught: tuple[type[Exception], ...] = UNSCORED if on_error == "raise" else (Exception,)

    def ask(call: Callable[..., Any], *args: Any) -> tuple[Any, str | None]:
        try:
            return call(*args), None
        except caught as error:
            if isinstance(error, ENDS_RUN):
                raise
            return None, f"{type(error).__name__}: {error}"

    if not isinstance(function, BatchRewardFn):
        return [ask(function, trajectory) for trajectory in trajectories]
    scores, why = ask(function.score_batch, trajectories) if trajectories else ([], None)
    if why is not None:
        return [(None, why)] * len(trajectories)
    if len(scores) != len(trajectories):
        raise InvalidConfigError(f"score_batch returned {len(scores)} scores for {len(trajectories)} trajectories.")
    return [(score, None) for score in scores]


def _add(scored: Scored, name: str, score: Score, why: str | None, on_error: str) -> Scored:
    try:
        parts = read_score(score, name)
    except TypeError as error:
        if on_error == "raise":
            raise InvalidConfigError(f"the reward function {name!r}: {error}.") from error
        return Scored(None, f"{name}: {error}")
    if parts is None:
        return Scored(None, f"{name}: {why or 'it gave None'}")
    if twice := parts.keys() & (scored.components or {}).keys():
        raise InvalidConfigError(f"two reward functions return a part called {min(twice)!r}: rename one of them.")
    return Scored({**(scored.components or {}), **parts})


def weigh(components: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Return each part times its weight, by default 1; raise for the weight of an unknown part."""
    if unknown := sorted(weights.keys() - components.keys()):
        raise InvalidConfigError(f"there is a weight for {unknown[0]!r}; the parts are {', '.join(components)}.")
    return {name: weights.get(name, 1.0) * value for name, value in components.items()}


@dataclass(frozen=True)
class CombinedReward:
    """Several reward functions as one vector reward, each part times its weight. Made by `combine_rewards`."""

    reward_fns: Mapping[str, RewardFn]
    weights: Mapping[str, float]

    def __call__(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the weighted parts, whose sum is the reward.

        Raises:
            JudgeError: If the trajectory cannot be scored.
        """
        scored = score_trajectories([trajectory], self.reward_fns)[0]
        if scored.components is None:
            raise JudgeError(scored.why or "unscored")
        return weigh(scored.components, self.weights)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[dict[str, float] | None]:
        """Return the weighted parts of each trajectory; None means unscored."""
        scored = score_trajectories(trajectories, self.reward_fns)
        return [None if components is None else weigh(components, self.weights) for components, _ in scored]


def combine_rewards(reward_fns: RewardFns, *, weights: Mapping[str, float] | None = None) -> CombinedReward:
    """Combine several reward functions into one vector reward: R = Σ w_k r_k, with each w_k r_k under its name.

    An aggregator (`llm_envs.rewards.create_gated`, ...) is another way to combine the parts; pass it to `rescore` as
    `aggregate`.

    Args:
        reward_fns: The functions; parts of vector rewards keep their names.
        weights: Weights by the names of the parts; the default is 1.

    Raises:
        InvalidConfigError: If names clash, or a weight is not finite.
    """
    for name, weight in (weights or {}).items():
        if not math.isfinite(weight):
            raise InvalidConfigError(f"the weight of {name!r} is {weight!r}; it must be finite.")
    return CombinedReward(named_rewards(reward_fns), dict(weights or {}))


@dataclass(frozen=True)
class _BatchReward:
    function: Callable[[Sequence[Trajectory]], Sequence[Score]]
    __name__: str

    def __call__(self, trajectory: Trajectory) -> Score:
        return self.function([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        return self.function(trajectories)


def create_batch_reward(
    function: Callable[[Sequence[Trajectory]], Sequence[Score]], *, name: str | None = None
) -> BatchRewardFn:
    """Make a reward function from a function that scores many trajectories in one call.

    Args:
        function: Trajectories -> a score for each, in order.
        name: Name of its part; None takes the function's.
    """
    return _BatchReward(function, name or name_of(function))
