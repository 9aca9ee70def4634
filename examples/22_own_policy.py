"""Your own policy: a class with one method. Nothing is registered, nothing inherited.

Command:   python examples/22_own_policy.py            (--episodes 200 --seed 0)
Time:      four seconds. Needs no model.
Expect:    success 1.000 with a memory of 8 answers, 0.775 with a memory of one (seed 0).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from warm_model import GUESS, options

from llm_envs import evaluate
from llm_envs.parsers import format_answer, parse_reply
from llm_envs.types import Message, SamplingParams


class Halving:
    """A chat policy: messages in, a message out. It halves what the messages it remembers leave possible.

    `sample(prompt_ids, params, *, seed, session)` in place of `reply` would make it a token policy, which can be
    trained on; `act(env, observation)` an environment's policy, which sees the environment itself.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        """Return the next guess."""
        low, high = map(int, re.findall(r"from (\d+) to (\d+)", messages[1].content)[0])
        said = [message.content for message in messages[2:]][-2 * self.memory :]
        for guess, answer in zip(said[::2], said[1::2], strict=True):
            number = int(parse_reply(guess).answer or low)
            low, high = (max(low, number + 1), high) if answer.startswith("Higher") else (low, min(high, number - 1))
        return Message("assistant", format_answer((low + high) // 2))


given = options(__doc__, episodes=200)
for memory in (8, 1):
    result = evaluate(GUESS, Halving(memory), n=given.episodes, seed=given.seed, progress=False)
    print(f"a memory of {memory}: success {result.success_rate:.3f}, {result.mean_turns:.2f} turns")
