"""A GRPO run on several processes, of which number 1 ends: `accelerate launch killed_rank.py MODEL OUT killed|raises`.

It ends at its second step, without a word or by an error of its own, while the others wait for it in a collective.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from launched import speak_when_asked
from trainings import DENSE, PLAYED, QUIET
from transformers import TrainerCallback

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer


class End(TrainerCallback):
    """Leaves at the beginning of the second step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1 and args.process_index == 1:
            print("process 1 ends", flush=True)
            if sys.argv[3] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("what nobody expected")


def main() -> None:
    speak_when_asked()
    args = EnvGRPOConfig(
        output_dir=sys.argv[2], max_steps=3, per_device_train_batch_size=2, num_generations=2, **PLAYED, **QUIET
    )
    trainer = EnvGRPOTrainer(sys.argv[1], DENSE, args, callbacks=[End()])
    trainer.train()
    print("training has ended", flush=True)


if __name__ == "__main__":
    main()
