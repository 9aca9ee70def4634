"""Train a model on what an agent did: an environment's oracle, or a saved data set.

Command:   python examples/train_sft.py --env llm/Calculator-v0 --model_name_or_path DIR --output_dir runs/sft
           python examples/train_sft.py --source runs/collected --best_of 1 --min_reward 1 --model_name_or_path DIR \
               --output_dir runs/sft
Hardware:  anything that runs the model; `--use_peft` trains a LoRA adapter. `--help` lists every field of
           `EnvSFTConfig` (TRL's `SFTConfig` and ours) and TRL's `ModelConfig`.
Expect:    the model in OUTPUT_DIR; rows over `--max_length` are dropped or cut (`--overlong`) and counted.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, TrlParser, get_peft_config

from llm_envs.trainers.sft import EnvSFTConfig, EnvSFTTrainer


@dataclass
class Data:
    """What is learned: one of the two."""

    env: str | None = field(default=None, metadata={"help": "Id of an environment, whose oracle plays."})
    source: str | None = field(
        default=None, metadata={"help": "A saved data set: the folder of a run, a JSONL file of conversations, ..."}
    )


def main() -> None:
    """Parse the command line, train, save."""
    data, args, model = TrlParser((Data, EnvSFTConfig, ModelConfig)).parse_args_and_config()
    if model.model_name_or_path is None:
        raise SystemExit("--model_name_or_path is missing: a folder that save_pretrained wrote, or a name on a hub.")
    if model.dtype is not None:
        args.model_init_kwargs = (args.model_init_kwargs or {}) | {"dtype": model.dtype}
    peft_config = get_peft_config(model)
    trainer = EnvSFTTrainer(model.model_name_or_path, data.env, args, source=data.source, peft_config=peft_config)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
