"""DPO, offline: collect groups of episodes once, then learn which of two of one seed was better.

Command:   python examples/08_dpo_offline.py            (--model NAME --groups 200 --steps 40 --episodes 200 --seed 0)
Time:      30 seconds on one CPU core, and 20 once for the warm model.
Expect:    178 pairs; success on the test split 0.490 -> 0.610 (seed 0).
"""

import shutil

from warm_model import GUESS, OUT, QUIET, options, success, train, warm_model

from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer
from llm_envs.types import SamplingParams

given = options(__doc__, groups=200, steps=40, episodes=200)
folder, model = OUT / "dpo-episodes", given.model or warm_model()
shutil.rmtree(folder, ignore_errors=True)
policy = TransformersPolicy.from_pretrained(model)
settings = {"codec": policy.codec, "sampling": SamplingParams(max_new_tokens=16), "progress": False}
settings |= {"env_kwargs": {"split": "train"}, "seed": given.seed}
with TrajectoryWriter(folder) as out, Collector(GUESS, policy, on_trajectory=out.write, **settings) as collector:
    collector.collect(given.groups, group_size=4)

args = EnvDPOConfig(
    output_dir=str(OUT / "dpo"),
    max_steps=given.steps,
    per_device_train_batch_size=32,  # pairs
    learning_rate=3e-4,
    seed=given.seed,
    **QUIET,
)
trainer = EnvDPOTrainer(model, args=args, source=folder)
before = success(trainer, n=given.episodes)
train(trainer)
after = success(trainer, n=given.episodes)
print(f"{len(trainer.train_dataset)} pairs of {given.groups} groups of 4 episodes")
print(f"success on the test split: {before:.3f} -> {after:.3f}")
