"""Collect: groups of episodes of one seed, on disk as they finish, and what can be made of them.

Command:   python examples/04_collect.py            (--model NAME --groups 32 --size 4 --seed 0)
Time:      15 seconds on one CPU core, and 20 once for the warm model.
Expect:    128 episodes of 7212 tokens, of which the model sampled 1596; 26 preference pairs, of 32 groups.
"""

import shutil

from warm_model import GUESS, OUT, options, warm_model

from llm_envs.data import preference_pairs, to_dataset, to_groups
from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import Collector, TrajectoryWriter, read_trajectories
from llm_envs.types import SamplingParams

given = options(__doc__, groups=32, size=4)
folder = OUT / "collected"
shutil.rmtree(folder, ignore_errors=True)  # a folder holds one run; a second one into it is refused
policy = TransformersPolicy.from_pretrained(given.model or warm_model())
with (
    TrajectoryWriter(folder) as writer,
    Collector(
        {GUESS: 1},  # a mixture, by weight
        policy,
        codec=policy.codec,
        seed=given.seed,
        env_kwargs={"split": "train"},
        sampling=SamplingParams(max_new_tokens=16),
        on_trajectory=writer.write,
        progress=False,
    ) as collector,
):
    collector.collect(given.groups, group_size=given.size)

episodes = read_trajectories(folder)
tokens, sampled = (sum(n(row) for t in episodes for row in t.rows) for n in (len, lambda row: int(row.mask.sum())))
groups = to_groups(episodes)
pairs = preference_pairs(groups)
print(f"{len(episodes)} episodes in {folder}: {tokens} tokens, {sampled} of them sampled by the model")
print(f"a data set with the columns {', '.join(to_dataset(episodes).column_names[:6])}, ...")
print(f"{len(groups)} groups, {len(pairs)} preference pairs of those whose rewards differ")
