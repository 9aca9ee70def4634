"""Measures what other suites' environments pay for, and which of them play: `python -m proof.bridges`.

    python -m proof.bridges                 both of these: what has no result yet
    python -m proof.bridges reasoning-gym   which scorers give full credit to garbage
    python -m proof.bridges textarena       which games play without a network

Each needs its suite (`make test-bridges` has both), and writes `proof/results/bridges/SUITE.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llm_envs.bridges.ids import REASONING_GYM, TEXTARENA
from llm_envs.rewards import parse_number

RESULTS = Path(__file__).with_name("results") / "bridges"
N_ITEMS = 20
ITEMS_S = 3.0
"""Seconds for making items: of a slow data set at least four are made."""
GAME_S = 60
"""Seconds for the episodes of a game."""
N_GAMES = 6
GARBAGE = (
    *("x", "?", "0", "1", "-1", "2", "10", "42", "0.5", "1/2", "nan", "inf", "True", "False", "yes", "no", "None"),
    *("[]", "{}", "()", "[[]]", "[0]", '{"a": 1}', "C", "x+C", "(", "***", "A", "the answer", "I do not know"),
    *("0 " * 30, "a" * 50, "1, 2, 3", "right", "left", "Correct", "6*4*1*1", "4*6*1*1"),
)


def measure_data_set(name: str) -> dict[str, Any]:
    """Return the text that is paid most often without being the answer, and on which share of the items."""
    from llm_envs.bridges.reasoning_gym import ReasoningGymEnv

    env = ReasoningGymEnv(dataset=name, allow_flawed=True)
    started = time.perf_counter()
    items = []
    for seed in range(N_ITEMS):
        env.reset(seed=seed)
        items.append(env.problem)
        if seed >= 3 and time.perf_counter() - started > ITEMS_S:
            break
    seconds = (time.perf_counter() - started) / len(items)
    texts = dict.fromkeys([*GARBAGE, *(item["answer"] for item in items if item["answer"])])
    paid = dict.fromkeys([*texts, "the question"], 0)
    n_right = 0
    for item in items:
        env.reset(options={"problem": item})
        n_right += bool(item["answer"]) and env.score_text(item["answer"]) >= 1.0
        for text in paid:
            given = item["question"] if text == "the question" else text
            if not is_same(given, item["answer"]) and env.score_text(given) >= 1.0:
                paid[text] += 1
    best = max(paid, key=lambda text: paid[text])
    return {
        "item_s": round(seconds, 4),
        "has_answers": any(item["answer"] for item in items),
        "n_items": len(items),
        "answers_right": n_right / len(items),
        "garbage": best[:60] if paid[best] else None,
        "garbage_paid": paid[best] / len(items),
    }


def is_same(text: str, answer: str) -> bool:
    """Return whether two texts are equal up to case and white space, or as numbers."""
    numbers = parse_number(text), parse_number(answer)
    return text.lower().split() == answer.lower().split() or (None not in numbers and numbers[0] == numbers[1])


class _TookTooLong(BaseException):
    """Raised by the alarm: no handler of a game may catch it."""


def measure_game(game: str) -> dict[str, Any]:
    """Return the number of players with which a game plays some episodes of shown moves, or why it does not."""
    from llm_envs.bridges.textarena import ShownMovesOpponent, TextArenaEnv

    why = ""
    for players in (2, 1):
        TEXTARENA[game] = players
        signal.alarm(GAME_S)
        try:
            env = TextArenaEnv(game=game)
            for seed in range(N_GAMES):
                agent = ShownMovesOpponent(seed)
                observation, _ = env.reset(seed=seed)
                for _ in range(200):
                    observation, _, terminated, _, _ = env.step(agent.act(env, observation))
                    if terminated:
                        break
            return {"players": players}
        except _TookTooLong:
            why = why or f"it took over {GAME_S} s"
        except AssertionError:
            pass  # another number of players
        except Exception as error:
            text = re.sub(r"\S*site-packages/", "", " ".join(str(error).split()).strip("* "))
            why = why or f"{type(error).__name__}: {text[:100]}"
        finally:
            signal.alarm(0)
    return {"left_out": why or "it is for more than two players"}


def all_games() -> list[str]:
    """Return TextArena's games, and make sure that they find no network."""
    import textarena.envs  # noqa: F401  # registers the games
    from textarena.envs.registration import ENV_REGISTRY

    def refuse(*arguments: Any) -> None:
        raise OSError("there is no network here")

    def stop(*arguments: Any) -> None:
        raise _TookTooLong

    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGALRM, stop)
    return [name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))]


SUITES: dict[str, tuple[Callable[[], Sequence[str]], Callable[[str], dict[str, Any]]]] = {
    "reasoning-gym": (lambda: REASONING_GYM, measure_data_set),
    "textarena": (all_games, measure_game),
}
"""Suite -> its environments, and the measurement of one."""


def measure(suite: str, *, fresh: bool) -> None:
    """Measure what has no result yet for the installed version, and write the record after each environment."""
    path = RESULTS / f"{suite}.json"
    package = f"{suite} {version(suite)}"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not fresh else {}
    measured = known["measured"] if known.get("package") == package else {}
    names, measure_one = SUITES[suite]
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names():
        if name not in measured:
            measured[name] = measure_one(name)
            print(name, measured[name], flush=True)
            record = {"package": package, "measured": dict(sorted(measured.items()))}
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure a suite, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", choices=list(SUITES), help="default: all")
    parser.add_argument("--fresh", action="store_true", help="measure again what has a result")
    options = parser.parse_args()
    for suite in SUITES:
        if options.suite in (None, suite):
            measure(suite, fresh=options.fresh)


if __name__ == "__main__":
    main()
