"""The command `llm-envs`: list, check and play tasks, collect data, look at a model, and the way to the trainers.

Exit codes: 0 it worked, 1 it did not, 2 it was asked wrongly. An error is one line; `--debug` shows where it came from.
Everything heavy is imported where it is used, so that `llm-envs --help` is quick.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from llm_envs import collect_command, eval_command, export_command, new_task, report_command, task_commands
from llm_envs.arguments import (
    add_env_arguments,
    add_sampling_arguments,
    env_kwargs_of,
    positive,
    require_model,
    require_text,
)
from llm_envs.errors import InvalidConfigError, LLMEnvsError, RolloutFailedError, UnknownTaskError
from llm_envs.players import Player, add_player_arguments, open_player
from llm_envs.reporting import visible_text

if TYPE_CHECKING:
    import gymnasium as gym

    from llm_envs.types import Trajectory

__all__ = ["main"]

TRAIN_COMMANDS = "llm_envs.train_commands"
"""Entry-point group of `llm-envs train NAME`: each loads to a function that takes the arguments after NAME, a list of
strings, and returns an exit code or None."""

PLAY_EXAMPLES = """
examples:
  llm-envs play llm/Calculator-v0 --difficulty easy
  llm-envs play llm/Calculator-v0 --model runs/demo/model -n 20 --split test
  llm-envs play llm/Calculator-v0 --model NAME --engine api --url https://host/v1
"""

WRONGLY_ASKED = (InvalidConfigError, UnknownTaskError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except KeyboardInterrupt:
        print("llm-envs: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough (`| head`). Python would complain again when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if getattr(arguments, "debug", False):
            traceback.print_exc()
        print(f"llm-envs: error: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, WRONGLY_ASKED) else 1


def _one_line(error: Exception) -> str:
    """Our own messages stand alone; a stranger's needs its class, and the way to its traceback."""
    message = " ".join(visible_text(str(error)).split())
    if isinstance(error, LLMEnvsError):
        return message
    return f"{type(error).__name__}: {message} (--debug shows the traceback)"


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser = argparse.ArgumentParser(
        prog="llm-envs", description="Text environments for language models: play, check, train.", parents=[common]
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int | None], about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about, parents=[common])
        command.set_defaults(run=run)
        return command

    task_commands.add_list_arguments(add("list", task_commands.list_tasks, "Print the tasks, with a line about each."))
    task_commands.add_check_arguments(add("check", task_commands.check, "Check that tasks keep the contract."))
    new_task.add_arguments(add("new-task", new_task.run, "Write a task that works, with its test, to start from."))
    _add_play_arguments(add("play", _play, "Play a task and print the conversation with its rewards."))
    collect_command.add_arguments(add("collect", collect_command.run, "Play tasks into a folder, or go on with a run."))
    eval_command.add_arguments(add("eval", eval_command.run, "Measure a player on tasks: success, reward, intervals."))
    export_command.add_arguments(add("export", export_command.run, "Write a collected run in a form that others read."))
    report_command.add_arguments(add("report", report_command.run, "Write a page of runs to look at in a browser."))
    _add_doctor_arguments(add("doctor", _doctor, "Say what to know about a model before training it."))
    train = add("train", _train, "Train a model; without a name, say which trainings there are.")
    train.add_argument("name", nargs="?", metavar="NAME", help="the training, for example grpo")
    train.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the training itself takes: try --help after NAME"
    )
    return parser


def _add_play_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument("-n", type=positive, default=1, metavar="N", help="episodes, default 1")
    parser.add_argument(
        "--seed", type=int, default=0, help="the run's seed: one seed plays the same episodes; default 0"
    )
    add_env_arguments(parser)
    add_sampling_arguments(parser)
    parser.epilog = PLAY_EXAMPLES
    add_player_arguments(parser, ["oracle", "random", "human"])


def _add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, or a name on a model hub")
    parser.add_argument(
        "--env", metavar="ID", default="llm/Calculator-v0", help="whose episode is shown; default: llm/Calculator-v0"
    )
    parser.add_argument("--chat-template", metavar="FILE", help="a Jinja template in place of the model's own")
    parser.add_argument(
        "--thinking", choices=["on", "off"], help="the template's enable_thinking; default: what the template does"
    )
    parser.add_argument("--colour", choices=["auto", "always", "never"], default="auto", help="default: on a terminal")


# --- play -------------------------------------------------------------------------------------------------------------


class HumanPolicy:
    """A person at the terminal: what a model would be shown is printed, and one line is read for each turn."""

    def __init__(self, has_left: threading.Event | None = None) -> None:
        self.has_left = has_left or threading.Event()
        """Set when the input has ended; shared by all episodes."""
        self._has_begun = False

    def for_episode(self, seed: int) -> HumanPolicy:
        """Return a policy that has shown nothing yet; see `policies.base.EpisodicPolicy`."""
        return HumanPolicy(self.has_left)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Print what there is to see, and read the reply."""
        if self.has_left.is_set():
            raise EOFError("the input has ended")
        if not self._has_begun:
            self._has_begun = True
            if system_prompt := env.get_wrapper_attr("system_prompt"):
                print(visible_text(f"system: {system_prompt}"))
            for tool in env.get_wrapper_attr("tools"):
                print(visible_text(f"tool: {json.dumps(tool['function'], ensure_ascii=False)}"))
        print(visible_text(observation))
        try:
            return input("> ")
        except EOFError:
            self.has_left.set()
            print()
            raise


def _policy(arguments: argparse.Namespace) -> AbstractContextManager[Player]:
    from llm_envs.policies.scripted import OraclePolicy, RandomPolicy

    return open_player(arguments, {"oracle": OraclePolicy, "random": RandomPolicy, "human": HumanPolicy})


def _play(arguments: argparse.Namespace) -> None:
    from llm_envs.registration import task_spec
    from llm_envs.rollout import Collector
    from llm_envs.types import SamplingParams

    task_spec(arguments.id)
    sampling = SamplingParams(temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens)
    env_kwargs = env_kwargs_of(arguments)
    require_text(arguments.id, env_kwargs)
    episodes: list[Trajectory] = []
    with (
        _policy(arguments) as (policy, codec),
        Collector(
            arguments.id,
            policy,
            codec=codec,
            env_kwargs=env_kwargs,
            sampling=sampling,
            seed=arguments.seed,
            max_concurrency=1 if isinstance(policy, HumanPolicy) else 64,
            max_retries=0,
            progress=arguments.model is not None,
        ) as collector,
    ):
        try:
            episodes = [episode for group in collector.collect(arguments.n) for episode in group]
        except RolloutFailedError:
            if not (isinstance(policy, HumanPolicy) and policy.has_left.is_set()):
                raise
    if isinstance(policy, HumanPolicy) and policy.has_left.is_set():
        played = [episode for episode in episodes if episode.status == "ok"]
        _show(played, only_the_end=True)
        raise LLMEnvsError(f"the input ended: {len(played)} of {arguments.n} episodes were played to their end.")
    _show(episodes, only_the_end=isinstance(policy, HumanPolicy))
    failures = [episode.error for episode in episodes if episode.error is not None]
    if failures:
        first = f"{failures[0].kind} in {failures[0].where}: {failures[0].message}"
        raise LLMEnvsError(f"{len(failures)} of {len(episodes)} episodes failed; the first by {first}")


def _show(episodes: Sequence[Trajectory], *, only_the_end: bool) -> None:
    from llm_envs.evaluate import summarize
    from llm_envs.types import inspect_trajectory

    for episode in episodes:
        if only_the_end:
            print(visible_text("\n".join(_last_words(episode))))
        else:
            print(visible_text(inspect_trajectory(episode)), end="\n\n")
    if any(episode.status == "ok" for episode in episodes):
        print(visible_text(str(summarize(episodes))))


def _last_words(episode: Trajectory) -> list[str]:
    """Return what a person has not seen yet: what followed their last turn, and how the episode ended."""
    words: list[str] = []
    for message in reversed(episode.messages):
        if message.role == "assistant":
            break
        words.insert(0, message.content)
    return [
        *(words if episode.turns else []),
        f"[{episode.stop_reason.value}, success={episode.is_success}, reward {episode.reward:g}]",
    ]


# --- doctor -----------------------------------------------------------------------------------------------------------


def _doctor(arguments: argparse.Namespace) -> int:
    from llm_envs import doctor
    from llm_envs.chat import ChatCodec
    from llm_envs.policies.loading import load_tokenizer
    from llm_envs.registration import task_spec

    task_spec(arguments.env)
    require_text(arguments.env, {})
    require_model(arguments.model, "doctor")
    template = None if arguments.chat_template is None else _read_template(arguments.chat_template)
    thinking = None if arguments.thinking is None else arguments.thinking == "on"
    codec = ChatCodec(load_tokenizer(arguments.model), chat_template=template, thinking=thinking)
    vocabulary_size, context_length = _model_sizes(arguments.model)
    diagnosis = doctor.diagnose(codec, vocabulary_size=vocabulary_size)
    print(visible_text(f"model             {arguments.model}"))
    source = arguments.chat_template or "the model's own"
    print(visible_text(f"template          {source}"))
    print(doctor.show_diagnosis(diagnosis))
    trajectory = doctor.play_oracle(codec, arguments.env)
    colour = arguments.colour == "always" or (arguments.colour == "auto" and sys.stdout.isatty())
    for row in trajectory.rows:
        print(f"\n{arguments.env}, an oracle's episode of {len(row)} tokens; trained: {int(row.mask.sum())}, marked")
        print(doctor.show_row(codec, row, colour=colour))
    problems = [*diagnosis.problems, *doctor.episode_problems(codec, trajectory, context_length)]
    if Path(arguments.model).is_dir() and not (Path(arguments.model) / "config.json").exists():
        problems.append("the folder has a tokenizer and no model: there is no config.json in it.")
    print()
    for problem in problems:
        print(visible_text(f"PROBLEM  {problem}"))
    print("This model can be trained on as it is." if not problems else "This model cannot be trained on as it is.")
    return 1 if problems else 0


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"--chat-template {path}: it cannot be read ({error}).") from error


def _model_sizes(name: str) -> tuple[int | None, int | None]:
    """Return the rows of a model's embedding and its context in tokens; None where there is no configuration."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name).get_text_config()
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None, None
    return getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None)


# --- train ------------------------------------------------------------------------------------------------------------


def _train(arguments: argparse.Namespace) -> int | None:
    from llm_envs.registration import installed_entry_points

    commands: dict[str, EntryPoint] = {found.name: found for found in installed_entry_points(TRAIN_COMMANDS)}
    if not commands:
        raise InvalidConfigError(
            f"no training is installed: no package fills the entry-point group {TRAIN_COMMANDS!r}. "
            "From Python: llm_envs.trainers."
        )
    if arguments.name is None:
        print("\n".join(sorted(commands)))
        return 0
    if arguments.name not in commands:
        raise InvalidConfigError(f"there is no training {arguments.name!r}; there are {', '.join(sorted(commands))}.")
    command: Callable[[list[str]], int | None] = commands[arguments.name].load()
    return command(list(arguments.arguments))


if __name__ == "__main__":
    sys.exit(main())
