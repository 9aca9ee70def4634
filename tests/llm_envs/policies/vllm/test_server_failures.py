"""The policy on servers that fail: refusals, outages, restarts, hangs. The servers are fake, and say what they do."""

import asyncio
import itertools
import json
import logging
import threading
import time

import numpy as np
import pytest
import torch
from fake_server import Answer, completion, fake_server, vllm_answers

from llm_envs.errors import BridgeError, ContextFullError, InvalidConfigError, ModelError
from llm_envs.policies import VLLMServerPolicy
from llm_envs.policies.answers import Answer as Said
from llm_envs.policies.vllm.checkpoints import check_same_tensors, find_checkpoint, tensor_shapes, write_checkpoint
from llm_envs.policies.vllm.formats import SGLangFormat, TurnRequest, VLLMFormat
from llm_envs.policies.vllm.routing import Backoff
from llm_envs.rollout import Collector
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import FinishReason, SamplingParams

TOKENIZER = tiny_tokenizer()
PROMPT = np.arange(4, 12, dtype=np.int32)
QUICK = Backoff(first_s=0.01, max_s=0.05)


def make_policy(urls, **settings):
    policy = VLLMServerPolicy(urls, TOKENIZER, **{"backoff": QUICK, "connect_timeout_s": 1.0} | settings)
    policy.router.cooldown = Backoff(first_s=0.05, max_s=0.2, jitter=0.0)
    return policy


def sample(policy, n=1, **params):
    async def run():
        settings = SamplingParams(max_new_tokens=4, **params)
        asked = [policy.sample(PROMPT, settings, seed=i, session=f"episode {i}") for i in range(n)]
        try:
            return await asyncio.wait_for(asyncio.gather(*asked), timeout=120)
        finally:
            await policy._clients.aclose()

    return asyncio.run(run())


def well(asked, n):
    return completion([5, 6, 2])


@pytest.fixture
def one():
    with fake_server(vllm_answers(TOKENIZER, well)) as server:
        yield server


def test_the_request_says_everything_and_the_answer_is_read(one):
    policy = make_policy(one.url + "/v1/", api_key="secret")
    (turn,) = sample(policy, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, stop_token_ids=(9,), stop_strings=("X",))
    assert turn.token_ids.tolist() == [5, 6, 2]
    assert turn.token_ids.dtype == np.int32
    assert turn.logps.tolist() == [-0.5] * 3
    assert (turn.finish_reason, turn.weight_version) == (FinishReason.STOP, 0)
    (asked,) = one.paths("/v1/completions")
    assert asked.body == {
        "model": "m",
        "prompt": list(range(4, 12)),
        "max_tokens": 4,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
        "stop_token_ids": [*policy.codec.stop_token_ids, 9],
        "stop": ["X"],
        "seed": 0,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }
    assert {asked.headers["Authorization"] for asked in one.asked} == {"Bearer secret"}
    assert policy.max_model_len == 64


def test_seeds_beyond_63_bits_are_sent_as_the_server_reads_them():
    body = VLLMFormat().request(TurnRequest(PROMPT, SamplingParams(), 1, 2**64 - 1, ()), model="m", salt="")
    assert body["seed"] == 2**63 - 1
    assert "cache_salt" not in body


@pytest.mark.parametrize(
    ("reason", "stopped_at", "expected"),
    [
        ("stop", None, FinishReason.STOP),
        ("stop", 7, FinishReason.STOP),
        ("stop", "X", FinishReason.STOP_STRING),
        ("length", None, FinishReason.LENGTH),
        ("abort", None, FinishReason.ABORT),
    ],
)
def test_why_a_turn_ended(reason, stopped_at, expected):
    answer = completion([5], finish_reason=reason, stop_reason=stopped_at).body
    assert VLLMFormat().sampled(Said("u", answer), 3).finish_reason is expected


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": None}, "token_ids.*return_token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1]}, "token_logprobs"),
        ({"token_ids": [5, -1]}, r"token_ids\[1\] is -1"),
        ({"token_ids": [5, len(TOKENIZER)]}, rf"token_ids\[1\] is {len(TOKENIZER)}"),
        ({"token_ids": [5, 6.5]}, r"token_ids\[1\] is 6.5"),
        ({"token_ids": [5, "6"]}, r"token_ids\[1\] is '6'"),
        ({"token_ids": [5, True]}, r"token_ids\[1\] is True"),
        ({"token_ids": "56"}, "token_ids is '56'"),
        ({"logprobs": None}, "logprobs"),
        ({"logprobs": {"token_logprobs": [-0.5, None]}}, r"token_logprobs\[1\]"),
        ({"logprobs": {"token_logprobs": [-0.5, "-0.5"]}}, r"token_logprobs\[1\] is '-0.5'"),
        ({"logprobs": {"token_logprobs": [-0.5, -1e9]}}, r"token_logprobs\[1\] is -1000000000"),
        ({"logprobs": {"token_logprobs": [-0.5, float("nan")]}}, r"token_logprobs\[1\] is nan"),
        ({"logprobs": {"token_logprobs": [-0.5, 0.5]}}, r"token_logprobs\[1\] is 0.5"),
        ({"finish_reason": 3}, "finish_reason is 3"),
        (None, "choices"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_refused_with_server_and_field(changes, field):
    answer = {"choices": {}} if changes is None else completion([5, 6], **changes).body
    with pytest.raises(ModelError, match=f"^http://there: .*{field}"):
        VLLMFormat().sampled(Said("http://there", answer), 0, len(TOKENIZER))


def test_an_answer_that_cannot_be_trained_on_errs_its_episode():
    answer = completion([5, 6.5])
    with fake_server(vllm_answers(TOKENIZER, lambda asked, n: answer, max_model_len=4096)) as server:
        policy = make_policy(server.url)
        with Collector("llm/Countdown-v0", policy, codec=policy.codec, progress=False) as collector:
            ((trajectory,),) = collector.collect(1)
        assert (trajectory.status, trajectory.error.kind) == ("errored", "ModelError")
        assert server.url in trajectory.error.message and "token_ids[1] is 6.5" in trajectory.error.message


@pytest.mark.parametrize("missing", ["id", "max_model_len"])
def test_a_server_that_does_not_describe_its_model_is_refused_with_the_field(missing):
    answers = vllm_answers(TOKENIZER, well, **{missing: None})
    error = pytest.raises(ModelError, match=rf"^http://127.*data\[0\].{missing} is missing")
    with fake_server(answers) as server, error:
        make_policy(server.url)


def test_a_model_may_have_more_ids_than_its_tokenizer(tmp_path):
    padding = len(TOKENIZER) + 1
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": padding + 2}))
    with fake_server(vllm_answers(TOKENIZER, lambda asked, n: completion([padding, 2]), root=str(tmp_path))) as server:
        assert sample(make_policy(server.url))[0].token_ids.tolist() == [padding, 2]


def test_sglang_in_the_forms_of_its_documentation():
    params = SamplingParams(temperature=0.7, stop_token_ids=(7,), stop_strings=("X",), extra={"rid": "a"})
    turn = TurnRequest(PROMPT, params, 9, 2**40 + 1, (2,))
    assert SGLangFormat().request(turn, model="m", salt="1") == {
        "input_ids": PROMPT.tolist(),
        "return_logprob": True,
        "extra_key": "1",
        "rid": "a",
        "sampling_params": {
            "max_new_tokens": 9,
            "temperature": 0.7,
            "repetition_penalty": 1.0,
            "stop_token_ids": [2, 7],
            "stop": ["X"],
            "sampling_seed": 1,
            "skip_special_tokens": False,
        },
    }
    meta = {
        "output_token_logprobs": [[-0.5, 5, None], [-0.25, 2, None]],
        "finish_reason": {"type": "stop", "matched": 2},
    }
    sampled = SGLangFormat().sampled(Said("u", {"meta_info": meta}), 4)
    assert (sampled.token_ids.tolist(), sampled.logps.tolist()) == ([5, 2], [-0.5, -0.25])
    assert (sampled.finish_reason, sampled.weight_version) == (FinishReason.STOP, 4)
    with pytest.raises(InvalidConfigError, match=r"top_p=0\.9"):
        SGLangFormat().request(TurnRequest(PROMPT, SamplingParams(top_p=0.9), 9, 1, (2,)), model="m", salt="")


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (Answer(401, {"error": "no key"}), InvalidConfigError, "401: no key"),
        (Answer(404, {"error": {"message": "The model `m` does not exist."}}), ModelError, "does not exist"),
        (Answer(400, {"error": {"message": "maximum context length is 64"}}), ContextFullError, "64"),
        (Answer(400, {"error": {"message": "Token id 7 is out of vocabulary"}}), InvalidConfigError, "vocabulary"),
    ],
)
def test_a_request_that_would_be_refused_again_is_not_repeated(answer, error, match):
    with fake_server(vllm_answers(TOKENIZER, lambda asked, n: answer)) as server:
        policy = make_policy(server.url)
        with pytest.raises(error, match=match):
            sample(policy)
        assert len(server.paths("/v1/completions")) == 1


def test_a_busy_server_is_asked_again_when_it_says_and_is_not_taken_for_dead():
    answers = [Answer(429, "full", {"Retry-After": "0.3"}), completion([5, 2])]
    with fake_server(vllm_answers(TOKENIZER, lambda asked, n: answers[n])) as server:
        policy = make_policy(server.url)
        assert sample(policy)[0].token_ids.tolist() == [5, 2]
        first, second = (asked.at_s for asked in server.paths("/v1/completions"))
        assert second - first >= 0.29
        assert policy.router.is_well(0)
        assert len(server.paths("/v1/models")) == 2  # on construction, and for the new connection


def test_every_kind_of_outage_costs_retries(one, caplog):
    answers = [Answer(500, "broken"), Answer(drop=True), completion([5], finish_reason="abort"), Answer(503, "")]
    one.respond = vllm_answers(TOKENIZER, lambda asked, n: answers[n] if n < 4 else completion([5, 2]))
    policy = make_policy(one.url)
    with caplog.at_level(logging.WARNING):
        assert sample(policy)[0].token_ids.tolist() == [5, 2]
    assert len(one.paths("/v1/completions")) == 5
    messages = [record.getMessage() for record in caplog.records]
    assert [("failed" in m, "is back" in m) for m in messages] == [(True, False), (False, True)]


def test_turns_of_a_dead_server_go_to_the_other(one):
    with fake_server(vllm_answers(TOKENIZER, well)) as other:
        policy = make_policy([one.url, other.url])
        sample(policy, 4)
        assert [len(s.paths("/v1/completions")) for s in (one, other)] == [2, 2]
        other.respond = lambda asked, n: Answer(drop=True)
        assert len(sample(policy, 4)) == 4
        assert not policy.router.is_well(1)
    assert len(sample(policy, 4)) == 4


def test_when_all_attempts_fail_the_last_failure_is_said(one):
    policy = make_policy(one.url, max_retries=2)
    one.respond = lambda asked, n: Answer(503, {"error": "engine dead"})
    with pytest.raises(BridgeError, match=r"3 times.*503: engine dead"):
        sample(policy)


def test_a_server_that_hangs_is_noticed_by_its_health(one):
    policy = make_policy(one.url, max_retries=1, health_s=0.2)
    one.respond = lambda asked, n: Answer(delay_s=300.0)
    started = time.monotonic()
    with pytest.raises(BridgeError, match=r"stopped answering|ReadTimeout"):
        sample(policy)
    assert time.monotonic() - started < 100


def test_a_slow_turn_on_a_healthy_server_is_waited_for_up_to_the_limit():
    slow = Answer(body=completion([5, 2]).body, delay_s=1.5)
    with fake_server(vllm_answers(TOKENIZER, lambda asked, n: slow)) as server:
        policy = make_policy(server.url, health_s=1.0, max_retries=0)
        assert sample(policy)[0].token_ids.tolist() == [5, 2]
        assert server.paths("/health")
        policy.timeout_s = 0.2
        with pytest.raises(BridgeError, match=r"timeout_s=0\.2"):
            sample(policy)


def test_an_answer_of_a_process_that_was_not_asked_is_thrown_away(one):
    """Restarted between two turns, at the same address: its connection is new, and its weights are not known."""
    policy = make_policy(one.url)
    sample(policy)
    one.respond = vllm_answers(TOKENIZER, lambda asked, n: completion([7, 2]), process="2")
    assert sample(policy)[0].token_ids.tolist() == [7, 2]
    assert len(one.paths("/v1/completions")) == 3  # the second was thrown away
    assert policy._endpoints[0].process == "2"


def test_a_restarted_server_gets_its_weights_before_it_is_asked(one, tmp_path):
    path = save(tmp_path / "model")
    said = vllm_answers(TOKENIZER, well, root=str(path))
    one.respond = said
    policy = make_policy(one.url)
    policy.load_checkpoint(path, 3)
    (asked,) = one.paths("/collective_rpc")
    assert asked.body == {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    assert sample(policy)[0].weight_version == 3
    tag = one.paths("/update_weight_version")[-1].body["new_version"]
    assert one.paths("/v1/completions")[-1].body["cache_salt"] == tag
    one.respond = vllm_answers(TOKENIZER, well, process="2", root=str(path))
    assert sample(policy)[0].weight_version == 3
    paths = [asked.path for asked in one.asked]
    reloads = [i for i, path in enumerate(paths) if path == "/collective_rpc"]
    turns = [i for i, path in enumerate(paths) if path == "/v1/completions"]
    assert (len(reloads), len(turns)) == (2, 3)
    assert turns[1] < reloads[1] < turns[2]


def test_a_server_that_comes_back_as_another_model_is_left_out(one, tmp_path):
    with fake_server(vllm_answers(TOKENIZER, well)) as other:
        policy = make_policy([one.url, other.url], model="m")
        other.respond = vllm_answers(TOKENIZER, well, process="2", id="n", root="n")
        assert len(sample(policy, 4)) == 4
        assert not policy.router.is_well(1)
        one.respond = vllm_answers(TOKENIZER, well, process="2", id="n", root="n")
        with pytest.raises((ModelError, BridgeError), match=r"serves 'n' .*not 'm'"):
            policy.max_retries = 2
            sample(policy)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"logprobs_mode": "raw_logprobs"}, r"mode raw_logprobs.*\n?.*vllm serve m --logprobs-mode processed_logprobs"),
        ({"id": "n", "root": "n"}, r"serves 'n' .*not 'm'"),
    ],
)
def test_a_server_that_cannot_be_trained_on_is_refused_at_once(changes, match):
    with fake_server(vllm_answers(TOKENIZER, well, **changes)) as server, pytest.raises(ModelError, match=match):
        make_policy(server.url, model="m")


def test_a_server_without_developer_mode_is_probed_and_cannot_change_its_weights(tmp_path):
    path = save(tmp_path / "model")
    logps = itertools.cycle([0.0])

    def respond(asked, n):
        if asked.path in ("/server_info", "/weight_info"):
            return Answer(404, {"detail": "Not Found"})
        if asked.body and asked.body.get("top_k") == 1:
            return completion([5], logprobs={"token_logprobs": [next(logps)]})
        return vllm_answers(TOKENIZER, well, root=str(path))(asked, n)

    with fake_server(respond) as server:
        policy = make_policy(server.url)
        assert sample(policy)[0].token_ids.tolist() == [5, 6, 2]
        with pytest.raises(ModelError, match="VLLM_SERVER_DEV_MODE=1"):
            policy.load_checkpoint(path, 1)
        assert sample(policy)[0].weight_version == 0
        logps = itertools.cycle([-0.7])
        with pytest.raises(ModelError, match="processed_logprobs"):
            make_policy(server.url)


def test_servers_of_different_models_or_tokenizers_are_refused(one):
    another_model = fake_server(vllm_answers(TOKENIZER, well, id="n", root="n"))
    with another_model as other, pytest.raises(ModelError, match="Start it as"):
        make_policy([one.url, other.url])
    another_tokenizer = fake_server(vllm_answers(tiny_tokenizer(["Answer"] * 9, vocab_size=300), well))
    with another_tokenizer as other, pytest.raises(ModelError, match="tokenizer"):
        make_policy(other.url)


def test_a_key_that_is_refused_is_said_on_construction():
    denying = fake_server(lambda asked, n: Answer(401, {"error": "Unauthorized"}))
    with denying as server, pytest.raises(InvalidConfigError, match=r"401: Unauthorized\n.*api_key"):
        make_policy(server.url)


def test_a_server_that_is_not_there_is_waited_for_and_then_said():
    started = time.monotonic()
    with pytest.raises(BridgeError, match="ConnectError"):
        make_policy("http://127.0.0.1:9", connect_timeout_s=0.6)
    assert 0.6 <= time.monotonic() - started < 60


def test_wrong_settings_are_refused():
    with pytest.raises(InvalidConfigError, match=r"'127\.0\.0\.1:8000'"):
        make_policy("127.0.0.1:8000")
    with pytest.raises(InvalidConfigError, match="endpoints is empty"):
        make_policy([])
    with pytest.raises(InvalidConfigError, match="'vllm' or 'sglang'"):
        make_policy("http://x", server="trtllm")
    for settings in ({"max_concurrency": 0}, {"max_retries": -1}, {"timeout_s": 0}, {"health_s": 0}):
        with pytest.raises(InvalidConfigError, match=next(iter(settings))):
            make_policy("http://x", **settings)


def test_a_prompt_that_fills_the_context_is_not_sent(one):
    policy = make_policy(one.url)
    with pytest.raises(ContextFullError, match=r"64 tokens .* 64"):
        asyncio.run(policy.sample(np.zeros(64, np.int32), SamplingParams(), seed=0, session=""))
    assert one.paths("/v1/completions") == []


def test_turns_beyond_the_concurrency_wait(one):
    running, most, three = [], [], threading.Barrier(3, timeout=60)

    def respond(asked, n):
        running.append(1)
        most.append(len(running))
        three.wait()
        running.pop()
        return completion([5, 2])

    one.respond = vllm_answers(TOKENIZER, respond)
    assert len(sample(make_policy(one.url, max_concurrency=3), 12)) == 12
    assert max(most) == 3


# Checkpoints.


def save(folder, **settings):
    tiny_model(TOKENIZER, hidden_size=32, **settings).save_pretrained(folder)
    return folder


def test_shapes_are_read_without_the_weights_and_compared(tmp_path):
    path = save(tmp_path / "model")
    shapes = tensor_shapes(path)
    expected = {name: tuple(value.shape) for name, value in tiny_model(TOKENIZER, hidden_size=32).named_parameters()}
    assert shapes == expected
    check_same_tensors(shapes, expected, "here")
    check_same_tensors({**shapes, "lm_head.weight": (1,)}, expected, "here")  # tied: left out by some
    with pytest.raises(ModelError, match=r"1 missing: \['model\.norm\.weight'\]"):
        check_same_tensors({n: s for n, s in shapes.items() if n != "model.norm.weight"}, expected, "here")
    with pytest.raises(ModelError, match=r"1 unknown: \['lora_A'\]"):
        check_same_tensors({**shapes, "lora_A": (1,)}, expected, "here")
    with pytest.raises(ModelError, match=r"model\.norm\.weight .*\(7,\).*\(32,\)"):
        check_same_tensors({**shapes, "model.norm.weight": (7,)}, expected, "here")


def test_weights_that_do_not_fit_never_reach_a_server(one, tmp_path):
    path = save(tmp_path / "model")
    one.respond = vllm_answers(TOKENIZER, well, root=str(path))
    policy = make_policy(one.url, exchange_dir=tmp_path / "exchange")
    with pytest.raises(ModelError, match="Nothing was changed"):
        policy.update_weights([("model.norm.weight", torch.ones(32))], 1)
    assert one.paths("/collective_rpc") == one.paths("/pause") == []
    assert list((tmp_path / "exchange").iterdir()) == []
    assert sample(policy)[0].weight_version == 0


def test_a_model_that_is_not_here_cannot_be_compared_and_is_not_updated(one, tmp_path):
    path = save(tmp_path / "model")
    policy = make_policy(one.url)  # started on "m"
    with pytest.raises(ModelError, match=r"'m' .*model="):
        policy.load_checkpoint(path, 1)
    assert one.paths("/collective_rpc") == []
    assert find_checkpoint(str(path)) == path


def test_a_written_checkpoint_is_whole_or_not_there(tmp_path):
    model = tiny_model(TOKENIZER, hidden_size=32)
    like = save(tmp_path / "model")
    named = [*model.named_parameters(), ("lm_head.weight", model.lm_head.weight)]  # tied: the same memory
    write_checkpoint(named, tmp_path / "new", like)
    assert tensor_shapes(tmp_path / "new") == tensor_shapes(like)
    assert (tmp_path / "new" / "config.json").exists()
    with pytest.raises(AttributeError):
        write_checkpoint([("x", None)], tmp_path / "broken", like)
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("content", [b"", b"\x05\x00\x00\x00\x00\x00\x00\x00[1,2]", b"\xff" * 40])
def test_a_broken_file_is_one_readable_error(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="safetensors"):
        tensor_shapes(tmp_path)
