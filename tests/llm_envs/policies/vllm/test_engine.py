"""The vLLM policy on the real engine: log-probabilities, seeds, cancellation, weights, limits, failure."""

import asyncio
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = [pytest.mark.vllm, pytest.mark.smoke]

from machine import until  # noqa: E402  (after the skip)
from tiny_folders import save_tiny  # noqa: E402

from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError  # noqa: E402
from llm_envs.policies import VLLMEnginePolicy, load_engine  # noqa: E402
from llm_envs.policies.base import InterruptiblePolicy, TokenPolicy, UpdatablePolicy  # noqa: E402
from llm_envs.policies.inference import load_model, token_logps  # noqa: E402
from llm_envs.rollout import EpisodeSpec, play_episode  # noqa: E402
from llm_envs.rollout.pause_gate import PauseGate  # noqa: E402
from llm_envs.testing import NumbersEnv  # noqa: E402
from llm_envs.tiny_model import tiny_model, tiny_tokenizer  # noqa: E402
from llm_envs.types import FinishReason, SamplingParams, validate_batch  # noqa: E402

PROMPT = np.arange(4, 30, dtype=np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model"), max_length=256)


@pytest.fixture(scope="module")
def llm(folder):
    return load_engine(folder, dtype="float32", max_model_len=256, max_num_seqs=64)


@pytest.fixture
def policy(llm):
    policy = VLLMEnginePolicy(llm, llm.get_tokenizer())
    yield policy
    asyncio.run(policy.aclose())
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_cpu_without_bf16_instructions_computes_in_float32_unless_told_otherwise(folder, monkeypatch):
    """vLLM by itself takes bf16 on every CPU, also for float32 weights."""
    monkeypatch.setattr("llm_envs.policies.vllm.engine.cpu_dtype", lambda: "float32")
    chosen = {}

    class Started(Exception):
        pass

    def start(model, **settings):
        chosen.update(settings)
        raise Started("far enough")

    monkeypatch.setattr("vllm.LLM", start)
    for given, expected in (({}, "float32"), ({"dtype": "auto"}, "float32"), ({"dtype": "bfloat16"}, "bfloat16")):
        with pytest.raises(ModelError, match="far enough"):
            load_engine(folder, max_model_len=256, **given)
        assert chosen["dtype"] == expected
        assert chosen["enforce_eager"] is True
    with pytest.raises(ModelError, match="far enough"):
        load_engine(folder, max_model_len=256, enforce_eager=False)
    assert chosen["enforce_eager"] is False


def test_tokens_of_turns_under_way_can_be_counted(policy):
    async def run():
        params = SamplingParams(max_new_tokens=200, extra={"ignore_eos": True})
        turns = [asyncio.ensure_future(policy.sample(PROMPT, params, seed=i, session=str(i))) for i in range(2)]
        seen = []
        while not all(turn.done() for turn in turns):
            seen.append(policy.n_open_tokens)
            await asyncio.sleep(0.001)
        return seen, sum(len(turn.result().token_ids) for turn in turns)

    seen, n_tokens = asyncio.run(run())
    assert 0 < max(seen) <= n_tokens
    assert policy.n_open_tokens == 0


def sample(policy, n, **params):
    settings = SamplingParams(**{"max_new_tokens": 12, **params})

    async def run():
        return await asyncio.gather(*[policy.sample(PROMPT[i % 3 :], settings, seed=i, session="") for i in range(n)])

    return asyncio.run(run())


def largest_gap(model, sampled, temperature=1.0):
    ids = [np.concatenate([PROMPT[i % 3 :], s.token_ids]) for i, s in enumerate(sampled)]
    scored = token_logps(model, ids, temperature=temperature)
    return max(np.abs(a[-len(s.logps) :] - s.logps).max() for a, s in zip(scored, sampled, strict=True))


def test_it_is_a_token_policy(policy):
    assert isinstance(policy, TokenPolicy)
    assert isinstance(policy, UpdatablePolicy)
    assert isinstance(policy, InterruptiblePolicy)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_agree_with_transformers(policy, folder, temperature):
    sampled = sample(policy, 32, temperature=temperature)
    assert largest_gap(load_model(folder, dtype=torch.float32), sampled, temperature) < 1e-4
    assert {len(s.token_ids) for s in sampled} != {0}


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_given_tokens_have_the_same_logps_as_with_transformers(policy, folder, temperature):
    """Scored beside turns that are being sampled, and again: the prefix cache, which then has them, changes nothing."""
    rng = np.random.default_rng(0)
    n_vocabulary = len(policy.tokenizer)
    given = [rng.integers(3, n_vocabulary, n).astype(np.int32) for n in (1, 2, 30, 0, 120, 255)]
    expected = token_logps(load_model(folder, dtype=torch.float32), given, temperature=temperature)

    async def run():
        turn = policy.sample(PROMPT, SamplingParams(max_new_tokens=40), seed=1, session="")
        return await asyncio.gather(
            policy.token_logps(given, temperature=temperature),
            turn,
            policy.token_logps(given, temperature=temperature, micro_batch_size=2),
        )

    scored, turn, again = asyncio.run(run())
    for result in (scored, again):
        assert [a.shape for a in result] == [ids.shape for ids in given]
        assert max(np.abs(a - b).max(initial=0) for a, b in zip(result, expected, strict=True)) < 1e-4
    assert len(turn.token_ids) == 40
    other = token_logps(load_model(folder, dtype=torch.float32), given, temperature=2.0)
    assert max(np.abs(a - b).max(initial=0) for a, b in zip(scored, other, strict=True)) > 1e-2


def test_what_cannot_be_scored_is_refused(policy):
    with pytest.raises(ContextFullError, match=r"sequence 1 .*256 tokens.* of 256"):
        asyncio.run(policy.token_logps([PROMPT, np.full(256, 5, np.int32)]))
    with pytest.raises(InvalidConfigError, match=r"temperature=-1"):
        asyncio.run(policy.token_logps([PROMPT], temperature=-1))


def test_a_seed_gives_the_same_turn_whatever_runs_beside_it(policy):
    alone, crowd = sample(policy, 1)[0], sample(policy, 40)
    assert alone.token_ids.tolist() == crowd[0].token_ids.tolist()
    assert len({tuple(s.token_ids.tolist()) for s in crowd}) > 30


def test_more_prompts_at_once_than_one_step_reads(policy):
    """48 of 128 tokens are more than the 4,096 of a step: read in pieces, a seeded one would kill a CPU engine."""
    prompts = np.random.default_rng(0).integers(4, 200, (48, 128), dtype=np.int32)

    async def run():
        settings = SamplingParams(max_new_tokens=2)
        return await asyncio.gather(*[policy.sample(ids, settings, seed=1, session="") for ids in prompts])

    assert all(1 <= len(sampled.token_ids) <= 2 for sampled in asyncio.run(run()))


def test_stop_token_and_limit(policy):
    free = sample(policy, 1)[0]
    stop = int(free.token_ids[5])
    stopped = sample(policy, 1, stop_token_ids=(stop,))[0]
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: free.token_ids.tolist().index(stop) + 1]
    assert (free.finish_reason, len(free.token_ids)) == (FinishReason.LENGTH, 12)


def test_weights_after_several_updates_are_the_ones_that_sample(policy, folder):
    """A tied output layer too: the engine packs it apart on a CPU, and keeps the old one unless it is packed again."""
    model = load_model(folder, dtype=torch.float32)
    assert model.config.tie_word_embeddings
    original = {name: value.clone() for name, value in model.named_parameters()}
    for version in (1, 2, 3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(version)))
        policy.update_weights(model.named_parameters(), version)
        sampled = sample(policy, 16)
        assert largest_gap(model, sampled) < 1e-4
        assert {s.weight_version for s in sampled} == {version}
    policy.update_weights(original.items(), 4)


@pytest.mark.parametrize("n_loaded", [0, 1, 3, 8])
def test_weights_after_a_load_that_broke_off_are_the_ones_that_sample(policy, llm, folder, n_loaded):
    """vLLM counts the tensors that came: it then raises, or leaves others of the next load out without a word."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    model = load_model(folder, dtype=torch.float32)
    served = llm.llm_engine.model_executor.driver_worker.model_runner.model
    tensors = [(name, value.detach().clone()) for name, value in model.named_parameters()]
    with torch.inference_mode():
        initialize_layerwise_reload(served)
        for pair in tensors[:n_loaded]:
            served.load_weights([pair])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n_loaded)))
    policy.update_weights(model.named_parameters(), 1)
    assert largest_gap(model, sample(policy, 4)) < 1e-4
    policy.update_weights(iter(tensors), 0)


def test_the_prefix_cache_of_old_weights_is_not_used_though_a_turn_is_running(policy, folder, monkeypatch):
    """The cache cannot be emptied while a turn is running; what it has is salted by the weights."""
    models = [load_model(folder, dtype=torch.float32) for _ in range(2)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    prompt = np.random.default_rng(0).integers(4, 200, 150, dtype=np.int32)  # longer than a block of the cache
    params = SamplingParams(max_new_tokens=8, extra={"ignore_eos": True})

    async def run():
        pause = Pause(policy._engine, monkeypatch, 10)
        long = SamplingParams(max_new_tokens=90, extra={"ignore_eos": True})
        running = asyncio.ensure_future(policy.sample(prompt, long, seed=0, session=""))
        assert await until(pause.reached.is_set)
        update = asyncio.ensure_future(asyncio.to_thread(policy.update_weights, models[1].named_parameters(), 1))
        assert await until(lambda: policy._n_updates)
        pause.over.set()
        await update
        assert not running.done()
        sampled = await policy.sample(prompt, params, seed=1, session="")
        await running
        return sampled

    policy.codec.stop_token_ids = ()
    sampled = asyncio.run(run())
    policy.update_weights(models[0].named_parameters(), 2)
    assert sampled.weight_version == 1 and len(sampled.token_ids) == 8
    gaps = [
        np.abs(token_logps(m, [np.concatenate([prompt, sampled.token_ids])])[0][-8:] - sampled.logps) for m in models
    ]
    assert gaps[1].max() < 1e-4 and gaps[0].max() > 1e-2


def test_cancelling_aborts_the_request_in_the_engine(policy, monkeypatch):
    pause = Pause(policy._engine, monkeypatch, 10)  # in the middle of the turns, however fast the machine is

    async def run():
        tasks = [
            asyncio.create_task(policy.sample(PROMPT, SamplingParams(max_new_tokens=200), seed=i, session=""))
            for i in range(6)
        ]
        assert await until(pause.reached.is_set)
        for task in tasks[:5]:
            task.cancel()
        await asyncio.wait(tasks[:5], timeout=60)
        pause.over.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert await until(lambda: not policy._open)
        return answers

    answers = asyncio.run(run())
    assert [type(a) for a in answers[:5]] == [asyncio.CancelledError] * 5
    assert len(answers[5].token_ids) == 200
    assert policy._engine.get_num_unfinished_requests() == 0


class Pause:
    """Has the engine stand still after some steps, until it may go on."""

    def __init__(self, engine, monkeypatch, n_steps):
        self.reached, self.over, self.n_left, step = threading.Event(), threading.Event(), n_steps, engine.step

        def paused_step():
            outputs = step()
            self.n_left -= 1
            if self.n_left == 0:
                self.reached.set()
                assert self.over.wait(120)
            return outputs

        monkeypatch.setattr(engine, "step", paused_step)


def test_an_interrupted_turn_comes_back_with_its_tokens_and_goes_on(policy, monkeypatch):
    """Greedy, so that the pieces are those of one turn; a turn that nobody interrupts goes on beside it."""
    greedy = SamplingParams(max_new_tokens=200, temperature=0, stop_strings=("no such text",))

    async def run():
        (whole,) = await asyncio.gather(policy.sample(PROMPT, greedy, seed=0, session="whole"))
        pause = Pause(policy._engine, monkeypatch, 20)
        turns = [asyncio.ensure_future(policy.sample(PROMPT, greedy, seed=0, session=name)) for name in "aab"]
        assert await until(pause.reached.is_set)
        policy.interrupt("nobody")
        policy.interrupt("a")
        pause.over.set()
        first = await turns[0]
        policy.interrupt("a")
        rest = SamplingParams(max_new_tokens=10, temperature=0)
        joined = np.concatenate([PROMPT, first.token_ids])
        return whole, first, await turns[1], await policy.sample(joined, rest, seed=0, session="a"), await turns[2]

    whole, first, second, rest, other = asyncio.run(run())
    assert {first.finish_reason, second.finish_reason} == {FinishReason.ABORT}
    n_tokens = len(first.token_ids)
    assert 5 < n_tokens <= 20 and len(first.logps) == n_tokens
    pieces = [*first.token_ids.tolist(), *rest.token_ids.tolist()]
    assert pieces == whole.token_ids.tolist()[: len(pieces)]
    assert np.abs(first.logps - whole.logps[:n_tokens]).max() < 1e-4
    assert other.finish_reason is whole.finish_reason and other.token_ids.tolist() == whole.token_ids.tolist()
    assert not policy._under_way and not policy._open


def test_a_turn_that_has_not_begun_is_interrupted_without_a_token(policy):
    async def run():
        turn = asyncio.ensure_future(policy.sample(PROMPT, SamplingParams(), seed=0, session="a"))
        with policy._stepping:  # the pump stands still
            await asyncio.sleep(0)
            policy.interrupt("a")
        return await turn

    sampled = asyncio.run(run())
    assert sampled.finish_reason is FinishReason.ABORT and len(sampled.token_ids) == len(sampled.logps) <= 2


def test_each_piece_of_a_turn_has_the_log_probabilities_of_its_own_weights(policy, folder, monkeypatch):
    """An episode is held in the middle of a turn, and the weights change meanwhile."""
    models = [load_model(folder, dtype=torch.float32) for _ in range(2)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    states = policy._engine.output_processor.request_states
    policy.codec.stop_token_ids = ()  # it writes until its context is full

    async def run():
        gate, pause = PauseGate(), Pause(policy._engine, monkeypatch, 20)
        episode = asyncio.ensure_future(
            play_episode(
                NumbersEnv(1), EpisodeSpec("Numbers", seed=1), policy, codec=policy.codec, gate=gate,
                sampling=SamplingParams(max_new_tokens=250, temperature=0.7, extra={"ignore_eos": True}),
            )
        )  # fmt: skip
        assert await until(pause.reached.is_set)
        closing = asyncio.ensure_future(gate.close())
        assert await until(lambda: policy._interrupted)
        pause.over.set()
        await closing
        assert not states
        policy.update_weights(models[1].named_parameters(), 1)
        gate.open()
        return await episode

    trajectory = asyncio.run(run())
    policy.update_weights(models[0].named_parameters(), 2)
    assert validate_batch([trajectory]) == [] and trajectory.status == "ok"
    (turn,), (row,) = trajectory.turns, trajectory.rows
    assert [span.version for span in turn.weight_versions] == [0, 1]
    start, stop = row.spans[0]
    assert turn.weight_versions[-1].stop == stop - start > 100
    for span in turn.weight_versions:
        piece = slice(start + span.start, start + span.stop)
        gaps = [np.abs(token_logps(m, [row.ids[:stop]], temperature=0.7)[0][piece] - row.logps[piece]) for m in models]
        assert gaps[span.version].max() < 1e-4 and gaps[1 - span.version].max() > 1e-2


def test_each_token_of_a_running_turn_has_the_version_that_sampled_it(policy, folder):
    """The updates change the last norm only, so what was cached before them stays right."""
    models = [load_model(folder, dtype=torch.float32) for _ in range(3)]
    for model, factor in zip(models[1:], (1.5, 0.5), strict=True):
        model.model.norm.weight.data.mul_(factor)

    async def run():
        params = SamplingParams(max_new_tokens=200, extra={"ignore_eos": True})
        policy.codec.stop_token_ids = ()
        turn = asyncio.ensure_future(policy.sample(PROMPT, params, seed=3, session="a"))
        for version in (1, 2):
            assert await until(lambda version=version: policy.n_open_tokens > 40 * version)
            policy.update_weights(models[version].named_parameters(), version)
        return await turn

    turn = asyncio.run(run())
    policy.update_weights(models[0].named_parameters(), 0)
    assert [span.version for span in turn.versions] == [0, 1, 2] and turn.versions[-1].stop == len(turn.token_ids)
    ids = np.concatenate([PROMPT, turn.token_ids])
    scored = [token_logps(model, [ids]) for model in models]
    for span in turn.versions:
        gaps = [np.abs(logps[0][len(PROMPT) :] - turn.logps)[span.start : span.stop].max() for logps in scored]
        assert gaps[span.version] < 1e-4 and min(gaps[: span.version] + gaps[span.version + 1 :]) > 1e-2


def test_a_sleeping_engine_wakes_for_turns_and_for_weights(policy, folder, monkeypatch):
    """On a CPU vLLM pauses the engine but keeps its memory."""
    told = []
    monkeypatch.setattr(policy._engine.model_config, "enable_sleep_mode", True)
    for name in ("sleep", "wake_up"):
        call = getattr(policy.llm, name)
        monkeypatch.setattr(policy.llm, name, lambda *a, call=call, **k: (told.append((a, k)), call(*a, **k)))
    sleeps, weights, cache = ((), {"level": 1}), ((["weights"],), {}), ((["kv_cache"],), {})
    before = sample(policy, 4)
    policy.free_memory()
    policy.free_memory()
    assert told == [sleeps] and policy._engine.is_sleeping()
    for turn, same in zip(before, sample(policy, 4), strict=True):
        assert turn.token_ids.tolist() == same.token_ids.tolist()
    assert told == [sleeps, ((["weights", "kv_cache"],), {})]
    told.clear()
    policy.free_memory()
    model = tiny_model(tiny_tokenizer(), max_length=256, seed=7)
    policy.update_weights(model.named_parameters(), 1)
    assert told == [sleeps, weights]
    assert largest_gap(model, sample(policy, 4)) < 1e-4
    assert told == [sleeps, weights, cache]
    policy.update_weights(load_model(folder, dtype=torch.float32).named_parameters(), 0)


def test_a_closed_policy_leaves_its_engine_awake(llm, monkeypatch):
    """Otherwise vLLM would free memory on CUDA that sleep has already unmapped."""
    policy = VLLMEnginePolicy(llm, llm.get_tokenizer())
    monkeypatch.setattr(llm.llm_engine.model_config, "enable_sleep_mode", True)
    policy.free_memory()
    assert llm.llm_engine.is_sleeping()
    asyncio.run(policy.aclose())
    assert not llm.llm_engine.is_sleeping()


def test_an_engine_without_sleep_mode_stays_awake(policy):
    policy.free_memory()
    assert not policy._engine.is_sleeping()


def test_a_full_context_is_refused(policy):
    with pytest.raises(ContextFullError, match="256"):
        asyncio.run(policy.sample(np.zeros(256, np.int32), SamplingParams(), seed=0, session=""))
    short = asyncio.run(policy.sample(np.full(250, 5, np.int32), SamplingParams(max_new_tokens=50), seed=0, session=""))
    assert len(short.token_ids) <= 6


def test_a_request_that_the_engine_refuses_fails_alone(policy):
    async def run():
        outside = np.array([4, 10_000_000], dtype=np.int32)  # no such token
        requests = [policy.sample(p, SamplingParams(max_new_tokens=4), seed=1, session="") for p in (outside, PROMPT)]
        return await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), timeout=300)

    refused, answered = asyncio.run(run())
    assert "out of vocabulary" in str(refused)
    assert 1 <= len(answered.token_ids) <= 4


def test_a_failing_engine_answers_everybody_and_everybody_after(llm, monkeypatch):
    policy = VLLMEnginePolicy(llm, llm.get_tokenizer())

    def broken():
        raise OSError("device lost")

    async def run():
        requests = [policy.sample(PROMPT, SamplingParams(max_new_tokens=4), seed=i, session="") for i in range(3)]
        return await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), timeout=300)

    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine, "step", broken)
        answers = asyncio.run(run())
    assert ["device lost" in str(answer) for answer in answers] == [True] * 3
    with pytest.raises(RuntimeError, match="device lost"):
        asyncio.run(policy.sample(PROMPT, SamplingParams(), seed=0, session=""))
    llm.llm_engine.abort_request(list(llm.llm_engine.output_processor.request_states), internal=True)


def test_closing_answers_whoever_still_waits(llm):
    policy = VLLMEnginePolicy(llm, llm.get_tokenizer())

    async def run():
        waiting = asyncio.create_task(policy.sample(PROMPT, SamplingParams(max_new_tokens=220), seed=0, session=""))
        assert await until(llm.llm_engine.has_unfinished_requests)
        await policy.aclose()
        return await asyncio.gather(waiting, return_exceptions=True)

    assert "closed" in str(asyncio.run(run())[0])
    assert not llm.llm_engine.has_unfinished_requests()


def test_an_engine_with_other_logps_is_refused(llm, monkeypatch):
    monkeypatch.setattr(llm.llm_engine.model_config, "logprobs_mode", "raw_logprobs")
    with pytest.raises(ModelError, match="processed_logprobs"):
        VLLMEnginePolicy(llm, llm.get_tokenizer())


def test_a_model_that_cannot_be_loaded_is_one_readable_error(tmp_path):
    with pytest.raises(ModelError, match="could not start"):
        load_engine(tmp_path)


def test_turns_that_a_small_cache_preempts_are_counted_and_have_the_same_tokens(policy, folder):
    """The last test: when the second engine ends, the first one cannot go on."""
    small = load_engine(
        folder, dtype="float32", max_model_len=256, max_num_seqs=64, num_gpu_blocks_override=6, block_size=128
    )
    crowded = VLLMEnginePolicy(small, small.get_tokenizer())
    settings = {"max_new_tokens": 200, "extra": {"ignore_eos": True}}
    assert asyncio.run(crowded.count_preemptions()) == 0
    turns = sample(crowded, 6, **settings)
    assert asyncio.run(crowded.count_preemptions()) > 0
    asyncio.run(crowded.aclose())
    for turn, same in zip(turns, sample(policy, 6, **settings), strict=True):
        assert turn.token_ids.tolist() == same.token_ids.tolist()
    assert asyncio.run(policy.count_preemptions()) == 0
