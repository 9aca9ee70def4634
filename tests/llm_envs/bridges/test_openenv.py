"""OpenEnv's servers as our environments, and ours as its servers, with its own package on both sides."""

import json
import re
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from served import served
from tiny_folders import one_step

from llm_envs.bridges import openenv as bridge
from llm_envs.bridges.openenv import OpenEnvEnv, create_openenv_app, observation_text
from llm_envs.checker import Settings
from llm_envs.checker.certification import certify
from llm_envs.cli.main import main
from llm_envs.errors import BridgeError, InvalidConfigError, ResetNeededError
from llm_envs.policies import ReplayPolicy
from llm_envs.rollout import Collector, read_trajectories

pytestmark = pytest.mark.doors("openenv")


def test_texts_of_observations() -> None:
    assert observation_text({"prompt": "Guess.", "tries": 3, "metadata": {"a": "b"}}) == "Guess."
    assert observation_text({"prompt": "Guess.", "output": "é"}) == '{"prompt": "Guess.", "output": "é"}'


@pytest.mark.smoke
def test_ours_as_its_server_with_its_client() -> None:
    from openenv.core.generic_client import GenericEnvClient

    direct = gym.make("llm/GuessNumber-v0")
    first, _ = direct.reset(seed=3)
    with served(create_openenv_app("llm/GuessNumber-v0")) as url, GenericEnvClient(base_url=url).sync() as client:
        begun = client.reset(seed=3)
        assert begun.observation["message"] == first
        assert begun.observation["system_prompt"] == direct.get_wrapper_attr("system_prompt")
        while True:
            action = direct.get_wrapper_attr("oracle")()
            observation, reward, terminated, truncated, info = direct.step(action)
            result = client.step({"message": action})
            assert (result.observation["message"], result.reward) == (observation, reward)
            assert result.done == (terminated or truncated)
            assert result.metadata["reward_components"] == info["reward_components"]
            if result.done:
                break
        assert result.metadata["is_success"] is True
        with pytest.raises(RuntimeError, match="call reset"):
            client.step({"message": action})


def test_a_server_is_certified() -> None:
    """The whole certificate, with an oracle that answers from the observation alone."""

    def oracle(env: Any, observation: str) -> str:
        found = re.search(r"(\d+)([-+])(\d+)", observation)
        assert found is not None, observation
        left, sign, right = found.groups()
        return f"<answer>{int(left) + int(sign + right)}</answer>"

    with served(create_openenv_app("llm/Arithmetic-v0", difficulty="easy")) as url:
        certificate = certify(OpenEnvEnv, Settings(oracle=oracle), base_url=url)
    assert certificate.failed == (), certificate.findings
    statuses = {finding.clause: finding.status for finding in certificate.findings}
    played = ("oracle_earns_the_maximum", "depends_on_the_seed", "is_not_won_by_reward_hacks", "refuses_hedged_answers")
    assert all(statuses[part] == "passed" for part in (*played, "plays_side_by_side", "never_raises"))


def test_there_and_back_is_the_same_episode() -> None:
    def rewards(make: Any) -> list[list[float]]:
        actions = ["<answer>1</answer>", "no answer", "<answer>2</answer>"] * 4
        groups = Collector(make, ReplayPolicy(actions)).collect(4)
        return [[turn.reward for turn in t.turns] for group in groups for t in group.trajectories]

    with served(create_openenv_app("llm/GuessNumber-v0", max_turns=5)) as url:
        theirs = rewards(lambda: OpenEnvEnv(url))
        env = gym.make("llm_envs.bridges.openenv:openenv/Server-v0", base_url=url)
        with pytest.raises(ResetNeededError):
            env.unwrapped.step("x")
        env.reset(seed=1)
        for _ in range(5):
            *_, terminated, truncated, info = env.step("no answer")
        assert (terminated, truncated, info["is_success"]) == (False, True, False)
        env.close()
    assert theirs == rewards(lambda: gym.make("llm/GuessNumber-v0", max_turns=5))
    assert any(theirs)


def counting_app(*, uses_seed: bool, max_sessions: int = 4) -> Any:
    """A server that counts its steps, and waits as long as an action says before it answers."""
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class Wait(Action):
        seconds: str

    class Count(Observation):
        text: str

    n_resets = iter(range(1000))

    class Counting(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Count:
            self.n_steps = 0
            return Count(text=f"begin {seed if uses_seed else next(n_resets)} {kwargs.get('level')}")

        def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Count:
            self.n_steps += 1
            time.sleep(float(action.seconds))
            return Count(text=f"step {self.n_steps}", reward=0.5, done=self.n_steps == 2)

        @property
        def state(self) -> State:
            return State()

    return create_fastapi_app(Counting, Wait, Count, max_concurrent_envs=max_sessions)


@pytest.mark.smoke
def test_theirs_as_ours() -> None:
    with served(counting_app(uses_seed=True, max_sessions=1)) as url:
        env = OpenEnvEnv(url, reset_kwargs={"level": "hard"})
        assert env.reset(seed=7)[0] == "begin 7 hard"
        assert env.step("0") == ("step 1", 0.5, False, False, {})
        assert env.step("0") == ("step 2", 0.5, True, False, {"is_success": True})
        assert env.reset(seed=8, options={"level": "easy"})[0] == "begin 8 easy"
        with pytest.raises(BridgeError, match=r"refused a reset.*capacity"):
            OpenEnvEnv(url).reset(seed=1)
        with pytest.raises(BridgeError, match="refused a step"):
            env.step("soon")
        env.close()


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(create_openenv_app("llm/GuessNumber-v0")) as url:
        named = ["llm_envs.bridges.openenv:OpenEnvEnv", "--env-kwargs", json.dumps({"base_url": url})]
        assert main(["certify", *named, "--check", "determinism"]) == 0
        assert main(["eval", *named, "--split", "none", "--policy", "random", "-n", "2"]) == 0
        assert re.search(r"openenv/\S+-v0 +2 +1 ", capsys.readouterr().out)
        given = ["--env", named[0], "--env-kwargs", json.dumps({"base_url": url, "split": None})]
        assert main(["train", "grpo", *given, *one_step(tmp_path)]) in (0, 1)  # 1: all rewards may be equal
        assert len(read_trajectories(tmp_path / "out" / "trajectories" / "process-0")) == 2


@pytest.mark.smoke
def test_a_late_reply_is_never_read_as_a_later_one() -> None:
    with served(counting_app(uses_seed=True)) as url:
        env = OpenEnvEnv(url)
        env.reset(seed=1)
        env.timeout_s = 0.5  # for this step alone: a busy machine may take as long for the others
        with pytest.raises(BridgeError, match=r"did not answer a step within 0\.5 s"):
            env.step("2.5")
        env.timeout_s = 60.0
        with pytest.raises(ResetNeededError):  # the session is lost: nothing goes to a fresh one by itself
            env.step("0")
        assert env.reset(seed=2)[0] == "begin 2 None"
        time.sleep(2.5)  # the late reply has arrived by now, on the closed connection
        assert env.step("0")[0] == "step 1"
        env.close()


def test_a_server_that_ignores_seeds_is_refused_once() -> None:
    with served(counting_app(uses_seed=False)) as url:
        with pytest.raises(BridgeError, match="begins differently with the same seed"):
            OpenEnvEnv(url).reset(seed=1)
        assert url not in bridge._seeds_checked
        assert OpenEnvEnv(url, check_seed=False).reset(seed=1)[0].startswith("begin")


def test_a_failed_server_is_an_errored_episode_and_a_wrong_one_a_clear_error() -> None:
    with served(counting_app(uses_seed=True)) as url:
        [group] = Collector(lambda: OpenEnvEnv(url, timeout_s=0.3), ReplayPolicy(["0", "3"])).collect(1)
        [trajectory] = group.trajectories
        assert trajectory.status == "errored"
        assert trajectory.error is not None and trajectory.error.kind == "BridgeError"
    with pytest.raises(BridgeError, match="schema cannot be read"):
        OpenEnvEnv(url, timeout_s=1)
    with pytest.raises(InvalidConfigError, match="must begin with http"):
        OpenEnvEnv("localhost:8000")


def test_an_action_of_several_fields_needs_a_function() -> None:
    from openenv.core.env_server import Action, Observation, create_fastapi_app

    class Move(Action):
        x: int
        y: int

    app = create_fastapi_app(lambda: None, Move, Observation, max_concurrent_envs=1)
    with served(app) as url, pytest.raises(InvalidConfigError, match=r"fields \['x', 'y'\].*Pass to_action"):
        OpenEnvEnv(url)


def test_tools_and_roles_cross() -> None:
    with served(create_openenv_app("llm/Calculator-v0")) as url:
        env = OpenEnvEnv(url)
        direct = gym.make("llm/Calculator-v0")
        assert env.reset(seed=5)[0] == direct.reset(seed=5)[0]
        assert env.tools == direct.get_wrapper_attr("tools") != []
        action = direct.get_wrapper_attr("oracle")()
        observation, reward, terminated, truncated, info = env.step(action)
        expected = direct.step(action)
        assert (observation, reward, terminated, truncated) == expected[:4]
        assert info["messages"] == expected[4]["messages"] and info["messages"][0]["role"] == "tool"
        env.close()
