"""Models under Ray: training whose episodes actors play on vLLM servers, and an engine on the GPUs of an actor."""

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed (make test-scale has it)")
pytest.importorskip("vllm", reason="vLLM is not installed (make test-scale has it)")
pytestmark = [pytest.mark.ray, pytest.mark.vllm]

from peft import LoraConfig  # noqa: E402  (after the skips)
from ray.cluster_utils import Cluster  # noqa: E402
from tiny_folders import save_tiny  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from llm_envs.agents import AgentEnv  # noqa: E402
from llm_envs.cli.policy_options import open_player  # noqa: E402
from llm_envs.errors import InvalidConfigError  # noqa: E402
from llm_envs.policies import start_servers  # noqa: E402
from llm_envs.rollout import RolloutLimits  # noqa: E402
from llm_envs.rollout.ray_collector import RayCollector  # noqa: E402
from llm_envs.trainers import EnvGRPOTrainer  # noqa: E402

ENV = "llm/GuessNumber-v0"
ARGS = ("--dtype", "float32", "--max-model-len", "1536", "--max-num-seqs", "32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with room for the prompt of a real task, which actors can make."""
    return str(save_tiny(tmp_path_factory.mktemp("model"), hidden_size=64, n_heads=2, max_length=1536, seed=3))


@pytest.fixture
def cluster(monkeypatch):
    """Two processors, and two GPUs that do not exist."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # Ray compares
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 2, "include_dashboard": False})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class KillAll(TrainerCallback):
    """Kills the actors after the first step, and servers: those that take their places must have the new weights."""

    def __init__(self, trainer, pids=()):
        self.trainer, self.n_killed, self.pids = trainer, 0, pids

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1:
            (crew,) = self.trainer._player.collector._crews.values()
            for seat in list(crew._seats):
                ray.kill(seat.actor)
                self.n_killed += 1
            for pid in self.pids:
                os.killpg(pid, signal.SIGKILL)


@pytest.mark.parametrize("lora", [None, "pissa"])
def test_a_training_whose_episodes_are_played_by_actors(folder, config, cluster, monkeypatch, lora):
    """The same tokens and versions as without Ray, in every step. With the adapter as such, the server dies too."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    tokens, versions = {}, {}
    further = {} if lora is None else {"lora_sync": "adapter"}
    peft_config = lora and LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=lora)
    args = ARGS if lora is None else (*ARGS, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "4")
    with start_servers(folder, 1, args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"}) as servers:
        for address in (None, cluster.address):
            settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": list(servers.urls)}
            args = config(**settings, **further, max_steps=3, max_turns=2, max_completion_length=256, ray=address)
            trainer = EnvGRPOTrainer(folder, ENV, args, peft_config=peft_config)
            kill = KillAll(trainer, () if lora is None else servers.pids)
            if address is not None:
                assert isinstance(trainer._player.collector, RayCollector)
                trainer.add_callback(kill)
            played = tokens[address], versions[address] = [], []
            original = trainer._generate_and_score_completions

            def note(inputs, played=played, trainer=trainer, original=original):
                output = original(inputs)
                episodes = trainer.last_trajectories
                assert all(t.status == "ok" for t in episodes)
                played[0].append([row.ids.tolist() for t in episodes for row in t.rows])
                played[1].append({s.version for t in episodes for turn in t.turns for s in turn.weight_versions})
                return output

            trainer._generate_and_score_completions = note
            trainer.train()
            assert lora is None or trainer.vllm_generation._sends_adapter
            trainer.close()
            assert kill.n_killed == (0 if address is None else 2)
        agent = AgentEnv(print, [{"question": "1"}], lambda result, trajectory: 0.0)
        with pytest.raises(InvalidConfigError, match="ray="):
            EnvGRPOTrainer(folder, agent, args, peft_config=peft_config)
    assert versions[None] == versions[cluster.address] == [{0}, {1}, {2}]
    assert tokens[None] == tokens[cluster.address]


PROGRAM = """
import json, sys
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
settings, model, out = json.loads(sys.argv[1]), *sys.argv[2:]
trainer = EnvGRPOTrainer(model, "llm/GuessNumber-v0", EnvGRPOConfig(**settings, use_cpu=True))
versions, original = [], trainer._generate_and_score_completions
def note(inputs):
    output = original(inputs)
    played = trainer.last_trajectories
    assert len(played) == 8 and all(t.status == "ok" for t in played)
    versions.append(sorted({s.version for t in played for turn in t.turns for s in turn.weight_versions}))
    return output
trainer._generate_and_score_completions = note
trainer.train()
(crew,) = trainer._player.collector._crews.values()
with open(f"{out}-{trainer.accelerator.process_index}.json", "w") as file:
    json.dump([versions, crew._n_actors], file)
trainer.close()
"""


def test_two_processes_share_the_actors(folder, cluster, tmp_path, monkeypatch):
    """Each has one of the two, which follow the weights that the first process sends."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    settings = {"output_dir": str(tmp_path / "out"), "max_steps": 2, "per_device_train_batch_size": 8}
    settings |= {"num_generations": 4, "max_turns": 2, "max_turn_tokens": 8, "max_completion_length": 256}
    settings |= {"gradient_checkpointing": False, "save_strategy": "no", "report_to": "none", "learning_rate": 1e-3}
    settings |= {"use_vllm": True, "vllm_mode": "server", "ray": cluster.address}
    (tmp_path / "program.py").write_text(PROGRAM)
    with start_servers(folder, 1, args=ARGS, env={"VLLM_CPU_KVCACHE_SPACE": "1"}) as servers:
        given = json.dumps(settings | {"vllm_server_urls": list(servers.urls)})
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [str(tmp_path / "program.py"), given, folder, str(tmp_path / "said")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(2)]
    assert said == [[[[0], [1]], 1]] * 2


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vllm_mode": "colocate"}, "ray='auto' has no effect: vllm_mode is not 'server'"),
        ({"async_generations": 1}, "async_generations=1;.*with ray"),
        ({"max_concurrency": "auto"}, "max_concurrency='auto'"),
    ],
)
def test_what_does_not_go_together(folder, config, changes, said):
    settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": ["http://127.0.0.1:1"], "ray": "auto"}
    if changes.get("vllm_mode") == "colocate":
        del settings["vllm_server_urls"]
    with pytest.raises(InvalidConfigError, match=said):
        EnvGRPOTrainer(folder, ENV, config(**settings | changes))


def test_an_engine_on_two_gpus(cluster, folder):
    """The engine that `--ray-gpus 2` starts in an actor has two workers, here on the CPU."""
    ray.init(address=cluster.address, log_to_driver=False)

    @contextmanager
    def player():
        options = dict.fromkeys(("policy", "url", "serve", "server_args", "devices", "tokenizer", "model_name"))
        options |= dict.fromkeys(("max_concurrent_requests", "requests_per_minute", "max_tokens_name"))
        options |= {"engine": "vllm", "model": folder, "ray_gpus": 2}
        with open_player(argparse.Namespace(**options)) as (policy, codec):
            n_shards = policy.llm.llm_engine.vllm_config.parallel_config.tensor_parallel_size
            if n_shards != 2:
                raise AssertionError(f"{n_shards} workers")
            yield policy, codec

    limits = RolloutLimits(max_turns=1, max_turn_tokens=4)
    with RayCollector(ENV, player, n_actors=1, actor_options={"num_gpus": 2}, limits=limits) as collector:
        (group,) = collector.collect(1, 2)
    assert [t.turns[0].finish_reason for t in group] and all(t.status == "ok" for t in group)
