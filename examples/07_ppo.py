"""PPO: a critic, a value head on the policy's trunk, says what an episode was expected to earn; no groups.

Command:   python examples/07_ppo.py            (--model NAME --steps 40 --episodes 200 --seed 0)
Time:      30 seconds on one CPU core, and 20 once for the warm model.
Expect:    success on the test split 0.490 -> 0.825 (seed 0). Of the returns the critic foresees nothing yet:
           explained variance -0.10.
"""

from warm_model import GUESS, OUT, QUIET, SHORT, options, success, train, warm_model

from llm_envs.trainers import EnvPPOConfig, EnvPPOTrainer

given = options(__doc__, steps=40, episodes=200)
args = EnvPPOConfig(
    output_dir=str(OUT / "ppo"),
    max_steps=given.steps,
    per_device_train_batch_size=64,  # 64 episodes of 64 seeds
    learning_rate=3e-4,
    value_learning_rate=1e-3,
    lr_scheduler_type="constant",
    logging_steps=1,
    seed=given.seed,
    **SHORT,
    **QUIET,
)
trainer = EnvPPOTrainer(given.model or warm_model(), GUESS, args)  # critic="NAME" gives the critic a trunk of its own
before = success(trainer, n=given.episodes)
curve = train(trainer)
after = success(trainer, n=given.episodes)
trainer.close()
print(f"success on the test split: {before:.3f} -> {after:.3f}")
explained = curve["value/explained_variance"]
print(f"of the returns' variance the critic explains {explained[0]:.2f} at first, {explained[-1]:.2f} at last")
