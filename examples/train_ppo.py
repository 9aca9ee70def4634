"""Train a model by PPO on an environment, with a value head or a critic of its own.

Command:   accelerate launch --num_processes 1 examples/train_ppo.py --env llm/Calculator-v0 --model_name_or_path DIR \
               --output_dir runs/ppo --env_kwargs '{"difficulty": "easy"}' --max_steps 20
Hardware:  anything that runs the model. `--critic DIR` takes a critic with a trunk of its own, whose tokenizer is the
           policy's; `--use_vllm` samples with vLLM in the same process; `--use_peft` trains a LoRA adapter. `--help`
           lists every field of `EnvPPOConfig` and of TRL's `ModelConfig`.
Expect:    `reward` and `value/explained_variance` rise; the policy in OUTPUT_DIR, the critic in OUTPUT_DIR/critic.
"""

import sys
from dataclasses import dataclass, field

from trl import ModelConfig, TrlParser, get_peft_config

from llm_envs.trainers.ppo import EnvPPOConfig, EnvPPOTrainer


@dataclass
class Arguments:
    """What is played, and what values it."""

    environment: str = field(metadata={"aliases": ["--env"], "help": "Id of a registered environment."})
    critic: str | None = field(
        default=None, metadata={"help": "A folder or a name on a hub; left out: a value head on the policy's trunk."}
    )


def main(arguments: list[str]) -> None:
    """Train, and save policy and critic."""
    chosen, args, model = TrlParser((Arguments, EnvPPOConfig, ModelConfig)).parse_args_and_config(arguments)
    trainer = EnvPPOTrainer(
        model.model_name_or_path, chosen.environment, args, critic=chosen.critic, peft_config=get_peft_config(model)
    )
    try:
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        trainer.save_model()
    finally:
        trainer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
