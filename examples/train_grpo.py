"""Train a model by GRPO on an environment, on one process or many.

Command:   accelerate launch --num_processes 1 examples/train_grpo.py --env llm/Calculator-v0 --model_name_or_path DIR \
               --output_dir runs/grpo --env_kwargs '{"difficulty": "easy"}' --max_steps 20
Hardware:  anything that runs the model; `--use_vllm` samples with vLLM in the same process; `--use_peft` trains a LoRA
           adapter. `--help` lists every field of `EnvGRPOConfig` (TRL's `GRPOConfig` and ours) and TRL's `ModelConfig`.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, TrlParser, get_peft_config

from llm_envs.trainers.grpo import EnvGRPOConfig, EnvGRPOTrainer


@dataclass
class EnvArguments:
    """What is played."""

    env: str = field(metadata={"help": "Id of a registered environment, such as llm/Calculator-v0."})


def main() -> None:
    """Parse the command line, train, save."""
    env, args, model = TrlParser((EnvArguments, EnvGRPOConfig, ModelConfig)).parse_args_and_config()
    if model.model_name_or_path is None:
        raise SystemExit("--model_name_or_path is missing: a folder that save_pretrained wrote, or a name on a hub.")
    if model.dtype is not None:
        args.model_init_kwargs = (args.model_init_kwargs or {}) | {"dtype": model.dtype}
    trainer = EnvGRPOTrainer(model.model_name_or_path, env.env, args, peft_config=get_peft_config(model))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
