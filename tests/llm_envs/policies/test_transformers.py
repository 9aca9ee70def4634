"""The transformers policy: batching of concurrent requests, cancellation, failures, weights."""

import asyncio
import copy
import threading

import numpy as np
import pytest
import torch
from device import placed
from machine import until
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.base import InterruptiblePolicy, TokenPolicy, UpdatablePolicy
from llm_envs.policies.inference import token_logps
from llm_envs.rollout import EpisodeSpec, play_episode
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.testing import NumbersEnv
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import FinishReason, SamplingParams, validate_batch

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]
TOKENIZER = tiny_tokenizer()
PROMPT = np.arange(4, 12, dtype=np.int32)


@pytest.fixture
def policy():
    return TransformersPolicy(placed(tiny_model(TOKENIZER, hidden_size=32, max_length=128)), TOKENIZER)


def sample(policy, n):
    params = SamplingParams(max_new_tokens=6)

    async def run():
        return await asyncio.gather(*[policy.sample(PROMPT, params, seed=i, session=str(i)) for i in range(n)])

    return asyncio.run(run())


def test_it_is_a_token_policy(policy):
    assert isinstance(policy, TokenPolicy)
    assert isinstance(policy, UpdatablePolicy)
    assert isinstance(policy, InterruptiblePolicy)


@pytest.fixture
def n_rows(monkeypatch):
    """Running turns at each step, over all batches."""
    from llm_envs.policies.inference.sampling import RunningBatch

    seen, step = [], RunningBatch.step
    monkeypatch.setattr(RunningBatch, "step", lambda batch: seen.append(batch.n_turns) or step(batch))
    return seen


def test_concurrent_requests_share_batches_and_get_their_own_answers(policy, n_rows):
    together = sample(policy, 20)
    assert n_rows == [20] * 5  # the first of six tokens comes with the prompt
    assert [s.token_ids.tolist() for s in together[:3]] == [
        s.token_ids.tolist() for s in sample(policy, 3)
    ]  # and again on a second event loop
    policy.max_batch_size = 8
    n_rows.clear()
    sample(policy, 20)
    assert n_rows == [8] * 10 + [4] * 5


def test_requests_with_other_parameters_share_a_batch(policy, n_rows):
    warm, greedy = SamplingParams(max_new_tokens=3), SamplingParams(max_new_tokens=5, temperature=0)

    async def run(*several):
        return await asyncio.gather(*[policy.sample(PROMPT, params, seed=1, session="") for params in several])

    first, second, other = asyncio.run(run(warm, warm, greedy))
    assert n_rows == [3, 3, 1, 1]
    assert first.token_ids.tolist() == second.token_ids.tolist() == asyncio.run(run(warm))[0].token_ids.tolist()
    assert other.token_ids.tolist() == asyncio.run(run(greedy))[0].token_ids.tolist()
    assert len(other.token_ids) == 5


def test_short_turns_join_and_leave_while_a_long_one_runs(long_policy, n_steps):
    """Each of five short turns is asked for after the last was answered; all are answered before the long one ends."""
    long_policy.codec.stop_token_ids = ()
    short = SamplingParams(max_new_tokens=4)

    async def run():
        long = asyncio.ensure_future(
            long_policy.sample(PROMPT, SamplingParams(max_new_tokens=8000), seed=0, session="long")
        )
        assert await until(lambda: n_steps() >= 3)
        answers = [await long_policy.sample(PROMPT[:i], short, seed=i, session="short") for i in range(1, 6)]
        assert not long.done()
        long_policy.interrupt("long")
        return await long, answers

    long, answers = asyncio.run(run())
    assert long.finish_reason is FinishReason.ABORT and 3 < len(long.token_ids) < 8000
    alone = asyncio.run(
        long_policy.sample(PROMPT, SamplingParams(max_new_tokens=len(long.token_ids)), seed=0, session="")
    )
    assert long.token_ids.tolist() == alone.token_ids.tolist()
    assert np.abs(long.logps - alone.logps).max() < 1e-4
    for i, answer in enumerate(answers, start=1):
        alone = asyncio.run(long_policy.sample(PROMPT[:i], short, seed=i, session=""))
        assert answer.token_ids.tolist() == alone.token_ids.tolist()


def test_a_turn_that_cannot_join_waits_and_says_why(policy, monkeypatch):
    from llm_envs.policies.inference import padding

    monkeypatch.setattr(padding, "join_problem", lambda cache: cache and "its cache is special")
    long, short = SamplingParams(max_new_tokens=60), SamplingParams(max_new_tokens=2)

    async def run():
        answered = []
        first = asyncio.ensure_future(policy.sample(PROMPT, long, seed=0, session=""))
        assert await until(lambda: policy._running)
        second = asyncio.ensure_future(policy.sample(PROMPT, short, seed=1, session=""))
        for task in (second, first):
            task.add_done_callback(answered.append)
        await asyncio.gather(first, second)
        assert answered == [first, second]

    with pytest.warns(UserWarning, match="cache"):
        asyncio.run(run())


def test_a_prompt_that_cannot_be_read_does_not_fail_the_running_turns(long_policy, n_steps):
    long_policy.codec.stop_token_ids = ()
    forward = long_policy.model.forward

    async def run():
        long = asyncio.ensure_future(
            long_policy.sample(PROMPT, SamplingParams(max_new_tokens=8000), seed=0, session="long")
        )
        assert await until(lambda: n_steps() >= 3)

        def fail_once(*args, **kwargs):
            if kwargs["input_ids"].shape[1] == 1:
                return forward(*args, **kwargs)
            long_policy.model.forward = forward
            raise RuntimeError("out of memory")

        long_policy.model.forward = fail_once
        with pytest.raises(RuntimeError, match="out of memory"):
            await long_policy.sample(PROMPT, SamplingParams(), seed=1, session="")
        answer = await long_policy.sample(PROMPT, SamplingParams(max_new_tokens=2), seed=1, session="")
        long_policy.interrupt("long")
        return answer, await long

    answer, long = asyncio.run(run())
    assert len(answer.token_ids) == 2 and long.finish_reason is FinishReason.ABORT


def test_weights_change_between_two_steps_of_a_running_turn(long_policy, n_steps):
    """A running turn keeps the version at which it began; a turn that joins later has the new one."""
    long_policy.codec.stop_token_ids = ()
    other = placed(tiny_model(TOKENIZER, hidden_size=32, max_length=8192, seed=9))

    async def run():
        long = asyncio.ensure_future(
            long_policy.sample(PROMPT, SamplingParams(max_new_tokens=8000), seed=0, session="long")
        )
        assert await until(lambda: n_steps() >= 3)
        long_policy.update_weights(other.named_parameters(), 7)
        short = await long_policy.sample(PROMPT, SamplingParams(max_new_tokens=5), seed=3, session="")
        long_policy.interrupt("long")
        return short, await long

    short, long = asyncio.run(run())
    assert (long.weight_version, short.weight_version) == (0, 7)
    expected = asyncio.run(
        TransformersPolicy(other, TOKENIZER).sample(PROMPT, SamplingParams(max_new_tokens=5), seed=3, session="")
    )
    assert short.token_ids.tolist() == expected.token_ids.tolist()


def test_nobody_waits_for_ever_if_the_thread_fails_outside_the_model(policy):
    policy.max_batch_size = None
    with pytest.raises(TypeError):
        sample(policy, 2)
    policy.max_batch_size = 4
    assert len(sample(policy, 2)) == 2


def test_closing_cancels_what_runs_and_what_waits(long_policy):
    long_policy.max_batch_size = 1

    async def run():
        params = SamplingParams(max_new_tokens=8000)
        turns = [asyncio.ensure_future(long_policy.sample(PROMPT, params, seed=i, session="")) for i in range(3)]
        assert await until(lambda: long_policy._running)
        await long_policy.aclose()
        return await asyncio.gather(*turns, return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(run())] == [asyncio.CancelledError] * 3
    assert not any(thread.is_alive() for thread in long_policy._thread._threads)


def test_a_cancelled_request_ends_alone(policy, n_steps, monkeypatch):
    """The forward pass after the third step waits for the cancellation, which is in the middle on every machine."""
    forward, cancelled = policy.model.forward, threading.Event()

    def wait(*args, **kwargs):
        assert n_steps() < 3 or cancelled.wait(60)
        return forward(*args, **kwargs)

    monkeypatch.setattr(policy.model, "forward", wait)

    async def run():
        tasks = [
            asyncio.create_task(policy.sample(PROMPT, SamplingParams(max_new_tokens=60), seed=i, session=""))
            for i in range(4)
        ]
        assert await until(lambda: n_steps() >= 3)
        tasks[1].cancel()
        await asyncio.sleep(0)  # the task takes notice
        cancelled.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(run())
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [len(a.token_ids) for i, a in enumerate(answers) if i != 1] == [60, 60, 60]


@pytest.mark.parametrize("place", ["prompt", "step"])
def test_a_failing_batch_fails_its_requests_and_the_next_one_works(policy, place):
    forward, n_calls = policy.model.forward, []

    def fail_once(*args, **kwargs):
        n_calls.append(1)
        if len(n_calls) == (1 if place == "prompt" else 3):
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    policy.model.forward = fail_once

    async def run():
        requests = [policy.sample(PROMPT, SamplingParams(max_new_tokens=5), seed=i, session="") for i in range(3)]
        return await asyncio.gather(*requests, return_exceptions=True)

    assert [str(error) for error in asyncio.run(run())] == ["out of memory"] * 3
    assert len(sample(policy, 3)) == 3


@pytest.mark.parametrize(
    ("prompt", "error", "complaint"),
    [
        (np.zeros(128, np.int32), ContextFullError, "128 tokens fills the context of 128"),
        (np.zeros(0, np.int32), InvalidConfigError, "empty"),
        (np.array([4, len(TOKENIZER)], np.int32), InvalidConfigError, "vocabulary"),
    ],
)
def test_a_request_that_cannot_be_sampled_fails_alone(policy, prompt, error, complaint):
    async def run():
        params = SamplingParams(max_new_tokens=6)
        requests = [policy.sample(p, params, seed=i, session="") for i, p in enumerate([PROMPT, prompt, PROMPT])]
        return await asyncio.gather(*requests, return_exceptions=True)

    first, refused, last = asyncio.run(run())
    assert isinstance(refused, error)
    assert complaint in str(refused)
    assert first.token_ids.tolist() == sample(policy, 1)[0].token_ids.tolist()
    assert len(last.token_ids) == 6


@pytest.mark.parametrize("settings", [{"pad_token": None}, {"padding_side": "right"}, {"truncation_side": "left"}])
def test_how_the_tokenizer_pads_changes_nothing(policy, settings):
    """Prompts of several lengths in one batch; the pad token of the untouched tokenizer is an id of its own."""
    tokenizer = tiny_tokenizer()
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    prompts = [PROMPT[:n] for n in (1, 8, 3)]

    def play(policy):
        async def run():
            params = SamplingParams(max_new_tokens=9)
            return await asyncio.gather(*[policy.sample(p, params, seed=1, session="") for p in prompts])

        return asyncio.run(run())

    for one, other in zip(play(policy), play(TransformersPolicy(policy.model, tokenizer)), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logps.tolist() == other.logps.tolist()


def test_a_pad_token_that_is_sampled_is_a_token(policy):
    """Also where the pad token is an ordinary one: nothing is cut, masked or skipped by its id."""
    tokenizer = tiny_tokenizer()
    params = SamplingParams(max_new_tokens=40)
    free = asyncio.run(policy.sample(PROMPT, params, seed=1, session=""))
    tokenizer.pad_token_id = int(free.token_ids[3])
    assert tokenizer.pad_token_id in free.token_ids[:-1]
    again = asyncio.run(TransformersPolicy(policy.model, tokenizer).sample(PROMPT, params, seed=1, session=""))
    assert again.token_ids.tolist() == free.token_ids.tolist()


def test_new_weights_change_what_is_sampled_and_carry_their_version(policy):
    other = placed(tiny_model(TOKENIZER, hidden_size=32, max_length=128, seed=9))
    before = sample(policy, 1)[0]
    policy.update_weights(other.named_parameters(), 3)
    after = sample(policy, 1)[0]
    assert (before.weight_version, after.weight_version) == (0, 3)
    expected = sample(TransformersPolicy(other, TOKENIZER), 1)[0]
    assert after.token_ids.tolist() == expected.token_ids.tolist()
    assert np.array_equal(after.logps, expected.logps)


def test_weights_that_do_not_fit_are_refused_and_change_nothing(policy):
    before = copy.deepcopy(policy.model.state_dict())
    wider = tiny_model(TOKENIZER, hidden_size=64)
    with pytest.raises(ModelError, match="do not fit"):
        policy.update_weights(wider.named_parameters(), 1)
    some = list(policy.model.named_parameters())[:-1]
    with pytest.raises(ModelError, match="1 missing"):
        policy.update_weights(some, 1)
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())


def test_sampling_leaves_a_training_model_in_train_mode(policy):
    policy.model.train()
    sample(policy, 2)
    assert policy.model.training


def test_two_event_loops_in_two_threads_share_one_policy(policy):
    answers = {}
    threads = [threading.Thread(target=lambda k=k: answers.update({k: sample(policy, 6)})) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert [s.token_ids.tolist() for s in answers[0]] == [s.token_ids.tolist() for s in answers[1]]


def test_a_loop_that_stopped_with_work_left_does_not_hold_up_the_next(policy):
    loop = asyncio.new_event_loop()
    task = loop.create_task(policy.sample(PROMPT, SamplingParams(max_new_tokens=2), seed=0, session=""))
    loop.call_soon(loop.stop)  # the request is made, and its answer needs another round of the loop
    loop.run_forever()
    assert not task.done()
    assert len(sample(policy, 2)) == 2
    loop.run_until_complete(task)
    loop.close()


def test_a_closed_policy_refuses(policy):
    asyncio.run(policy.aclose())
    with pytest.raises(RuntimeError, match="closed"):
        sample(policy, 1)


def test_close_ends_the_thread(policy):
    async def run():
        await policy.sample(PROMPT, SamplingParams(max_new_tokens=2), seed=0, session="")
        await policy.aclose()

    asyncio.run(run())
    assert not any(thread.is_alive() for thread in policy._thread._threads)


@pytest.fixture
def n_steps(monkeypatch):
    """Tokens sampled so far, over all batches."""
    from llm_envs.policies.inference import padding

    steps, extend = [], padding.PaddedBatch.extend
    monkeypatch.setattr(padding.PaddedBatch, "extend", lambda *args: steps.append(1) or extend(*args))
    return lambda: len(steps)


@pytest.fixture
def long_policy():
    return TransformersPolicy(placed(tiny_model(TOKENIZER, hidden_size=32, max_length=8192)), TOKENIZER)


def test_interrupted_turns_go_on_to_the_greedy_turn_of_one_piece(long_policy, n_steps):
    prompts = [PROMPT, PROMPT[:3], PROMPT[::-1].copy()]
    greedy = SamplingParams(max_new_tokens=400, temperature=0)

    async def ask(prompts, params):
        return await asyncio.gather(
            *[long_policy.sample(p, params, seed=0, session=str(i)) for i, p in enumerate(prompts)]
        )

    async def run():
        whole = await ask(prompts, greedy)
        begun = n_steps()
        first = asyncio.ensure_future(ask(prompts, SamplingParams(max_new_tokens=8000, temperature=0)))
        assert await until(lambda: n_steps() >= begun + 5)
        for session in ("0", "1", "2"):
            long_policy.interrupt(session)
        return whole, await first

    whole, first = asyncio.run(run())
    assert {sampled.finish_reason for sampled in first} <= {FinishReason.ABORT, FinishReason.STOP}
    assert any(sampled.finish_reason is FinishReason.ABORT for sampled in first)
    assert all(5 <= len(sampled.token_ids) < 8000 for sampled in first if sampled.finish_reason is FinishReason.ABORT)
    joined = [np.concatenate([p, s.token_ids[:100]]) for p, s in zip(prompts, first, strict=True)]
    rest = asyncio.run(ask(joined, SamplingParams(max_new_tokens=20, temperature=0)))
    for one, begin, end in zip(whole, first, rest, strict=True):
        if begin.finish_reason is FinishReason.ABORT:
            pieces = [*begin.token_ids[:100].tolist(), *end.token_ids.tolist()]
            assert pieces == one.token_ids[: len(pieces)].tolist()


def test_a_request_that_has_not_begun_is_answered_at_once(policy):
    policy.gather_s = 600.0
    policy.weight_version = 4

    async def run():
        waiting = [
            asyncio.ensure_future(policy.sample(PROMPT, SamplingParams(), seed=0, session=name)) for name in "aab"
        ]
        await asyncio.sleep(0)
        policy.interrupt("nobody")
        policy.interrupt("a")
        policy.interrupt("a")
        answers = await asyncio.wait_for(asyncio.gather(*waiting[:2]), 120)
        waiting[2].cancel()
        return answers

    for sampled in asyncio.run(run()):
        assert (len(sampled.token_ids), sampled.finish_reason, sampled.weight_version) == (0, FinishReason.ABORT, 4)


def test_each_piece_of_a_turn_has_the_log_probabilities_of_its_own_weights(long_policy, n_steps):
    """An episode is held twice in the middle of a turn, and the weights change meanwhile."""
    models = [placed(tiny_model(TOKENIZER, hidden_size=32, max_length=8192, seed=seed)) for seed in (4, 5, 6)]
    for model in models:
        for parameter in model.parameters():
            parameter.data.mul_(5)  # far from even distributions, and so from each other
    long_policy.update_weights(models[0].named_parameters(), 0)
    codec = long_policy.codec
    codec.stop_token_ids = ()  # it writes until it is interrupted, and at last one token, whichever

    async def run():
        gate = PauseGate()
        episode = asyncio.ensure_future(
            play_episode(
                NumbersEnv(1), EpisodeSpec("Numbers", seed=1), long_policy, codec=codec, gate=gate,
                sampling=SamplingParams(max_new_tokens=8000, temperature=0.7, stop_strings=("no such text",)),
            )
        )  # fmt: skip
        for version in (1, 2):
            begun = n_steps()
            assert await until(lambda begun=begun: n_steps() >= begun + 4)
            await gate.close()
            long_policy.update_weights(models[version].named_parameters(), version)
            codec.stop_token_ids = tuple(range(len(TOKENIZER))) if version == 2 else ()
            gate.open()
        return await episode

    trajectory = asyncio.run(run())
    assert validate_batch([trajectory]) == [] and trajectory.status == "ok"
    (turn,), (row,) = trajectory.turns, trajectory.rows
    spans = turn.weight_versions
    assert [span.version for span in spans] == [0, 1, 2]
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    start, stop = row.spans[0]
    assert spans[-1].stop == stop - start == spans[-1].start + 1
    for span in spans:
        (scored,) = token_logps(models[span.version], [row.ids[:stop]], temperature=0.7)
        piece = slice(start + span.start, start + span.stop)
        assert np.abs(scored[piece] - row.logps[piece]).max() < 1e-4
        (other,) = token_logps(models[(span.version + 1) % 3], [row.ids[:stop]], temperature=0.7)
        assert span.version == 2 or np.abs(other[piece] - row.logps[piece]).max() > 0.1  # the last has one token only


def test_experts_that_balance_their_load_are_sampled_as_others_are():
    config = Qwen2MoeConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=TOKENIZER.eos_token_id,
    )
    torch.manual_seed(0)
    model = placed(Qwen2MoeForCausalLM(config))
    plain = sample(TransformersPolicy(model, TOKENIZER), 3)
    model.config.output_router_logits = True  # the model then adds a loss, which needs masks of the whole sequence
    balanced = sample(TransformersPolicy(model, TOKENIZER), 3)
    assert [s.token_ids.tolist() for s in balanced] == [s.token_ids.tolist() for s in plain]
