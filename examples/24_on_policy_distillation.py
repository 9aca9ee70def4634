"""On-policy distillation: the student plays, and learns from what its teacher would have said to its own words.

Command:   python examples/24_on_policy_distillation.py            (--model NAME --steps 40 --episodes 200 --seed 0)
Time:      35 seconds on one CPU core, and 20 once for the warm model.
Expect:    the teacher's success 0.975; KL to the teacher 0.379 -> 0.109 nats a token; success on the test split 0.490
           -> 0.835 (seed 0).
"""

from warm_model import GRPO, GUESS, OUT, QUIET, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvSFTConfig, EnvSFTTrainer
from llm_envs.trainers.functional.references import freeze

given = options(__doc__, steps=40, episodes=200)
model = given.model or warm_model()
settings = {"max_steps": 60, "per_device_train_batch_size": 32, "learning_rate": 1e-3, **QUIET}
lesson = EnvSFTTrainer(model, GUESS, EnvSFTConfig(output_dir=str(OUT / "teacher"), **settings))  # 05_sft.py
train(lesson)
print(f"the teacher: success {success(lesson, n=given.episodes):.3f}")

settings = {"max_steps": given.steps, "seed": given.seed, "logging_steps": 1, **GRPO}
trainer = EnvGRPOTrainer(
    model,
    GUESS,
    EnvGRPOConfig(output_dir=str(OUT / "student"), **settings),
    ref_model_fn=lambda student: freeze(lesson.model),  # the teacher; of a folder or a server: load_teacher(...)
    # The task pays nothing: each token earns the teacher's log-probability less the student's.
    algorithm="distill",
)
before = success(trainer, n=given.episodes)
curve = train(trainer)
print(f"KL to the teacher, per token: {curve['kl'][0]:.3f} -> {curve['kl'][-1]:.3f} nats")
print(f"success on the test split: {before:.3f} -> {success(trainer, n=given.episodes):.3f}")
trainer.close()
