"""A KL of your own: any function of the two log-probabilities, wherever a named one goes.

Command:   python examples/14_custom_kl.py            (--model NAME --steps 20 --episodes 200 --seed 0)
Time:      40 seconds on one CPU core, and 20 once for the warm model.
Expect:    success 0.805 without a KL, 0.750 with k3 (0.111 nats a token at the end), 0.850 with your own (0.078)
           (seed 0).
"""

from dataclasses import replace

import torch
from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.functional import algorithm as algorithms
from llm_envs.trainers.functional.kl import k3


def beyond_a_nat(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Let a token go a nat from the reference for nothing, and charge the square of what is beyond."""
    return ((logps_BT - ref_logps_BT).abs() - 1.0).clamp(min=0.0) ** 2


given = options(__doc__, steps=20, episodes=200)
model = given.model or warm_model()
for name, kl_coef, kl_fn in (("no KL", 0.0, None), ("k3", 0.2, k3), ("beyond a nat", 0.2, beyond_a_nat)):
    settings = {"max_steps": given.steps, "seed": given.seed, "logging_steps": 1, **GRPO}
    args = EnvGRPOConfig(output_dir=str(OUT / "custom-kl"), **settings)
    algorithm = replace(algorithms.GRPO, normalisation="token", kl_fn=kl_fn, kl_coef=kl_coef)
    trainer = EnvGRPOTrainer(model, GUESS, args, algorithm=algorithm)
    curve = train(trainer)
    kl = f"its KL {curve['kl'][-1]:.3f}" if kl_coef else "nothing holds it"
    print(f"{name:>12}: success {success(trainer, n=given.episodes):.3f}, {kl}")
    trainer.close()
