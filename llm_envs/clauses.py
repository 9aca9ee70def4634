"""What every task must satisfy: one small function a clause.

Each takes the task under test, returns what it saw, and raises `BrokenClause` when the clause does not hold; the
message says what is wrong and what to do. A clause's name is its function's name. `checker.check_task` runs them all.
"""

from __future__ import annotations

import inspect
import json
import math
import pickle
import random
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence

from llm_envs.env import SPLITS, SingleTurnEnv, TextEnv
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import ParsedReply, format_tool_call
from llm_envs.rewards import weighted_sum
from llm_envs.spaces import TextSpace
from llm_envs.subject import (
    N_SEEDS,
    BrokenClause,
    Subject,
    ask_oracle,
    play,
    problem_of,
    repeat,
    require,
    split_key_of,
    unwrap,
)

__all__ = ["CLAUSES"]

DOCSTRING_HEADINGS = ("Description", "Observation", "Action", "Reward", "Episode End", "Arguments", "Version History")
_SMALL_SPACE = 1_000
"""A space of more problems than this can be divided into splits."""
_MIN_RESETS_PER_S = 1_000
_FALSE_ALARM = 1e-6
"""Probability with which a task whose chance rate is exactly as declared fails, for each hostile action."""


def is_made(subject: Subject) -> str:
    """`gymnasium.make` gives a `TextEnv` with the shared text spaces."""
    task = subject.task
    for name in ("observation_space", "action_space"):
        space = getattr(task, name)
        require(
            space == TextSpace(),
            f"{name} is {space}: leave it as TextEnv sets it, else the task cannot share vector environments",
        )
    return type(task).__name__


def passes_gymnasium_check(subject: Subject) -> str:
    """Gymnasium's own `check_env` finds nothing, with warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(subject.make().unwrapped)
    return "check_env without a warning"


def declares_its_numbers(subject: Subject) -> str:
    """Weights, chance rate, number of problems and turn limit are declared with the right types."""
    task = subject.task
    weights = task.reward_weights
    require(
        weights and all(isinstance(w, float) and math.isfinite(w) for w in weights.values()),
        f"reward_weights is {weights}: declare each component's weight as a finite float",
    )
    require(0 <= task.chance_rate <= 1, f"chance_rate is {task.chance_rate!r}: it must be in [0, 1]")
    require(
        task.n_problems is None or (isinstance(task.n_problems, int) and task.n_problems >= 1),
        f"n_problems is {task.n_problems!r}: it must be a whole number of at least 1, or None",
    )
    return f"chance_rate {task.chance_rate:g}, n_problems {task.n_problems}"


def documents_its_difficulties(subject: Subject) -> str:
    """Each level has a description, is named in the docstring, and can be played."""
    task = subject.task
    require(task.difficulties, "difficulties is empty: declare at least one level")
    for name, level in task.difficulties.items():
        require(level.description.strip(), f"the level {name!r} has no description: say what its problems look like")
        require(f'"{name}"' in (inspect.getdoc(type(task)) or ""), f'the docstring does not name the level "{name}"')
        subject.make(difficulty=name).reset(seed=0)
    return ", ".join(task.difficulties)


def has_docstring_headings(subject: Subject) -> str:
    """The class docstring has Gymnasium's headings."""
    lines = (inspect.getdoc(type(subject.task)) or "").splitlines()
    found = [line.strip().lstrip("# ") for line in lines if line.strip().startswith("#")]
    missing = [heading for heading in DOCSTRING_HEADINGS if heading not in found]
    require(not missing, f"the class docstring lacks the headings {missing}: write each as '## Heading'")
    return f"{len(DOCSTRING_HEADINGS)} headings"


def checks_its_arguments(subject: Subject) -> str:
    """Unknown arguments, splits, levels and options are refused with `InvalidConfigError`."""
    for kwargs in ({"split": "nonsense"}, {"difficulty": "nonsense"}, {"no_such_argument": 1}):
        try:
            subject.make(**kwargs)
        except InvalidConfigError:
            continue
        raise BrokenClause(
            f"{kwargs} was accepted: pass split, difficulty and render_mode on to super().__init__, take no **kwargs"
        )
    for options in ({"nonsense": 1}, {"problem": {"nonsense": 1}}):
        try:
            subject.make().reset(options=options)
        except InvalidConfigError:
            continue
        raise BrokenClause(f"reset(options={options}) was accepted: pass options on to super().reset")
    return "unknown names are refused"


def plays_given_problems(subject: Subject) -> str:
    """`reset(options={"problem": ...})` plays that problem, whatever its split."""
    for split in SPLITS:
        source, target = subject.make(split=split), subject.make(split="train")
        for seed in range(3):
            wanted, _ = source.reset(seed=seed)
            problem = json.loads(problem_of(source))
            got, _ = target.reset(seed=seed + 100, options={"problem": problem})
            require(
                got == wanted, f"the problem {problem} gives {got[:80]!r} when given, but {wanted[:80]!r} when drawn"
            )
    return "given problems give the same observation"


def is_deterministic(subject: Subject) -> str:
    """One seed and the same actions give one episode, in this instance and in a fresh one."""
    for seed in range(3):
        actions = [step.action for step in subject.oracle_episodes[seed]]
        for env in (subject.env, subject.make()):
            replayed = play(env, seed, repeat(actions))
            for first, second in zip(subject.oracle_episodes[seed], replayed, strict=True):
                require(
                    data_equivalence(first.info, second.info, exact=True)
                    and (first.observation, first.reward) == (second.observation, second.reward),
                    f"seed {seed}, action {first.action[:60]!r} gave {first.observation[:60]!r} {first.info}, then "
                    f"{second.observation[:60]!r} {second.info}: use self.np_random alone, set all state in begin()",
                )
    return "episodes repeat"


def leaves_global_randomness_alone(subject: Subject) -> str:
    """No episode draws from, or seeds, `random` and `numpy.random`."""
    kept = random.getstate(), np.random.get_state()
    try:
        # A state of our own, so that a task which seeds with a constant of its own is seen.
        random.seed(987654321)
        np.random.seed(987654321)
        before = random.getstate(), pickle.dumps(np.random.get_state())
        play(subject.make(), 0, ask_oracle)
        after = random.getstate(), pickle.dumps(np.random.get_state())
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
    require(before == after, "an episode changed the global random state: use self.np_random alone")
    return "random and numpy.random are as before"


def depends_on_the_seed(subject: Subject) -> str:
    """Different seeds give different problems, as far as there are any."""
    n_seeds = 3 * N_SEEDS
    problems = set()
    for seed in range(n_seeds):
        subject.env.reset(seed=seed)
        problems.add(problem_of(subject.env))
    expected = _expected_distinct(len(set(subject.drawn_problems)), n_seeds)
    require(
        len(problems) >= expected / 2,
        f"{n_seeds} seeds gave {len(problems)} different problems, about {expected:.0f} expected: "
        "draw the problem from self.np_random",
    )
    return f"{len(problems)} problems from {n_seeds} seeds"


def has_honest_n_problems(subject: Subject) -> str:
    """The declared number of problems agrees with what is drawn."""
    declared, n_draws = subject.task.n_problems, len(subject.drawn_problems)
    found = len(set(subject.drawn_problems))
    require(declared is None or found <= declared, f"n_problems is {declared}, but {found} different ones were drawn")
    expected = n_draws if declared is None else _expected_distinct(declared, n_draws)
    require(
        found >= expected / 2,
        f"n_problems is {declared}, so {n_draws} draws should give about {expected:.0f} different ones; "
        f"they gave {found}",
    )
    return f"{found} different problems in {n_draws} draws"


def has_disjoint_splits(subject: Subject) -> str:
    """No problem, nor one of the same split key, is in both splits, unless the level declares its space too small."""
    n_problems = subject.task.n_problems
    if not subject.task.disjoint_splits:
        require(
            n_problems is not None and n_problems <= _SMALL_SPACE,
            f"the level has disjoint_splits=False, but n_problems={n_problems}: over {_SMALL_SPACE} can be divided",
        )
        return f"declared too small to divide ({n_problems} problems)"
    keys = [split_key_of(subject.task, problem) for problem in subject.drawn_problems]
    half = len(keys) // 2
    shared = set(keys[:half]) & set(keys[half:])
    require(
        not shared,
        f"{len(shared)} problems are in both splits, such as {min(shared, default='')}: leave the draw to TextEnv",
    )
    return "no problem in both"


def oracle_earns_the_maximum(subject: Subject) -> str:
    """The oracle's episodes succeed and earn the maximum; more often than chance, where the oracle is not exact."""
    task, wins = subject.task, 0
    positive = sum(weight for weight in task.reward_weights.values() if weight > 0)
    maximum = positive if task.max_return is None else task.max_return
    for seed, steps in enumerate(subject.oracle_episodes):
        total = sum(float(step.reward) for step in steps)
        wins += steps[-1].is_win
        if task.oracle_is_exact:
            last = f"{steps[-1].action[:80]!r} was answered {steps[-1].observation[:80]!r}"
            require(steps[-1].is_win, f"seed {seed}: the oracle did not succeed; {last}")
            require(
                math.isclose(total, maximum, abs_tol=1e-9),
                f"seed {seed}: the oracle earned {total:g} of {maximum:g}, which is "
                f"{'the sum of the positive weights' if task.max_return is None else 'max_return'}: if it plays a "
                f"perfect episode, declare what that earns (max_return = {total:g}, or Difficulty(..., max_return="
                f"{total:g}) for this level; oracle_is_exact = False if it varies with the problem); {last}",
            )
    rate = wins / len(subject.oracle_episodes)
    require(
        rate > task.chance_rate or rate == 1,
        f"the oracle succeeds in {rate:.0%}, no more than chance_rate {task.chance_rate:g}",
    )
    return f"{rate:.0%} of {len(subject.oracle_episodes)} episodes"


def never_raises(subject: Subject) -> str:
    """No hostile action makes the environment raise."""
    for name, played in subject.hostile_episodes.items():
        for episode in played:
            if isinstance(episode, Exception):
                raise BrokenClause(
                    f"the action {name!r} raised {type(episode).__name__}: {episode}; answer with an error observation"
                ) from episode
    return f"{len(subject.hostile_episodes)} kinds of hostile action"


def is_not_won_by_nonsense(subject: Subject) -> str:
    """No hostile action succeeds more often than the declared chance rate, beyond what luck explains."""
    chance = subject.task.chance_rate
    for name, played in subject.hostile_episodes.items():
        wins = sum(1 for steps in played if isinstance(steps, list) and steps[-1].is_win)
        require(
            _binomial_tail(wins, len(played), chance) >= _FALSE_ALARM,
            f"the action {name!r} won {wins} of {len(played)} episodes; chance_rate is {chance:g}",
        )
    return f"at most chance ({chance:g})"


def ends_its_episodes(subject: Subject) -> str:
    """Every episode ends within `max_turns`; a single-turn task terminates and never truncates."""
    task = subject.task
    episodes = [steps for played in subject.hostile_episodes.values() for steps in played if isinstance(steps, list)]
    for steps in [*subject.oracle_episodes, *episodes]:
        last = steps[-1]
        require(
            last.terminated or last.truncated,
            f"an episode was not over after {len(steps)} turns; max_turns is {task.max_turns}",
        )
        require(len(steps) <= task.max_turns, f"an episode took {len(steps)} turns; max_turns is {task.max_turns}")
        if isinstance(task, SingleTurnEnv):
            require(last.terminated and not last.truncated, "a single-turn episode was truncated: it must terminate")
    return f"within {task.max_turns} turns"


def rewards_are_weighted_components(subject: Subject) -> str:
    """Each step's reward is a finite float, the weighted sum of exactly the declared components."""
    weights = subject.task.reward_weights
    for step in subject.all_steps:
        components = step.info.get("reward_components")
        require(
            isinstance(components, dict) and components.keys() == weights.keys(),
            f"info['reward_components'] is {components}; reward_weights declares {sorted(weights)}",
        )
        assert isinstance(components, dict)
        require(all(type(value) is float for value in components.values()), f"components must be floats: {components}")
        require(
            type(step.reward) is float and math.isfinite(step.reward), f"the reward {step.reward!r} is no finite float"
        )
        total = weighted_sum(components, weights)
        require(
            math.isclose(step.reward, total, abs_tol=1e-9),
            f"the reward is {step.reward}, its components {components} sum to {total}",
        )
    return f"{len(subject.all_steps)} steps"


def info_is_well_formed(subject: Subject) -> str:
    """Each key of `info` has one type; `is_success` comes at the end; messages carry the observation; all is JSON."""
    types: dict[str, type] = {}
    for step in subject.all_steps:
        for key, value in step.info.items():
            known = types.setdefault(key, type(value))
            require(
                type(value) is known and value is not None,
                f"info[{key!r}] was a {known.__name__} and then {value!r}: one type for each key; leave a key out "
                "rather than None",
            )
        json.dumps(step.info, allow_nan=False)
        is_over = step.terminated or step.truncated
        require(
            ("is_success" in step.info) == is_over, "info['is_success'] must be there exactly when the episode ends"
        )
        require(not is_over or type(step.info["is_success"]) is bool, "info['is_success'] must be a bool")
        if "messages" in step.info:
            text = "\n".join(message["content"] for message in step.info["messages"])
            require(text == step.observation, "the messages' text, joined by line breaks, must be the observation")
    lists = [id(step.info["messages"]) for step in subject.all_steps if "messages" in step.info]
    require(len(set(lists)) == len(lists), "info['messages'] is the same list in two steps: make a fresh one")
    return ", ".join(f"{key}: {kind.__name__}" for key, kind in types.items())


def scores_only_the_agents_words(subject: Subject) -> str:
    """A right answer counts only as the agent's final words: not in thinking, a tool's arguments or its output."""
    for seed, steps in enumerate(subject.oracle_episodes[:5]):
        answer = steps[-1].action
        for where, action in _misplaced(answer, subject.task):
            require(not play(subject.env, seed, repeat([], action))[-1].is_win, f"a right answer {where} wins")
        env = subject.make()
        for tool in getattr(env.unwrapped, "toolbox", {}).values():
            tool.function = partial(_answer_anything, answer)
        replayed = play(env, seed, repeat([step.action for step in steps[:-1]]))
        require(not replayed[-1].is_win, "a right answer in a tool's output wins: score the agent's reply alone")
    return "misplaced answers do not count"


def is_vectorized(subject: Subject) -> str:
    """`make_vec`, sync and async, gives the environment's own strings back, emoji and line breaks included."""
    action = "🙂\nnonsense"
    expected = []
    for seed in (7, 8):
        env = _Decorated(subject.make())
        observation, _ = env.reset(seed=seed)
        expected.append((observation, env.step(action)[0]))
    for mode in ("sync", "async"):
        vector = gym.make_vec(subject.env_id, 2, vectorization_mode=mode, wrappers=[_Decorated], **subject.kwargs)
        try:
            seeds: Any = [7, 8]  # `VectorEnv.reset` is typed for one number; sync and async both take a list
            first, _ = vector.reset(seed=seeds)
            second, *_ = vector.step((action, action))
            got = list(zip(first, second, strict=True))
        finally:
            vector.close()
        require(got == expected, f"{mode}: {got} instead of {expected}: an instance must share nothing with others")
    return "sync and async"


def pickles(subject: Subject) -> str:
    """An environment pickled in mid-episode goes on as the original does."""
    env = subject.make()
    env.reset(seed=3)
    if subject.task.max_turns > 1:
        env.step("nonsense")
    copy = pickle.loads(pickle.dumps(env))
    for _ in range(subject.task.max_turns):
        action = unwrap(env).oracle()
        require(unwrap(copy).oracle() == action, "the pickled copy's oracle differs from the original's")
        original, copied = env.step(action), copy.step(action)
        require(
            data_equivalence(original, copied, exact=True),
            f"the pickled copy answers {copied}, the original {original}",
        )
        if original[2] or original[3]:
            break
    return "in mid-episode"


def has_a_json_spec(subject: Subject) -> str:
    """The spec survives JSON, and makes the same environment."""
    spec = EnvSpec.from_json(subject.make().spec.to_json())  # type: ignore[union-attr]
    first, _ = gym.make(spec).reset(seed=11)
    second, _ = subject.env.reset(seed=11)
    require(first == second, "the environment made from the spec's JSON gives another observation")
    return "to JSON and back"


def resets_quickly(subject: Subject) -> str:
    """At least 1,000 resets a second, unless the task says why not."""
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(50):
            subject.env.reset()
        best = max(best, 50 / (time.perf_counter() - started))
    reason = subject.task.slow_reset_reason
    require(
        best >= _MIN_RESETS_PER_S or reason,
        f"{best:,.0f} resets a second, {_MIN_RESETS_PER_S:,} asked for: make generate() cheaper, or say why in "
        "slow_reset_reason",
    )
    return reason or "fast enough"


CLAUSES: tuple[Callable[[Subject], str], ...] = (
    is_made,
    passes_gymnasium_check,
    declares_its_numbers,
    documents_its_difficulties,
    has_docstring_headings,
    checks_its_arguments,
    plays_given_problems,
    is_deterministic,
    leaves_global_randomness_alone,
    depends_on_the_seed,
    has_honest_n_problems,
    has_disjoint_splits,
    oracle_earns_the_maximum,
    never_raises,
    is_not_won_by_nonsense,
    ends_its_episodes,
    rewards_are_weighted_components,
    info_is_well_formed,
    scores_only_the_agents_words,
    is_vectorized,
    pickles,
    has_a_json_spec,
    resets_quickly,
)
"""Every clause, in the order in which they are checked. Without the first, the others are not tried."""


class _Decorated(gym.ObservationWrapper[str, str, str]):
    """Adds characters that a careless buffer would lose."""

    def observation(self, observation: str) -> str:
        return f"{observation}\n🙂 ÿ\0"


def _misplaced(answer: str, task: TextEnv) -> list[tuple[str, str]]:
    """Return (where, action) for a right final action put where it must not count.

    A parser of the task's own may know neither `<think>` nor calls: what it takes for content is the agent's words.
    """
    names = [tool["function"]["name"] for tool in task.tools] or ["tool"]
    places = [("inside <think>", f"<think>{answer}</think>"), ("before </think>", f"{answer}</think>")]
    places.append(("in a tool call's arguments", format_tool_call(names[0], note=answer)))
    if type(task).parse_reply is TextEnv.parse_reply:
        return places
    return [(where, action) for where, action in places if _has_no_words(task.parse_reply(action))]


def _has_no_words(reply: ParsedReply) -> bool:
    return bool(reply.problems or reply.thinking or reply.tool_calls)


def _answer_anything(answer: str, **arguments: Any) -> str:
    return answer


def _expected_distinct(n: int, draws: int) -> float:
    """Return how many different values `draws` uniform draws from `n` give on average."""
    return n * -math.expm1(draws * math.log1p(-1 / n)) if n > 1 else 1.0


def _binomial_tail(successes: int, n: int, p: float) -> float:
    """Return the probability of at least `successes` among `n`, each with probability `p`."""
    return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(successes, n + 1))
