"""Two processes: each plays its own groups, gradients are averaged, and the weights stay the same on both.

Command:   python examples/19_two_processes.py            (--model NAME --steps 20 --episodes 200 --seed 0)
           It starts itself by accelerate launch --config-file examples/accelerate/multi_cpu.yaml, as any script is.
Time:      30 seconds of two CPU cores, and 20 once for the warm model.
Expect:    2 processes, no seed played by both, weights that differ by 0.0; success on the test split 0.490 -> 0.850
           (seed 0).
"""

import os
import subprocess
import sys
from pathlib import Path

from accelerate.utils import gather_object
from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

given = options(__doc__, steps=20, episodes=200)
if "LOCAL_RANK" not in os.environ:  # started by hand: the model is made once, then both processes begin
    given.model = given.model or warm_model()
    launcher = [sys.executable, "-m", "accelerate.commands.launch"]
    launcher += ["--config-file", str(Path(__file__).parent / "accelerate" / "multi_cpu.yaml"), __file__]
    sys.exit(subprocess.run([*launcher, *(f"--{name}={value}" for name, value in vars(given).items())]).returncode)

settings = GRPO | {"per_device_train_batch_size": 32, "ddp_find_unused_parameters": False}  # 4 groups of 8 on each
args = EnvGRPOConfig(output_dir=str(OUT / "two-processes"), max_steps=given.steps, seed=given.seed, **settings)
trainer = EnvGRPOTrainer(given.model, GUESS, args)
is_first = trainer.accelerator.is_main_process
before = success(trainer, n=given.episodes) if is_first else 0.0
train(trainer)
played = gather_object([{t.seed for t in trainer.last_trajectories}])
weights = gather_object([sum(float(weight.detach().double().abs().sum()) for weight in trainer.model.parameters())])
if is_first:
    print(f"{len(played)} processes; seeds that both played in the last step: {len(played[0] & played[-1])}")
    print(f"weights differ by {max(weights) - min(weights)}")
    print(f"success on the test split: {before:.3f} -> {success(trainer, n=given.episodes):.3f}")
trainer.close()
trainer.accelerator.end_training()
