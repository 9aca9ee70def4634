"""Environments of verifiers 0.4 as ours: tasksets with tools, with a user, with several roles, played by real code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from tiny_folders import one_step

from llm_envs.checker import Settings
from llm_envs.checker.certification import certify
from llm_envs.cli.main import main
from llm_envs.errors import BridgeError, InvalidConfigError, ResetNeededError
from llm_envs.rollout import read_trajectories
from llm_envs.types import SamplingParams

pytestmark = pytest.mark.doors("verifiers.v1.acp")

MODULES = {
    "vf_sums": """
import asyncio
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: str

class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def exact(self, trace):
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=-0.5)
    async def words(self, trace):
        return float(len(trace.last_reply.split()) - 1)

    @vf.metric
    async def length(self, trace):
        return float(len(trace.last_reply))

class SumConfig(vf.TasksetConfig):
    start: int = 0
    breaks: bool = False

class BrokenTask(SumTask):
    async def finalize(self, trace, runtime):
        raise RuntimeError("the grader is out of paper")

class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    INFINITE = True

    def load(self):
        n = self.config.start
        while True:
            data = SumData(prompt=f"What is {n} + 1?", system_prompt="Be brief.", answer=str(n + 1))
            yield (BrokenTask if self.config.breaks else SumTask)(data, self.config.task)
            n += 1

__all__ = ["SumTaskset"]
""",
    "vf_shop": '''
import verifiers.v1 as vf

class ShopTools(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def price(self, item: str) -> str:
        """Return the price of an item.

        Args:
            item: Its name.
        """
        return {"pear": "3", "plum": "5"}.get(item) or "no such item"

class ShopTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def total(self, trace):
        return float("8" in trace.last_reply)

    @vf.metric
    async def calls(self, trace):
        return float(len(trace.tool_messages))

    @classmethod
    def toolsets(cls, config):
        return [ShopTools(vf.ToolsetConfig())]

class ShopTaskset(vf.Taskset[ShopTask, vf.TasksetConfig]):
    def load(self):
        yield ShopTask(vf.TaskData(prompt="What do a pear and a plum cost together?"), self.config.task)

__all__ = ["ShopTaskset"]

if __name__ == "__main__":
    ShopTools.run()
''',
    "vf_debate": """
import verifiers.v1 as vf

class DebateConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()

class Debate(vf.Env[DebateConfig]):
    async def run(self, task, agents):
        await agents.first.run(task)
        await agents.second.run(task)

class Taskset(vf.Taskset[vf.Task[vf.TaskData], vf.TasksetConfig]):
    def load(self):
        yield vf.Task(vf.TaskData(prompt="Go."), self.config.task)

__all__ = ["Debate", "Taskset"]
""",
    "vf_ours": """
from llm_envs.bridges.verifiers_taskset import EpisodeEnv, EpisodeTaskset
__all__ = ["EpisodeEnv", "EpisodeTaskset"]
""",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # verifiers starts a process for a task's tools


@pytest.fixture
def make(modules: None) -> Iterator[Any]:
    """Makes environments, and closes them."""
    from llm_envs.bridges.verifiers_env import VerifiersEnv

    made: list[Any] = []

    def make(config: Any, **kwargs: Any) -> Any:
        made.append(VerifiersEnv(config, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


def sum_of(observation: str) -> int:
    return int(observation.split()[2]) + 1


@pytest.mark.smoke
def test_a_task_is_scored_by_its_own_rewards(make: Any) -> None:
    env = make("vf-sums")
    observation, info = env.reset(seed=1)
    assert observation.startswith("What is ") and info["messages"] == [{"role": "user", "content": observation}]
    assert env.system_prompt == "Be brief." and env.tools == []
    answer = str(sum_of(observation))
    _, reward, terminated, truncated, info = env.step(f"<think>A {answer}, or not?</think>{answer}")
    assert (reward, terminated, truncated, info["is_success"]) == (2.0, True, False, True)
    assert info["reward_components"] == {"exact": 2.0, "words": 0.0}
    assert info["metrics"]["length"] == len(answer)
    with pytest.raises(ResetNeededError):
        env.step(answer)
    env.reset(seed=1)
    _, reward, _, _, info = env.step("I do not know")
    assert reward == -1.5 and info["reward_components"] == {"exact": 0.0, "words": -1.5} and not info["is_success"]


def test_a_seed_decides_the_task_and_splits_share_none(make: Any) -> None:
    train, test = make("vf-sums", n_tasks=50), make("vf-sums", n_tasks=50, split="test")
    indices = [{task.data.idx for task in env.tasks} for env in (train, test)]
    assert indices[0] | indices[1] == set(range(50)) and not indices[0] & indices[1] and 3 < len(indices[1]) < 20
    drawn = [train.reset(seed=seed)[0] for seed in range(8)]
    assert drawn == [train.reset(seed=seed)[0] for seed in range(8)] and len(set(drawn)) > 3
    index = min(indices[0])
    assert train.reset(options={"problem": {"idx": index}})[0] == f"What is {index} + 1?"
    with pytest.raises(InvalidConfigError, match="no task of the split 'train' has the index 99"):
        train.reset(options={"problem": {"idx": 99}})
    own = make({"taskset": {"id": "vf-sums", "start": 1000}}, split="test", test_config={"start": 5000}, n_tasks=3)
    assert {sum_of(own.reset(seed=seed)[0]) for seed in range(20)} == {5001, 5002, 5003}


@pytest.mark.smoke
def test_tools_of_a_task_are_called(make: Any) -> None:
    env = make("vf-shop", test_config={}, split="test")
    env.reset(seed=0)
    [tool] = env.tools
    name = tool["function"]["name"]
    assert name.endswith("price") and tool["function"]["parameters"]["required"] == ["item"]
    call = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'
    both = call.format(name, '{"item": "pear"}') + call.format(name, '{"item": "plum"}')
    observation, reward, terminated, truncated, info = env.step(both)
    assert (observation, reward, terminated, truncated) == ("3\n5", 0.0, False, False)
    assert [(m["role"], m["content"]) for m in info["messages"]] == [("tool", "3"), ("tool", "5")]
    assert [(r.arguments["item"], r.output, r.success) for r in env.tool_results] == [
        ("pear", "3", True),
        ("plum", "5", True),
    ]
    observation, *_ = env.step(call.format("steal", "{}"))
    assert observation.startswith("Error: the tool 'steal' is unknown; known are shop_tools_price.")
    _, reward, terminated, _, info = env.step("Together 8.")
    assert (reward, terminated, info["metrics"]["calls"]) == (1.0, True, 3.0)


def test_an_environment_of_several_turns_plays_as_it_does_without_the_doors(make: Any) -> None:
    """Ours as a taskset, and the taskset as ours: nothing but tools and the rewards of single turns may get lost."""
    theirs = make({"taskset": {"id": "vf-ours", "env_id": "llm/Sokoban-v0", "n": 10}}, n_tasks=10)
    ours = gym.make("llm/Sokoban-v0", split="train")
    first, _ = theirs.reset(seed=3)
    seed = next(task.data.seed for task in theirs.tasks if task.data.prompt == first)
    assert ours.reset(seed=seed)[0] == first
    total, n_turns = 0.0, 0
    while True:
        action = ours.get_wrapper_attr("oracle")()
        observation, reward, terminated, truncated, info = ours.step(action)
        again, *end = theirs.step(action)
        total, n_turns = total + float(reward), n_turns + 1
        if terminated or truncated:
            break
        assert again == observation and end[:3] == [0.0, False, False]
    assert end[:3] == [pytest.approx(total), True, False]
    assert n_turns > 2 and end[3]["metrics"]["success"] == 1.0 and info["is_success"] and end[3]["is_success"]


def test_a_limit_of_theirs_truncates(make: Any) -> None:
    config = {"taskset": {"id": "vf-ours", "env_id": "llm/Sokoban-v0", "n": 2}, "player": {"max_turns": 2}}
    env = make(config, split="train", test_config={})
    env.reset(seed=0)
    assert env.step("up")[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step("up")
    assert (terminated, truncated, info["is_success"]) == (False, True, False)


def test_the_commands(modules: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["llm_envs.bridges.verifiers_env:VerifiersEnv", "--env-kwargs", '{"config": "vf-sums"}']
    assert main(["certify", *named, "--check", "determinism"]) == 0
    assert main(["eval", *named, "--policy", "random", "-n", "2"]) == 0
    assert re.search(r"verifiers/\S+-v0 +2 +1 ", capsys.readouterr().out)
    assert main(["train", "grpo", "--env", *named, *one_step(tmp_path)]) in (0, 1)  # 1: all rewards may be equal
    assert len(read_trajectories(tmp_path / "out" / "trajectories" / "process-0")) == 2


def test_a_policy_is_collected_and_evaluated(modules: None) -> None:
    from llm_envs.evaluation import evaluate
    from llm_envs.policies import ConstantPolicy, TransformersPolicy
    from llm_envs.rollout import Collector
    from llm_envs.tiny_model import tiny_model, tiny_tokenizer

    env_id = "llm_envs.bridges.verifiers_env:verifiers/Taskset-v0"
    tokenizer = tiny_tokenizer()
    policy = TransformersPolicy(tiny_model(tokenizer, seed=0), tokenizer)
    collector = Collector(
        env_id,
        policy,
        codec=policy.codec,
        sampling=SamplingParams(max_new_tokens=6),
        env_kwargs={"config": "vf-sums", "n_tasks": 20},
    )
    groups = collector.collect(2, group_size=3)
    for group in groups:
        assert [t.status for t in group.trajectories] == ["ok"] * 3
        assert len({t.messages[1].content for t in group.trajectories}) == 1  # one task for a group
        assert group.trajectories[0].messages[0].content == "Be brief."
        assert set(group.trajectories[0].turns[0].components) == {"exact", "words"}
    result = evaluate(env_id, ConstantPolicy("7"), n=12, env_kwargs={"config": "vf-sums", "n_tasks": 12})
    assert {t.status for t in result.trajectories} == {"ok"}
    assert {t.reward for t in result.trajectories} <= {0.0, 2.0}


def test_a_failure_is_an_exception_and_the_next_episode_plays(make: Any) -> None:
    env = make({"taskset": {"id": "vf-sums", "breaks": True}})
    env.reset(seed=0)
    with pytest.raises(BridgeError, match="the grader is out of paper"):
        env.step("1")
    env.reset(seed=0)  # also while an episode is in play
    assert env.reset(seed=1)[0].startswith("What is ")


def test_a_rewritten_history_is_refused(make: Any) -> None:
    env = make({"taskset": {"id": "vf-ours", "env_id": "llm/Sokoban-v0", "n": 1}}, test_config={})
    env.reset(seed=0)
    env._model._known[0] = {"role": "user", "content": "Something else was asked."}
    with pytest.raises(BridgeError, match="rewrote the conversation"):
        env.step("up")
    assert env.reset(seed=0)[0]


def test_wrong_settings_are_named(make: Any) -> None:
    for config in ("", 5, {}):
        with pytest.raises(InvalidConfigError, match=r"config is .*; it must be the id of a taskset"):
            make(config)
    with pytest.raises(InvalidConfigError, match="'no-such-taskset' not found"):
        make("no-such-taskset")
    with pytest.raises(InvalidConfigError, match="strat"):
        make({"taskset": {"id": "vf-sums", "strat": 3}})
    with pytest.raises(InvalidConfigError, match="roles first, second, and the policy would play first, second"):
        make("vf-debate")
    with pytest.raises(InvalidConfigError, match="none is in the split 'test'"):
        make("vf-shop", split="test", n_tasks=1)
        make("vf-shop", split="train", n_tasks=1)


def test_a_taskset_is_certified() -> None:
    """The checks that take seconds; a lone surrogate in a reply once ended the episode with an exception."""
    from llm_envs.bridges.verifiers_env import VerifiersEnv

    shown = ""

    def oracle(env: Any, observation: str) -> str:
        nonlocal shown
        if observation.startswith("What is "):  # else the result of a call in a damaged reply
            shown = observation
        return str(int(shown.split()[2]) + 1)

    checks = ("interface", "determinism", "seeds", "rewards", "oracle", "isolation", "crashes")
    settings = Settings(oracle=oracle, success_at=2.0, max_turns=4)
    config = {"taskset": {"id": "vf_sums"}, "agent": {"max_turns": 4}}
    certificate = certify(VerifiersEnv, settings, checks=checks, config=config)
    assert certificate.failed == (), certificate.findings
    statuses = {finding.clause: finding.status for finding in certificate.findings}
    assert (
        statuses["oracle_earns_the_maximum"] == statuses["never_raises"] == statuses["depends_on_the_seed"] == "passed"
    )
