"""Vector rewards: success, and a taste for low guesses that is easily pleased; summed, gated by success, by Pareto.

Command:   python examples/10_vector_rewards.py            (--model NAME --steps 15 --episodes 200 --seed 0)
Time:      35 seconds on one CPU core, and 20 once for the warm model.
Expect:    success 0.490 at first. Summed, the taste wins: success 0.100, low guesses 0.98. Gated, success counts
           first: 0.745 and 0.26. The Pareto front has room for both, and the easier one wins: 0.120 and 0.92 (seed
           0).
"""

from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.parsers import parse_reply
from llm_envs.rewards import create_gated, total
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, RewardSettings
from llm_envs.types import Trajectory


def low(episode: Trajectory) -> float:
    """Pay for guesses below 4, whatever comes of them."""
    guesses = [parse_reply(m.content).answer for m in episode.messages if m.role == "assistant"]
    return sum(guess in ("1", "2", "3") for guess in guesses) / len(guesses)


given = options(__doc__, steps=15, episodes=200)
model = given.model or warm_model()
for name, aggregate in {"sum": total, "gated": create_gated("reward", 1.0), "pareto": "pareto"}.items():
    args = EnvGRPOConfig(output_dir=str(OUT / f"vector-{name}"), max_steps=given.steps, seed=given.seed, **GRPO)
    trainer = EnvGRPOTrainer(
        model,
        GUESS,
        args,
        rewards=RewardSettings(
            reward_fns={"low": low},  # a column beside the task's own, which is called reward
            weights={"low": 3.0},
            aggregate=aggregate,
        ),
    )
    if name == "sum":
        print(f"at first: success {success(trainer, n=given.episodes):.3f}")
    train(trainer)
    taste = sum(map(low, trainer.last_trajectories)) / len(trainer.last_trajectories)
    print(f"{name:>8}: success {success(trainer, n=given.episodes):.3f}, low guesses {taste:.2f}")
    trainer.close()
