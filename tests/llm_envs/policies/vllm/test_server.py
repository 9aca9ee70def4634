"""The policy on servers: two real `vllm serve` processes side by side, and one of them dying."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tool_model import tool_folder

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from llm_envs.chat import ChatCodec  # noqa: E402  (after the skip)
from llm_envs.cli.main import main  # noqa: E402
from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError  # noqa: E402
from llm_envs.policies import ChatAPIPolicy, VLLMServerPolicy, start_servers  # noqa: E402
from llm_envs.policies.base import TokenPolicy, UpdatablePolicy  # noqa: E402
from llm_envs.policies.inference import load_model, token_logps  # noqa: E402
from llm_envs.policies.inference.loading import load_tokenizer  # noqa: E402
from llm_envs.policies.vllm.control import VLLMControl, check_facts, check_updatable  # noqa: E402
from llm_envs.policies.vllm.deltas import write_delta  # noqa: E402
from llm_envs.policies.vllm.launcher import is_healthy  # noqa: E402
from llm_envs.rollout import Collector, RolloutLimits, read_trajectories  # noqa: E402
from llm_envs.tiny_model import tiny_model, tiny_tokenizer  # noqa: E402
from llm_envs.types import FinishReason, Message, SamplingParams  # noqa: E402

# Far from what the model has been taught: it says many things, and few of them end early.
PROMPT = np.arange(200, 226, dtype=np.int32)
# Eager, and without the small batch shapes that are warmed up: the start is what these tests cost.
ARGS = ("--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "32", "--enforce-eager")
# The model calls the calculator as it has been taught, and its template is one that vLLM's own parser of calls knows.
CHAT_ARGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
# vLLM's CPU build puts the model into a third process, which imports everything again. The server that the command
# starts has it; these have the model beside the engine, as on a GPU.
LIGHT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
folder = pytest.fixture(scope="module")(tool_folder)


def living(groups):
    """The processes of these groups that have not ended (one that its parent never asked about remains as a zombie)."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stats.append(path.read_text().rpartition(")")[2].split())
    return [stat for stat in stats if int(stat[2]) in groups and stat[0] != "Z"]


@pytest.fixture(scope="module")
def servers(folder, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    options = {"args": ARGS + CHAT_ARGS, "env": LIGHT, "log_dir": logs, "start_timeout_s": 1200, "max_restarts": 1}
    with start_servers(folder, 2, **options) as servers:
        yield servers
    assert not any(is_healthy(url, 1.0) for url in servers.urls)
    assert living(servers.pids) == []


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder)


@pytest.fixture
def policy(servers, folder, tokenizer):
    policy = VLLMServerPolicy(servers.urls, tokenizer, model=folder, connect_timeout_s=60, max_concurrency=32)
    yield policy
    asyncio.run(policy.aclose())


def sample(policy, n, **params):
    settings = SamplingParams(**{"max_new_tokens": 12, **params})

    async def run():
        asked = [policy.sample(PROMPT[i % 3 :], settings, seed=i, session=f"episode {i}") for i in range(n)]
        return await asyncio.gather(*asked)

    return asyncio.run(run())


def cut_turn(policy, **params):
    """Return the first turn that its limit ends, and its number: which seeds end a turn depends on vLLM's version."""
    return next(
        (member, turn)
        for member, turn in enumerate(sample(policy, 20, **params))
        if turn.finish_reason is FinishReason.LENGTH
    )


def largest_gap(model, sampled, temperature=1.0):
    ids = [np.concatenate([PROMPT[i % 3 :], s.token_ids]) for i, s in enumerate(sampled)]
    scored = token_logps(model, ids, temperature=temperature)
    return max(np.abs(a[-len(s.logps) :] - s.logps).max() for a, s in zip(scored, sampled, strict=True))


def metric(url, name):
    control = VLLMControl({})
    text = control._client.get(f"{url}/metrics").text
    control.close()
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_preemptions_are_read_from_every_servers_metrics(policy, servers, monkeypatch):
    assert asyncio.run(policy.count_preemptions()) == 0
    pages = []
    get = policy._clients.get

    async def get_more(*args):
        pages.append(await get(*args))
        return pages[-1].replace(metric_line(pages[-1]), metric_line(pages[-1]).replace(" 0.0", f" {len(pages)}.0"))

    monkeypatch.setattr(policy._clients, "get", get_more)
    assert asyncio.run(policy.count_preemptions()) == 1 + 2
    assert len(pages) == len(servers.urls) == 2


def metric_line(page):
    (line,) = [line for line in page.splitlines() if line.startswith("vllm:num_preemptions_total{")]
    return line


def test_it_is_a_token_policy(policy):
    assert isinstance(policy, TokenPolicy)
    assert isinstance(policy, UpdatablePolicy)
    assert policy.max_model_len == 512


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_agree_with_transformers_on_both_servers(policy, folder, temperature):
    picked = []
    pick = policy.router.pick
    policy.router.pick = lambda *args: picked.append(pick(*args)) or picked[-1]
    sampled = sample(policy, 16, temperature=temperature)
    assert sorted(picked) == [0] * 8 + [1] * 8
    assert largest_gap(load_model(folder, dtype=torch.float32), sampled, temperature) < 1e-4
    assert all(len(s.token_ids) for s in sampled)


def test_a_seed_gives_the_same_turn_on_either_server(servers, tokenizer, policy):
    crowd = sample(policy, 16)
    for url in servers.urls:
        one = VLLMServerPolicy(url, tokenizer)
        alone = sample(one, 2)
        assert [s.token_ids.tolist() for s in alone] == [s.token_ids.tolist() for s in crowd[:2]]
        asyncio.run(one.aclose())
    assert len({tuple(s.token_ids.tolist()) for s in crowd}) > 5


def test_stop_tokens_are_the_last_sampled_ids(policy):
    member, free = cut_turn(policy, max_new_tokens=5)
    ids = free.token_ids.tolist()
    assert len(ids) == 5
    stopped = sample(policy, member + 1, stop_token_ids=(ids[3],))[member]
    assert stopped.token_ids.tolist() == ids[: ids.index(ids[3]) + 1]
    assert stopped.finish_reason is FinishReason.STOP
    prompt = policy.codec.encode_prompt([Message("user", "Hi"), Message("assistant", "4"), Message("user", "1+1?")])
    turn = asyncio.run(policy.sample(prompt, SamplingParams(max_new_tokens=200), seed=1, session=""))
    assert turn.finish_reason is FinishReason.STOP
    assert turn.token_ids[-1] == policy.codec.end_of_turn_id


def test_stop_strings_end_a_turn(policy):
    member, free = cut_turn(policy)
    text = policy.codec.decode(free.token_ids[3:5])
    stopped = sample(policy, member + 1, stop_strings=(text,))[member]
    assert stopped.finish_reason is FinishReason.STOP_STRING
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: len(stopped.token_ids)]
    assert len(stopped.token_ids) <= 5


def test_a_full_context_is_refused_and_a_nearly_full_one_is_cut(policy):
    with pytest.raises(ContextFullError, match="512"):
        asyncio.run(policy.sample(np.full(512, 5, np.int32), SamplingParams(), seed=0, session=""))
    prompt = np.full(508, 5, np.int32)
    short = asyncio.run(policy.sample(prompt, SamplingParams(max_new_tokens=50), seed=0, session=""))
    assert 1 <= len(short.token_ids) <= 4


def test_a_request_that_the_server_refuses_fails_alone(policy):
    async def run():
        outside = np.array([4, 10_000_000], dtype=np.int32)  # no such token
        requests = [policy.sample(p, SamplingParams(max_new_tokens=4), seed=1, session="") for p in (outside, PROMPT)]
        return await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), timeout=300)

    refused, answered = asyncio.run(run())
    assert isinstance(refused, InvalidConfigError)
    assert "out of vocabulary" in str(refused)
    assert len(answered.token_ids) >= 1
    assert policy.router.is_well(0)


def test_cancelling_aborts_the_requests_at_the_servers(policy, servers):
    async def run():
        settings = SamplingParams(max_new_tokens=480, extra={"ignore_eos": True, "stop_token_ids": []})
        tasks = [asyncio.create_task(policy.sample(PROMPT, settings, seed=i, session=str(i))) for i in range(8)]
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        deadline = time.monotonic() + 1200
        while any(metric(url, "vllm:num_requests_running") for url in servers.urls) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return {type(answer) for answer in answers}

    def n_sampled():
        return sum(metric(url, "vllm:generation_tokens_total") for url in servers.urls)

    before = n_sampled()
    assert asyncio.run(run()) == {asyncio.CancelledError}
    assert sum(metric(url, "vllm:num_requests_running") for url in servers.urls) == 0
    assert n_sampled() - before < 8 * 480
    assert [policy.router.running(i) for i in range(2)] == [0, 0]


def test_the_wrong_model_tokenizer_or_mode_is_refused_with_the_right_command(servers, tokenizer, tmp_path):
    with pytest.raises(ModelError, match=r"'/other'.*\n?.*/other --logprobs-mode processed_logprobs"):
        VLLMServerPolicy(servers.urls, tokenizer, model="/other")
    with pytest.raises(ModelError, match="tokenizer"):
        VLLMServerPolicy(servers.urls, tiny_tokenizer())
    control = VLLMControl({})
    facts = control.facts(servers.urls[0])
    silent = replace(facts, logprobs_mode=None)
    logps = control.greedy_logps(facts)
    control.close()
    assert facts.logprobs_mode == "processed_logprobs"
    assert 3 <= len(logps) <= 12 and set(logps) == {0.0}
    check_facts(silent, None, greedy_logps=logps)
    with pytest.raises(ModelError, match="raw_logprobs"):
        check_facts(silent, None, greedy_logps=[0.0, -0.3])
    with pytest.raises(ModelError, match="mode raw_logprobs"):
        check_facts(replace(facts, logprobs_mode="raw_logprobs"), None)
    with pytest.raises(ModelError, match="VLLM_SERVER_DEV_MODE=1"):
        check_updatable(replace(facts, is_dev=False))
    with pytest.raises(ModelError, match=r"--worker-extension-cls llm_envs\.policies\.vllm\.worker\.WorkerExtension"):
        check_updatable(replace(facts, extension=None))


def test_weights_after_several_updates_are_the_ones_that_sample(policy, folder):
    """On both servers, a tied output layer too; the prefix cache of earlier weights is not used."""
    model = load_model(folder, dtype=torch.float32)
    assert model.config.tie_word_embeddings
    original = {name: value.clone() for name, value in model.named_parameters()}
    for version in (1, 2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(version)))
        policy.update_weights(model.named_parameters(), version)
        sampled = sample(policy, 12)
        assert largest_gap(model, sampled) < 1e-4
        assert {s.weight_version for s in sampled} == {version}
    policy.update_weights(original.items(), 3)
    assert largest_gap(load_model(folder, dtype=torch.float32), sample(policy, 12)) < 1e-4
    assert len(list(policy._exchange._folder.iterdir())) == 1


def change_a_little(model, seed):
    """Change one element in a hundred of each tensor, as a step at a small learning rate does in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            places = torch.rand(parameter.shape, generator=generator) < 0.01
            parameter[places] += 0.1 * torch.randn(int(places.sum()), generator=generator)


@pytest.fixture
def by_delta(servers, folder, tokenizer):
    policy = VLLMServerPolicy(servers.urls, tokenizer, model=folder, connect_timeout_s=60, transport="delta")
    calls, load = [], policy._control._load

    def call(facts, checkpoint):
        calls.append("deltas" if checkpoint.deltas else "whole")
        return load(facts, checkpoint)

    policy._control._load = call
    policy.calls = calls
    yield policy
    policy.load_checkpoint(folder, 0)
    asyncio.run(policy.aclose())


def test_fifty_deltas_are_bit_equal_to_the_whole(by_delta, folder, tmp_path):
    policy, model = by_delta, load_model(folder, dtype=torch.float32)
    for version in range(1, 52):
        change_a_little(model, version)
        policy.update_weights(model.named_parameters(), version)
        if version in (1, 2, 51):
            assert largest_gap(model, sample(policy, 12)) < 1e-4
    n_whole = policy.calls.count("whole") // 2
    assert policy.calls.count("deltas") // 2 == 51 - n_whole >= 45  # a new whole one now and then, on two servers
    found = sample(policy, 12)
    model.save_pretrained(tmp_path)
    policy.load_checkpoint(tmp_path, 52)
    for one, other in zip(found, sample(policy, 12), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logps.tobytes() == other.logps.tobytes()


def test_a_torn_delta_is_never_loaded_and_the_whole_comes_instead(by_delta, folder, monkeypatch):
    """Twenty files that were cut at any place, as by a writer that is killed; and none at all."""
    policy, model = by_delta, load_model(folder, dtype=torch.float32)
    policy.update_weights(model.named_parameters(), 1)
    random = np.random.default_rng(0)

    def torn(data, path, tag):
        delta = write_delta(data, path, tag)
        n = int(random.integers(0, len(data)))
        path.write_bytes(data[:n]) if n % 5 else path.unlink()
        return delta

    monkeypatch.setattr("llm_envs.policies.vllm.exchange.write_delta", torn)
    for version in range(2, 22):
        change_a_little(model, version)
        policy.calls.clear()
        policy.update_weights(model.named_parameters(), version)
        assert sorted(policy.calls) in (["deltas"] * 2 + ["whole"] * 2, ["whole"] * 2)
        sampled = sample(policy, 4)
        assert {s.weight_version for s in sampled} == {version}
        assert largest_gap(model, sampled) < 1e-4
    monkeypatch.undo()
    change_a_little(model, 99)
    policy.update_weights(model.named_parameters(), 99)
    assert policy.calls[-2:] == ["deltas", "deltas"]
    assert largest_gap(model, sample(policy, 12)) < 1e-4


def test_a_delta_whose_answer_was_lost_is_applied_once(by_delta, folder):
    """The worker has it, and the server's tag is still the one before: it is sent again."""
    policy, model = by_delta, load_model(folder, dtype=torch.float32)
    policy.update_weights(model.named_parameters(), 1)
    before = {endpoint.url: endpoint.facts.tag for endpoint in policy._endpoints}
    change_a_little(model, 1)
    policy.update_weights(model.named_parameters(), 2)
    for endpoint in policy._endpoints:
        policy._control.ask(f"{endpoint.url}/update_weight_version", {"new_version": before[endpoint.url]})
        endpoint.is_trusted = False
    policy.calls.clear()
    sampled = sample(policy, 12)
    assert policy.calls == ["deltas", "deltas"]
    assert {s.weight_version for s in sampled} == {2}
    assert largest_gap(model, sampled) < 1e-4


PAUSES_S = (0.1, 0.2, 0.4, 0.05)
"""Tried in turn: on a busy machine a turn may begin late, and end before the update."""


def test_turns_under_way_survive_an_update_and_each_token_carries_its_version(policy, folder):
    settings = SamplingParams(max_new_tokens=400, extra={"ignore_eos": True, "stop_token_ids": []})

    async def run(pause_s):
        tasks = [asyncio.create_task(policy.sample(PROMPT, settings, seed=i, session=str(i))) for i in range(4)]
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(policy.load_checkpoint, folder, 7)
        later = policy.sample(PROMPT, SamplingParams(max_new_tokens=4), seed=0, session="0")
        return await asyncio.gather(*tasks, later)

    for pause_s in PAUSES_S:
        asyncio.run(asyncio.to_thread(policy.load_checkpoint, folder, 0))
        *began, later = asyncio.run(run(pause_s))
        assert [(len(s.token_ids), s.weight_version) for s in began] == [(400, 0)] * 4
        if all(len(turn.versions) == 2 for turn in began):
            break
    for turn in began:
        assert [span.version for span in turn.versions] == [0, 7]
        assert turn.versions[0].start == 0 < turn.versions[0].stop == turn.versions[1].start < 400
    assert later.weight_version == 7 and later.versions == ()


def test_a_turn_through_two_updates_has_three_versions_whoever_sends_them(servers, tokenizer, policy, folder):
    """The second client only follows, as the second process of a training does."""
    other = VLLMServerPolicy(servers.urls, tokenizer, model=folder, connect_timeout_s=60)
    settings = SamplingParams(max_new_tokens=400, extra={"ignore_eos": True, "stop_token_ids": []})
    model = load_model(folder, dtype=torch.float32)

    async def run(pause_s, versions):
        turn = asyncio.create_task(other.sample(PROMPT, settings, seed=1, session="1"))
        for version in versions:
            await asyncio.sleep(pause_s)
            change_a_little(model, version)
            checkpoint = policy.prepare(model.named_parameters(), version)
            other.follow(checkpoint)
            await asyncio.to_thread(policy.send, checkpoint)
        return await turn

    for first, pause_s in zip(range(0, 20, 2), PAUSES_S, strict=False):
        turn = asyncio.run(run(pause_s, (first + 1, first + 2)))
        if len(turn.versions) == 3:
            break
    assert [span.version for span in turn.versions] == [first, first + 1, first + 2]
    assert [span.start for span in turn.versions[1:]] == [span.stop for span in turn.versions[:-1]]
    assert turn.versions[-1].stop == 400
    asyncio.run(other.aclose())
    policy.update_weights(load_model(folder, dtype=torch.float32).named_parameters(), 0)


def test_weights_that_do_not_fit_are_refused_before_any_server_hears_of_them(policy, folder, tmp_path):
    other = tiny_model(tiny_tokenizer(), hidden_size=32)
    with pytest.raises(ModelError, match=r"has shape .*Nothing"):
        policy.update_weights(other.named_parameters(), 9)
    with pytest.raises(ModelError, match=r"\['lm_head\.bias'|\['model"):
        policy.update_weights([("model.norm.weight", torch.ones(64))], 9)
    with pytest.raises(ModelError, match=r"no \*.safetensors"):
        policy.load_checkpoint(tmp_path, 9)
    assert {s.weight_version for s in sample(policy, 4)} == {0}
    assert largest_gap(load_model(folder, dtype=torch.float32), sample(policy, 4)) < 1e-4


def test_a_second_trainer_is_noticed(policy, servers, tokenizer, folder):
    sample(policy, 4)
    other = VLLMServerPolicy(servers.urls, tokenizer)
    other.load_checkpoint(folder, 1)
    for endpoint in policy._endpoints:
        endpoint.is_trusted = False  # as after a failure
    with pytest.raises(ModelError, match="another client"):
        sample(policy, 2)
    asyncio.run(other.aclose())


def test_chat_through_the_same_servers_calls_the_calculator(servers, folder):
    policy = ChatAPIPolicy(servers.urls[0], str(folder), max_concurrency=4)
    assert not isinstance(policy, TokenPolicy)
    with Collector(
        "llm/Calculator-v0",
        policy,
        env_kwargs={"difficulty": "easy"},
        sampling=SamplingParams(max_new_tokens=100, temperature=0.0),
        limits=RolloutLimits(max_turns=4),
        progress=False,
    ) as collector:
        played = [t for group in collector.collect(6) for t in group]
        collector._runner().run(policy.aclose)
    assert [t.error for t in played] == [None] * 6
    calls = [call for t in played for m in t.messages for call in m.tool_calls]
    assert calls
    assert all(call.id for call in calls)
    answered = {m.tool_call_id for t in played for m in t.messages if m.role == "tool"}
    assert answered <= {call.id for call in calls}
    assert any(result.success for t in played for result in t.tool_results)


def test_the_command_plays_on_running_servers_by_tokens_and_by_chat(servers, folder, tmp_path, capsys):
    command = ["collect", "llm/Calculator-v0", "-n", "6", "--difficulty", "easy", "--model", str(folder)]
    where = [option for url in servers.urls for option in ("--url", url)]
    budget = ["--max-turn-tokens", "60", "--max-turns", "3"]
    assert main([*command, *where, *budget, "--out", str(tmp_path / "tokens")]) == 0
    played = read_trajectories(tmp_path / "tokens")
    assert [t.status for t in played] == ["ok"] * 6
    assert all(np.isfinite(row.logps[row.mask]).all() and row.mask.any() for t in played for row in t.rows)
    assert any(result.success for t in played for result in t.tool_results)
    chat = ["--engine", "api", "--url", servers.urls[0], "--out", str(tmp_path / "chat"), "--tokenizer", str(folder)]
    assert main([*command, *budget, *chat]) == 0
    played = read_trajectories(tmp_path / "chat")
    assert [t.status for t in played] == ["ok"] * 6
    assert all(np.isnan(row.logps[row.mask]).all() for t in played for row in t.rows)  # nobody knows what was sampled
    assert main(["play", "llm/Calculator-v0", "--model", str(folder), *where, "--max-turn-tokens", "20"]) == 0
    assert "llm/Calculator-v0: success" in capsys.readouterr().out


def test_servers_that_the_command_starts_play_and_end_with_it(servers, folder, tmp_path):
    """Ctrl-C in the middle of a run: what was finished is there, its servers have ended, ours go on."""
    run = tmp_path / "run"
    command = ["collect", "llm/Calculator-v0", "-n", "100000", "--out", str(run), "--model", str(folder)]
    options = ["--serve", "1", f"--server-args={' '.join(ARGS)}", "--max-turns", "2", "--max-turn-tokens", "20"]
    errors = (tmp_path / "errors").open("w+")
    process = subprocess.Popen([sys.executable, "-m", "llm_envs.cli.main", *command, *options], stderr=errors)

    def wait_until(holds):
        deadline = time.monotonic() + 1200
        while not holds():
            said = Path(errors.name).read_text()
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.1)

    log = run / "log-00000.jsonl"
    wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 5)
    (url,) = re.findall(r"they answer at (http://127.0.0.1:\d+)\n", Path(errors.name).read_text())
    groups = {os.getpgid(pid) for pid in processes_at(url.rpartition(":")[2])}
    assert len(groups) == 1
    assert living(groups)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    errors.close()
    error = Path(errors.name).read_text()
    assert "Traceback" not in error
    played = read_trajectories(run)
    assert f"{len(played)} of 100000 episodes are finished and saved" in error.splitlines()[-1]
    assert {t.status for t in played} == {"ok"}
    assert not is_healthy(url, 1.0)
    assert living(groups) == []
    assert all(map(is_healthy, servers.urls))


def processes_at(port):
    """The processes that were told to listen at a port."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"--port\0{port}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_a_server_that_is_killed_in_mid_run_costs_no_group_and_gets_its_weights_back(policy, servers, folder):
    """Last: one server dies, is started again by its owner, and is given the weights that it had."""
    policy.load_checkpoint(folder, 5)
    killed = servers.pids[1]
    finished = []

    def kill_after_a_few(trajectory):
        finished.append(trajectory)
        if len(finished) == 8:
            os.killpg(killed, signal.SIGKILL)

    with Collector(
        "llm/Calculator-v0",
        policy,
        codec=ChatCodec(policy.tokenizer),
        env_kwargs={"difficulty": "easy"},
        sampling=SamplingParams(max_new_tokens=60),
        limits=RolloutLimits(max_turns=4),
        max_concurrency=8,
        max_retries=0,
        progress=False,
        on_trajectory=kill_after_a_few,
    ) as collector:
        groups = collector.collect(16, 4)
        assert [len(group.scored) for group in groups] == [4] * 16
        assert not policy.router.is_well(1)
        deadline = time.monotonic() + 1200
        while not is_healthy(servers.urls[1], 2.0):
            assert time.monotonic() < deadline, servers.logs[1].read_text()[-2000:]
            time.sleep(0.5)
        time.sleep(policy.router.wait_s(time.monotonic()))
        n_turns = 0
        while not policy.router.is_well(1):
            assert time.monotonic() < deadline
            groups = collector.collect(4, 4)
            n_turns += 1
        assert {v.version for g in groups for t in g for turn in t.turns for v in turn.weight_versions} == {5}
    assert servers.pids[1] != killed
    assert policy._endpoints[1].facts.tag == policy.checkpoint.tag
    assert largest_gap(load_model(folder, dtype=torch.float32), sample(policy, 8)) < 1e-4
    assert threading.active_count() < 60
