"""Train a model by PPO on an environment, on one process or many: what `llm-envs train ppo` does, as a script.

Command:   accelerate launch --num-processes 1 examples/train_ppo.py --env llm/Calculator-v0 --model DIR \
               --out runs/ppo --env-kwargs '{"difficulty": "easy"}' --max-steps 20
Hardware:  anything that runs the model. `--critic DIR` takes a critic with a trunk of its own, whose tokenizer is the
           policy's; `--use-vllm` samples with vLLM in the same process; `--use-peft` trains a LoRA adapter. `--help`
           lists every field of `EnvPPOConfig` and of TRL's `ModelConfig`.
Expect:    `reward` and `value/explained_variance` rise; the policy in OUTPUT_DIR, the critic in OUTPUT_DIR/critic.
"""

import sys

from llm_envs.trainers.cli.commands import main

if __name__ == "__main__" and (code := main(["ppo", *sys.argv[1:]])):
    sys.exit(code)
