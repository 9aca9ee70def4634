"""The named benchmarks as leaderboards play them: every row of the test split once, few-shot, greedy or sampled.

A protocol describes how a benchmark is played, after a published evaluation. `standard_suite` makes the suite
of a protocol from the data that the user names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.suite import Suite, SuiteEntry, Thresholds
from llm_envs.types import SamplingParams
from llm_envs.wrappers import FewShot

__all__ = ["PROTOCOLS", "Protocol", "changed_sampling", "describe_protocol", "parse_data", "standard_suite"]

HUB, SAMPLE, PACKAGE = "hub", "sample", "package"


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a leaderboard plays a benchmark."""

    env_id: str
    source: str
    """The published evaluation that is followed."""
    hub: str | None
    """Name of its data on the hub; None: they are in the benchmark's package."""
    max_turn_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    shots: int = 0
    """Solved problems of the train split before the question, as earlier turns."""
    samples: int = 1
    """Episodes of each row."""
    has_sample: bool = True
    """Whether there is a sample in its layout."""
    k: int = 1
    """Largest k of pass@k and pass^k that is published."""
    levels: Sequence[str] = ()
    """Levels to play, each by itself; empty: there is one."""
    splits: Sequence[str] = ("test",)
    """Splits whose rows are played, in order."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the environment."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """Argument -> what differs from the published evaluation unless it is given."""

    @property
    def sampling(self) -> SamplingParams:
        """The sampling of a turn."""
        return SamplingParams(self.max_turn_tokens, self.temperature, self.top_p)


_HARNESS, _LLAMA = "lm-evaluation-harness", "Llama 3, arXiv:2407.21783"
_SINGLE = ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple")
_LIVE = ("simple", "multiple", "parallel", "parallel_multiple", "irrelevance", "relevance")
_TURNS = ("base", "miss_func", "miss_param", "long_context")
PROTOCOLS: Mapping[str, Protocol] = {
    "GSM8K": Protocol("llm/GSM8K-v0", f"{_HARNESS}, gsm8k", "openai/gsm8k", 512, shots=5),
    "MATH500": Protocol("llm/MATH500-v0", "Qwen2.5-Math, arXiv:2409.12122", "HuggingFaceH4/MATH-500", 2_048),
    "AIME": Protocol(
        "llm/AIME-v0", "DeepSeek-R1, arXiv:2501.12948", "Maxwell-Jia/AIME_2024", 32_768, 0.6, 0.95, samples=64
    ),
    "MMLU": Protocol("llm/MMLU-v0", f"{_LLAMA}, in the words of simple-evals", "cais/mmlu", 2_048),
    "GPQA": Protocol("llm/GPQA-v0", f"{_LLAMA}, in the words of simple-evals", "Idavidrein/gpqa", 2_048),
    "HotpotQA": Protocol("llm/HotpotQA-v0", "Search-R1, arXiv:2503.09516", "hotpotqa/hotpot_qa", 512),
    "HumanEval": Protocol("llm/HumanEval-v0", _LLAMA, "openai/openai_humaneval", 1_024),
    "MBPP": Protocol("llm/MBPP-v0", f"{_HARNESS}, mbpp", "google-research-datasets/mbpp", 512, shots=3),
    "IFEval": Protocol("llm/IFEval-v0", f"{_HARNESS}, ifeval", "google/IFEval", 1_280, has_sample=False),
    "BFCL": Protocol(
        "llm/BFCL-v0",
        "bfcl-eval",
        None,
        4_096,
        0.001,
        has_sample=False,
        levels=(
            *(*_SINGLE, "irrelevance"),
            *(f"live_{name}" for name in _LIVE),
            *(f"multi_turn_{name}" for name in _TURNS),
        ),
    ),
    # Sampled as the leaderboard samples GPT-4.1: at the default temperature. Its two attempts do not see each other.
    "ARC": Protocol(
        "llm/ARC-v0",
        "ARC Prize, arc-agi-benchmarking",
        None,
        10_000,
        1.0,
        samples=2,
        has_sample=False,
        k=2,
        levels=("arc-agi-1", "arc-agi-2"),
        kwargs={"max_turns": 1},
    ),
    # The package sets no limit of tokens: this one is ours.
    "Tau2": Protocol(
        "llm/Tau2-v0",
        "tau2-bench, arXiv:2506.07982",
        None,
        4_096,
        samples=4,
        has_sample=False,
        k=4,
        levels=("retail", "airline", "telecom"),
        splits=("train", "test"),
        stand_ins={"user_policy": "a script plays the user, which is easier than the published user, a model"},
    ),
}
"""Name -> protocol."""


def parse_data(texts: Sequence[str]) -> dict[str, str]:
    """Return the benchmarks to play: name -> its data.

    Args:
        texts: "GSM8K=openai/gsm8k", with a data set's name, a file or "hub"; or, for all benchmarks that have it, "hub"
            (their data sets' names) or "sample" (our few rows of the same layout).

    Raises:
        InvalidConfigError: If a benchmark is unknown or named twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, data = text.partition("=")
        if not equals and text in (HUB, SAMPLE):
            named = {key: text for key, protocol in PROTOCOLS.items() if text == HUB or protocol.has_sample}
        elif name in PROTOCOLS and (data or PROTOCOLS[name].hub is None):
            named = {name: data or PACKAGE}
        else:
            raise InvalidConfigError(
                f"--data {text}: give NAME=DATA, with a data set's name, a file or {HUB} as DATA and one of "
                f"{', '.join(PROTOCOLS)} as NAME (BFCL, ARC and Tau2 have their data: ARC={PACKAGE}); or {HUB} or "
                f"{SAMPLE} for all."
            )
        if twice := [key for key in named if key in found]:
            raise InvalidConfigError(f"--data names {twice[0]} twice: give one.")
        found |= named
    return {name: _data_of(name, data) for name, data in found.items()}


def _data_of(name: str, data: str) -> str:
    """Return the data set, file or "sample" that was meant."""
    protocol = PROTOCOLS[name]
    if protocol.hub is None:
        if data not in (HUB, PACKAGE):
            raise InvalidConfigError(f"--data {name}={data}: its data are in its package; give {name}={PACKAGE}.")
        return PACKAGE
    if data == SAMPLE and not protocol.has_sample:
        raise InvalidConfigError(f"--data {name}={data}: it has no sample; give {protocol.hub}, or a file.")
    if protocol.shots and "{split}" not in data and Path(data).is_file():
        raise InvalidConfigError(
            f"--data {name}={data}: {protocol.shots} solved problems of the train split are shown, so there must be a "
            f"file for each split: write {{split}} in its place in the path."
        )
    return protocol.hub if data == HUB else data


def standard_suite(
    name: str,
    data: str,
    *,
    n: int | None = None,
    samples: int | None = None,
    k: int | None = None,
    seed: int = 0,
    thresholds: Thresholds | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite of a benchmark: every row of the splits that are played, in order.

    Args:
        name: A key of `PROTOCOLS`.
        data: A data set's name, a file, "sample" or "package"; see `parse_data`.
        n: Only so many rows, the first ones.
        samples: Episodes of each row, if other than the protocol's.
        k: Largest k of pass@k; by default the protocol's, or `samples` if they are fewer.
        seed: Decides the order of choices (GPQA) and the sampling.
        thresholds: For each task.
        env_kwargs: Further arguments of the environment, such as Tau2's `user_policy`.

    Raises:
        InvalidConfigError: If the data or the arguments cannot be used.
        MissingExtraError: If a package is missing.
    """
    protocol = PROTOCOLS[name]
    kwargs: dict[str, Any] = {"split": "test"} | ({} if data == PACKAGE else {"data": data})
    kwargs |= dict(protocol.kwargs) | dict(env_kwargs or {})
    entries = []
    for level in protocol.levels or (None,):
        given = kwargs if level is None else {**kwargs, "difficulty": level}
        problems = list(
            chain.from_iterable(_problems(protocol.env_id, {**given, "split": s}, seed) for s in protocol.splits)
        )
        entries.append(
            SuiteEntry(
                protocol.env_id,
                given,
                name if level is None else f"{name} {level}",
                min(n or len(problems), len(problems)),
                k or min(protocol.k, samples or protocol.samples),
                thresholds or Thresholds(),
                partial(_make_with_shots, protocol.env_id, protocol.shots) if protocol.shots else None,
                problems,
            )
        )
    return Suite(tuple(entries), samples or protocol.samples, seed)


def _problems(env_id: str, kwargs: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """Return the problems of a split."""
    with closing(gym.make(env_id, **kwargs)) as env:
        return list(env.unwrapped.problems(seed))  # type: ignore[attr-defined]


def _make_with_shots(env_id: str, shots: int, **kwargs: Any) -> gym.Env[str, str]:
    return FewShot(gym.make(env_id, **kwargs), shots)


def describe_protocol(name: str, data: str, suite: Suite, sampling: SamplingParams) -> str:
    """Return a line with the settings with which a benchmark is played."""
    protocol = PROTOCOLS[name]
    rows = sum(entry.n for entry in suite.entries)
    how = "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}"
    k = max(entry.k for entry in suite.entries)
    given = suite.entries[0].kwargs
    changed = [] if sampling == protocol.sampling and suite.samples == protocol.samples else ["changed by options"]
    return "; ".join(
        [
            f"{name}: {rows} rows of {data}, {'split' if len(protocol.splits) == 1 else 'splits'} "
            f"{' and '.join(protocol.splits)}",
            *(f"{key} {given[key]}" for key in protocol.kwargs),
            f"{protocol.shots} solved examples",
            f"{suite.samples} {'sample' if suite.samples == 1 else 'samples'} of each",
            f"{how}, at most {sampling.max_new_tokens} tokens a turn",
            *([f"pass@k and pass^k up to k = {k}"] if k > 1 else []),
            f"as {protocol.source}",
            *(text for key, text in protocol.stand_ins.items() if key not in given),
            *changed,
        ]
    )


def changed_sampling(name: str, temperature: float | None, max_turn_tokens: int | None) -> SamplingParams:
    """Return a protocol's sampling, with what an option sets.

    Args:
        name: A key of `PROTOCOLS`.
        temperature: Another temperature; None for the protocol's.
        max_turn_tokens: Another limit; None for the protocol's.
    """
    sampling = PROTOCOLS[name].sampling
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    return sampling if max_turn_tokens is None else replace(sampling, max_new_tokens=max_turn_tokens)
