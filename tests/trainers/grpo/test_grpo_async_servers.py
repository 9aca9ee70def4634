"""Playing ahead on a server that dies: the trainer ends with the reason, and so do the episodes beside it."""

import os
import signal
import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from transformers import TrainerCallback  # noqa: E402  (after the skip)

from llm_envs.errors import LLMEnvsError  # noqa: E402
from llm_envs.policies import start_servers  # noqa: E402
from llm_envs.trainers import EnvGRPOTrainer  # noqa: E402


class Kill(TrainerCallback):
    """Kills the processes of servers after a step."""

    def __init__(self, pids, step):
        self.pids, self.step, self.at_s = pids, step, None

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.at_s = time.monotonic()
            for pid in self.pids:
                os.killpg(pid, signal.SIGKILL)


def test_when_the_only_server_dies_the_run_ends_with_the_reason(tiny_folder, config, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    args = ("--dtype", "float32", "--max-model-len", "192", "--max-num-seqs", "32")
    with start_servers(tiny_folder, 1, args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"}, max_restarts=0) as servers:
        settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": list(servers.urls), "max_steps": 6}
        trainer = EnvGRPOTrainer(tiny_folder, "test/Say-v0", config(**settings, async_generations=2))
        kill = Kill(servers.pids, step=2)
        trainer.add_callback(kill)
        with pytest.raises(LLMEnvsError, match=servers.urls[0]):
            trainer.train()
        trainer.close()  # does not wait for the turns that were under way
        assert kill.at_s is not None and time.monotonic() - kill.at_s < 120
    assert trainer.state.global_step < 6
