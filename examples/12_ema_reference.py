"""A reference that follows: the KL holds the policy back from a moving average of itself, not from where it began.

Command:   python examples/12_ema_reference.py            (--model NAME --steps 20 --episodes 200 --seed 0)
Time:      30 seconds on one CPU core, and 20 once for the warm model.
Expect:    success of 0.490 becomes 0.575 with a frozen reference and 0.780 with a moving one, under one coefficient
           (seed 0).
"""

from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.functional.references import create_ema_update

given = options(__doc__, steps=20, episodes=200)
model = given.model or warm_model()
# Others: create_periodic_update(every), KLTriggeredUpdate(threshold), or a function of your own.
for name, update_fn in (("frozen", None), ("EMA", create_ema_update(0.8))):
    settings = {"max_steps": given.steps, "seed": given.seed, "beta": 2.0, "logging_steps": 1, **GRPO}
    args = EnvGRPOConfig(output_dir=str(OUT / f"reference-{name}"), **settings)
    trainer = EnvGRPOTrainer(model, GUESS, args, reference_update_fn=update_fn)
    curve = train(trainer)
    rate, kl = success(trainer, n=given.episodes), curve["kl"]
    print(f"{name:>6}: success {rate:.3f}, KL to the reference {kl[0]:.3f} -> {kl[-1]:.3f}")
    trainer.close()
