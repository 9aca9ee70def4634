"""DPO's loss on pairs from play: in each step the model plays groups, and learns from the best and worst of each.

Command:   python examples/09_dpo_online.py            (--model NAME --steps 20 --episodes 200 --seed 0)
Time:      20 seconds on one CPU core, and 20 once for the warm model.
Expect:    success on the test split 0.470 -> 0.840 (seed 0).
"""

from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.functional.references import frozen_copy

given = options(__doc__, steps=20, episodes=200)
args = EnvGRPOConfig(output_dir=str(OUT / "pairwise"), max_steps=given.steps, seed=given.seed, logging_steps=1, **GRPO)
trainer = EnvGRPOTrainer(
    given.model or warm_model(),
    GUESS,
    args,
    algorithm="pairwise",
    ref_model_fn=frozen_copy,  # what the pairs' loss is measured against; without it, the policy that sampled
)
before = success(trainer, n=given.episodes)
curve = train(trainer)
after = success(trainer, n=given.episodes)
trainer.close()
print(f"pairs in each step: {' '.join(f'{n:.0f}' for n in curve['pairs/count'])}")
print(f"success on the test split: {before:.3f} -> {after:.3f}")
