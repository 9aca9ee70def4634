"""`llm-envs train NAME`, and what the examples run under `accelerate launch`: one function a training.

llm-envs train grpo --env llm/Calculator-v0 --model_name_or_path DIR --output_dir runs/grpo --max_steps 20
accelerate launch -m llm_envs.trainers.commands grpo --env ...        # on many processes
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_envs.errors import InvalidConfigError, LLMEnvsError, MissingExtraError

try:
    import yaml  # type: ignore[import-untyped]
    from trl import ModelConfig, TrlParser, get_peft_config
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.dry_run import describe_training
from llm_envs.trainers.grpo import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.recipes import RECIPES, make_recipe
from llm_envs.trainers.sft_rl import main as sft_rl

__all__ = ["GRPOArguments", "grpo", "main"]


@dataclass
class GRPOArguments:
    """What is played, and by which recipe it is learned."""

    environment: str = field(
        metadata={
            "aliases": ["--env"],  # in a YAML file of TRL's, `env` has the process's environment variables
            "help": "Id of a registered environment, such as llm/Calculator-v0, or a mixture as JSON: "
            '{"llm/Calculator-v0": 2, "llm/Countdown-v0": 1}',
        }
    )
    recipe: str | None = field(
        default=None,
        metadata={
            "help": f"Settings and functions of a published algorithm: {', '.join(RECIPES)}. Given settings win."
        },
    )
    dry_run: bool = field(
        default=False,
        metadata={"help": "Say what would be done (geometry, budgets, forks, one group of episodes) and do not train."},
    )


def grpo(arguments: Sequence[str]) -> int:
    """Train by GRPO; return the exit code. `--help` lists every setting."""
    kinds: Any = (GRPOArguments, EnvGRPOConfig, ModelConfig)
    parser = TrlParser(kinds, prog="llm-envs train grpo")
    hooks = _apply_recipe(parser, arguments)
    chosen, args, model = parser.parse_args_and_config(list(arguments))
    if model.model_name_or_path is None:
        raise InvalidConfigError(
            "--model_name_or_path is missing: a folder that save_pretrained wrote, or a name on a hub."
        )
    if model.dtype is not None:
        args.model_init_kwargs = (args.model_init_kwargs or {}) | {"dtype": model.dtype}
    trainer = EnvGRPOTrainer(
        model.model_name_or_path, _env(chosen.environment), args, peft_config=get_peft_config(model), **hooks
    )
    try:
        if chosen.dry_run:
            print(describe_training(trainer, colour=sys.stdout.isatty()))
            return 0
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        trainer.save_model()
    finally:
        trainer.close()
    return 0


def _env(text: str) -> Any:
    """Return an id as it is, and a mixture as a mapping."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConfigError(f"--env {text!r} is no JSON ({error}).") from error


def _apply_recipe(parser: Any, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Make a recipe's settings the parser's defaults; return its hooks."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--recipe")
    first.add_argument("--config")
    first.add_argument("--max_completion_length", "--max-completion-length", type=int)
    given, _ = first.parse_known_args(list(arguments))
    in_file: dict[str, Any] = {}
    if given.config is not None:
        with open(given.config, encoding="utf-8") as file:
            in_file = yaml.safe_load(file) or {}
    name = given.recipe or in_file.get("recipe")
    if name is None:
        return {}
    length = given.max_completion_length or in_file.get("max_completion_length") or 256
    recipe = make_recipe(name, max_completion_length=length)
    parser.set_defaults(**recipe.settings)
    return recipe.hooks


TRAININGS: dict[str, Callable[[Sequence[str]], int]] = {"grpo": grpo, "sft-rl": sft_rl}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the trainings by its name; what is wrong is said in one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in TRAININGS:
        print(f"llm-envs: name one of {', '.join(TRAININGS)}, then its arguments.", file=sys.stderr)
        return 2
    try:
        return TRAININGS[given[0]](given[1:])
    except LLMEnvsError as error:
        print(f"llm-envs: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
