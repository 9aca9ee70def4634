"""Train with TRL's own, unmodified `GRPOTrainer` on an environment, through either of its doors.

Command:   python examples/stock_grpo.py --model-name-or-path DIR --output-dir runs/stock --max-steps 20 --seam rollout
           python examples/stock_grpo.py --model-name-or-path DIR --output-dir runs/stock --max-steps 20 --seam tools
Hardware:  anything that runs the model. `--seam tools` needs a chat template that TRL parses tool calls of.
Expect:    TRL's own log, with env/success and env/turns in it. docs/guides/trl.md says what each seam loses.
"""

from dataclasses import dataclass, field

from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser

from llm_envs.trainers.stock_trl import env_reward, environment_factory, episode_dataset, prompt_dataset, rollout_func


@dataclass
class Game:
    """What is played, and how."""

    env: str = field(default="llm/Calculator-v0", metadata={"help": "Id of a registered environment."})
    seam: str = field(default="rollout", metadata={"help": "rollout or tools.", "choices": ["rollout", "tools"]})
    num_train_seeds: int = field(default=10_000, metadata={"help": "Distinct problems: the rows of one epoch."})


def main() -> None:
    """Parse the command line, train, save."""
    game, args, model = TrlParser((Game, GRPOConfig, ModelConfig)).parse_args_and_config()
    if model.model_name_or_path is None:
        raise SystemExit("--model-name-or-path is missing: a folder that save_pretrained wrote, or a name on a hub.")
    n = game.num_train_seeds
    if game.seam == "rollout":
        dataset = episode_dataset(game.env, n)
        seam = {"rollout_func": rollout_func(game.env)}
    else:
        dataset = prompt_dataset(game.env, n, seed=args.seed)
        seam = {"environment_factory": environment_factory(game.env)}
    trainer = GRPOTrainer(model.model_name_or_path, env_reward, args, dataset, **seam)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
