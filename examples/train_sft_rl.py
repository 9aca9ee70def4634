"""Warm a model up on an environment, then train it by GRPO: both from one YAML file.

Command:   python examples/train_sft_rl.py --config run.yaml          (accelerate launch works too)
           python examples/train_sft_rl.py --config run.yaml --mode rl    (from the newest checkpoint of the warm-up)
Hardware:  anything that runs the model.
Expect:    the models in OUTPUT_DIR/sft and OUTPUT_DIR/rl, the episodes of GRPO in OUTPUT_DIR/rl/trajectories.

The file (all of it is explained in llm_envs.trainers.cli.sft_rl):

    mode: sft+rl
    model: runs/demo/warm
    env: llm/Calculator-v0
    out: runs/calculator
    env_kwargs: {difficulty: easy}
    sft: {source: oracle, num_episodes: 500, max_steps: 100, max_length: 1024, overlong: cut}
    rl: {max_steps: 20, num_generations: 8, max_completion_length: 96}
"""

import sys

from llm_envs.trainers.cli.commands import main

if __name__ == "__main__":
    sys.exit(main(["sft-rl", *sys.argv[1:]]))
