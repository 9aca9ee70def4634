"""Summaries of the history in training: their tokens are in one row, with the credit of the turns after them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import httpx
import numpy as np
import pytest
import torch
from device import spy_on_batches

from llm_envs.data import preference_pairs
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference import load_model, token_logps
from llm_envs.rollout import Collector, Summarize
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer, RewardSettings
from llm_envs.trainers.episodes.advantages import token_advantages, turn_matrix, with_advantages
from llm_envs.trainers.episodes.batches import make_batch, rollout_output
from llm_envs.trainers.episodes.rewards import score_episodes
from llm_envs.trainers.functional.algorithm import GRPO
from llm_envs.trainers.functional.turn_advantages import per_turn
from llm_envs.trainers.ppo.estimates import estimate
from llm_envs.types import Row, StopReason, Trajectory, Turn

SUMMARIZE = Summarize(history_tokens=60, summary_tokens=6, prompt="Sum up.")


def row(length, *spans):
    mask = np.zeros(length, bool)
    for start, stop in spans:
        mask[start:stop] = True
    return Row(np.arange(length, dtype=np.int32), mask, np.where(mask, -1, 0).astype(np.float32), spans)


def episode(rewards, rows, turns):
    """Return an episode; `turns` are (row, span), or "summary" before one that is a summary."""
    return Trajectory(
        "E", {}, 0, "g", 0, (), (), rows,
        tuple(
            Turn(reward, {}, *place[-2:], is_summary=place[0] == "summary")
            for reward, place in zip(rewards, turns, strict=True)
        ),
        True, False, StopReason.TERMINATED, "ok", True,
    )  # fmt: skip


# Two turns, of which the second is a summary, in the first row; a turn in the second row, which pays 1.
TRAINED = episode([0.5, 0.0, 1.0], (row(7, (1, 3), (5, 7)), row(4, (2, 4))), [(0, 0), ("summary", 0, 1), (1, 0)])
UNTRAINED = episode([0.5, 0.0, 1.0], (row(7, (1, 3)), row(4, (2, 4))), [(0, 0), ("summary", -1, -1), (1, 0)])
OTHER = episode([0.25, 0.0], (row(5, (1, 2), (4, 5)),), [(0, 0), (0, 1)])


def test_a_summary_has_the_return_of_the_turns_after_it():
    """Returns to go 1.5, 1, 1 against 0.25, 0, and at the third turn, which the other lacks, its last."""
    turn_rewards_BK = turn_matrix([[turn.reward for turn in t.turns] for t in (TRAINED, OTHER)])
    advantages_BK = per_turn(torch.tensor([1.5, 0.25]), torch.tensor([0, 0]), turn_rewards_BK)
    assert advantages_BK.tolist() == [[1.25, 1.0, 1.0], [-1.25, -1.0, 0.0]]
    spread = token_advantages(advantages_BK, [TRAINED, OTHER], n_rows=3, n_tokens=6)
    assert spread.tolist() == [
        [1.25, 1.25, 0, 0, 1.0, 1.0],  # the turn, and the summary
        [-1.25, 0, 0, -1.0, 0, 0],
        [1.0, 1.0, 0, 0, 0, 0],
    ]
    spread = token_advantages(advantages_BK, [UNTRAINED, OTHER], n_rows=3, n_tokens=6)
    assert spread[0].tolist() == [1.25, 1.25, 0, 0, 0, 0]
    # With a discount a summary is a turn like others: what follows it counts gamma squared at the first turn.
    discounted = per_turn(torch.tensor([1.5, 0.25]), torch.tensor([0, 0]), turn_rewards_BK, gamma=0.5)
    assert discounted.tolist() == [[0.5 + 0.25 - 0.25, 0.5, 1.0], [0.25 - 0.75, -0.5, 0.0]]


def test_an_untrained_summary_has_mask_0_for_trl():
    rows = [rollout_output([t], pad_id=0)["env_mask"] for t in (TRAINED, UNTRAINED)]
    assert rows == [[[1, 1, 0, 0, 1, 1], [1, 1]], [[1, 1, 0, 0, 0, 0], [1, 1]]]


@pytest.mark.parametrize(
    ("trajectory", "first"), [(TRAINED, [1.5, 1.5, 0, 0, 1, 1]), (UNTRAINED, [1.5, 1.5, 0, 0, 0, 0])]
)
def test_gae_goes_through_summaries(trajectory, first):
    """Without discount and with values of 0: what is paid from each token on. The rewards are at the turns' ends."""
    first_mask, second_mask = rollout_output([trajectory], pad_id=0)["env_mask"]
    mask_BT = torch.tensor([first_mask, [*second_mask, 0, 0, 0, 0]]).bool()
    estimates = estimate(
        [trajectory], [[0.5, 0.0, 1.0]], torch.zeros(2, 6), torch.zeros(1), mask_BT, gamma=1.0, lam=1.0, value_lam=1.0
    )
    assert estimates.advantages_BT.tolist() == [first, [1, 1, 0, 0, 0, 0]]


def test_pairs_of_episodes_with_summaries_are_refused():
    settings = {"codec": ByteCodec(), "env_kwargs": {"n_turns": 6}, "context_fn": SUMMARIZE, "progress": False}
    with Collector(NumbersEnv, HashingTokenPolicy(ByteCodec(), list("0123456789")), **settings) as collector:
        groups = collector.collect(3, 6)
    with pytest.raises(InvalidConfigError, match=" 3 rows"):
        preference_pairs(groups)


def test_an_agents_own_summary_is_trained_with_the_credit_of_its_episode():
    """The agent asks, asks for a summary, and begins a new history with it: two rows, and nothing is sampled twice."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")

    def summarises(task, client):
        def ask(*messages):
            answer = client.post("chat/completions", json={"messages": messages})
            return answer.json()["choices"][0]["message"]

        def user(text):
            return {"role": "user", "content": text}

        reply = ask(user(task["question"]))
        summary = ask(user(task["question"]), reply, user("Sum up."))
        return ask(user(task["question"]), user(f"Notes: {summary['content']}"))["content"]

    def client(endpoint):
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        return httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=300, trust_env=False)

    agents = pytest.importorskip("llm_envs.agents")  # outside the core
    env = agents.AgentEnv(
        summarises, [{"question": "Say 1."}], lambda result, _: float(int(result)), create_client=client
    )
    policy = HashingTokenPolicy(ByteCodec(), list("0123456789"))
    with Collector(env, policy, codec=ByteCodec(), progress=False) as collector:
        played = [t for group in collector.collect(1, 4) for t in group]
    for t in played:
        assert [(turn.row, turn.span) for turn in t.turns] == [(0, 0), (0, 1), (1, 0)]
        assert [m.content for m in t.messages if m.role == "user"][1:] == ["Sum up.", f"Notes: {t.messages[3].content}"]
        spans = [t.rows[turn.row].ids[slice(*t.rows[turn.row].spans[turn.span])] for turn in t.turns]
        assert [ByteCodec().decode_reply(ids) for ids in spans] == [t.messages[i].content for i in (1, 3, 5)]
    episodes = score_episodes(played, RewardSettings(), {})
    batch, _ = with_advantages(make_batch(episodes, pad_id=0), replace(GRPO, normalisation="token"), episodes)
    rewards = torch.tensor([t.reward for t in played])
    expected = (rewards - rewards.mean()) / rewards.std()
    assert expected.abs().max() > 0.5
    # First the rows with the summaries, then those after them: each has its episode's advantage.
    assert torch.allclose(batch.advantages, torch.cat([expected, expected]).to(batch.advantages), atol=1e-3)
    assert batch.mask_BT.sum(1).tolist() == [4] * 4 + [2] * 4  # a digit and the end of a turn, each


def n_letters(trajectory):
    """Pay for letters, so that episodes of an untrained model differ."""
    words = [message.content for message in trajectory.messages if message.role == "assistant"]
    return float(sum(map(str.isalpha, "".join(words))))


@pytest.mark.trainings
class TestTrainers:
    settings = {"env_kwargs": {"n_turns": 4}, "max_turn_tokens": 4}

    def train(self, config, folder, make, **changes):
        summarize = Summarize(60, 6, prompt="Sum up.", trained=changes.pop("trained", True))
        trainer = make(
            folder, NumbersEnv, config(**self.settings, **changes), context_fn=summarize,
            rewards=RewardSettings(reward_fns=n_letters),
        )  # fmt: skip
        seen = spy_on_batches(trainer)
        try:
            trainer.train()
        finally:
            trainer.close()
        return trainer, seen[0]

    @pytest.mark.parametrize("trained", [True, False])
    def test_grpo(self, config, tiny_folder, trained):
        """Every token is scored where it was sampled, and the summaries have their episode's advantage."""
        trainer, batch = self.train(config, tiny_folder, EnvGRPOTrainer, trained=trained)
        played = trainer.last_trajectories
        assert all(any(turn.is_summary for turn in t.turns) for t in played) and max(t.n_forks for t in played) > 1
        rows = [t.rows[0] for t in played] + [r for t in played for r in t.rows[1:]]
        owners = [*range(16), *(index for index, t in enumerate(played) for _ in t.rows[1:])]
        scores = token_logps(load_model(tiny_folder), [row.ids for row in rows])
        for index, (one, owner, scored) in enumerate(zip(rows, owners, scores, strict=True)):
            start, n = one.prompt_length, len(one) - one.prompt_length
            mask = (batch["completion_mask"] * batch["tool_mask"])[index, :n].bool().numpy()
            assert mask.tolist() == one.mask[start:].tolist()
            sampled = batch["sampling_per_token_logps"][index, :n].numpy()
            assert np.abs(sampled - scored[start:])[mask].max() < 1e-4
            assert batch["advantages"][index] == batch["advantages"][owner]
        assert batch["advantages"].abs().max() > 0
        n_summary = sum(t.rows[turn.row].spans[turn.span][1] - t.rows[turn.row].spans[turn.span][0]
                        for t in played for turn in t.turns if turn.is_summary and turn.row >= 0)  # fmt: skip
        assert (n_summary > 0) == trained

    def test_ppo(self, tmp_path, tiny_folder):
        make = partial(
            EnvPPOConfig, output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=8, report_to="none",
            gradient_checkpointing=False, bf16=False, save_strategy="no", bootstrap_truncated=False,
            max_completion_length=80,
        )  # fmt: skip
        trainer, batch = self.train(make, tiny_folder, EnvPPOTrainer)
        assert any(turn.is_summary for t in trainer.last_trajectories for turn in t.turns)
        assert trainer.state.global_step == 1 and bool(torch.isfinite(batch["advantages"]).all())
