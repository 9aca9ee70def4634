"""Each named algorithm against its paper's formula, written out in plain Python.

Five episodes in two groups, of 3, 1, 2 | 2, 3 tokens, on both sides of the clips. Each formula returns the loss (minus
the paper's objective) and its derivative by each token's log-probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from graph_algorithms import GRAPH_ALGORITHMS

from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes, with_overlong
from llm_envs.trainers.functional.algorithm import ALGORITHMS, DAPO, GRPO, Algorithm, algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import kl_in_reward
from llm_envs.trainers.functional.turns import spread_turns
from llm_envs.types import Row, StopReason, Trajectory, Turn

GROUPS = ((0, 1, 2), (3, 4))
REWARDS = (1.0, 0.0, 0.25, 0.0, 1.0)
OLD_LOGPS = ((-1.0, -0.5, -2.0), (-1.5,), (-0.25, -1.0), (-2.0, -1.0), (-2.5, -0.75, -1.0))
RATIOS = ((1.5, 1.1, 0.5), (0.7,), (1.25, 0.9), (1.3, 0.6), (6.0, 1.0, 1.25))
"""pi / pi_old of each token: beyond the clips upwards and downwards, with advantages of both signs."""
NARROW = ((1e-3, -4e-4, 3e-4), (-5e-4,), (1e-4, 1e-4), (2e-3, 1e-3), (1e-3, 5e-4, 3e-4))
"""log(pi / pi_old) of each token, for GSPO: means 3e-4, -5e-4, 1e-4, 15e-4, 6e-4."""
REF_GAPS = ((0.5, -0.25, 1.0), (-0.5,), (0.125, 0.25), (0.75, 0.25), (0.5, 0.5, 1.0))
"""log(pi / rho) of each token, for the KL and for pairs."""
TURN_STARTS, TURN_STOPS = ((0, 2), (0, 0), (0, 1), (0, 1), (0, 1)), ((2, 3), (1, 0), (1, 2), (1, 2), (1, 3))
TURN_REWARDS = ((0.5, 0.5), (0.0, math.nan), (0.125, 0.125), (0.0, 0.0), (0.25, 0.75))
TURN_STATES = ((0, 1), (0, -1), (0, 1), (2, 2), (2, 3))
TURNS = ((0, 0, 1), (0,), (0, 1), (0, 1), (0, 1, 1))
"""The turn of each token."""
RETURNS = ((1.0, 0.5), (0.0,), (0.25, 0.125), (0.0, 0.0), (1.0, 0.75))
"""The return of each turn: its reward and all later ones."""
N_TOKENS, MAX_LENGTH, EPS = 11, 8.0, 1e-4

KNOWN = {**ALGORITHMS, **GRAPH_ALGORITHMS}

Table = list[list[float]]
Formula = Callable[[], tuple[float, Table]]


def logp(row: int, place: int) -> float:
    return OLD_LOGPS[row][place] + math.log(RATIOS[row][place])


def group_of(row: int) -> tuple[int, ...]:
    return next(group for group in GROUPS if row in group)


def summed(term: Callable[[int, int], tuple[float, float]], weight: Callable[[int], float]) -> tuple[float, Table]:
    """Return the weighted sum over all tokens of a term and of its derivative; the weight is that of the row."""
    terms = [[term(row, place) for place in range(len(OLD_LOGPS[row]))] for row in range(5)]
    loss = sum(weight(row) * value for row in range(5) for value, _ in terms[row])
    return loss, [[weight(row) * slope for _, slope in terms[row]] for row in range(5)]


def clipped(ratio: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A) and its derivative by log r."""
    cut = min(max(ratio, 1 - low), 1 + high) * advantage
    return (-ratio * advantage, -ratio * advantage) if ratio * advantage <= cut else (-cut, 0.0)


def by_turn(advantage: Callable[[int, int], float]) -> tuple[float, Table]:
    """Return GRPO's surrogate over all tokens, each with the advantage of its turn."""
    return summed(
        lambda row, place: clipped(RATIOS[row][place], advantage(row, TURNS[row][place]), 0.2, 0.2),
        lambda row: 1 / N_TOKENS,
    )


def by_root_mean_square(difference: Callable[[int, int], float]) -> Callable[[int, int], float]:
    """Divide what each turn gains by the root of the mean square of its group's."""

    def advantage(row: int, turn: int) -> float:
        squares = [difference(other, k) ** 2 for other in group_of(row) for k in range(len(RETURNS[other]))]
        return difference(row, turn) / (math.sqrt(sum(squares) / len(squares)) + EPS)

    return advantage


def normalised(row: int) -> float:
    """Return (r - mean) / (std + 1e-4) with n - 1 in the variance: the paper's, with the number that TRL adds."""
    rewards = [REWARDS[member] for member in group_of(row)]
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return (REWARDS[row] - mean) / (deviation + EPS)


def grpo() -> tuple[float, Table]:
    """1/G sum_i 1/|o_i| sum_t of the clipped surrogate: DeepSeekMath, arXiv 2402.03300, equation 3."""
    return summed(
        lambda row, place: clipped(RATIOS[row][place], normalised(row), 0.2, 0.2),
        lambda row: 1 / (5 * len(OLD_LOGPS[row])),
    )


def dr_grpo() -> tuple[float, Table]:
    """The sum over tokens by a constant length, A = r - mean: "R1-Zero-Like Training", arXiv 2503.20783."""

    def advantage(row: int) -> float:
        return REWARDS[row] - sum(REWARDS[member] for member in group_of(row)) / len(group_of(row))

    return summed(
        lambda row, place: clipped(RATIOS[row][place], advantage(row), 0.2, 0.2), lambda row: 1 / (5 * MAX_LENGTH)
    )


def dapo() -> tuple[float, Table]:
    """1 / sum_i |o_i| over all tokens, clipped to 0.8 and 1.28: DAPO, arXiv 2503.14476, equation 8."""
    return summed(lambda row, place: clipped(RATIOS[row][place], normalised(row), 0.2, 0.28), lambda row: 1 / N_TOKENS)


def rloo() -> tuple[float, Table]:
    """1/k sum_i (r_i - mean of the others') grad log pi(o_i): "Back to Basics", arXiv 2402.14740."""

    def advantage(row: int) -> float:
        others = [REWARDS[member] for member in group_of(row) if member != row]
        return REWARDS[row] - sum(others) / len(others)

    return summed(lambda row, place: (-advantage(row) * logp(row, place), -advantage(row)), lambda row: 1 / 5)


def reinforce() -> tuple[float, Table]:
    """(r - b) grad log pi(o), b the mean of the batch's others.

    R. Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning" (1992), no
    arXiv id; for language models "Back to Basics", arXiv 2402.14740.
    """

    def advantage(row: int) -> float:
        return REWARDS[row] - (sum(REWARDS) - REWARDS[row]) / 4

    return summed(lambda row, place: (-advantage(row) * logp(row, place), -advantage(row)), lambda row: 1 / 5)


def gspo() -> tuple[float, Table]:
    """1/G sum_i min(s_i A_i, clip(s_i) A_i), s_i = exp(mean_t log ratio): GSPO, arXiv 2507.18071, equations 5 and 7.

    The derivative of s_i by one token's log-probability is s_i / |o_i|.
    """

    def term(row: int, place: int) -> tuple[float, float]:
        return clipped(math.exp(sum(NARROW[row]) / len(NARROW[row])), normalised(row), 3e-4, 4e-4)

    return summed(term, lambda row: 1 / (5 * len(OLD_LOGPS[row])))


def cispo() -> tuple[float, Table]:
    """1 / sum_i |o_i| of sg(min(r, 5)) A log pi: MiniMax-M1, arXiv 2506.13585, equations 4 and 5."""

    def term(row: int, place: int) -> tuple[float, float]:
        slope = -min(RATIOS[row][place], 5.0) * normalised(row)
        return slope * logp(row, place), slope

    return summed(term, lambda row: 1 / N_TOKENS)


def pairwise() -> tuple[float, Table]:
    """-log sigmoid(0.1 (chosen - rejected)) of each group's best and worst: DPO, arXiv 2305.18290, equation 7."""
    slopes, loss = dict.fromkeys(range(5), 0.0), 0.0
    for best, worst in ((0, 1), (4, 3)):
        margin = 0.1 * (sum(REF_GAPS[best]) - sum(REF_GAPS[worst]))
        loss += math.log(1 + math.exp(-margin)) / 2
        slope = -0.1 / (1 + math.exp(margin)) / 2
        slopes[best], slopes[worst] = slope, -slope
    return loss, [[slopes[row]] * len(OLD_LOGPS[row]) for row in range(5)]


def per_turn() -> tuple[float, Table]:
    """A turn's return-to-go less that of the group's others, by the group's root mean square: arXiv 2505.11821.

    The baseline leaves the episode itself out, and one number scales a group: ours, see `turn_advantages.per_turn`.
    """

    def plain(row: int, turn: int) -> float:
        others = [RETURNS[other][turn] for other in group_of(row) if other != row and turn < len(RETURNS[other])]
        return RETURNS[row][turn] - sum(others) / len(others)

    return by_turn(by_root_mean_square(plain))


def in_state(row: int, turn: int) -> list[tuple[int, int]]:
    """Return (row, turn) of all turns of the group that began in the state of this one."""
    state = TURN_STATES[row][turn]
    return [(other, k) for other in group_of(row) for k in (0, 1) if TURN_STATES[other][k] == state]


def gigpo() -> tuple[float, Table]:
    """A_E + A_S: the episode's, and that of the return among those in its state: GiGPO, arXiv 2505.10978, eq. 3, 7.

    Both by their standard deviations; the discount is 0.95.
    """
    returns = [[0.5 + 0.95 * 0.5, 0.5], [0.0], [0.125 + 0.95 * 0.125, 0.125], [0.0, 0.0], [0.25 + 0.95 * 0.75, 0.75]]

    def advantage(row: int, turn: int) -> float:
        values = [returns[other][k] for other, k in in_state(row, turn)]
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))
        return normalised(row) + (returns[row][turn] - mean) / (deviation + EPS)

    return by_turn(advantage)


def state_graph() -> tuple[float, Table]:
    """r + V(next state) - V(state), V the mean return of a state, by the group's root mean square: arXiv 2606.22995."""

    def value(row: int, turn: int) -> float:
        values = [RETURNS[other][k] for other, k in in_state(row, turn)]
        return sum(values) / len(values)

    def difference(row: int, turn: int) -> float:
        is_last = turn + 1 == len(RETURNS[row])
        return TURN_REWARDS[row][turn] + (0.0 if is_last else value(row, turn + 1)) - value(row, turn)

    return by_turn(by_root_mean_square(difference))


def tree() -> tuple[float, Table]:
    """The same between states in which at least two turns began; all turns from one to the next share its difference.

    By the group's root mean square: VinePPO, arXiv 2410.01679, with segments as in arXiv 2505.23564.
    """

    def value(row: int, turn: int) -> float | None:
        values = [RETURNS[other][k] for other, k in in_state(row, turn)]
        return sum(values) / len(values) if len(values) > 1 else None

    def difference(row: int, turn: int) -> float:
        first = value(row, turn)
        if first is None:
            return difference(row, turn - 1) if turn else 0.0
        gained = 0.0
        for k in range(turn, len(RETURNS[row])):
            gained += TURN_REWARDS[row][k]
            after = value(row, k + 1) if k + 1 < len(RETURNS[row]) else 0.0
            if after is not None:
                return gained + after - first
        return gained - first

    return by_turn(by_root_mean_square(difference))


def distill() -> tuple[float, Table]:
    """A token's advantage is log teacher - log pi_old, with PPO's clip: the reverse KL of arXiv 2306.13649.

    Neither the rewards nor other tokens count.
    """
    return summed(
        lambda row, place: clipped(RATIOS[row][place], math.log(RATIOS[row][place]) - REF_GAPS[row][place], 0.2, 0.2),
        lambda row: 1 / N_TOKENS,
    )


def distill_loss() -> tuple[float, Table]:
    """Half the square of log pi - log teacher: its gradient is that of the reverse KL of arXiv 2306.13649."""
    return summed(lambda row, place: (REF_GAPS[row][place] ** 2 / 2, REF_GAPS[row][place]), lambda row: 1 / N_TOKENS)


FORMULAS: dict[str, Formula] = {
    function.__name__: function
    for function in (
        *(grpo, dr_grpo, dapo, rloo, reinforce, gspo, cispo, pairwise),
        *(per_turn, gigpo, state_graph, tree, distill, distill_loss),
    )
}


def padded(rows: tuple[tuple[float, ...], ...] | Table, fill: float = math.nan) -> torch.Tensor:
    return torch.tensor([[*row, *[fill] * (3 - len(row))] for row in rows], dtype=torch.float64)


def computed(algorithm: Algorithm) -> tuple[float, Table]:
    """Return the loss of the package, advantages from the rewards included, and its gradient."""
    old_BT, gaps_BT = padded(OLD_LOGPS), padded(REF_GAPS)
    log_ratios_BT = padded(NARROW) if algorithm.name == "gspo" else padded(RATIOS).log()
    logps_BT = (old_BT + log_ratios_BT).requires_grad_()
    ids_B = torch.tensor([0, 0, 0, 1, 1])
    rewards_B = torch.tensor(REWARDS, dtype=torch.float64)
    assert algorithm.advantage_fn is not None
    states = [torch.tensor(TURN_STATES)] if algorithm.by_state else []
    advantages = algorithm.advantage_fn(rewards_B, ids_B, torch.tensor(TURN_REWARDS, dtype=torch.float64), *states)
    if advantages.ndim == 2:
        advantages = spread_turns(advantages, torch.tensor(TURN_STARTS), torch.tensor(TURN_STOPS), 3)
    if algorithm.kl_in == "advantage":
        kl_BT = algorithm.kl_estimator(old_BT, (logps_BT - gaps_BT).detach(), ~old_BT.isnan())
        assert not callable(algorithm.kl_coef)
        advantages = kl_in_reward(advantages[:, None].expand(5, 3), kl_BT, ~old_BT.isnan(), algorithm.kl_coef)
    batch = Batch(
        ~old_BT.isnan(),
        logps_BT=logps_BT,
        old_logps_BT=old_BT,
        ref_logps_BT=(logps_BT - gaps_BT).detach(),
        advantages=advantages,
        rewards_B=rewards_B,
        group_ids_B=ids_B,
        max_length=MAX_LENGTH,
    )
    loss, _ = algorithm_loss(algorithm, batch)
    loss.backward()
    assert logps_BT.grad is not None
    return loss.item(), [row[: len(old)].tolist() for row, old in zip(logps_BT.grad, OLD_LOGPS, strict=True)]


def assert_equal(given: tuple[float, Table], expected: tuple[float, Table]) -> None:
    assert given[0] == pytest.approx(expected[0], abs=1e-8)
    for one, other in zip(given[1], expected[1], strict=True):
        assert one == pytest.approx(other, abs=1e-8)


def test_every_name_has_a_formula() -> None:
    assert set(FORMULAS) == set(KNOWN)
    assert all("arXiv" in (formula.__doc__ or "") for formula in FORMULAS.values())


@pytest.mark.parametrize("name", KNOWN)
def test_a_name_is_its_papers_formula(name: str) -> None:
    assert_equal(computed(KNOWN[name]), FORMULAS[name]())


def test_the_kl_of_grpo() -> None:
    """beta (rho/pi - log(rho/pi) - 1) beside each token's surrogate: DeepSeekMath, arXiv 2402.03300, equations 3, 4."""
    surrogate, slopes = grpo()
    penalty, more = summed(
        lambda row, place: (
            math.exp(-REF_GAPS[row][place]) - 1 + REF_GAPS[row][place],
            1 - math.exp(-REF_GAPS[row][place]),
        ),
        lambda row: 0.04 / (5 * len(OLD_LOGPS[row])),
    )
    together = [[one + other for one, other in zip(*rows, strict=True)] for rows in zip(slopes, more, strict=True)]
    assert_equal(computed(replace(GRPO, kl_coef=0.04)), (surrogate + penalty, together))


def test_the_overlong_punishment_of_dapo() -> None:
    """0 up to L - C, then ((L - C) - n) / C, then -1: DAPO, arXiv 2503.14476, equation 13; here L = 100, C = 20."""
    lengths = (70, 80, 90, 95, 100, 120)
    settings = with_overlong(RewardSettings(), DAPO.overlong, 100)
    paid = score_episodes([episode(member, length) for member, length in enumerate(lengths)], settings, {})
    assert paid.columns["overlong"] == pytest.approx([0.0, 0.0, -0.5, -0.75, -1.0, -1.0])


def episode(member: int, length: int) -> Trajectory:
    """Return an episode of one turn of so many tokens, after a prompt of two."""
    mask = np.arange(length + 2) >= 2
    row = Row(np.ones(length + 2, np.int32), mask, np.where(mask, -1.0, 0.0).astype(np.float32), ((2, length + 2),))
    turn = Turn(1.0, {"reward": 1.0}, row=0, span=0)
    return Trajectory(
        "test", {}, 0, "g", member, (), (), (row,), (turn,), True, False, StopReason.TERMINATED, "ok", None
    )
