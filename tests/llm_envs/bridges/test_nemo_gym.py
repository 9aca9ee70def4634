"""Our environments as a server of NeMo Gym: its `GymnasiumServer` answers over HTTP, as its agent asks."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from llm_envs.bridges.nemo_gym import write_nemo_gym_server
from llm_envs.errors import InvalidConfigError
from llm_envs.sources.source import SeedSource


def test_the_files_of_a_server(tmp_path: Path) -> None:
    import yaml

    folder = write_nemo_gym_server(tmp_path / "calculator_llm", "llm/Calculator-v0", n=3, max_turns=4)
    rows = [json.loads(line) for line in (folder / "data" / "train.jsonl").read_text().splitlines()]
    source = SeedSource("llm/Calculator-v0", seed=0, env_kwargs={"max_turns": 4})
    assert [row["seed"] for row in rows] == [source.spec(index).seed for index in range(3)]
    config = yaml.safe_load((folder / "configs" / "calculator_llm.yaml").read_text())
    agent = config["calculator_llm_gymnasium_agent"]["responses_api_agents"]["gymnasium_agent"]
    assert agent["resources_server"]["name"] == "calculator_llm" == next(iter(config))
    assert agent["datasets"][0]["jsonl_fpath"] == f"{folder.as_posix()}/data/train.jsonl"
    env = gym.make("llm/Calculator-v0", max_turns=4)
    env.reset(seed=rows[0]["seed"])
    params = rows[0]["responses_create_params"]
    assert params["input"] == [{"role": "system", "content": env.get_wrapper_attr("system_prompt")}]
    assert [tool["name"] for tool in params["tools"]] == [
        tool["function"]["name"] for tool in env.get_wrapper_attr("tools")
    ]
    compile((folder / "app.py").read_text(), "app.py", "exec")
    with pytest.raises(InvalidConfigError, match="must be a new folder"):
        write_nemo_gym_server(folder, "llm/Calculator-v0", n=1)


def response(text: str | None = None, calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()) -> dict[str, Any]:
    """A response of a model, in the form of OpenAI's responses API."""
    output: list[dict[str, Any]] = []
    if text is not None:
        parts = [{"type": "output_text", "text": text, "annotations": []}]
        output.append({"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": parts})
    for id_, name, arguments in calls:
        output.append({"type": "function_call", "call_id": id_, "name": name, "arguments": json.dumps(arguments)})
    frame = {"id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": True}
    return {**frame, "tool_choice": "auto", "tools": [], "output": output}


@pytest.mark.doors("nemo_gym")
class TestServer:
    @pytest.fixture(autouse=True)
    def _own_sys_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep the order of `sys.path`: NeMo Gym, when it is imported, moves its own folder behind all others."""
        monkeypatch.setattr(sys, "path", list(sys.path))

    def client(self, tmp_path: Path, env_id: str, **kwargs: Any) -> tuple[Any, Any, list[dict[str, Any]]]:
        from unittest.mock import MagicMock

        from fastapi.testclient import TestClient
        from nemo_gym.base_resources_server import BaseResourcesServerConfig
        from nemo_gym.server_utils import ServerClient

        folder = write_nemo_gym_server(tmp_path / "server_llm", env_id, n=2, **kwargs)
        spec = importlib.util.spec_from_file_location("server_llm_app", folder / "app.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        config = BaseResourcesServerConfig(host="", port=0, entrypoint="", name="server_llm")
        server = module.Server(config=config, server_client=MagicMock(spec=ServerClient))  # asked by nobody here
        rows = [json.loads(line) for line in (folder / "data" / "train.jsonl").read_text().splitlines()]
        return server, TestClient(server.setup_webserver()), rows

    @pytest.mark.smoke
    def test_an_episode_equals_ours(self, tmp_path: Path) -> None:
        server, client, rows = self.client(tmp_path, "llm/GuessNumber-v0")
        env = gym.make("llm/GuessNumber-v0")
        for row in rows:
            first, _ = env.reset(seed=row["seed"])
            begun = client.post("/reset", json=row).json()
            assert begun == {"observation": first, "info": {"supports_explicit_close": True}}
            terminated = truncated = False
            while not (terminated or truncated):
                action = env.get_wrapper_attr("oracle")()
                observation, reward, terminated, truncated, info = env.step(action)
                answer = client.post("/step", json=row | {"response": response(action)}).json()
                assert (answer["observation"], answer["reward"]) == (observation, reward)
                assert (answer["terminated"], answer["truncated"]) == (terminated, truncated)
            assert answer["info"]["is_success"] is True and info["is_success"]
            assert server.session_state == {}

    def test_calls_get_their_outputs_and_a_close_ends_the_session(self, tmp_path: Path) -> None:
        server, client, rows = self.client(tmp_path, "llm/Calculator-v0")
        client.post("/reset", json=rows[0])
        [tool] = rows[0]["responses_create_params"]["tools"]
        argument = next(iter(tool["parameters"]["properties"]))
        calls = (("a", tool["name"], {argument: "2 + 3"}), ("b", tool["name"], {argument: "2 * 3"}))
        answer = client.post("/step", json=rows[0] | {"response": response(None, calls)}).json()
        assert answer["observation"] is None
        assert answer["info"]["tool_outputs"] == [{"call_id": "a", "output": "5"}, {"call_id": "b", "output": "6"}]
        assert len(server.session_state) == 1
        assert client.post("/close", json={}).json() == {}
        assert server.session_state == {}
