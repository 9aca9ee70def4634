"""DPO, online: in rounds the model plays, its episodes are paired, and it learns from the pairs.

Command:   python examples/09_dpo_online.py            (--model NAME --rounds 8 --episodes 200 --seed 0)
Time:      20 seconds on one CPU core, and 20 once for the warm model.
Expect:    success on the test split 0.490 -> 0.785 (seed 0); the reward rises from 0.47 in round 1 to 0.70 in round
           8.
"""

from warm_model import GUESS, OUT, QUIET, SHORT, options, success, train, warm_model

from llm_envs.rollout.filters import create_spread_filter
from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer

given = options(__doc__, rounds=8, episodes=200)
args = EnvDPOConfig(
    output_dir=str(OUT / "dpo-online"),
    num_train_epochs=given.rounds,  # to TRL a round is an epoch
    groups_per_round=32,
    num_generations=4,
    per_device_train_batch_size=16,  # pairs
    learning_rate=3e-4,
    lr_scheduler_type="constant",
    logging_steps=1,
    seed=given.seed,
    **SHORT,
    **QUIET,
)
trainer = EnvDPOTrainer(given.model or warm_model(), GUESS, args, group_filter=create_spread_filter())
before = success(trainer, n=given.episodes)
curve = train(trainer)
after = success(trainer, n=given.episodes)
trainer.close()
print(f"reward at the beginning of each round: {' '.join(f'{reward:.2f}' for reward in curve['env/reward'])}")
print(f"success on the test split: {before:.3f} -> {after:.3f}")
