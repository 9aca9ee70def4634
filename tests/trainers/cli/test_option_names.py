"""One name and one meaning for each option, over all commands and trainings."""

from __future__ import annotations

import argparse
import re
import typing
from dataclasses import fields
from pathlib import Path

import pytest

from llm_envs.cli.main import create_parser
from llm_envs.cli.parser import Flag, Parser, json_object
from llm_envs.trainers.cli.commands import KINDS
from llm_envs.trainers.cli.parser import Switch, TrainingParser
from llm_envs.trainers.cli.sft_rl import SFTRLSettings, make_parser

CONCEPTS = {
    "--agent": ("text", r"an agentenv \(file\.py:name"),
    "--algorithm": ("text", r"a published algorithm"),
    "--all-levels": ("bool", r"(check|examine) (every|each) level"),
    "--chat-template-path": ("text", r"a jinja template to use"),
    "--config": ("text", r"yaml file with options"),
    "--devices": ("texts", r"cuda_visible_devices"),
    "--difficulty": ("text", r"level of the task"),
    "--dry-run": ("bool", r"say what would be done"),
    "--engine": ("text", r"engine of the model"),
    "--env": ("text", r"id of a registered environment|task of the example episode|file\.py:name of the episode's"),
    "--env-kwargs": ("json", r"more arguments of the task|arguments of gym.make"),
    "--env-servers": ("texts", r"addresses( \(host:port\))? of `?llm-envs serve-envs"),
    "--exclude": ("text", r"exclude matching tasks"),
    "--family": ("text", r"tasks of this family|family of the task"),
    "--group-size": (
        "number",
        r"episodes per problem|number of generations to sample\.|episodes of (a group|one seed)",
    ),
    "--history": ("text", r"show the model its earlier turns|how conversations are encoded|what the model sees of its"),
    "--host": ("text", r"address to listen on"),
    "--json": ("bool", r"print .* as json"),
    "--log-every-s": ("number", r"seconds between logged steps"),
    "--max-concurrency": ("number", r"concurrent episodes|episodes played at once"),
    "--max-concurrent-requests": ("number", r"api: concurrent requests"),
    "--max-step-s": ("number", r"seconds (allowed for )?one step of"),
    "--max-tokens-name": ("text", r"api: parameter"),
    "--max-turn-tokens": ("number", r"tokens (per|one|of a) turn"),
    "--max-turns": ("number", r"turns (per|of an|an) episode"),
    "--model": ("text", r"a folder, a name on a model hub|model checkpoint"),
    "--model-name": ("text", r"the model's name at --model url"),
    "--namespace": ("text", r"(with --all: only name/|namespace of the id)"),
    "--open": ("bool", r"open it in a browser"),
    "--out": ("text", r"output f(older|ile)|(the output directory|folder) (where|for)"),
    "--policy": ("text", r"a script .*, or an engine"),
    "--port": ("number", r"port to listen on|its port"),
    "--project": ("text", r"(the name of the )?project (of wandb|to use)"),
    "--ray": ("text", r"play in ray actors"),
    "--ray-actors": ("number", r"ray: actors"),
    "--ray-gpus": ("number", r"ray: gpus"),
    "--ray-labels": ("json", r"ray: task id -> labels"),
    "--report-to": ("texts", r"tensorboard, wandb|the list of integrations"),
    "--requests-per-minute": ("number", r"api: limit on requests"),
    "--resume": ("bool", r"(resume the (run|evaluation)|path to a folder with a valid checkpoint)"),
    "--rewards": ("text", r"(file\.py:name of your rewards|the run's rewards)"),
    "--run-name": ("text", r"name of the trackers' run|an optional descriptor for the run"),
    "--seed": ("number", r"the run's seed|random seed that|seed of both|seed of requests"),
    "--serve": ("number", r"start n `vllm serve`"),
    "--server-args": ("text", r"arguments of `vllm serve`"),
    "--shard": ("number", r"play only shard i of n"),
    "--split": ("text", r"train or test"),
    "--temperature": ("number", r"(sampling temperature|temperature for sampling|of sampling; above 0)"),
    "--thinking": ("bool", r"(passed to the chat template as |the template's )enable_thinking"),
    "--title": ("text", r"the page's title"),
    "--tokenizer": ("text", r"tokenizer (of|for) the"),
    "--trace": ("bool", r"send opentelemetry spans"),
    "--url": ("text", r"address of the server"),
    "--window": ("number", r"show the model only its last turns"),
    "--workers": ("number", r"run tasks in n processes"),
    "-n": ("number", r"problems"),
}
"""Option -> its type, and the beginning of its help: the concept. No other option's help begins like this."""

ALIASES = {
    "--out": "--output-dir",
    "--model": "--model-name-or-path",
    "--group-size": "--num-generations",
    "--resume": "--resume-from-checkpoint",
}
"""Our name -> TRL's for the same field. Only the trainings take both."""

OF_ROOMS = {"--agent", "--ray-actors", "--ray-gpus", "--ray-labels"}
"""Options of rooms outside the core, absent where these rooms are."""

OTHER = {"-h", "--debug"}
"""Options of argparse, and the one name with two meanings: transformers' field of the trainings, our flag before it."""


def commands() -> dict[str, Parser]:
    """Return the parser of each command, and of each training."""
    trainings: dict[str, Parser] = {name: TrainingParser(kinds) for name, kinds in KINDS.items()}
    own = {name: parser for name, parser in create_parser().commands.items() if name != "train"}
    return own | trainings | {"sft-rl": make_parser()}


def name_of(action: argparse.Action) -> str:
    return action.option_strings[0]


def options() -> list[tuple[str, argparse.Action]]:
    """Return (command, option) of all commands and trainings."""
    return [
        (command, action)
        for command, parser in commands().items()
        for action in parser.actions
        if action.option_strings and name_of(action) not in OTHER
    ]


def json_fields() -> set[str]:
    """Return the fields of trainings that take a mapping, which a command line gives as JSON."""
    kinds = {kind for kinds in KINDS.values() for kind in kinds} | {SFTRLSettings}
    hints = [(item.name, str(typing.get_type_hints(kind)[item.name])) for kind in kinds for item in fields(kind)]
    return {name for name, hint in hints if "dict" in hint}


def type_of(action: argparse.Action, mappings: set[str]) -> str:
    if isinstance(action, Flag | Switch) or (action.nargs == "?" and action.const == "true"):
        return "bool"
    if action.type is json_object or action.dest in mappings:
        return "json"
    if action.nargs == "+":
        return "texts"
    return "text" if action.choices or action.type in (None, str, Path) else "number"


def test_an_option_has_one_name_one_type_and_one_meaning() -> None:
    mappings = json_fields()
    for command, action in options():
        name, text = name_of(action), " ".join(str(action.help).lower().split())
        if name in CONCEPTS:
            kind, meaning = CONCEPTS[name]
            assert type_of(action, mappings) == kind, (command, name)
            assert re.match(meaning, text), (command, name, text)
        alike = [other for other, (_, meaning) in CONCEPTS.items() if other != name and re.match(meaning, text)]
        assert not alike, f"{command} {name} means what {alike[0]} means elsewhere: {text}"


def test_every_option_of_several_commands_is_a_concept() -> None:
    """The trainings count as one command here: they take TRL's fields."""
    takers: dict[str, set[str]] = {}
    for command, action in options():
        is_training = command in KINDS or command == "sft-rl"
        takers.setdefault(name_of(action), set()).add("train" if is_training else command)
    assert {name for name, found in takers.items() if len(found) > 1} <= CONCEPTS.keys()
    assert CONCEPTS.keys() - takers.keys() in (set(), OF_ROOMS)


@pytest.mark.parametrize("old", ["--max-new-tokens", "--environment", "--concurrency", "--max-concurrent", "--samples"])
def test_old_names_are_gone(old: str) -> None:
    assert not [command for command, parser in commands().items() if old in parser.options()]


def test_trls_names_are_taken_beside_ours_in_trainings_only() -> None:
    for command, action in options():
        is_training = command in KINDS or command == "sft-rl"
        names = [name for name in action.option_strings if not name.startswith("--no-")]
        expected = [names[0], *([ALIASES[names[0]]] if is_training and names[0] in ALIASES else [])]
        assert names == expected or names == ["--colour", "--color"], (command, names)


def test_helps_show_dashes_and_positional_arguments_the_task() -> None:
    for command, parser in commands().items():
        assert not re.findall(r"(?<![\w-])--\w+_\w+", parser.format_usage()), command
    for name in ("play", "collect", "eval", "check"):
        (first, *_) = [action for action in create_parser(name).commands[name].actions if not action.option_strings]
        assert first.metavar == "ENV" and first.dest in ("env", "envs")
