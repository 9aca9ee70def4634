"""The ids of environments of other suites, so that `gymnasium.make` knows them before a suite is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

__all__ = ["FLAWED", "GYMNASIUM", "REASONING_GYM", "TEXTARENA", "register_suites", "suite_ids"]

_DATA_SETS = (
    "ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation "
    "binary_matrix bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio "
    "coin_flip color_cube_rotation complex_arithmetic count_bits count_primes countdown course_schedule cryptarithm "
    "decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships figlet_font fraction_simplification "
    "futoshiki game_of_life game_of_life_halting gcd graph_color group_anagrams gsm_symbolic intermediate_integration "
    "isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting letter_counting "
    "letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid n_queens "
    "needle_haystack number_filtering number_format number_sequence number_sorting palindrome_generation "
    "palindrome_partitioning path_star polynomial_equations polynomial_multiplication pool_matrix power_function "
    "prime_factorization products propositional_logic puzzle24 quantum_lock ransom_note rearc rectangle_count "
    "rotate_matrix rotten_oranges rubiks_cube rush_hour self_reference sentence_reordering shortest_path "
    "simple_equations simple_geometry simple_integration sokoban spell_backward spiral_matrix string_insertion "
    "string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi "
    "tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles "
)
REASONING_GYM = tuple(_DATA_SETS.split())
"""Data sets of reasoning-gym 0.1.25, without `composite`, which mixes others."""

FLAWED: Mapping[str, str] = {
    "coin_flip": '"0" has full credit, because "0.25" begins with it',
    "complex_arithmetic": '"nan" has full credit',
    "game_of_life_halting": "any text has full credit",
    "puzzle24": '"6*4*1*1" has full credit: the numbers are not compared',
}
"""Data set -> how garbage gets full credit. `python -m proof.bridges` finds them."""

_ONE_PLAYER = (
    "2048/ultra-easy/mega-easy/super-easy/very-easy/easy//hard/very-hard/extreme/3x3/5x5/6x6/8x8/10x10 Bandit//hard "
    "Blackjack//long Countdown Crosswords//hardcore Cryptarithm FifteenPuzzle FrozenLake//random/hardcore "
    "GuessTheNumber//hardcore LightsOut LogicPuzzle//hard Mastermind//hard/extreme Minesweeper//small/medium/hard "
    "PegJump RushHour Secretary//long Set Slitherlink Sokoban Sudoku/very-easy/easy//medium/hard "
    "ThreeCardMonte TowerOfHanoi//medium/hard/hardcore/extreme "
)
_TWO_PLAYERS = (
    "Alquerque Battleship//standard/large/extreme Breakthrough/tiny/small//large/blind/long Briscola "
    "Chopsticks//medium/long ColonelBlotto/small//large/extreme ConnectFour//blind/large Crusade GameOfPureStrategy "
    "GermanWhist Golf//medium HighSociety IndianPoker/short//medium/long/extreme IteratedMatchingPennies "
    "IteratedPrisonersDilemma IteratedRockPaperScissors IteratedTwoThirdsAverage KuhnPoker//short/medium/long/extreme "
    "LinesOfAction MemoryGame//medium/hard Nim//medium/large Othello/tiny/small//big/huge/hard "
    "PigDice//short/long/50/100/150/200/250/300/350/400/450/500 QuantumTicTacToe SimpleBlindAuction/quick//rich "
    "SimpleNegotiation/short//long SimpleTak//medium/large/extreme SpiteAndMalice Stratego Tak//medium/hard TicTacToe "
    "TruthAndDeception//long/extreme TwoDollar UltimateTicTacToe IteratedUltimatumGame//alternate WildTicTacToe "
    "Snake//standard/large Surround//standard/large LiarsDice/small//large "
    "MarketEntryGame NewRecruit "
)


def _games(text: str) -> list[str]:
    """Return TextArena's ids: "Set" is Set-v0, and "Nim//large" is Nim-v0 and Nim-v0-large."""
    listed = [word.partition("/") for word in text.split()]
    return [f"{name}-v0{'-' * bool(level)}{level}" for name, _, levels in listed for level in levels.split("/")]


TEXTARENA = dict.fromkeys(_games(_ONE_PLAYER), 1) | dict.fromkeys(_games(_TWO_PLAYERS), 2)
"""TextArena's id -> players: the games of TextArena 0.7.4 for one or two that play without a network."""

_GYMNASIUM = (
    "Acrobot-v1 Blackjack-v1 CartPole-v1 CliffWalking-v1 CliffWalkingSlippery-v1 FrozenLake-v1 FrozenLake8x8-v1 "
    "MountainCar-v0 MountainCarContinuous-v0 Pendulum-v1 Taxi-v4"
)
GYMNASIUM = tuple(_GYMNASIUM.split())
"""Gymnasium's toy text and classic control."""


def suite_ids() -> dict[str, list[str]]:
    """Return the ids of each suite: `reasoning_gym/chain_sum-v0`, `textarena/Nim-large-v0`, `gymnasium/CartPole-v1`."""
    return {
        "reasoning_gym": [f"reasoning_gym/{name}-v0" for name in REASONING_GYM],
        "textarena": [f"textarena/{_version_last(name)}" for name in TEXTARENA],
        "gymnasium": [f"gymnasium/{name}" for name in GYMNASIUM],
    }


def register_suites() -> None:
    """Register all with Gymnasium. `llm_envs.task_ids` lists only tasks; `llm_envs.registration.bridged_ids` these."""
    for name in REASONING_GYM:
        is_off = {"allow_flawed": False} if name in FLAWED else {}
        _register(f"reasoning_gym/{name}-v0", "reasoning_gym:ReasoningGymEnv", {"dataset": name, **is_off})
    for name in TEXTARENA:
        _register(f"textarena/{_version_last(name)}", "textarena:TextArenaEnv", {"game": name})
    for name in GYMNASIUM:
        _register(f"gymnasium/{name}", "gymnasium:GymnasiumEnv", {"env": name})


def _register(task_id: str, entry_point: str, kwargs: dict[str, Any]) -> None:
    if task_id not in gym.registry:
        gym.register(task_id, entry_point=f"llm_envs.bridges.{entry_point}", kwargs=kwargs)


def _version_last(name: str) -> str:
    """Return TextArena's id as Gymnasium requires it: "Nim-v0-large" is "Nim-large-v0"."""
    game, _, level = name.partition("-v0")
    return f"{game}{level}-v0"
