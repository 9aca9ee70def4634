"""Writes `docs/reference/api/`: a page for each room of the package, with its modules, for mkdocstrings to fill.

    python docs/api_pages.py            writes the pages
    python docs/api_pages.py --check    says what would change, and exits with 1 if anything would

The sources are read and not imported. A module is public if it has `__all__`; one that no room takes is an error.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import written

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference" / "api"
FOLDERS = {"llm_envs": ROOT / "llm_envs", "llm_envs.trainers": ROOT / "trainers"}


@dataclass(frozen=True, slots=True)
class Room:
    """A page."""

    name: str
    title: str
    about: str
    modules: tuple[str, ...]
    """Patterns below `llm_envs`, in the order of the page; a module is on the first page that has it."""


ROOMS = (
    Room(
        "environments",
        "Environments",
        "Tasks, what is around them, the registry, and the check of the contract.",
        ("env.*", "objects", "problems", "spaces", "wrappers.*", "registration", "checker.check", "checker.*"),
    ),
    Room(
        "tools",
        "Tools",
        "Tools from functions, tools that share state, sandboxes, and evaluating what a model wrote.",
        (
            *("tools.base", "tools.*", "processes", "processes.*", "sandbox.*", "sandbox.cpython.*", "shell.*"),
            "mathematics.*",
        ),
    ),
    Room(
        "chat",
        "Chat and tokens",
        "Messages to token ids and back; what a chat template can do; replies taken apart.",
        ("chat.codec", "chat.*", "doctor", "parsers.reply", "parsers.formats", "parsers.*"),
    ),
    Room(
        "policies",
        "Policies",
        "Who plays: the protocols, the backends, and inference by hand below them.",
        (
            "policies.base",
            "policies.scripted",
            "policies.transformers",
            "policies.chat_api",
            "policies.answers",
            "policies.vllm.*",
            "policies.inference.*",
        ),
    ),
    Room(
        "data",
        "Data and store",
        "What an episode is, on disk, as tables, and as rows to train on; the errors.",
        ("types.*", "data.datasets", "data.writer", "data.*", "errors"),
    ),
    Room(
        "rollout",
        "Rollout",
        "Which episodes are played, how one is played, and how many at once.",
        (
            "rollout.collector",
            "rollout.limits",
            "rollout.converse",
            "rollout.filters",
            "rollout.*",
            "rollout.workers.*",
            "sources.*",
            "agents.*",
        ),
    ),
    Room(
        "rewards",
        "Rewards",
        "What an episode is paid: functions of texts and trajectories, shaping, judges.",
        ("rewards.base", "rewards.builders", "rewards.*", "judges.*"),
    ),
    Room(
        "evaluation",
        "Evaluation",
        "Measuring a policy, comparing two, and the statistics.",
        ("evaluation.run", "evaluation.*"),
    ),
    Room(
        "logging",
        "Report and logging",
        "Numbers from trajectories, where they go, and what a person looks at.",
        ("tracking.*", "report.*"),
    ),
    Room(
        "bridges",
        "Bridges",
        "Other suites' environments as ours, ours as theirs, and data sets as tasks.",
        ("bridges.*",),
    ),
    Room(
        "functional",
        "Equations",
        "Pure functions of tensors: advantages, losses, KL, and an algorithm as a value. torch is all they need.",
        ("trainers.functional.algorithm", "trainers.functional.*"),
    ),
    Room(
        "trainers",
        "Trainers",
        "The subclasses of TRL's trainers, the loop without TRL, and their parts.",
        (
            "trainers.grpo.*",
            "trainers.ppo.*",
            "trainers.dpo.*",
            "trainers.sft.*",
            "trainers.loop.*",
            "trainers.stock_trl.*",
            "trainers.schedules",
            "trainers.callbacks",
            "trainers.*",
            "trainers.engines.*",
            "trainers.episodes.*",
            "trainers.forward.*",
            "trainers.run.*",
            "trainers.settings.*",
            "trainers.cli.*",
            "trainers.cli.audit.*",
        ),
    ),
    Room(
        "testing",
        "Testing",
        "Doubles and tiny models for tests, yours too.",
        ("testing", "tiny_model"),
    ),
    Room(
        "commands",
        "Command line",
        "The parts of the command `llm-envs`, for those who add one.",
        ("cli.*",),
    ),
)


def public_modules() -> dict[str, str]:
    """Return the modules that export something of their own: name below `llm_envs` -> first line of its docstring."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if path.name != "__init__.py" and exported(tree):
                inner = ".".join(path.relative_to(folder).with_suffix("").parts)
                name = f"{package}.{inner}".removeprefix("llm_envs.")
                found[name] = first_sentence(ast.get_docstring(tree) or "")
    return found


def exported(tree: ast.Module) -> list[str]:
    """Return the names in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def first_sentence(docstring: str) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join(docstring.split("\n\n")[0].split()).replace("|", "\\|")


def rooms() -> dict[str, list[str]]:
    """Return the modules of each page, in its order.

    Raises:
        ValueError: If a public module is in no room.
    """
    left, found = dict.fromkeys(public_modules()), {}
    for room in ROOMS:
        found[room.name] = [
            name
            for pattern in room.modules
            for name in sorted(left)
            if fnmatchcase(name, pattern) and pattern.count(".") == name.count(".")
        ]
        found[room.name] = list(dict.fromkeys(found[room.name]))
        for name in found[room.name]:
            del left[name]
    if left:
        raise ValueError(f"in no room of {Path(__file__).name}: {', '.join(left)}. Add a pattern.")
    return found


def pages() -> dict[str, str]:
    """Return the text of each page, the index among them."""
    listed, described = rooms(), public_modules()
    out = {}
    for room in ROOMS:
        lines = [f"# {room.title}\n", f"{room.about}\n", "| module | |", "|---|---|"]
        lines += [f"| `llm_envs.{name}` | {described[name]} |" for name in listed[room.name]]
        lines += ["", *(f"::: llm_envs.{name}\n" for name in listed[room.name])]
        out[f"api_{room.name}.md"] = "\n".join(lines)
    out["modules.md"] = "\n".join(index())
    return out


def index() -> Iterator[str]:
    """Yield the page that leads to the others."""
    yield "# API\n"
    yield "Every public module, from its docstrings. `python docs/api_pages.py` writes the lists.\n"
    yield "| | |"
    yield "|---|---|"
    for room in ROOMS:
        yield f"| [{room.title}](api_{room.name}.md) | {room.about} |"
    yield ""


if __name__ == "__main__":
    sys.exit(
        written.main(__doc__, lambda: {PAGES / name: text for name, text in pages().items()}, source="the modules say")
    )
