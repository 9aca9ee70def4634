"""The proof of self-play: probabilities of actions read from a model, and the committed page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from llm_envs.chat import ChatCodec
from llm_envs.tasks.games.kuhn_poker import KuhnPoker
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from proof.self_play import RESULTS, RUNS, action_probabilities, exploit, put_into

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

ROOT = Path(__file__).parents[2]


def test_probabilities_of_a_model_without_preferences():
    """All weights 0: each of V tokens has 1/V, so "pass", which is a byte longer than "bet", has 1/(V + 1)."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, hidden_size=32, n_heads=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found, illegal = action_probabilities(model, ChatCodec(tokenizer), KuhnPoker())
    n_tokens = len(tokenizer)
    assert len(found) == 12
    for shares in found.values():
        assert shares == pytest.approx({"pass": 1 / (n_tokens + 1), "bet": n_tokens / (n_tokens + 1)})
    assert illegal == pytest.approx(1.0)


def test_a_measurement_leaves_the_model_in_training():
    model = tiny_model(tiny_tokenizer(), hidden_size=32, n_heads=2).train()
    value, _ = exploit(model, ChatCodec(tiny_tokenizer()), KuhnPoker())
    assert 0 < value < 3
    assert model.training


RESULTS_OF_NOW = sorted((ROOT / RESULTS).glob("*.json"))


@pytest.mark.parametrize("path", RESULTS_OF_NOW, ids=lambda path: path.stem)
def test_a_result_is_of_its_run(path):
    run, kept = RUNS[path.stem], json.loads(path.read_text())
    assert kept["run"] == run.describe()
    assert [seed["seed"] for seed in kept["seeds"]] == list(run.seeds)


@pytest.mark.parametrize(
    "path", [path for path in RESULTS_OF_NOW if RUNS[path.stem].opponent == "itself"], ids=lambda path: path.stem
)
def test_self_play_lowers_nash_conv(path):
    most = {"kuhn": 0.6, "tic-tac-toe": 0.75}[RUNS[path.stem].game]
    for seed in json.loads(path.read_text())["seeds"]:
        assert seed["curve"][-1][1] < most * seed["curve"][0][1]


def test_the_page_is_made_of_the_results(tmp_path):
    page = ROOT / "docs/results/self_play.md"
    (tmp_path / "results").mkdir()
    (tmp_path / "images").mkdir()
    shutil.copy(page, tmp_path / "results")
    put_into(tmp_path / "results" / page.name, ROOT / RESULTS)
    assert (tmp_path / "results" / page.name).read_text() == page.read_text()
    assert (tmp_path / "images" / "self-play.svg").stat().st_size > 1000
