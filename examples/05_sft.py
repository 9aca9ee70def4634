"""SFT: learn from what the oracle does, on the agent's own tokens alone.

Command:   python examples/05_sft.py            (--model NAME --steps 60 --episodes 200 --seed 0)
Time:      15 seconds on one CPU core, and 20 once for the warm model.
Expect:    success on the test split 0.490 -> 0.970 (seed 0).
"""

from warm_model import GUESS, OUT, QUIET, options, success, train, warm_model

from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer

given = options(__doc__, steps=60, episodes=200)
args = EnvSFTConfig(
    output_dir=str(OUT / "sft"),
    num_episodes=1000,  # of the oracle, on the train split; source= takes others
    max_steps=given.steps,
    per_device_train_batch_size=32,
    learning_rate=1e-3,
    seed=given.seed,
    **QUIET,
)
trainer = EnvSFTTrainer(given.model or warm_model(), GUESS, args)
before = success(trainer, n=given.episodes)
train(trainer)
after = success(trainer, n=given.episodes)
trainer.save_model()  # 24_on_policy_distillation.py takes it as its teacher
print(f"success on the test split: {before:.3f} -> {after:.3f}")
