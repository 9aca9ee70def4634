"""Train a model by DPO on pairs of episodes: what `llm-envs train dpo` does, as a script.

Command:   python examples/train_dpo.py --source runs/collected --model DIR --out runs/dpo
           accelerate launch --num_processes 1 examples/train_dpo.py --env llm/Calculator-v0 --model DIR \
               --env_kwargs '{"difficulty": "easy"}' --num_train_epochs 20 --out runs/dpo
Hardware:  anything that runs the model and its reference; `--precompute_ref_log_probs` lets go of the reference
           offline, `--use_peft` needs none, `--use_vllm` samples with vLLM in the same process. `--help` lists every
           field of `EnvDPOConfig` (TRL's `DPOConfig` and ours) and TRL's `ModelConfig`.
Expect:    a loss of 0.693 (log 2) at the first step, and less later; the model in OUTPUT_DIR. Online an epoch is a
           round, and `env/reward` is logged at its beginning.
"""

import sys

from llm_envs.trainers.cli.commands import main

if __name__ == "__main__" and (code := main(["dpo", *sys.argv[1:]])):
    sys.exit(code)
