"""Decisions about servers: routing, health, waits, rates. Times are given, never measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError
from llm_envs.policies.vllm.http import RetryableError, error_of, is_local
from llm_envs.policies.vllm.routing import Backoff, RateLimit, Router, retry_after_s


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (401, "", InvalidConfigError),
        (403, "", InvalidConfigError),
        (404, "The model `x` does not exist.", ModelError),
        (400, "This model's maximum context length is 256 tokens.", ContextFullError),
        (400, '{"error": {"code": "context_length_exceeded"}}', ContextFullError),
        (400, "Token id 7 is out of vocabulary", InvalidConfigError),
        (422, "field required", InvalidConfigError),
        (408, "", RetryableError),
        (429, "", RetryableError),
        (500, "maximum context length", RetryableError),
        (503, "", RetryableError),
        (301, "", InvalidConfigError),
    ],
)
def test_what_an_answer_means(status, text, kind):
    assert type(error_of(status, text)) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({}, None),
    ],
)
def test_what_a_server_asks_for(headers, seconds):
    assert retry_after_s(headers) == seconds


def test_waits_double_up_to_a_limit_and_jitter_shortens_them():
    plain = Backoff(first_s=0.5, max_s=3.0, jitter=0.0)
    assert [plain.delay_s(attempt, seed=1) for attempt in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert plain.delay_s(10_000, seed=1) == 3.0
    jittered = Backoff(first_s=0.5, max_s=3.0, jitter=0.5)
    waits = [jittered.delay_s(1, seed) for seed in range(200)]
    assert 0.5 <= min(waits) < 0.55
    assert 0.95 < max(waits) <= 1.0
    assert jittered.delay_s(1, seed=7) == jittered.delay_s(1, seed=7)


def test_what_the_server_asks_for_is_waited_in_full():
    waits = [Backoff(first_s=0.5, max_s=3.0).delay_s(0, seed, asked_s=40.0) for seed in range(50)]
    assert min(waits) >= 40.0
    assert max(waits) <= 40.25
    assert len(set(waits)) > 40


def test_settings_out_of_range_are_refused():
    for settings in ({"first_s": -1}, {"first_s": 20, "max_s": 10}, {"factor": 0.5}, {"jitter": 2}):
        with pytest.raises(InvalidConfigError, match="Backoff"):
            Backoff(**settings)
    with pytest.raises(InvalidConfigError, match=r"requests_per_minute .*0"):
        RateLimit(0)
    with pytest.raises(InvalidConfigError, match="endpoints is empty"):
        Router(0)


def test_a_rate_lets_so_many_begin_in_any_minute():
    limit = RateLimit(2)
    assert [limit.reserve(t) for t in (0.0, 10.0)] == [0.0, 0.0]
    assert limit.reserve(11.0) == 49.0  # a minute after the first
    assert limit.reserve(12.0) == 58.0  # a minute after the second
    assert limit.reserve(200.0) == 0.0


def test_a_rate_holds_all_back_when_the_server_says_so():
    limit = RateLimit(None)
    assert limit.reserve(5.0) == 0.0
    limit.hold(9.0)
    limit.hold(8.0)
    assert limit.reserve(5.0) == 4.0
    assert limit.reserve(9.5) == 0.0


@given(st.integers(1, 5), st.lists(st.floats(0, 100, allow_nan=False), min_size=1, max_size=40))
def test_no_minute_has_more_than_the_rate(per_minute, gaps):
    limit, now, starts = RateLimit(per_minute), 0.0, []
    for gap in gaps:
        now += gap
        starts.append(now + limit.reserve(now))
    assert starts == sorted(starts)
    for first, later in zip(starts, starts[per_minute:], strict=False):
        assert later - first >= 60.0 - 1e-6


def test_sessions_stay_and_new_ones_go_where_least_runs():
    router = Router(3)
    assert [router.pick(s, 0.0) for s in ("a", "b", "c", "d")] == [0, 1, 2, 0]
    assert router.pick("b", 0.0) == 1
    router.done(2)
    assert router.pick("e", 0.0) == 2
    assert [router.running(i) for i in range(3)] == [2, 2, 1]
    for session in "abcde":
        assert router.pick(session, 0.0) == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 2}[session]


def test_where_as_much_runs_the_one_with_fewer_sessions_is_taken():
    router = Router(2)
    for session in ("a", "b", "c"):
        router.done(router.pick(session, 0.0))
    assert router.pick("d", 0.0) == 1  # a and c are at 0, b at 1


def test_turns_without_a_session_are_not_sticky():
    router = Router(2)
    assert [router.pick("", 0.0) for _ in range(4)] == [0, 1, 0, 1]


def test_a_failed_endpoint_is_left_alone_and_its_sessions_move_for_good():
    router = Router(2)
    assert router.pick("a", 0.0) == 0
    router.failed(0, 10.0)
    router.done(0)
    assert not router.is_well(0)
    assert router.pick("a", 10.5) == 1
    assert router.pick("b", 10.9) == 1
    assert router.pick("c", 11.1) == 0  # a second has passed: it may be tried
    router.succeeded(0)
    assert router.is_well(0)
    assert router.pick("a", 12.0) == 1


def test_failures_in_a_row_double_the_time_and_those_of_one_moment_count_once():
    router = Router(1, Backoff(first_s=1.0, max_s=5.0, jitter=0.0))
    router.failed(0, 0.0)
    router.failed(0, 0.0)
    router.failed(0, 0.5)
    assert router.pick("a", 0.9) is None
    assert router.wait_s(0.25) == 0.75
    router.failed(0, 1.0)
    assert router.wait_s(1.0) == 2.0
    router.failed(0, 3.0)
    router.failed(0, 7.0)
    assert router.wait_s(7.0) == 5.0
    router.succeeded(0)
    router.failed(0, 20.0)
    assert router.wait_s(20.0) == 1.0


def test_a_session_that_is_forgotten_goes_where_least_runs():
    router = Router(2)
    assert router.pick("a", 0.0) == 0
    router.forget("a")
    router.forget("never seen")
    assert router.pick("a", 0.0) == 1


def test_sessions_beyond_the_limit_are_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr("llm_envs.policies.vllm.routing._MAX_SESSIONS", 2)
    router = Router(2)
    for session in ("a", "b", "c"):
        router.done(router.pick(session, 0.0))
    assert set(router._places) == {"b", "c"}
    assert [endpoint.sessions for endpoint in router._endpoints] == [1, 1]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000/v1", True),
        ("http://[::1]:80", True),
        ("https://api.example.org/v1", False),
        ("http://10.0.0.7:8000", False),
        ("http://127.example.org", False),
    ],
)
def test_a_proxy_is_not_for_servers_of_this_machine(url, expected):
    assert is_local(url) is expected
