"""GRPO: the episodes of a group are paid against one another.

Command:   python examples/06_grpo.py            (--model NAME --steps 20 --episodes 200 --seed 0)
Time:      17 seconds on one CPU core, and 20 once for the warm model.
Expect:    success on the test split 0.490 -> 0.805 (seed 0; seed 2 and 30 steps: 0.835).
"""

from warm_model import GUESS, OUT, QUIET, SHORT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

given = options(__doc__, steps=20, episodes=200)
args = EnvGRPOConfig(
    output_dir=str(OUT / "grpo"),
    env_kwargs={"difficulty": "easy"},
    max_steps=given.steps,
    per_device_train_batch_size=64,  # 8 groups of 8 episodes
    num_generations=8,
    learning_rate=6e-4,
    lr_scheduler_type="constant",
    seed=given.seed,
    **SHORT,
    **QUIET,
)
trainer = EnvGRPOTrainer(given.model or warm_model(), GUESS, args)
before = success(trainer, n=given.episodes)
curve = train(trainer)
after = success(trainer, n=given.episodes)
trainer.close()
print(f"success on the test split: {before:.3f} -> {after:.3f}")
