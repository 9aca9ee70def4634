"""Train a model by DPO on pairs of episodes: of a saved data set, or online, of what it plays itself in rounds.

Command:   python examples/train_dpo.py --source runs/collected --model_name_or_path DIR --output_dir runs/dpo
           accelerate launch --num_processes 1 examples/train_dpo.py --env llm/Calculator-v0 --model_name_or_path DIR \
               --env_kwargs '{"difficulty": "easy"}' --num_train_epochs 20 --output_dir runs/dpo
Hardware:  anything that runs the model and its reference; `--precompute_ref_log_probs` lets go of the reference
           offline, `--use_peft` needs none, `--use_vllm` samples with vLLM in the same process. `--help` lists every
           field of `EnvDPOConfig` (TRL's `DPOConfig` and ours) and TRL's `ModelConfig`.
Expect:    a loss of 0.693 (log 2) at the first step, and less later; the model in OUTPUT_DIR. Online an epoch is a
           round, and `env/reward` is logged at its beginning.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, TrlParser, get_peft_config

from llm_envs.rollout.filters import create_spread_filter
from llm_envs.trainers.dpo import EnvDPOConfig, EnvDPOTrainer


@dataclass
class Data:
    """What is learned: one of the two."""

    environment: str | None = field(
        default=None, metadata={"aliases": ["--env"], "help": "Id of an environment that the model plays in rounds."}
    )
    source: str | None = field(
        default=None, metadata={"help": "A saved data set: the folder of a run, exported pairs, pairs of messages, ..."}
    )


def main() -> None:
    """Parse the command line, train, save."""
    data, args, model = TrlParser((Data, EnvDPOConfig, ModelConfig)).parse_args_and_config()
    if model.model_name_or_path is None:
        raise SystemExit("--model_name_or_path is missing: a folder that save_pretrained wrote, or a name on a hub.")
    if model.dtype is not None:
        args.model_init_kwargs = (args.model_init_kwargs or {}) | {"dtype": model.dtype}
    trainer = EnvDPOTrainer(
        model.model_name_or_path,
        data.environment,
        args,
        source=data.source,
        group_filter=create_spread_filter() if data.environment else None,
        peft_config=get_peft_config(model),
    )
    try:
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        trainer.save_model()
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
