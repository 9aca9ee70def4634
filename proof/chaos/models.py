"""Models that misbehave for ever, on real tasks: they emit nothing, no text, no end, or nothing that is a reply.

A round plays the same run twice: undisturbed, and killed at a random moment and resumed. Both must end, and have the
same episodes. Then the run is exported and reported, as any other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from llm_envs.chat.context import Codec
from llm_envs.cli.main import main
from llm_envs.rollout import RolloutLimits, collect_run
from llm_envs.testing import ByteCodec, HashingTokenPolicy, with_failures, with_hangs
from llm_envs.types import FinishReason, IdArray, Message, Sampled, SamplingParams
from proof.chaos.collection import same_episodes
from proof.chaos.faults import kill
from proof.chaos.rounds import Broken, Outcome, in_child

__all__ = ["models"]

TASKS = (
    *("llm/Arithmetic-v0", "llm/Calculator-v0", "llm/Countdown-v0", "llm/CustomerService-v0", "llm/FileSystem-v0"),
    *("llm/FunctionCalling-v0", "llm/GuessNumber-v0", "llm/KnightsAndKnaves-v0", "llm/Maze-v0", "llm/SQLExplorer-v0"),
    *("llm/Search-v0", "llm/Sudoku-v0"),
)
N_GROUPS, GROUP_SIZE = 12, 2
_LIMIT_S = 120.0


class IdsPolicy:
    """A token policy whose turns a function of (random stream, most tokens) chooses, with the reason of their end."""

    def __init__(self, write: Callable[[Random, int], tuple[Sequence[int], FinishReason]]) -> None:
        self.write = write

    async def sample(self, prompt_ids: IdArray, params: SamplingParams, *, seed: int, session: str) -> Sampled:
        """Return the ids with log-probabilities of -1."""
        ids, reason = self.write(Random(seed), params.max_new_tokens)
        return Sampled(np.array(ids, np.int32), np.full(len(ids), -1.0, np.float32), reason)


class TextPolicy:
    """A chat policy that always replies the same."""

    def __init__(self, content: Any) -> None:
        self.content = content

    async def reply(self, messages: Sequence[Message], tools: Sequence[Any], params: SamplingParams) -> Message:
        """Return the reply."""
        return Message("assistant", self.content)


def _bytes_policy() -> Any:
    return IdsPolicy(lambda random, n: ([random.randrange(128, 256) for _ in range(n)], FinishReason.LENGTH))


MODELS: dict[str, Callable[[], Any]] = {
    "no tokens": lambda: IdsPolicy(lambda random, n: ([], FinishReason.STOP)),
    "only an end of turn": lambda: IdsPolicy(lambda random, n: ([256], FinishReason.STOP)),
    "invalid UTF-8": _bytes_policy,
    "no end of turn": lambda: IdsPolicy(lambda random, n: ([97] * n, FinishReason.LENGTH)),
    "role tokens": lambda: IdsPolicy(
        lambda random, n: ([random.randrange(256, 261) for _ in range(n)], FinishReason.LENGTH)
    ),
    "empty texts": lambda: TextPolicy(""),
    "lone surrogates": lambda: TextPolicy("\ud800\udfff\x00" * 20),
    "no text": lambda: TextPolicy(None),
    "bytes": lambda: TextPolicy(b"\xff\xfe"),
    "hangs": lambda: with_hangs(HashingTokenPolicy(ByteCodec(), ["7"]), 1.0),
    "failures": lambda: with_failures(HashingTokenPolicy(ByteCodec(), ["7"]), 1.0),
}
"""What a model does -> it."""


def play(folder: Path, kind: str, tasks: Sequence[str]) -> None:
    """Play a run, or what is missing of it."""
    policy = MODELS[kind]()
    codec: Codec | None = ByteCodec() if hasattr(policy, "sample") else None
    collect_run(
        list(tasks),
        policy,
        out=folder,
        n_groups=N_GROUPS,
        group_size=GROUP_SIZE,
        resume=True,
        codec=codec,
        limits=RolloutLimits(max_turns=8, max_turn_tokens=64, max_policy_s=0.2 if kind == "hangs" else 30.0),
        max_retries=0,
        max_log_bytes=100_000,
        max_errors_in_a_row=10_000,
        settings={"model": kind},
    )


def read_by_all(run: Path, folder: Path) -> None:
    """Export and report a run by our commands.

    Raises:
        Broken: If one fails.
    """
    for command in (
        ["export", str(run), str(folder / "messages"), "--to", "messages", "--keep", "all"],
        ["export", str(run), str(folder / "dataset"), "--to", "dataset"],
        ["report", str(run), "--out", str(folder / "page.html")],
    ):
        if (code := main(command)) != 0:
            raise Broken(f"{' '.join(command)} ended with {code}")


def models(seed: int, folder: Path) -> Outcome:
    """A model of each of three kinds, on three tasks."""
    random, outcome = Random(seed), Outcome()
    for kind in random.sample(list(MODELS), 3):
        outcome.faults.append(kind)
        tasks = random.sample(TASKS, 3)
        whole, run = folder / "whole", folder / "run"
        log = folder / "log"
        steps: list[tuple[str, Callable[[], None], float | None]] = [
            ("the undisturbed run", partial(play, whole, kind, tasks), None),
            ("the run that is killed", partial(play, run, kind, tasks), random.random()),
            ("the resumed run", partial(play, run, kind, tasks), None),
            ("the comparison", partial(same_episodes, run, whole), None),
            ("export and report", partial(read_by_all, run, folder), None),
        ]
        usual_s = 0.0
        for name, work, kill_at in steps:
            actions = [] if kill_at is None else [(kill_at * usual_s, kill)]
            ended = in_child(work, log, limit_s=_LIMIT_S, actions=actions)
            usual_s = usual_s or ended.seconds
            if not (ended.how == "done" or (ended.how == "killed" and actions)):
                outcome.problems.append(f"{kind} on {tasks}: {name} {ended.how}: {ended.message[-1500:]}")
                break
            outcome.add(ended.how)
        for path in (whole, run, folder / "messages", folder / "dataset"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        outcome.add("episodes", N_GROUPS * GROUP_SIZE)
    return outcome
