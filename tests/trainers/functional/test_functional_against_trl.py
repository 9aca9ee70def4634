"""Our losses are TRL's where TRL has them: the same tensors through TRL's own methods, to 1e-6, values and gradients.

TRL's `_compute_loss` is called unbound, on an object that has the attributes it reads; what it would compute with a
model (log-probabilities, entropies) is given.
"""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import nanstd

from llm_envs.trainers.functional.advantages import group_centred, group_normalised
from llm_envs.trainers.functional.algorithm import CISPO, DAPO, DR_GRPO, GRPO, GSPO, Algorithm, algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import importance_weighted_kl, k3
from llm_envs.trainers.functional.losses import cispo, clipped_surrogate, clipped_tokens
from llm_envs.trainers.functional.pairs import dpo_loss, hinge_loss, ipo_loss, pair_log_ratios, sequence_log_ratios

NAN = float("nan")
B, T = 6, 9


def close(ours, trls):
    torch.testing.assert_close(ours, trls, atol=1e-6, rtol=1e-6)


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(7)
    logps_BT = -3 * torch.rand(B, T, generator=generator)
    lengths_B = torch.tensor([9, 3, 5, 1, 7, 0])  # the last row is masked whole
    columns_T = torch.arange(T)
    return SimpleNamespace(
        logps_BT=logps_BT,
        old_logps_BT=logps_BT + 0.5 * torch.randn(B, T, generator=generator),
        ref_logps_BT=logps_BT + 0.5 * torch.randn(B, T, generator=generator),
        entropies_BT=torch.rand(B, T, generator=generator),
        mask_BT=((columns_T < lengths_B[:, None]) & (columns_T != 1)).long(),  # one place is the environment's
        completion_mask=(columns_T < lengths_B[:, None]).long(),
        tool_mask=(columns_T != 1).long().expand(B, T),
        advantages_B=torch.randn(B, generator=generator),
        advantages_BT=torch.randn(B, T, generator=generator),
        weights_BT=torch.rand(B, T, generator=generator) + 0.5,
    )


def trl_grpo(given, advantages, loss_type, **settings):
    """Return TRL's loss and its gradient in the log-probabilities, and what it logged."""
    logps_BT = given.logps_BT.clone().requires_grad_()
    options = {"delta": None, "bias_correction": False, "beta": 0.0, "level": "token", "low": 0.2, "high": 0.2}
    options |= {"weights": None, "entropy_coef": 0.0} | settings
    use_vllm = options["weights"] is not None
    stand_in = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logps_BT, given.entropies_BT, None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=options["level"],
        beta=options["beta"],
        args=SimpleNamespace(
            use_bias_correction_kl=options["bias_correction"], delta=options["delta"], steps_per_generation=1
        ),
        loss_type=loss_type,
        epsilon_low=options["low"],
        epsilon_high=options["high"],
        use_vllm=use_vllm,
        vllm_importance_sampling_correction=use_vllm,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=16,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=False
        ),
        _entropy_bonus_enabled=bool(options["entropy_coef"]),
        use_adaptive_entropy=False,
        entropy_coef=options["entropy_coef"],
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    nothing = torch.zeros(B, 1, dtype=torch.long)
    inputs = {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": given.completion_mask,
        "tool_mask": given.tool_mask,
        "advantages": advantages,
        "old_per_token_logps": given.old_logps_BT,
        "ref_per_token_logps": given.ref_logps_BT,
        "num_items_in_batch": given.mask_BT.sum(),
        "importance_sampling_ratio": options["weights"],
    }
    loss = GRPOTrainer._compute_loss(stand_in, stand_in.model, inputs)
    return loss, torch.autograd.grad(loss, logps_BT)[0], stand_in._metrics["train"]


def our_loss(algorithm, given, advantages, **changes):
    logps_BT = given.logps_BT.clone().requires_grad_()
    batch = Batch(
        logps_BT=logps_BT,
        mask_BT=given.mask_BT,
        advantages=advantages,
        old_logps_BT=given.old_logps_BT,
        ref_logps_BT=given.ref_logps_BT,
        entropies_BT=given.entropies_BT,
        max_length=16,
        **changes,
    )
    loss, stats = algorithm_loss(algorithm, batch)
    return loss, torch.autograd.grad(loss, logps_BT)[0], stats


BNPO = Algorithm("bnpo", normalisation="token")
CASES = {
    "grpo": (GRPO, "grpo", {}),
    "bnpo": (BNPO, "bnpo", {}),
    "dr_grpo": (DR_GRPO, "dr_grpo", {}),
    "dapo": (DAPO, "dapo", {"high": 0.28}),
    "cispo": (CISPO, "cispo", {"high": 5.0}),
    "cispo-low": (replace(CISPO, loss_fn=partial(cispo, max_ratio=1.1)), "cispo", {"high": 1.1}),
    "gspo": (GSPO, "grpo", {"level": "sequence", "low": 3e-4, "high": 4e-4}),
    "gspo-wide": (
        replace(GSPO, loss_fn=partial(clipped_surrogate, clip_low=0.1, clip_high=0.3, level="geometric")),
        "grpo",
        {"level": "sequence", "low": 0.1, "high": 0.3},
    ),
    "dual-clip": (replace(GRPO, loss_fn=partial(clipped_surrogate, dual_clip=1.4)), "grpo", {"delta": 1.4}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_grpo_losses_with_advantages_of_rows(tensors, case, beta):
    algorithm, loss_type, settings = CASES[case]
    loss, gradient, logged = trl_grpo(tensors, tensors.advantages_B, loss_type, beta=beta, **settings)
    ours, our_gradient, stats = our_loss(replace(algorithm, kl_coef=beta), tensors, tensors.advantages_B)
    close(ours, loss)
    close(our_gradient, gradient)
    if beta:
        assert stats["kl"].item() == pytest.approx(logged["kl"][0], abs=1e-6)


@pytest.mark.parametrize("case", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "gspo-wide"])
def test_grpo_losses_with_advantages_of_tokens(tensors, case):
    algorithm, loss_type, settings = CASES[case]
    loss, gradient, _ = trl_grpo(tensors, tensors.advantages_BT, loss_type, **settings)
    ours, our_gradient, _ = our_loss(algorithm, tensors, tensors.advantages_BT)
    close(ours, loss)
    close(our_gradient, gradient)


def test_importance_weights_and_entropy_bonus(tensors):
    settings = {"weights": tensors.weights_BT, "beta": 0.04, "high": 0.28, "entropy_coef": 0.01}
    loss, gradient, _ = trl_grpo(tensors, tensors.advantages_B, "dapo", **settings)
    algorithm = replace(DAPO, kl_coef=0.04, entropy_coef=0.01)
    ours, our_gradient, _ = our_loss(algorithm, tensors, tensors.advantages_B, weights=tensors.weights_BT)
    close(ours, loss)
    close(our_gradient, gradient)


def test_importance_weighted_kl_is_trls_bias_correction(tensors):
    def kl_fn(logps_BT, ref_logps_BT, mask_BT):
        return importance_weighted_kl(k3, logps_BT, ref_logps_BT, tensors.old_logps_BT, mask_BT)

    loss, gradient, _ = trl_grpo(tensors, tensors.advantages_B, "grpo", beta=0.5, bias_correction=True)
    ours, our_gradient, _ = our_loss(replace(GRPO, kl_fn=kl_fn, kl_coef=0.5), tensors, tensors.advantages_B)
    close(ours, loss)
    close(our_gradient, gradient)


def test_clipped_tokens_are_trls(tensors):
    _, _, logged = trl_grpo(tensors, tensors.advantages_BT, "dapo", low=0.1, high=0.28)
    low, high = clipped_tokens(
        tensors.logps_BT, tensors.old_logps_BT, tensors.advantages_BT, tensors.mask_BT, clip_low=0.1, clip_high=0.28
    )
    n_tokens = tensors.mask_BT.sum()
    assert 0 < (low.sum() / n_tokens).item() == pytest.approx(logged["clip_ratio/low_mean"][0])
    assert 0 < (high.sum() / n_tokens).item() == pytest.approx(logged["clip_ratio/high_mean"][0])


def trl_dpo(given, loss_type, beta):
    """Return TRL's DPO loss on rows (chosen 0-1, rejected 2-3), and its gradient in the log-probabilities."""
    logps_BT = given.logps_BT[:4].clone().requires_grad_()
    mask_BT = given.mask_BT[:4]
    ref_B = (given.ref_logps_BT[:4] * mask_BT).sum(1)
    outputs = SimpleNamespace(
        log_probs=logps_BT * mask_BT,  # the model's loss head gives 0 where there is no label
        entropy=given.entropies_BT[:4],
        mean_logits=torch.zeros(4, T),
        is_top1=torch.zeros(4, T, dtype=torch.bool),
    )

    class Model:
        training = True

        def __call__(self, **kwargs):
            return outputs

    stand_in = SimpleNamespace(
        model=Model(),
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=0.0,
        use_weighting=False,
        _total_train_tokens=0,
        _tp_size=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    with_prompt = torch.cat([torch.zeros(4, 1, dtype=torch.long), mask_BT], dim=1)  # position 0 predicts nothing
    inputs = {
        "input_ids": torch.zeros(4, T + 1, dtype=torch.long),
        "completion_mask": with_prompt,
        "attention_mask": torch.ones_like(with_prompt),
        "ref_chosen_logps": ref_B[:2],
        "ref_rejected_logps": ref_B[2:],
    }
    loss = DPOTrainer._compute_loss(stand_in, stand_in.model, inputs, False)
    return loss, torch.autograd.grad(loss, logps_BT)[0]


@pytest.mark.parametrize(
    ("loss_type", "pair_loss_fn", "average"),
    [
        ("sigmoid", partial(dpo_loss, beta=0.3), False),
        ("hinge", partial(hinge_loss, beta=0.3), False),
        ("ipo", partial(ipo_loss, beta=0.3), True),
    ],
)
def test_pairwise_losses(tensors, loss_type, pair_loss_fn, average):
    loss, gradient = trl_dpo(tensors, loss_type, 0.3)
    logps_BT = tensors.logps_BT[:4].clone().requires_grad_()
    pairs_P2 = torch.tensor([[0, 2], [1, 3]])
    chosen_P, rejected_P = pair_log_ratios(
        logps_BT, tensors.ref_logps_BT[:4], tensors.mask_BT[:4], pairs_P2, average=average
    )
    ours = pair_loss_fn(chosen_P, rejected_P).mean()
    close(ours, loss)
    close(torch.autograd.grad(ours, logps_BT)[0], gradient)
    assert sequence_log_ratios(logps_BT, logps_BT.detach(), tensors.mask_BT[:4]).tolist() == [0.0] * 4


def test_group_normalised_is_trls():
    """TRL's own lines (`scale_rewards` "group" and "batch"), which stand inside a long method, on the same numbers."""
    torch.manual_seed(1)
    rewards = torch.randn(12)
    rewards[4] = NAN
    ids_B = torch.arange(3).repeat_interleave(4)
    grouped = rewards.view(-1, 4)
    centred = rewards - torch.nanmean(grouped, dim=1).repeat_interleave(4)
    by_group = centred / (nanstd(grouped, dim=1).repeat_interleave(4) + 1e-4)
    by_batch = centred / (nanstd(rewards).expand_as(rewards) + 1e-4)
    for ours, trls in (
        (group_centred(rewards, ids_B), centred),
        (group_normalised(rewards, ids_B), by_group),
        (group_normalised(rewards, ids_B, scale="batch"), by_batch),
    ):
        torch.testing.assert_close(ours, trls.nan_to_num(nan=0.0), atol=1e-6, rtol=0)
