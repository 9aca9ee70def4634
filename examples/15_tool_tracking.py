"""Tool tracking: what was called, in which turn, how often it failed, and with which error.

Command:   python examples/15_tool_tracking.py            (--episodes 200 --seed 0)
Time:      four seconds.
Expect:    281 calls in 200 episodes, 0.719 of them succeeded; 42 called a tool that does not exist, 37 gave it
           nonsense (seed 0).
"""

import random

from warm_model import options

from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, ToolTracker


class Careless(OraclePolicy):
    """Plays as the oracle does, but for a slip of the pen in every fourth turn."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def for_episode(self, seed: int) -> "Careless":
        return Careless(seed)

    def act(self, env, observation):
        slips = [format_tool_call("calculator", expression="2 +"), format_tool_call("abacus"), format_answer(0)]
        return self._chance.choice(slips) if self._chance.random() < 0.25 else super().act(env, observation)


given = options(__doc__, episodes=200)
with Collector("llm/Calculator-v0", Careless(), seed=given.seed, progress=False) as collector:
    episodes = [trajectory for group in collector.collect(given.episodes) for trajectory in group]
tracker = ToolTracker.of(episodes)  # converse(..., tool_tracker=tracker) tells one while a conversation goes on
print(f"{tracker.n_calls} calls of {dict(tracker.kinds)} in {len(episodes)} episodes")
print(f"{tracker.success_rate:.3f} of them succeeded; errors: {dict(tracker.errors)}")
for turn in tracker.table():
    print(f"turn {turn['turn']}: {turn['calls']} calls, success {turn['success_rate']}")
