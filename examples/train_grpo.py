"""Train a model by GRPO on an environment, on one process or many: what `llm-envs train grpo` does, as a script.

Command:   accelerate launch --num-processes 1 examples/train_grpo.py --env llm/Calculator-v0 --model DIR \
               --out runs/grpo --env-kwargs '{"difficulty": "easy"}' --max-steps 20
Hardware:  anything that runs the model; `--use-vllm` samples with vLLM in the same process; `--use-peft` trains a LoRA
           adapter. `--algorithm dapo` takes a published algorithm; `--dry-run` says what would be
           done. `--help` lists every field of `EnvGRPOConfig` (TRL's `GRPOConfig` and ours) and TRL's `ModelConfig`.
"""

import sys

from llm_envs.trainers.cli.commands import main

if __name__ == "__main__":
    sys.exit(main(["grpo", *sys.argv[1:]]))
