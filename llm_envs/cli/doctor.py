"""`llm-envs doctor`: say what to know about a model before training it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from llm_envs.cli.arguments import require_model, require_text
from llm_envs.cli.parser import Flag, Parser
from llm_envs.cli.room_options import add_room_arguments, hooks
from llm_envs.errors import InvalidConfigError, counted
from llm_envs.tracking.loggers import visible_text

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs doctor runs/demo/model
  llm-envs doctor owner/name --env llm/GuessNumber-v0 --no-thinking
  llm-envs doctor DIR --chat-template-path template.jinja --colour never
  llm-envs doctor DIR --renderer kimi-k2.5
"""


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="a folder, or a name on a model hub")
    parser.add_argument(
        "--env",
        metavar="ENV",
        default="llm/Calculator-v0",
        help="task of the example episode; default: llm/Calculator-v0",
    )
    add_room_arguments(parser, "doctor")
    parser.add_argument("--chat-template-path", metavar="FILE", help="a Jinja template to use instead of the model's")
    parser.add_argument(
        "--renderer",
        metavar="NAME",
        default="auto",
        help="who serves: auto, template, or a renderer of the library renderers; default: auto",
    )
    parser.add_argument(
        "--thinking", action=Flag, default=None, help="the template's enable_thinking; default: the template's default"
    )
    parser.add_argument(
        "--colour",
        "--color",
        choices=["auto", "always", "never"],
        default="auto",
        help="colour the output; default: on a terminal",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the findings, and return the exit code: 1 if the model, or an agent, cannot be trained as it is."""
    from llm_envs import doctor
    from llm_envs.chat.codec import ChatCodec
    from llm_envs.policies.inference.loading import load_tokenizer

    arguments.env = require_text(arguments.env, {})
    require_model(arguments.model, "doctor")
    further = [show for examine in hooks("examine") if (show := examine(arguments)) is not None]
    template = None
    if (path := arguments.chat_template_path) is not None:
        try:
            template = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfigError(f"--chat-template-path {path}: it cannot be read ({error}).") from error
    codec = ChatCodec(
        load_tokenizer(arguments.model),
        chat_template=template,
        thinking=arguments.thinking,
        renderer=arguments.renderer,
    )
    config = _configuration(arguments.model)
    text = None if config is None else config.get_text_config()
    vocabulary_size = getattr(text, "vocab_size", None)
    context_length = getattr(text, "max_position_embeddings", None)
    diagnosis = doctor.diagnose(codec, vocabulary_size=vocabulary_size)
    print(visible_text(f"model             {arguments.model}"))
    if arguments.chat_template_path is not None:
        print(visible_text(f"template          {arguments.chat_template_path}"))
    print(doctor.show_diagnosis(diagnosis))
    trajectory = doctor.play_oracle(codec, arguments.env)
    colour = arguments.colour == "always" or (arguments.colour == "auto" and sys.stdout.isatty())
    for row in trajectory.rows:
        counts = f"{counted(len(row), 'token')}; trained: {int(row.mask.sum())}, marked"
        print(f"\n{arguments.env}, an oracle's episode of {counts}")
        print(doctor.show_row(codec, row, colour=colour))
    wrong = [problem for show in further if (problem := show(codec, colour)) is not None]
    problems = [*diagnosis.problems, *doctor.episode_problems(codec, trajectory, context_length)]
    problems += doctor.model_problems(config)
    if Path(arguments.model).is_dir() and not (Path(arguments.model) / "config.json").exists():
        problems.append("the folder has a tokenizer and no model: there is no config.json in it.")
    print()
    for problem in [*problems, *wrong]:
        print(visible_text(f"PROBLEM  {problem}"))
    print("This model can be trained on as it is." if not problems else "This model cannot be trained on as it is.")
    return 1 if problems or wrong else 0


def _configuration(name: str) -> Any:
    """Return a model's configuration; None if it is missing or cannot be read."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None
