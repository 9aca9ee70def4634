"""Train a model by DPO on pairs of collected episodes: what `llm-envs train dpo` does, as a script.

Command:   python examples/train_dpo.py --source runs/collected --model DIR --out runs/dpo
           accelerate launch --num-processes 1 examples/train_dpo.py --source pairs.jsonl --model DIR --out runs/dpo
Hardware:  anything that runs the model and its reference; `--precompute-ref-log-probs` lets go of the reference,
           `--use-peft` needs none. `--help` lists every field of `EnvDPOConfig` (TRL's `DPOConfig` and ours) and TRL's
           `ModelConfig`.
Expect:    a loss of 0.693 (log 2) at the first step, and less later; the model in OUTPUT_DIR.
"""

import sys

from llm_envs.trainers.cli.commands import main

if __name__ == "__main__" and (code := main(["dpo", *sys.argv[1:]])):
    sys.exit(code)
