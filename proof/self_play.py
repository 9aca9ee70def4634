"""Self-play learns: the exploitability of a tiny model while it plays a game against itself, exactly.

    python -m proof.self_play NAME ... [--seed N ...]
    python -m proof.self_play --all
    python -m proof.self_play --docs docs/results/self_play.md

A run writes `proof/results/self_play/NAME.json`; `--docs` makes the page's table and curve from all of them. The model
begins as one that imitates `WarmPolicy`. Two cores and no accelerator are enough.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import transformers

from benchmarks.measuring import describe_hardware, describe_versions, find_commit
from llm_envs.chat import ChatCodec
from llm_envs.env import SeatedEnv
from llm_envs.evaluation import nash_conv
from llm_envs.evaluation.exploitability import decision_points
from llm_envs.policies.base import Policy
from llm_envs.policies.inference import token_logps
from llm_envs.rollout import Collector, MultiplayerEnv, PastVersions
from llm_envs.sources.mixture import derive_fraction
from llm_envs.tasks.games.game import cell_name
from llm_envs.tasks.games.kuhn_poker import KuhnPoker
from llm_envs.tasks.games.two_seat_tic_tac_toe import TwoSeatTicTacToe
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import (
    EnvGRPOConfig,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
)
from llm_envs.trainers.callbacks import ProgressLineCallback
from llm_envs.trainers.functional.algorithm import DR_GRPO, PPO
from llm_envs.trainers.functional.turn_advantages import per_turn
from llm_envs.types import Message

__all__ = ["RUNS", "Run", "action_probabilities", "exploit"]

RESULTS = Path("proof/results/self_play")
WORK = Path("runs/self_play")


_CELLS = "abcdefghi"


class TicTacToe(TwoSeatTicTacToe):
    """Tic-tac-toe whose rules are not shown; a cell and whose it is are one word, which a tiny model reads sooner."""

    instructions = ""

    def legal_actions(self, state: str) -> Sequence[str]:
        """Return the letters of the free cells."""
        return [cell for cell, mark in zip(_CELLS, state, strict=True) if mark == "."]

    def apply_action(self, state: str, action: str) -> str:
        """Mark the cell."""
        return super().apply_action(state, cell_name(*divmod(_CELLS.index(action), 3)))

    def information_state(self, state: str, seat: int) -> str:
        """Return the cells, each after m (mine), t (theirs) or f (free)."""
        whose = {"XO"[seat]: "m", "OX"[seat]: "t", ".": "f"}
        return " ".join(whose[mark] + cell for cell, mark in zip(_CELLS, state, strict=True))


class TicTacToeStarts(TicTacToe):
    """Tic-tac-toe that begins on any board of up to six marks: so all of them are played, whichever are preferred."""

    def initial_states(self) -> Sequence[tuple[float, str]]:
        """Return the boards that nobody has won: each number of marks equally likely, and each board of it."""
        return _starts()


@cache
def _starts() -> Sequence[tuple[float, str]]:
    game, found = TicTacToe(), [["." * 9]]
    for _ in range(6):
        played = {game.apply_action(board, action) for board in found[-1] for action in game.legal_actions(board)}
        found.append(sorted(board for board in played if game.returns(board) is None))
    return [(1 / len(found) / len(boards), board) for boards in found for board in boards]


class RandomLegalPolicy:
    """Plays legal actions at random, each with the same probability."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def for_episode(self, seed: int) -> RandomLegalPolicy:
        """Return a policy with its own stream."""
        return RandomLegalPolicy(seed)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Return a legal action as a reply."""
        game: Any = env.unwrapped
        return str(game.write_answer(self._random.choice(game.legal_actions(game.state))))


class WarmPolicy(RandomLegalPolicy):
    """Plays legal actions with weights of 1 or 3, which a hash of the observation decides.

    A model that imitates uniform play need not read the observation, and then learns late that it matters.
    """

    def for_episode(self, seed: int) -> WarmPolicy:
        """Return a policy with its own stream."""
        return WarmPolicy(seed)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Return a legal action as a reply."""
        game: Any = env.unwrapped
        legal = game.legal_actions(game.state)
        weights = [1 + 2 * (derive_fraction("warm", observation, action) > 0.5) for action in legal]
        return str(game.write_answer(self._random.choices(legal, weights)[0]))


class OneMoveAheadPolicy(RandomLegalPolicy):
    """Plays one of five moves at random; else one that wins, or one after which the other seat cannot win at once."""

    def for_episode(self, seed: int) -> OneMoveAheadPolicy:
        """Return a policy with its own stream."""
        return OneMoveAheadPolicy(seed)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Return a legal action as a reply."""
        game: Any = env.unwrapped
        legal = game.legal_actions(game.state)
        if self._random.random() < 0.8:
            after = {action: game.apply_action(game.state, action) for action in legal}
            legal = (
                [action for action in legal if _wins(game, after[action], game.current_seat(game.state))]
                or [action for action in legal if not _can_win(game, after[action])]
                or legal
            )
        return str(game.write_answer(self._random.choice(legal)))


def _wins(game: SeatedEnv[Any], state: Any, seat: int) -> bool:
    returns = game.returns(state)
    return returns is not None and returns[seat] > 0


def _can_win(game: SeatedEnv[Any], state: Any) -> bool:
    """Return whether the seat whose turn it is has a move that wins."""
    if game.returns(state) is not None:
        return False
    seat = game.current_seat(state)
    return any(_wins(game, game.apply_action(state, action), seat) for action in game.legal_actions(state))


@dataclass(frozen=True)
class Game:
    """A game, and how a model is warmed up on it."""

    measured: type[SeatedEnv[Any]]
    played: type[SeatedEnv[Any]]
    tokenizer: Mapping[str, Any]
    """Arguments of `tiny_tokenizer`."""
    warm_policy: Policy
    """Plays the traces of the warm start."""
    n_traces: int
    sft_steps: int


GAMES: Mapping[str, Game] = {
    "kuhn": Game(KuhnPoker, KuhnPoker, {"vocab_size": 700, "max_token_length": 400}, WarmPolicy(), 500, 400),
    "tic-tac-toe": Game(
        TicTacToe, TicTacToeStarts, {"vocab_size": 400, "by_words": True}, OneMoveAheadPolicy(), 30000, 2500
    ),
}


OPPONENTS: Mapping[str, Callable[[], Policy | PastVersions | None]] = {
    "itself": lambda: None,
    "past versions": lambda: PastVersions(20, size=8),
    "random": RandomLegalPolicy,
}


@dataclass(frozen=True)
class Run:
    """A training by self-play; everything that its result depends on."""

    game: str
    """Of `GAMES`."""
    trainer: str = "grpo"
    opponent: str = "itself"
    """Of `OPPONENTS`: who has the other seat."""
    kl_coef: float = 0.1
    """Of the KL to the model as it begins, which keeps its play mixed and legal."""
    discount: float | None = None
    """Of a turn: what comes of a move counts less for the moves before it. None for one advantage for all turns."""
    measure_every: int = 20
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)

    def describe(self) -> dict[str, Any]:
        """Return what is kept with a result: all but when it is measured, and the seeds."""
        return {name: value for name, value in asdict(self).items() if name not in ("measure_every", "seeds")}


_KUHN = {
    "max_steps": 200,
    "per_device_train_batch_size": 128,
    "num_generations": 8,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "linear",
}
_BOARD = {
    **_KUHN,
    "max_steps": 1000,
    "per_device_train_batch_size": 256,
    "num_generations": 16,
}
_PPO = {"num_generations": 1, "value_learning_rate": 1e-3}
RUNS: Mapping[str, Run] = {
    "kuhn-grpo": Run("kuhn", settings=_KUHN),
    "kuhn-ppo": Run("kuhn", "ppo", settings={**_KUHN, **_PPO}),
    "kuhn-past-versions": Run("kuhn", opponent="past versions", settings=_KUHN),
    "kuhn-random": Run("kuhn", opponent="random", settings=_KUHN),
    "tic-tac-toe-grpo": Run(
        "tic-tac-toe", kl_coef=0.05, discount=0.8, measure_every=100, settings=_BOARD, seeds=(0, 1)
    ),
}


def newest(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the rules, if there are any, and the newest observation, which has all that a seat knows."""
    return *(message for message in messages[:1] if message.role == "system"), messages[-1]


def action_probabilities(
    model: Any, codec: ChatCodec, game: SeatedEnv[Any]
) -> tuple[dict[tuple[int, str], dict[str, float]], float]:
    """Return the model's probability of each legal action at each decision point, from its tokens' log-probabilities.

    Returns:
        (seat, information state) -> probabilities that sum to 1; and the largest share at any of them of replies that
        are not legal actions in canonical form, which the probabilities leave out.
    """
    points = decision_points(game)
    places, rows, starts = [], [], []
    for (seat, text), legal in points.items():
        rules = [Message("system", game.instructions)] if game.instructions else []
        prompt = codec.encode_prompt([*rules, Message("user", text)])
        for action in legal:
            places.append(((seat, text), action))
            rows.append(np.concatenate([prompt, codec.encode_reply(game.write_answer(action))]))
            starts.append(len(prompt))
    order = np.argsort([len(row) for row in rows], kind="stable")
    scored = token_logps(model, [rows[place] for place in order], micro_batch_size=512)
    found: dict[tuple[int, str], dict[str, float]] = {point: {} for point in points}
    for place, logps in zip(order, scored, strict=True):
        point, action = places[place]
        found[point][action] = float(np.exp(logps[starts[place] :].astype(np.float64).sum()))
    illegal = max(1 - sum(shares.values()) for shares in found.values())
    return {
        point: {action: share / sum(shares.values()) for action, share in shares.items()}
        for point, shares in found.items()
    }, illegal


def exploit(model: Any, codec: ChatCodec, game: SeatedEnv[Any]) -> tuple[float, float]:
    """Return the NashConv of a model, and the largest share of illegal replies at a decision point."""
    was_training = model.training
    model.eval()
    chosen, illegal = action_probabilities(model, codec, game)
    model.train(was_training)
    return nash_conv(game, lambda seat, text: chosen[seat, text]), illegal


def warm_start(game: str) -> Path:
    """Return the folder of a model that plays legal actions at random; it is trained if it is missing."""
    folder, about = WORK / "warm" / game, GAMES[game]
    if (folder / "config.json").is_file():
        return folder

    def traces(codec: ChatCodec, n: int) -> Any:
        env = MultiplayerEnv(about.played)
        with Collector(env, about.warm_policy, codec=codec, context_fn=newest, progress=False) as collector:
            return [trajectory for group in collector.collect(n) for trajectory in group]

    plain = ChatCodec(tiny_tokenizer())
    texts = [plain.tokenizer.decode(row.ids) for trajectory in traces(plain, 60) for row in trajectory.rows]
    tokenizer = tiny_tokenizer(texts, **about.tokenizer)
    model = tiny_model(tokenizer, max_length=256, seed=0)
    config = EnvSFTConfig(
        output_dir=str(folder / "sft"),
        max_steps=about.sft_steps,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        gradient_checkpointing=False,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    source = traces(ChatCodec(tokenizer), about.n_traces)
    trainer = EnvSFTTrainer(model, args=config, source=source, processing_class=tokenizer)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    print([round(entry["loss"], 3) for entry in trainer.state.log_history if "loss" in entry], flush=True)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    shutil.rmtree(folder / "sft", ignore_errors=True)
    return folder


class _Curve(transformers.TrainerCallback):  # type: ignore[misc]
    """Measures NashConv before training and every so many steps."""

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run, self._trainer, self._game = run, trainer, GAMES[run.game].measured()
        self.points: list[tuple[int, float, float]] = []
        self.seconds = 0.0

    def measure(self, step: int) -> None:
        """Add (step, NashConv, share of illegal replies)."""
        started = perf_counter()
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        found = exploit(model, self._trainer.collector.codec, self._game)
        self.points.append((step, *(round(value, 5) for value in found)))
        self.seconds += perf_counter() - started
        print(f"  step {step}: NashConv {found[0]:.3f}, illegal {found[1]:.4f}, {self.seconds:.0f} s", flush=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the model as it begins."""
        self.measure(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the model if it is time."""
        if state.global_step % self._run.measure_every == 0:
            self.measure(state.global_step)


def train(name: str, seed: int) -> dict[str, Any]:
    """Train once; return the curve and the time."""
    run = RUNS[name]
    warm, started = warm_start(run.game), perf_counter()
    settings = {
        "output_dir": str(WORK / "models" / f"{name}-{seed}"),
        "max_completion_length": 128,
        "max_turn_tokens": 16,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "save_trajectories": False,
        "report_to": "none",
        "disable_tqdm": True,
        "max_concurrency": 512,
        "seed": seed,
        **run.settings,
    }
    env = MultiplayerEnv(GAMES[run.game].played, opponent=OPPONENTS[run.opponent]())
    base = PPO if run.trainer == "ppo" else DR_GRPO
    algorithm = replace(base, normalisation="token", constant=None, kl_coef=run.kl_coef)
    if run.discount is not None:
        algorithm = replace(algorithm, advantage_fn=partial(per_turn, gamma=run.discount, scale=True))
    makes: Any = {"grpo": (EnvGRPOTrainer, EnvGRPOConfig), "ppo": (EnvPPOTrainer, EnvPPOConfig)}[run.trainer]
    trainer = makes[0](str(warm), env, makes[1](**settings), algorithm=algorithm, context_fn=newest)
    curve = _Curve(run, trainer)
    for callback in (curve, ProgressLineCallback(f"{name}, seed {seed}", ("env/reward",))):
        trainer.add_callback(callback)
    trainer.remove_callback(transformers.PrinterCallback)
    try:
        trainer.train()
    finally:
        trainer.close()
    seconds = perf_counter() - started - curve.seconds
    return {"seed": seed, "curve": curve.points, "train_seconds": round(seconds, 1)}


def run_one(name: str, seeds: Sequence[int]) -> None:
    """Train the seeds of a run; write its JSON after each."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    run = RUNS[name]
    data: dict[str, Any] = {"run": run.describe(), "versions": describe_versions(), "hardware": describe_hardware()}
    data |= {"commit": find_commit(), "seeds": []}
    for seed in seeds:
        data["seeds"].append(train(name, seed))
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def put_into(document: Path, folder: Path = RESULTS) -> None:
    """Put the table of all results between the marks of a document, and draw its curve beside it.

    Raises:
        SystemExit: If the document lacks the marks.
    """
    results = {name: json.loads(path.read_text()) for name in RUNS if (path := folder / f"{name}.json").exists()}
    text = document.read_text(encoding="utf-8")
    marks = re.compile("(<!-- proof self-play -->\n).*?(<!-- end self-play -->)", re.DOTALL)
    text, n_found = marks.subn(lambda match: f"{match[1]}\n{table(results)}\n\n{match[2]}", text)
    if not n_found:
        raise SystemExit(f"{document} lacks the lines <!-- proof self-play --> and <!-- end self-play -->: add them.")
    document.write_text(text, encoding="utf-8")
    plot(results, document.parent.parent / "images" / "self-play.svg")


def table(results: Mapping[str, Any]) -> str:
    """Return the table of NashConv: one row for each run, with the values of its seeds in order."""
    head = ["run", "before", "halfway", "after", "illegal after", "steps", "s"]
    lines = [" | ".join(head), " | ".join(["---", *["---:"] * 6])]
    for name, result in results.items():
        curves = [seed["curve"] for seed in result["seeds"]]
        cells = [[f"{curve[place][1]:.3f}" for curve in curves] for place in (len(curves[0]) // 2, -1)]
        cells += [[f"{curve[-1][2]:.1%}" for curve in curves], [str(curves[0][-1][0])]]
        cells += [[f"{seed['train_seconds']:.0f}" for seed in result["seeds"]]]
        lines.append(" | ".join([f"`{name}`", f"{curves[0][0][1]:.3f}", *map(", ".join, cells)]))
    return "\n".join(f"| {line} |" for line in lines)


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Draw NashConv over training steps, one picture for each game."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "self-play", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    figure, pictures = pyplot.subplots(1, len(GAMES), figsize=(8, 3), layout="constrained")
    for game, axes in zip(GAMES, pictures, strict=True):
        of_game = [result for result in results.values() if result["run"]["game"] == game]
        for number, result in enumerate(of_game):
            label: str | None = f"{result['run']['trainer']}, against {result['run']['opponent']}"
            for seed in result["seeds"]:
                steps, values, _ = zip(*seed["curve"], strict=True)
                axes.plot(steps, values, ".-", color=f"C{number}", label=label)
                label = None
        axes.set(title=game, xlabel="training steps", ylabel="NashConv", ylim=(0, None))
        if axes.lines:
            axes.legend(fontsize=6)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--all", action="store_true", help="all runs, one after another")
    parser.add_argument("--seed", type=int, nargs="+", help="seeds in place of the run's")
    parser.add_argument("--docs", type=Path, help="put the table and the curve of all results into this page")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(RUNS)):
        parser.error(f"there is no run {', '.join(unknown)}; the runs are {', '.join(RUNS)}.")
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.logging.set_verbosity_error()
    for name in RUNS if options.all else options.names:
        run_one(name, options.seed or RUNS[name].seeds)
    if options.docs:
        put_into(options.docs)


if __name__ == "__main__":
    main()
