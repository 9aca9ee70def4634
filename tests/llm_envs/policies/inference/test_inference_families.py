"""Whatever the model type: a sequence in a padded batch is sampled and scored as if it were alone."""

import numpy as np
import pytest
import torch
from causal_models import CONTEXT, FAMILIES, make
from device import on_cpu, placed, rounding

from llm_envs.policies.inference import batch_generate, context_length, generate, token_logits, token_logps
from llm_envs.types import FinishReason, SamplingParams

pytestmark = pytest.mark.transformers
TOLERANCE = {"mamba": 1e-4, "mamba2": 1e-4, "falcon_mamba": 1e-4}  # their scans sum in another order


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param, placed(make(request.param))


def prompts(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(2, 97, n).astype(np.int32) for n in lengths]


def unpadded_logits(model, ids):
    with torch.no_grad():
        return on_cpu(model(torch.from_numpy(ids[None].astype(np.int64)).to(model.device)).logits[0].float())


def test_a_row_is_sampled_and_scored_as_if_alone(family):
    """Long and short prompts, rows that end early, one that runs to the context's end beside others that go on."""
    name, model = family
    given = prompts(1, 60, 23, 12, 5, 30)
    limits = [40, 4, 20, 30, 12, 8]
    together = batch_generate(
        model, given, max_new_tokens=limits, seeds=range(6), stop_token_ids=(1, 2), micro_batch_size=None
    )
    assert len({len(sampled.token_ids) for sampled in together}) > 2
    tolerance = rounding(TOLERANCE.get(name, 1e-5))
    sequences = []
    for index, (prompt, sampled) in enumerate(zip(given, together, strict=True)):
        alone = batch_generate(model, [prompt], max_new_tokens=[limits[index]], seeds=[index], stop_token_ids=(1, 2))
        assert alone[0].token_ids.tolist() == sampled.token_ids.tolist()
        assert np.abs(alone[0].logps - sampled.logps).max() < tolerance
        sequences.append(np.concatenate([prompt, sampled.token_ids]))
    scored = token_logps(model, sequences, micro_batch_size=4)
    logits = token_logits(model, sequences, micro_batch_size=3)
    for prompt, ids, sampled, logps, rows in zip(given, sequences, together, scored, logits, strict=True):
        expected = unpadded_logits(model, ids)[:-1]
        assert rows.shape == (len(ids) - 1, 97)
        assert float((on_cpu(rows) - expected).abs().max()) < 10 * tolerance
        chosen = expected.log_softmax(-1).gather(-1, torch.from_numpy(ids[1:, None].astype(np.int64)))[:, 0]
        assert np.abs(logps[1:] - chosen.numpy()).max() < tolerance
        assert np.abs(logps[len(prompt) :] - sampled.logps).max() < tolerance


def test_a_row_that_joins_a_running_batch_is_sampled_as_if_alone(family):
    """Two rows at a time: each later one joins beside a row that runs, longer or shorter than itself."""
    name, model = family
    given = prompts(1, 60, 23, 12, 5, 30, 23)
    given[-1] = given[2].copy()
    limits = [40, 4, 20, 30, 12, 8, 9]
    tolerance = rounding(TOLERANCE.get(name, 1e-5))
    joined = batch_generate(
        model, given, max_new_tokens=limits, seeds=range(7), stop_token_ids=(1, 2), micro_batch_size=2
    )
    for index, (prompt, sampled) in enumerate(zip(given, joined, strict=True)):
        (alone,) = batch_generate(model, [prompt], max_new_tokens=[limits[index]], seeds=[index], stop_token_ids=(1, 2))
        assert alone.token_ids.tolist() == sampled.token_ids.tolist()
        assert np.abs(alone.logps - sampled.logps).max() < tolerance


def test_the_context_ends_a_turn_and_a_full_one_has_its_own_reason(family):
    """The row that ends at the context's end runs on, unheard, beside four that do not: it must not break the model."""
    name, model = family
    if name in ("bloom", "falcon_mamba", "mamba", "mamba2"):
        assert context_length(model) == 1_000_000
        return
    params = SamplingParams(max_new_tokens=6, seed=0)
    first, full, over, *others = batch_generate(model, prompts(62, CONTEXT, 200, 3, 4, 5, 6), params, stop_token_ids=())
    assert (len(first.token_ids), first.finish_reason) == (2, FinishReason.LENGTH)
    assert [(len(s.token_ids), s.finish_reason) for s in (full, over)] == [(0, FinishReason.CONTEXT_FULL)] * 2
    assert [(len(s.token_ids), s.finish_reason) for s in others] == [(6, FinishReason.LENGTH)] * 4


def test_a_config_that_turns_the_cache_off_changes_nothing():
    model = placed(make("llama"))
    expected = generate(model, prompts(9)[0], seed=3)
    model.config.use_cache = False
    model.generation_config.use_cache = False
    assert generate(model, prompts(9)[0], seed=3).token_ids.tolist() == expected.token_ids.tolist()
