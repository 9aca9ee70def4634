"""Switching algorithms in one run: GRPO, then preferences between pairs, then GRPO again, at generation boundaries.

Command:   python examples/11_algorithm_switching.py            (--model NAME --steps 30 --episodes 200 --seed 0)
Time:      25 seconds on one CPU core, and 20 once for the warm model.
Expect:    ten steps of each; success on the test split 0.490 -> 0.845 (seed 0).
"""

from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

given = options(__doc__, steps=30, episodes=200)
third = max(given.steps // 3, 1)
settings = {"max_steps": given.steps, "seed": given.seed, "logging_steps": 1, **GRPO}
trainer = EnvGRPOTrainer(
    given.model or warm_model(),
    GUESS,
    EnvGRPOConfig(output_dir=str(OUT / "switching"), **settings),
    algorithm={0: "grpo", third: "pairwise", 2 * third: "grpo"},  # names, or values: see 21_new_algorithm.py
)
before = success(trainer, n=given.episodes)
curve = train(trainer)
used = ["pairwise" if share else "grpo" for share in curve["algorithm/pairwise"]]
print("by step:", " ".join(f"{name}:{reward:.2f}" for name, reward in zip(used, curve["reward"], strict=True)))
print(f"success on the test split: {before:.3f} -> {success(trainer, n=given.episodes):.3f}")
trainer.close()
