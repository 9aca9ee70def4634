"""Train a model on what an agent did, an environment's oracle or a saved data set: `llm-envs train sft` as a script.

Command:   python examples/train_sft.py --env llm/Calculator-v0 --model DIR --out runs/sft
           python examples/train_sft.py --source runs/collected --best-of 1 --min-reward 1 --model DIR \
               --out runs/sft
Hardware:  anything that runs the model; `--use-peft` trains a LoRA adapter. `--help` lists every field of
           `EnvSFTConfig` (TRL's `SFTConfig` and ours) and TRL's `ModelConfig`.
Expect:    the model in OUTPUT_DIR; rows over `--max-length` are dropped or cut (`--overlong`) and counted.
"""

import sys

from llm_envs.trainers.cli.commands import main

if __name__ == "__main__" and (code := main(["sft", *sys.argv[1:]])):
    sys.exit(code)
