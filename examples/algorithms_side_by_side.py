"""Advantages, losses, KL estimates and references on one small problem, side by side, without a language model.

Command:   python examples/algorithms_side_by_side.py            (--csv FILE keeps the curves, --plot FILE draws some)
Hardware:  one CPU core, about 15 seconds.
Expect:    a table. Untrained, the reward is 0.125; after 20 steps most rows are above 0.95, less where a KL holds it.

The problem: write a word of four letters out of eight; each right letter pays a quarter. The policy is a table of
logits, one line a place, so that the exact KL and the exact expected reward can be computed beside what is estimated.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from llm_envs.report import plot_training_curves
from llm_envs.tracking import Logger, csv_logger, multi_logger, tensorboard_logger, trackio_logger, wandb_logger
from llm_envs.trainers.functional import advantages as adv
from llm_envs.trainers.functional import kl as kls
from llm_envs.trainers.functional import losses, pairs, returns, turns
from llm_envs.trainers.functional import references as refs
from llm_envs.trainers.functional.algorithm import (
    ALGORITHMS,
    DAPO,
    GRPO,
    PAIRWISE,
    REINFORCE,
    RLOO,
    Algorithm,
    AlgorithmSchedule,
    algorithm_loss,
    create_algorithm_schedule,
)
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.groups import regular_group_ids
from llm_envs.trainers.functional.logits import entropies_from_logits, logps_from_logits
from llm_envs.trainers.functional.masking import aggregate_loss, masked_mean
from llm_envs.trainers.functional.turn_advantages import per_turn

WORD = torch.tensor([3, 1, 4, 1])
N_LETTERS, N_GROUPS, GROUP_SIZE, N_EPOCHS = 8, 4, 8, 4


class Policy(torch.nn.Module):
    """A table of logits, and a critic with one value a place."""

    def __init__(self) -> None:
        super().__init__()
        self.logits_TV = torch.nn.Parameter(torch.zeros(len(WORD), N_LETTERS))
        self.values_T = torch.nn.Parameter(torch.zeros(len(WORD)))

    def logps(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Return log pi of given words: shape (B, T)."""
        return logps_from_logits(self.logits_TV.expand(len(ids_BT), -1, -1), ids_BT)

    def expected_reward(self) -> float:
        """Return it exactly: the mean chance of the right letter."""
        return self.logits_TV.softmax(-1)[torch.arange(len(WORD)), WORD].mean().item()


@dataclass(frozen=True)
class Words:
    """What was sampled. A place is a turn of one token."""

    ids_BT: torch.Tensor
    old_logps_BT: torch.Tensor
    mask_BT: torch.Tensor
    letter_rewards_BT: torch.Tensor
    group_ids_B: torch.Tensor


@torch.no_grad()
def sample(policy: Policy) -> Words:
    """Write groups of words."""
    n = N_GROUPS * GROUP_SIZE
    ids_BT = torch.distributions.Categorical(logits=policy.logits_TV).sample((n,))
    mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    starts_BK = torch.arange(len(WORD)).expand(n, -1)
    right_BK = (ids_BT == WORD).float() / len(WORD)
    letters_BT = turns.place_turn_rewards(right_BK, starts_BK, starts_BK + 1, len(WORD))
    return Words(ids_BT, policy.logps(ids_BT), mask_BT, letters_BT, regular_group_ids(N_GROUPS, GROUP_SIZE))


def loss_of(policy: Policy, reference: Policy, words: Words, algorithm: Algorithm) -> tuple[torch.Tensor, float, float]:
    """Return an algorithm's loss on what was sampled, the KL to the reference per token, and the share out of bounds.

    Out of bounds is what a clip of 0.2 holds back: a ratio that has gone further than that the way it is rewarded for.
    """
    logps_BT, ref_logps_BT = policy.logps(words.ids_BT), reference.logps(words.ids_BT)
    rewards_B = words.letter_rewards_BT.sum(1)
    if algorithm.kl_in == "reward":
        kl_BT = algorithm.kl_estimator(words.old_logps_BT, ref_logps_BT, words.mask_BT)
        rewards_B = kls.kl_in_reward(rewards_B, kl_BT, words.mask_BT, algorithm.kl_coef)
    mask_BT = words.mask_BT
    if algorithm.dynamic_sampling:
        # A group of equal rewards would be played again; here it is left out.
        rewards_NG = rewards_B.view(N_GROUPS, GROUP_SIZE)
        differ_N = rewards_NG.amax(1) > rewards_NG.amin(1)
        mask_BT = mask_BT & differ_N.repeat_interleave(GROUP_SIZE)[:, None]
    # The policy sees nothing but the letter's place, so that is its state.
    states = [torch.arange(words.ids_BT.shape[1]).expand_as(words.ids_BT)] if algorithm.by_state else []
    advantages = algorithm.advantage_fn(rewards_B, words.group_ids_B, words.letter_rewards_BT, *states)
    below_BT, above_BT = losses.clipped_tokens(logps_BT.detach(), words.old_logps_BT, advantages, words.mask_BT)
    clipped = masked_mean(below_BT | above_BT, words.mask_BT)
    batch = Batch(
        mask_BT,
        logps_BT=logps_BT,
        advantages=advantages,
        old_logps_BT=words.old_logps_BT,
        ref_logps_BT=ref_logps_BT.detach() if algorithm.kl_coef else None,
        entropies_BT=entropies_from_logits(policy.logits_TV).expand_as(logps_BT),
        rewards_B=rewards_B,
        group_ids_B=words.group_ids_B,
        max_length=float(len(WORD)),
    )
    kl = kls.mean_kl(kls.k3(logps_BT.detach(), ref_logps_BT.detach(), words.mask_BT), words.mask_BT)
    return algorithm_loss(algorithm, batch)[0], kl.item(), clipped.item()


def actor_critic_loss(policy: Policy, words: Words, old_values_BT: torch.Tensor) -> torch.Tensor:
    """Return PPO's loss: generalised advantages of a critic that learns beside the policy."""
    values_BT = policy.values_T.expand_as(words.old_logps_BT)
    advantages_BT, returns_BT = returns.gae(old_values_BT, words.letter_rewards_BT, words.mask_BT, gamma=1.0, lam=0.95)
    actor_BT = losses.clipped_surrogate(
        policy.logps(words.ids_BT), words.old_logps_BT, advantages_BT, words.mask_BT, dual_clip=3.0
    )
    critic_BT = losses.value_loss(values_BT, old_values_BT, returns_BT, words.mask_BT)
    return aggregate_loss(actor_BT + critic_BT, words.mask_BT, "token")


def discounted_loss(policy: Policy, words: Words) -> torch.Tensor:
    """Return REINFORCE's loss on what came after each letter, a little discounted, against the mean at its place."""
    after_BT = returns.discounted_returns(words.letter_rewards_BT, words.mask_BT, gamma=0.9)
    logps_BT = policy.logps(words.ids_BT)
    loss_BT = losses.policy_gradient(logps_BT, words.old_logps_BT, after_BT - after_BT.mean(0), words.mask_BT)
    return aggregate_loss(loss_BT, words.mask_BT, "token")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    algorithm: Algorithm | AlgorithmSchedule | str
    reference_update_fn: refs.ReferenceUpdateFn = refs.keep_reference


def rows() -> dict[str, Row]:
    """Return what is compared: each a value, and most of them another with one field changed."""
    no_baseline, mean = (
        adv.reinforce,
        partial(adv.reinforce, baseline_fn=adv.batch_mean_baseline),
    )
    changed = {
        "advantage: batch, whitened": replace(GRPO, advantage_fn=adv.batch_whitened),
        "advantage: rank in the group": replace(GRPO, advantage_fn=adv.group_ranked),
        "advantage: best of 2": replace(GRPO, advantage_fn=partial(adv.max_at_k, k=2)),
        "advantage: each letter's": replace(GRPO, advantage_fn=per_turn),
        "advantage: no baseline": replace(REINFORCE, advantage_fn=no_baseline),
        "advantage: mean baseline": replace(REINFORCE, advantage_fn=mean),
        "entropy bonus": replace(GRPO, entropy_coef=0.05),
        "pairs: all": replace(PAIRWISE, pair_selector=pairs.all_pairs),
        "pairs: margin": replace(PAIRWISE, pair_selector=pairs.create_margin_pairs(0.25)),
        "pairs: random": replace(PAIRWISE, pair_selector=partial(pairs.random_pairs, seed=0)),
        "pairs: IPO": replace(PAIRWISE, pair_loss_fn=partial(pairs.ipo_loss, beta=1.0)),
        "pairs: hinge": replace(PAIRWISE, pair_loss_fn=partial(pairs.hinge_loss, beta=1.0)),
        "KL in the reward": replace(GRPO, kl_coef=0.2, kl_in="reward"),
    }
    kl_fns: dict[str, kls.KLFn] = {
        "k1 (no gradient)": kls.k1,
        "k2": kls.k2,
        "k3": kls.k3,
        "absolute": kls.absolute,
        "k1, weighted": kls.k1_weighted,
        "k3, weighted": kls.k3_weighted,
        "k2, weighted": kls.create_weighted_kl(kls.k2),
        "truncated": kls.create_truncated_kl(0.5),
        "thresholded": kls.create_thresholded_kl(0.5),
        "confident": kls.create_confident_kl(0.5),
    }
    with_kl = replace(GRPO, kl_coef=0.2)
    updates: dict[str, refs.ReferenceUpdateFn] = {
        "moving average": refs.create_ema_update(0.9),
        "every 5 steps": refs.create_periodic_update(5),
        "after 1 nat": refs.KLTriggeredUpdate(1.0),
    }
    return {
        **{name: Row(algorithm) for name, algorithm in ALGORITHMS.items()},
        "actor-critic": Row("actor-critic"),
        "discounted returns": Row("discounted returns"),
        "rloo, then dapo": Row(create_algorithm_schedule({0: RLOO, 10: DAPO})),
        **{name: Row(algorithm) for name, algorithm in changed.items()},
        **{f"KL in the loss: {name}": Row(replace(with_kl, kl_fn=kl_fn)) for name, kl_fn in kl_fns.items()},
        **{f"reference: {name}": Row(with_kl, update) for name, update in updates.items()},
    }


def learn(row: Row, n_steps: int, seed: int) -> tuple[Policy, torch.nn.Module, list[dict[str, float]]]:
    """Take so many generations; return the policy, the reference, and the exact expected reward after each.

    With it the share of the letters that was out of bounds in the last pass over them.
    """
    torch.manual_seed(seed)
    policy = Policy()
    reference = refs.frozen_copy(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    curve = []
    for step in range(n_steps):
        words, old_values_BT = sample(policy), policy.values_T.detach().expand(N_GROUPS * GROUP_SIZE, -1)
        for _ in range(N_EPOCHS):
            kl, clipped = 0.0, math.nan
            if row.algorithm == "actor-critic":
                loss = actor_critic_loss(policy, words, old_values_BT)
            elif row.algorithm == "discounted returns":
                loss = discounted_loss(policy, words)
            else:
                assert not isinstance(row.algorithm, str)
                now = row.algorithm if isinstance(row.algorithm, Algorithm) else row.algorithm(step)
                loss, kl, clipped = loss_of(policy, reference, words, now)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        reference = row.reference_update_fn(reference, policy, step=step + 1, kl=kl)
        curve.append({"reward": policy.expected_reward(), "clipped": clipped})
    return policy, reference, curve


@torch.no_grad()
def estimates(policy: Policy, reference: Policy, n: int) -> Mapping[str, tuple[float, float]]:
    """Return each estimate of the KL of a whole word between two policies, and its spread over words."""
    ids_BT = torch.distributions.Categorical(logits=policy.logits_TV).sample((n,))
    old_BT = torch.distributions.Categorical(logits=reference.logits_TV).sample((n,))
    mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)

    def spread(kl_BT: torch.Tensor) -> tuple[float, float]:
        kl_B = kls.kl_per_sequence(kl_BT, mask_BT)
        return kl_B.mean().item(), kl_B.std().item()

    found = {
        name: spread(kl_fn(policy.logps(ids_BT), reference.logps(ids_BT), mask_BT))
        for name, kl_fn in kls.KL_ESTIMATORS.items()
    }
    logps = [policy.logps(old_BT), reference.logps(old_BT)]
    found["k1 of the reference's words, weighted"] = spread(
        kls.importance_weighted_kl(kls.k1, logps[0], logps[1], logps[1], mask_BT)
    )
    one_B1T = mask_BT[:1]
    exact = {"exact KL(policy, reference)": (policy, reference), "exact KL(reference, policy)": (reference, policy)}
    for name, (one, other) in exact.items():
        found[name] = (kls.exact_kl(one.logits_TV[None], other.logits_TV[None], one_B1T).sum().item(), 0.0)
    return found


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="generations of each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", metavar="FILE", help="write the curves here, a column for each row")
    parser.add_argument("--tensorboard", metavar="FOLDER", help="the same for TensorBoard")
    parser.add_argument("--wandb", metavar="PROJECT", help="the same to Weights & Biases")
    parser.add_argument("--trackio", metavar="PROJECT", help="the same to Trackio")
    parser.add_argument("--plot", metavar="FILE", help="draw those of the ready algorithms here")
    args = parser.parse_args()
    loggers: dict[Callable[[str], Logger], str | None] = {
        csv_logger: args.csv,
        tensorboard_logger: args.tensorboard,
        wandb_logger: args.wandb,
        trackio_logger: args.trackio,
    }

    print(f"{'':<36}  reward  KL to the reference  most out of bounds")
    curves: list[dict[str, float]] = [{} for _ in range(args.steps)]
    for name, row in rows().items():
        policy, reference, curve = learn(row, args.steps, args.seed)
        mask_1T = torch.ones(1, len(WORD), dtype=torch.bool)
        kl = kls.exact_kl(policy.logits_TV[None], reference.logits_TV[None], mask_1T).sum().item()
        most = max(metrics["clipped"] for metrics in curve)
        shown = "-" if math.isnan(most) else f"{most:.1%}"
        print(f"{name:<36}  {curve[-1]['reward']:6.3f}  {kl:19.3f}  {shown:>18}", flush=True)
        for step, metrics in enumerate(curve):
            curves[step][name] = metrics["reward"]
    log = multi_logger(*(make(where) for make, where in loggers.items() if where is not None))
    for step, metrics in enumerate(curves, start=1):
        log(step, metrics)
    if args.plot is not None:
        records = [{"step": step, **metrics} for step, metrics in enumerate(curves, start=1)]
        plot_training_curves(records, args.plot, keys=list(ALGORITHMS), title="Expected reward", smoothing=0.0)

    policy, reference, _ = learn(Row(GRPO), 3, args.seed)
    print(f"\n{'KL of a word, after 3 steps of GRPO':<40}    mean  spread")
    for name, (mean, spread) in estimates(policy, reference, 4096).items():
        print(f"{name:<40}  {mean:6.3f}  {spread:6.3f}")


if __name__ == "__main__":
    main()
