"""What follows an episode that a limit cut: the prompt of the turn that it prevented, or nothing."""

import asyncio

import gymnasium as gym
import numpy as np
import pytest
import torch
from families import family_tokenizer

from llm_envs.chat import ChatCodec
from llm_envs.errors import ContextFullError, InvalidConfigError
from llm_envs.rollout import EpisodeSpec, RolloutLimits, play_episode
from llm_envs.rollout.fork_policy import from_turn
from llm_envs.spaces import TextSpace
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers.ppo.config import EnvPPOConfig
from llm_envs.trainers.ppo.final_states import next_prompt, with_next_prompts
from llm_envs.types import FinishReason, Sampled, SamplingParams, StopReason

QUESTION, ANSWER = "<|im_start|>user\nSay ab.<|im_end|>\n<|im_start|>assistant\n", "ab<|im_end|>"
MORE, OPENING = "\n<|im_start|>user\nMore.<|im_end|>\n", "<|im_start|>assistant\n"


class MoreEnv(gym.Env):
    """Ask for more after each reply; end or be cut after so many turns. `calls` makes it answer as a tool does."""

    observation_space = action_space = TextSpace()

    def __init__(self, ends=99, cut=99, calls=False):
        self.ends, self.cut, self.calls = ends, cut, calls

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_turns = 0
        return "Say ab.", {}

    def step(self, action):
        self.n_turns += 1
        result = {"role": "tool", "content": "More.", "name": "ask", "tool_call_id": f"call_{self.n_turns}"}
        info = {"messages": [result]} if self.calls else {}
        return "More.", 0.0, self.n_turns == self.ends, self.n_turns == self.cut, info


class SaysAb:
    """Write `ab` and end the turn, as far as the budget allows; hang from a turn on, if it is to."""

    def __init__(self, codec, max_model_len=10_000, hangs_in=99):
        self.codec, self.max_model_len, self.hangs_in = codec, max_model_len, hangs_in
        self.prompts = []

    async def sample(self, prompt_ids, params, *, seed, session):
        if len(prompt_ids) >= self.max_model_len:
            raise ContextFullError(f"{len(prompt_ids)} tokens")
        self.prompts.append(prompt_ids.tolist())
        if len(self.prompts) == self.hangs_in:
            await asyncio.sleep(60)
        ids = self.codec.encode_reply("ab")
        n = min(len(ids), params.max_new_tokens, self.max_model_len - len(prompt_ids))
        reason = FinishReason.STOP if n == len(ids) else FinishReason.LENGTH
        return Sampled(ids[:n], np.full(n, -1.0, np.float32), reason)


def play(codec, *, env=None, max_model_len=10_000, hangs_in=99, **limits):
    """Return an episode, and the prompts that the policy was given."""
    policy = SaysAb(codec, max_model_len, hangs_in)
    spec = EpisodeSpec("x/More-v0", {}, 0, "g", 0)
    sampling = SamplingParams(max_new_tokens=limits.pop("max_new_tokens", 16))
    env = env or MoreEnv()
    played = asyncio.run(
        play_episode(env, spec, policy, codec=codec, sampling=sampling, limits=RolloutLimits(**limits))
    )
    return played, policy.prompts


@pytest.fixture(scope="module")
def codec():
    return ChatCodec(tiny_tokenizer())


def state(codec, played, *, max_row_tokens=10_000, max_completion_tokens=10_000):
    return next_prompt(played, codec, max_row_tokens=max_row_tokens, max_completion_tokens=max_completion_tokens)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_turns": 2}, StopReason.MAX_TURNS),
        ({"env": MoreEnv(cut=2)}, StopReason.ENV_TRUNCATED),
        ({"hangs_in": 3, "max_episode_s": 0.5}, StopReason.TIMEOUT),
        ({"max_turns": 2, "max_new_tokens": 2}, StopReason.MAX_TURNS),
        ({"env": MoreEnv(cut=2), "max_new_tokens": 2}, StopReason.ENV_TRUNCATED),
    ],
)
def test_behind_a_limit_of_turns_or_time_stands_the_prompt_of_the_next_turn(codec, settings, reason):
    """Also where the last turn was cut: its closing is the template's, as in every later prompt."""
    played, _ = play(codec, **settings)
    assert played.stop_reason is reason and len(played.turns) == 2
    ids = state(codec, played)
    assert codec.decode(ids) == QUESTION + ANSWER + MORE + OPENING + ANSWER + MORE + OPENING
    _, prompts = play(codec, max_turns=3, max_new_tokens=settings.get("max_new_tokens", 16))
    assert ids.tolist() == prompts[2]


def test_the_room_of_a_branch_counts_from_its_origins_first_reply(codec):
    played, _ = play(codec, max_turns=2)
    branch = from_turn(played, played, 1)
    room = len(state(codec, played)) - played.rows[0].prompt_length
    for episode in (played, branch):
        assert state(codec, episode, max_completion_tokens=room) is None
        assert state(codec, episode, max_completion_tokens=room + 1) is not None


@pytest.mark.parametrize("name", ["qwen3", "deepseekv3", "gemma4", "phi3", "llama3_1"])
@pytest.mark.parametrize("calls", [False, True])
def test_it_is_what_the_policy_is_given_by_every_kind_of_template(name, calls):
    """DeepSeek's and Gemma's write no opening behind a tool's result, Phi's an end of text where nothing follows."""
    codec = ChatCodec(family_tokenizer(name))
    played, _ = play(codec, env=MoreEnv(calls=calls), max_turns=2)
    _, prompts = play(codec, env=MoreEnv(calls=calls), max_turns=3)
    assert state(codec, played).tolist() == prompts[2]


N_QUESTION, N_ANSWER, N_MORE, N_OPENING = 26, 3, 14, 11


def test_tokens_of_the_pieces(codec):
    texts = (QUESTION, ANSWER, MORE, OPENING)
    sizes = [len(codec.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    assert sizes == [N_QUESTION, N_ANSWER, N_MORE, N_OPENING]


@pytest.mark.parametrize(
    ("settings", "reason", "kept"),
    [
        # The reply's words fill the row: the environment has answered them, and its answer has no place.
        ({"max_completion_tokens": 2}, StopReason.MAX_TOKENS, "ab"),
        ({"max_completion_tokens": 2, "env": MoreEnv(cut=1)}, StopReason.ENV_TRUNCATED, "ab"),
        ({"max_completion_tokens": 2, "max_turns": 1}, StopReason.MAX_TURNS, "ab"),
        # The final observation is cut: 10 tokens of the row are left for it.
        ({"max_completion_tokens": N_ANSWER + 10, "max_turns": 1}, StopReason.MAX_TURNS,
         ANSWER + "\n<|im_start|>user\nMor"),
        ({"max_completion_tokens": N_ANSWER + 10}, StopReason.MAX_TOKENS, ANSWER + "\n<|im_start|>user\nMor"),
        # It is whole, and the next turn has its opening and not one token.
        ({"max_completion_tokens": N_ANSWER + N_MORE + N_OPENING}, StopReason.MAX_TOKENS, ANSWER + MORE),
        ({"max_completion_tokens": N_ANSWER + N_MORE + N_OPENING, "max_turns": 1}, StopReason.MAX_TURNS,
         ANSWER + MORE),
        ({"max_model_len": N_QUESTION + N_ANSWER + N_MORE + N_OPENING}, StopReason.CONTEXT_FULL, ANSWER + MORE),
        ({"max_model_len": N_QUESTION + 2}, StopReason.CONTEXT_FULL, "ab"),
        ({"max_model_len": N_QUESTION + 2, "max_turns": 1}, StopReason.MAX_TURNS, "ab"),
    ],
)  # fmt: skip
def test_nothing_follows_where_no_further_token_has_room(codec, settings, reason, kept):
    played, prompts = play(codec, **settings)
    assert played.stop_reason is reason and len(prompts) == 1
    assert codec.decode(played.rows[0].ids) == QUESTION + kept
    limits = {
        "max_row_tokens": settings.get("max_model_len", 10_000),
        "max_completion_tokens": settings.get("max_completion_tokens", 10_000),
    }
    assert state(codec, played, **limits) is None


def test_room_for_a_single_token_is_enough(codec):
    """The policy is asked for a second turn, which the limit of turns prevents."""
    needed = N_ANSWER + N_MORE + N_OPENING + 1
    played, _ = play(codec, max_completion_tokens=needed, max_turns=1)
    ids = state(codec, played, max_completion_tokens=needed)
    assert codec.decode(ids) == QUESTION + ANSWER + MORE + OPENING
    _, prompts = play(codec, max_completion_tokens=needed, max_turns=2)
    assert ids.tolist() == prompts[1]
    assert state(codec, played, max_row_tokens=N_QUESTION + needed) is not None
    assert state(codec, played, max_row_tokens=N_QUESTION + needed - 1) is None


def test_nothing_follows_the_end_of_the_task_or_a_failure(codec):
    ended, _ = play(codec, env=MoreEnv(ends=1))
    assert ended.stop_reason is StopReason.TERMINATED and state(codec, ended) is None
    failed, _ = play(codec, env=MoreEnv(), hangs_in=2, max_policy_s=0.2)
    assert failed.status == "errored" and state(codec, failed) is None


def test_rows_are_replaced_by_the_next_prompts(codec):
    """Two of three rows go on; the third keeps its tokens, and a longer prompt makes the batch wider."""
    played = [play(codec, max_turns=1)[0] for _ in range(3)]
    n, width = N_QUESTION, N_ANSWER + N_MORE
    rows = torch.tensor([t.rows[0].ids.tolist() for t in played])
    assert rows.shape == (3, n + width)
    output = {"prompt_ids": rows[:, :n], "completion_ids": rows[:, n:], "prompt_mask": torch.ones(3, n),
              "completion_mask": torch.ones(3, width)}  # fmt: skip
    prompts = [state(codec, played[0]), None, played[2].rows[0].ids[: n + 2]]
    ids, mask = with_next_prompts(output, played, prompts, pad_id=100)
    assert ids.shape == (3, n + width + N_OPENING)
    kept = [row[flags.bool()].tolist() for row, flags in zip(ids, mask, strict=True)]
    assert kept == [prompts[0].tolist(), rows[1].tolist(), prompts[2].tolist()]
    assert ids[1, n + width :].tolist() == [100] * N_OPENING


def test_where_the_next_prompt_would_be_written_anew_it_is_refused():
    settings = {"output_dir": "x", "report_to": "none", "per_device_train_batch_size": 8, "loss_type": "dapo"}
    with pytest.raises(InvalidConfigError, match=r"bootstrap_truncated=True;.*template"):
        EnvPPOConfig(**settings, bootstrap_truncated=True, history="template")
    assert EnvPPOConfig(**settings, history="template").bootstrap_truncated is False
