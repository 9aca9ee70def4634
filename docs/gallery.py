"""Writes `docs/GALLERY.md`: every task of the suite with a sample episode, its levels and its baselines.

    python docs/gallery.py            writes the page
    python docs/gallery.py --check    says what would change, and exits with 1 if anything would

Everything on the page follows from the tasks and from fixed seeds, so two runs write the same page. The success rates
take minutes to measure. `proof/gallery.json` records them with a fingerprint of the files that they depend on, and a
task is measured again only if its fingerprint has changed. Writing the page also writes the record. Delete the record
to measure every task.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import written

from llm_envs.checker.catalogue import TaskCard, describe, example_kwargs
from llm_envs.checker.episodes import Step, play, repeat
from llm_envs.checker.honesty_clauses import READER, shortcuts_won
from llm_envs.checker.subject import QUICK, Subject
from llm_envs.policies import OraclePolicy
from llm_envs.registration import task_ids
from llm_envs.rollout import Collector, EpisodeSpec
from llm_envs.tracking import visible_text
from llm_envs.types import Trajectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from proof.checked import fingerprint  # noqa: E402  (a folder of the checkout, beside this one)

PAGE = ROOT / "docs" / "GALLERY.md"
RECORD = ROOT / "proof" / "gallery.json"
PLAYED_WITH = ("*.py", "checker/*.py", "mathematics/*.py", "parsers/*.py", "sandbox/**/*.py", "tools/*.py")
"""Files of `llm_envs` on which the success rates may depend, beside those of the task in `tasks/`."""
PROOF = ROOT / "proof" / "results"
ELSEWHERE = ("llm/ALFWorld-v0", "llm/Repository-v0", "llm/ScienceWorld-v0", "llm/Tau2-v0", "llm/TextWorldExpress-v0")
"""Tasks whose packages are only in other environments (`make test-benchmarks`), or that need a project of the user's.
The page leaves them out."""
N_EPISODES = 100
HARD = "★"
"""Marks a level that is expected to be hard for frontier models."""
LONGEST_TEXT = 1_500
"""Characters of one message on the page."""

HEAD = """\
# Gallery

Every task of the suite: what it teaches, its levels, what simple players get out of it, and an episode of its oracle
(train split, default level, seed 0). `python docs/gallery.py` writes this page from the tasks themselves, and `make
check-tasks` fails where it has drifted.

Baselines are success rates over {n} episodes at each level. *Oracle*: the task's own. *Another's answers*: a player
with the right form and no idea, that says what the oracle said to another problem. *Silence*: an empty reply, again and
again. *Chance* is the upper bound that the task declares for guessing. *Reader* reads all once and keeps k facts:
the `reader(k)` of the task's `shortcuts()`. *A tiny model* is the one of `make proof`, success on the test split before
and after training ([learning](results/learning.md)), where there is such a run.

★ marks a level that is *expected to be hard for frontier models*: by the argument given with the task, a model without
tools beyond the task's own fails about half of its episodes. These are estimates, not measurements; `llm-envs list
--hard` lists the tasks that have such a level.
"""


Rates = tuple[float, float, float, float | None]
"""Of the oracle, another's answers, silence, and the reader (None if the task has none)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the page says of a task beside its card."""

    card: TaskCard
    docstring: str
    rates: dict[str, Rates]
    """By level."""
    episode: Trajectory


def measure(task_id: str) -> Measured:
    """Play an episode of a task's oracle, and the baselines at each level if they are not in the record."""
    card = describe(task_id)
    known = recorded().get(task_id, {})
    rates = {level: tuple(rates) for level, rates in known.get("rates", {}).items()}
    if known.get("files") != files_of(task_id) or rates.keys() != card.levels.keys():
        rates = {level: baselines(task_id, level) for level in card.levels}
    example = example_kwargs(task_id)
    with Collector(task_id, OraclePolicy(), env_kwargs=example, progress=False) as collector:
        (group,) = collector.play([[EpisodeSpec(task_id, env_kwargs=example)]])
    task = Subject(task_id, example, QUICK).task
    return Measured(card, inspect.getdoc(type(task)) or "", rates, group.trajectories[0])


def baselines(task_id: str, level: str) -> Rates:
    """Play the baselines of a task at a level."""
    subject = Subject(
        task_id, example_kwargs(task_id) | {"difficulty": level}, dataclasses.replace(QUICK, n_seeds=N_EPISODES)
    )
    silent = [play(subject.env, seed, repeat([], then="")) for seed in range(N_EPISODES)]
    others = [trace.steps for trace in subject.borrowed_traces.values()]
    read = [won for seed in range(N_EPISODES) for won in shortcuts_won(subject, seed, READER).values()]
    oracle, borrowed, nothing = map(success, (subject.oracle_episodes, others, silent))
    return oracle, borrowed, nothing, fmean(read) if read else None


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """Return the record: by task, the fingerprint of its files and the rates by level."""
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


def files_of(task_id: str) -> str:
    """Return a fingerprint of the files on which the rates of a task depend."""
    return f"{fingerprint(task_id)} {fingerprint_of_library()}"


@cache
def fingerprint_of_library() -> str:
    """Return a hash of the files of `PLAYED_WITH`."""
    paths = sorted({path for pattern in PLAYED_WITH for path in (ROOT / "llm_envs").glob(pattern)})
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def record(measured: list[Measured]) -> str:
    """Return the text of the record."""
    entries = {
        task.card.id: {"files": files_of(task.card.id), "rates": {k: list(v) for k, v in task.rates.items()}}
        for task in sorted(measured, key=lambda task: task.card.id)
    }
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()) + "\n}\n"


def success(episodes: list[list[Step]]) -> float:
    """Return the share of episodes that succeeded."""
    return sum(episode[-1].is_win for episode in episodes) / max(len(episodes), 1)


def pages() -> dict[Path, str]:
    """Return the page; and the record, if it is to be written."""
    ids = [task_id for task_id in task_ids() if task_id.startswith("llm/") and task_id not in ELSEWHERE]
    with ProcessPoolExecutor(2) as pool:
        measured = list(pool.map(measure, ids))
    found = {PAGE: page(sorted(measured, key=lambda m: (m.card.family, m.card.id)))}
    return found if "--check" in sys.argv else found | {RECORD: record(measured)}


def page(measured: list[Measured]) -> str:
    """Return the whole page."""
    parts = [HEAD.format(n=N_EPISODES), *overview(measured)]
    family = ""
    for task in measured:
        if task.card.family != family:
            family = task.card.family
            parts.append(f"## {family.capitalize()}\n")
        parts.append(entry(task))
    return "\n".join(parts)


def overview(measured: list[Measured]) -> Iterator[str]:
    """Yield the table at the top."""
    yield f"{len(measured)} tasks.\n"
    yield "| family | task | turns | tools | levels |"
    yield "|---|---|---:|---:|---|"
    for task in measured:
        card = task.card
        yield (
            f"| {card.family} | [`{card.id}`](#{anchor(card.id)}) | {card.max_turns} | {len(card.tools) or ''} | "
            f"{', '.join(f'{name}{HARD}' if level.expected_hard else name for name, level in card.levels.items())} |"
        )
    yield ""


def anchor(task_id: str) -> str:
    """Return the anchor of a task's heading."""
    return re.sub(r"[^a-z0-9_-]", "", task_id.lower())


def entry(task: Measured) -> str:
    """Return the part about one task."""
    card = task.card
    lines = [f"### {card.id}\n", f"{card.summary}\n"]
    if taught := re.search(r"^\s*## Description\n(.*?)\n\s*\n", task.docstring, re.DOTALL | re.MULTILINE):
        lines.append(f"{' '.join(taught[1].split())}\n")
    lines += [
        "| level | problems | chance | reader | oracle | another's answers | silence |",
        f"|---|---|{5 * '---:|'}",
    ]
    for name, level in card.levels.items():
        oracle, borrowed, silent, reader = task.rates[name]
        number = "" if level.n_problems is None else f" ({level.n_problems:,})"
        description = level.description.replace("|", "\\|")
        name = f"{name}{HARD}" if level.expected_hard else name
        lines.append(
            f"| {name} | {description}{number} | {level.chance_rate:.2g} | "
            f"{'' if reader is None else f'{reader:.2f}'} | {oracle:.2f} | {borrowed:.2f} | {silent:.2f} |"
        )
    lines += ["", *expected_hard(card), *tiny_models(card.id)]
    lines += ["```text", *episode_lines(task.episode), "```", ""]
    return "\n".join(lines)


def expected_hard(card: TaskCard) -> Iterator[str]:
    """Yield a line about each level that is expected to be hard, with the reason."""
    for name, level in card.levels.items():
        if level.expected_hard:
            yield f"{HARD} *{name}* is expected to be hard for frontier models: {level.expected_hard}\n"


def tiny_models(task_id: str) -> Iterator[str]:
    """Yield a line about each run of the proof on this task, of the plainest algorithm."""
    for path in sorted(PROOF.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["env"] != task_id or result["algorithm"] != "grpo" or result["engine"] != "transformers":
            continue
        if not result["run"].get("trains_summaries", True):  # what the run beside it is compared with
            continue
        before = fmean(result["warm"]["outcomes"]["successes"])
        after = fmean(fmean(seed["outcomes"]["successes"]) for seed in result["seeds"].values())
        level = result["run"]["task"]["env_kwargs"].get("difficulty", "with data of its own")
        model = "SmolLM2-135M" if path.name.startswith("real-") else "A tiny model"
        yield f"{model}, {level}: {before:.2f} before training, {after:.2f} after.\n"


def episode_lines(episode: Trajectory) -> Iterator[str]:
    """Yield the lines of a conversation."""
    for message in episode.messages:
        text = visible_text(message.content)
        for call in message.tool_calls:
            text += f"\n-> {call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})"
        if len(text) > LONGEST_TEXT:
            text = f"{text[:LONGEST_TEXT]} [... {len(text) - LONGEST_TEXT:,} characters more]"
        head, *rest = text.strip("\n").replace("```", "'''").split("\n")
        yield f"{message.role:9} {head}".rstrip()
        yield from (f"{'':9} {line}".rstrip() for line in rest)
    yield f"{'':9} [{episode.stop_reason.value}, reward {episode.reward:g}]"


if __name__ == "__main__":
    sys.exit(written.main(__doc__, pages, source="the tasks say"))
