"""KL schedules: the coefficient along a line, along a cosine, or steered so that the KL stays at a target.

Command:   python examples/13_kl_schedule.py            (--model NAME --steps 20 --episodes 200 --seed 0)
Time:      60 seconds on one CPU core, and 20 once for the warm model.
Expect:    success 0.700 with the line and 0.785 with the cosine, whose coefficients end at 0.000; 0.730 with the
           adaptive one, which rises to 1.893; 0.740 with your own (seed 0; 0.490 before).
"""

from dataclasses import replace

from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.functional import algorithm as algorithms
from llm_envs.trainers.schedules import AdaptiveKL, create_cosine, create_linear

given = options(__doc__, steps=20, episodes=200)
model = given.model or warm_model()
schedules = {
    "linear": create_linear(2.0, 0.0),
    "cosine": create_cosine(2.0, 0.0),
    "adaptive": AdaptiveKL(0.2, target=0.02, gain=1.0),
    "own": lambda step, n_steps, kl: 0.5 if kl is not None and kl > 0.02 else 0.0,
}
for name, schedule in schedules.items():
    settings = {"max_steps": given.steps, "seed": given.seed, "logging_steps": 1, **GRPO}
    args = EnvGRPOConfig(output_dir=str(OUT / f"schedule-{name}"), **settings)
    algorithm = replace(algorithms.GRPO, normalisation="token", kl_coef=schedule)
    trainer = EnvGRPOTrainer(model, GUESS, args, algorithm=algorithm)
    curve = train(trainer)
    (first, *_, last), kl = curve["kl_coef"], curve["reference/kl"][-1]
    rate = success(trainer, n=given.episodes)
    print(f"{name:>8}: coefficient {first:.3f} -> {last:.3f}, KL at last {kl:.3f}, success {rate:.3f}")
    trainer.close()
