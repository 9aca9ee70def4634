"""Text environments: the base class, `TextEnv`, and its two common shapes, `SingleTurnEnv` and `ToolEnv`.

A task is a class with a few declarations and a few short methods:

- declarations: `difficulties`, `default_difficulty`, `problem_fields`, `reward_weights`, `instructions`,
  `answer_example`; also `parse_reply` and `answer_template` if replies use another form than `<answer>` tags;
- every task: `generate` (a problem from `self.np_random`) and `prompt` (the first observation); also `split_key` if the
  same problem can be written in different ways;
- a `SingleTurnEnv`: `solution`, and `is_correct` if there are several right answers;
- a `ToolEnv`: `make_tools`, `is_correct` and `next_action` (the oracle);
- any other multi-turn task is a `TextEnv` with `play` and `next_action`.

The base class does the rest: splits, seeds, turn limits, rewards from components, `info`, rendering and errors.
"""

from llm_envs.env.seated import SeatedEnv
from llm_envs.env.single_turn import SingleTurnEnv
from llm_envs.env.text import TextEnv
from llm_envs.env.tool import ToolEnv
from llm_envs.problems import SPLITS, Difficulty, Outcome, canonical_json, split_of

__all__ = [
    "SPLITS",
    "Difficulty",
    "Outcome",
    "SeatedEnv",
    "SingleTurnEnv",
    "TextEnv",
    "ToolEnv",
    "canonical_json",
    "split_of",
]
