"""A GRPO run on several processes, of which number 1 ends without a word: `accelerate launch killed_rank.py MODEL OUT`.

It ends in its second generation, while the others wait for it in a collective.
"""

from __future__ import annotations

import os
import signal
import sys

from dense_env import DenseEnv
from launched import speak_when_asked

from llm_envs.rollout import EnvChoice
from llm_envs.trainers.grpo import EnvGRPOConfig, EnvGRPOTrainer


def main() -> None:
    speak_when_asked()
    args = EnvGRPOConfig(
        output_dir=sys.argv[2],
        max_steps=3,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=64,
        max_turn_tokens=6,
        num_train_seeds=16,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = EnvGRPOTrainer(sys.argv[1], EnvChoice("dense", factory=DenseEnv), args)
    play = trainer.collector.play

    def play_or_die(*arguments, **kwargs):  # type: ignore[no-untyped-def]
        if trainer.state.global_step == 1 and trainer.accelerator.process_index == 1:
            print("process 1 dies", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return play(*arguments, **kwargs)

    trainer.collector.play = play_or_die  # type: ignore[method-assign]
    trainer.train()
    print("training has ended", flush=True)


if __name__ == "__main__":
    main()
