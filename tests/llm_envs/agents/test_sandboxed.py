"""Agents in a sandbox: the mechanics with programs of the system, and the published agents themselves.

Each published agent repairs a small program from end to end. A scripted policy writes the calls of its tools:

1. The folder's hidden tests pass afterwards, and not if the policy gives up.
2. The rows hold exactly the tokens that the policy was given and wrote, byte by byte.
3. GRPO takes a step on a group of both outcomes, with a finite loss. Not on Claude Code: its 20,000 tokens need more
   memory than a machine of CI has.

`make test-agents` installs three of them below examples/agents. The tests look for the others in PATH.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from shells import skip_where_there_is_none

from llm_envs.agents import AgentEnv, Endpoint, EnvTask, SandboxedAgent, check_passed
from llm_envs.agents.job import AgentError
from llm_envs.agents.presets import PRESETS
from llm_envs.agents.task import TaskState
from llm_envs.chat import ChatCodec
from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.parsers import format_tool_call
from llm_envs.rollout import Collector
from llm_envs.shell import ShellTools, open_shell
from llm_envs.testing import ByteCodec, HashingTokenPolicy, real_model
from llm_envs.tiny_model import CHAT_TEMPLATE
from llm_envs.types import Sampled, SamplingParams, Trajectory, validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "agents"
INSTALLED = {
    "codex": "node_modules/.bin/codex",
    "claude-code": "node_modules/.bin/claude",
    "mini-swe-agent": "../../build/agents/bin/mini",
}
BROKEN = "def total(numbers):\n    return sum(numbers[1:])\n"
TEST = """\
import unittest

from total import total


class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(total([1, 2]), 3)
"""
TASK = {
    "instruction": "The function in total.py forgets a number. Repair it.",
    "files": {"total.py": BROKEN, "test_total.py": "# none yet\n"},
    "check": "python3 -m unittest -q",
    "check_files": {"test_total.py": TEST},
}
NOWHERE = Endpoint("http://127.0.0.1:9/s/a/v1", "key")
REPAIR = "sed -i 's/numbers.1:./numbers/' total.py"


@pytest.fixture(autouse=True)
def needs_a_sandbox() -> None:
    shell = open_shell()
    try:
        shell.start()
    except SandboxError as error:
        skip_where_there_is_none(error)
    finally:
        shell.close()


def play(program: str, task: dict[str, Any]) -> Any:
    """Run a program of the system as if it were pi: with the task in its arguments."""
    return SandboxedAgent("pi", executable=program).play(NOWHERE, lambda cancel: None, task)


class TestSandbox:
    def test_the_agent_gets_its_task_and_its_output_is_the_result(self) -> None:
        result = play("/usr/bin/echo", {"instruction": "Say $HOME 'twice'."})
        assert result == {"output": "-p --provider llm-envs --model policy Say $HOME 'twice'.", "check": None}

    def test_the_check_has_the_files_and_its_own_in_their_place(self) -> None:
        result = play("/usr/bin/echo", TASK)
        assert result["check"]["exit_code"] == 1
        assert "AssertionError" in result["check"]["output"]
        solved = {**TASK, "files": {**TASK["files"], "total.py": "total = sum\n"}}  # type: ignore[dict-item]
        assert check_passed(play("/usr/bin/echo", solved), None) == 1.0  # type: ignore[arg-type]

    def test_the_check_reaches_nothing_of_the_agent(self) -> None:
        left = play("/usr/bin/echo", {"instruction": "", "check": "ls -A /dev/shm . /tmp; env | grep -c KEY"})
        assert left["check"]["output"].split() == [".:", "/dev/shm:", "/tmp:", "0"]

    def test_a_program_that_fails(self) -> None:
        with pytest.raises(AgentError, match="pi ended with 1"):
            play("/usr/bin/false", TASK)

    def test_a_cancelled_agent_ends(self) -> None:
        agent = SandboxedAgent("codex", executable="/usr/bin/bash")
        task = {"instruction": "", "files": {"exec": "sleep 600"}}
        with pytest.raises(AgentError, match="codex was cancelled"):
            agent.play(NOWHERE, lambda cancel: cancel(), task)


ASKS = """\
python3 - <<'END'
import json, os, tomllib, urllib.request

def ask(url, *messages):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    answer = urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers))
    return json.load(answer)["choices"][0]["message"]

with open(os.path.expanduser("~/.codex/config.toml"), "rb") as file:
    own = tomllib.load(file)["model_providers"]["llm-envs"]["base_url"]
question = {"role": "user", "content": "A number?"}
first = ask(own, question)
ask(os.environ["OPENAI_BASE_URL"], {"role": "user", "content": "A title?"})
ask(own, question, first, {"role": "user", "content": "Sure?"})
with open("answer.txt", "w") as file:
    file.write(first["content"])
END
"""
"""A program in place of Codex: bash runs it as the file `exec`, the first argument of Codex's command."""


def test_an_episode_through_the_sandbox_and_its_endpoint() -> None:
    codec = ByteCodec()
    task = {"instruction": "", "files": {"exec": ASKS}, "check": "grep -x 7 answer.txt"}
    env = AgentEnv(SandboxedAgent("codex", executable="/usr/bin/bash"), [task], check_passed)
    with Collector(env, HashingTokenPolicy(codec, ["7"]), codec=codec, progress=False, max_retries=0) as collector:
        ((t,),) = collector.collect(1, 1)
    assert (t.status, t.reward, t.error) == ("ok", 1.0, None)
    assert [len(row.spans) for row in t.rows] == [2, 0]
    assert t.metadata["children"] == {"child": 1}
    assert validate_batch([t]) == []


class FilesEnv(ToolEnv):
    """Asks for a file in its shell, in the folder where the shell is."""

    default_difficulty = "easy"
    difficulties: ClassVar[dict[str, Difficulty]] = {
        "easy": Difficulty("one file", chance_rate=0.0, disjoint_splits=False)
    }

    def make_tools(self) -> ShellTools:
        self.machine = ShellTools()
        return self.machine

    def generate(self) -> dict[str, Any]:
        return {}

    def prompt(self) -> str:
        self.machine.shell.run("mkdir deep; cd deep; export SECRET=5")
        return "Write it."

    def is_correct(self, answer: str) -> bool:
        return answer == "done" and self.machine.shell.read("new.txt") == b"5\n"

    def next_action(self) -> str:
        return self.write_answer("done")


def test_an_environments_files_go_to_the_agent_and_come_back() -> None:
    task = EnvTask(FilesEnv, 0, None, TaskState())
    task.reset()
    try:
        task.shell.write("exec", b"echo $SECRET > new.txt")
        done = SandboxedAgent("codex", executable="/usr/bin/bash").play(NOWHERE, lambda cancel: None, task)
        assert task.shell.run("pwd; echo $SECRET; ls -A /dev/shm").output.split() == ["/workspace/deep", "5"]
        task.step(done)
        assert (task.is_over, task.is_success) == (True, True)
    finally:
        task.close()
    with pytest.raises(InvalidConfigError, match="ShellTools"):
        EnvTask(FilesEnv, 0, None, TaskState()).shell  # noqa: B018  # a property that raises


class Script(HashingTokenPolicy):
    """Writes the replies of a script, by those in its prompt; some episodes give up first.

    Keeps what it was given and what it wrote.
    """

    def __init__(self, codec: ChatCodec, replies: list[str], surrender: str) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []

        def write(ids: np.ndarray, random: Random) -> str:
            prompt = codec.decode(ids)
            n = sum(reply in prompt for reply in replies)
            if n == 0 and random.random() < 0.5:
                return surrender
            return replies[min(n, len(replies) - 1)]

        super().__init__(codec, write)
        self.max_model_len, self.n_tokens = 65_536, len(codec.tokenizer)

    async def sample(self, prompt_ids: np.ndarray, params: SamplingParams, *, seed: int, session: str) -> Sampled:
        sampled = await super().sample(prompt_ids, params, seed=seed, session=session)
        self.seen.append((prompt_ids.tolist(), sampled.token_ids.tolist()))
        # The tiny model's weights are small, so to it all tokens are about as likely. The trainer compares.
        return replace(sampled, logps=np.full(len(sampled.token_ids), -np.log(self.n_tokens), dtype=np.float32))


def call(name: str, **arguments: Any) -> str:
    return format_tool_call(name, **arguments)


DONE = "Repaired."
FINISH = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
SCRIPTS: dict[str, tuple[list[str], str]] = {
    "codex": ([call("exec_command", cmd=REPAIR), DONE], "No idea."),
    "claude-code": ([call("Bash", command=REPAIR, description="Repair"), DONE], "No idea."),
    "mini-swe-agent": ([call("bash", command=REPAIR), FINISH], FINISH),
    "pi": ([call("bash", command=REPAIR), DONE], "No idea."),
    "aider": (["total.py\n```\ntotal = sum\n```\n"], "No idea."),
}
"""Replies that repair the program, and one that gives up."""


def published(name: str) -> AgentEnv:
    place = EXAMPLES / INSTALLED[name] if name in INSTALLED else Path(shutil.which(PRESETS[name].program) or "none")
    if not place.exists():
        is_required = os.environ.get("LLM_ENVS_REQUIRE_NODE") and name in INSTALLED
        (pytest.fail if is_required else pytest.skip)(f"{name} is not installed: {PRESETS[name].install}")
    if str(place.resolve()).startswith("/tmp/"):
        pytest.skip("the agent is installed in /tmp, where a shell has its own files")
    return AgentEnv(SandboxedAgent(name, executable=str(place)), [TASK], check_passed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model with the tokenizer of the pretrained one."""
    from tiny_folders import save_tiny
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_model())
    tokenizer.chat_template = CHAT_TEMPLATE
    sizes = {"hidden_size": 16, "n_layers": 1, "n_heads": 2, "max_length": 65_536}
    return save_tiny(tmp_path_factory.mktemp("agents") / "model", tokenizer, **sizes)


def codec_of(folder: Path) -> ChatCodec:
    from transformers import AutoTokenizer

    return ChatCodec(AutoTokenizer.from_pretrained(folder))


def check_rows(trajectories: list[Trajectory], seen: list[tuple[list[int], list[int]]]) -> None:
    """Each reply stands in one row, behind exactly the tokens that the policy was given."""
    assert validate_batch(trajectories) == []
    spans = [
        (row.ids[:start].tolist(), row.ids[start:stop].tolist())
        for t in trajectories
        for row in t.rows
        for start, stop in row.spans
    ]
    assert sorted(spans) == sorted(seen)


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke if name in INSTALLED else ()) for name in PRESETS]
)
def test_a_published_agent_repairs_a_program(name: str, folder: Path) -> None:
    env, codec = published(name), codec_of(folder)
    replies, _ = SCRIPTS[name]
    policy = Script(codec, replies, surrender=replies[0])
    sampling = SamplingParams(max_new_tokens=512)
    with Collector(env, policy, codec=codec, sampling=sampling, progress=False, max_retries=0) as collector:
        ((t,),) = collector.collect(1, 1)
    assert (t.status, t.error) == ("ok", None)
    assert (t.reward, len(t.turns)) == (1.0, len(replies))
    check_rows([t], policy.seen)


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.parametrize("name", ["codex", "mini-swe-agent"])
def test_grpo_takes_a_step_on_a_published_agent(name: str, folder: Path, tmp_path: Path) -> None:
    from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

    env = published(name)
    policy = Script(codec_of(folder), *SCRIPTS[name])
    args = EnvGRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=1,  # without padding, attention needs no square of 20,000 tokens
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=16_384,
        max_turn_tokens=512,
        num_train_seeds=1,
        seed=1,
        gradient_checkpointing=False,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = EnvGRPOTrainer(str(folder), env, args)
    trainer.collector.policy = policy
    played: list[Trajectory] = []
    play = trainer.collector.play

    def keep(*arguments: Any, **settings: Any) -> Any:
        groups = play(*arguments, **settings)
        played.extend(t for group in groups for t in group)
        return groups

    trainer.collector.play = keep
    trainer.train()
    trainer.close()
    assert {t.status for t in played} == {"ok"}, [t.error for t in played]
    assert {t.reward for t in played} == {0.0, 1.0}
    check_rows(played, policy.seen)
    (entry,) = (entry for entry in trainer.state.log_history if "grad_norm" in entry)
    assert np.isfinite(entry["loss"]) and np.isfinite(entry["grad_norm"]) and entry["grad_norm"] > 0
