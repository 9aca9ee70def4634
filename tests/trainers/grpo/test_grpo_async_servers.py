"""Training on a server that dies: the run ends with the reason, or continues with the adapter once it is back."""

import os
import signal
import time

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from peft import LoraConfig  # noqa: E402  (after the skip)
from transformers import TrainerCallback  # noqa: E402

from llm_envs.errors import LLMEnvsError  # noqa: E402
from llm_envs.policies import start_servers  # noqa: E402
from llm_envs.policies.inference import token_logps  # noqa: E402
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


def note_turns(trainer):
    """Keep of each generation how far the sampled log-probabilities are from the trainer's, and the turns' versions."""
    gaps, versions, original = [], [], trainer._generate_and_score_completions

    def note(inputs):
        output, model = original(inputs), trainer.accelerator.unwrap_model(trainer.model).eval()
        rows = [t.rows[0] for t in trainer.last_trajectories]
        scored = token_logps(model, [row.ids for row in rows])
        model.train()
        gaps.append(max(np.abs(a - row.logps)[row.mask].max() for a, row in zip(scored, rows, strict=True)))
        turns = [turn for t in trainer.last_trajectories for turn in t.turns]
        versions.append({tuple(span.version for span in turn.weight_versions) for turn in turns})
        return output

    trainer._generate_and_score_completions = note
    return gaps, versions


@pytest.mark.slow
def test_a_server_that_comes_back_gets_the_present_adapter_and_so_does_a_resumed_run(
    tiny_folder, config, tmp_path, monkeypatch
):
    """With PiSSA the base is not the checkpoint that the server is started on: it is sent again, too."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights="pissa")
    args = ("--dtype", "float32", "--max-model-len", "192", "--max-num-seqs", "32")
    args += ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "4")
    with start_servers(tiny_folder, 1, args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"}, max_restarts=1) as servers:
        settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": list(servers.urls)}
        settings |= {"lora_sync": "adapter", "learning_rate": 1e-2, "max_steps": 4, "output_dir": str(tmp_path)}
        settings |= {"save_strategy": "steps", "save_steps": 2}
        weights = []
        for checkpoint, first in ((None, 0), (str(tmp_path / "checkpoint-2"), 2)):
            trainer = EnvGRPOTrainer(tiny_folder, "test/Say-v0", config(**settings), peft_config=adapter)
            gaps, versions = note_turns(trainer)
            kill = Kill(servers.pids, step=1)
            trainer.add_callback(kill)
            trainer.train(resume_from_checkpoint=checkpoint)
            assert (kill.at_s is None) == (checkpoint is not None)
            assert trainer.vllm_generation._sends_adapter
            assert max(gaps) < 1e-4
            assert versions == [{(step,)} for step in range(first, 4)]
            weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
            (facts,) = (trainer.policy._control.facts(url) for url in servers.urls)
            assert facts.adapters == {trainer.policy.shelf.present.name}
            trainer.close()
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5, msg=name)
