"""Parses the command lines of `llm-envs train`, in TRL's syntax, with one line per error.

Every field of the settings is an option. `--config FILE` reads them from YAML, and options override the file. In the
file, `env:` sets environment variables of the process (as in TRL), and `environment:` names the environment to play.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from llm_envs.cli.config_file import read_yaml, set_process_environment, take_config
from llm_envs.cli.parser import Grammar
from llm_envs.errors import InvalidConfigError, LLMEnvsError, MissingExtraError, ModelError, did_you_mean

try:
    from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

__all__ = [
    "ENVIRONMENT",
    "EXAMPLES",
    "Parser",
    "check_model",
    "loading",
    "make",
    "make_parser",
    "model_arguments",
    "nearest",
    "parse",
    "read_environment",
    "read_yaml",
    "set_process_environment",
]

ENVIRONMENT: dict[str, Any] = {
    "aliases": ["--env"],
    "help": "Id of a registered environment, such as llm/Calculator-v0, or a mixture as JSON: "
    '{"llm/Calculator-v0": 2, "llm/Countdown-v0": 1}. In a YAML file the key is environment.',
}
"""Metadata of the field `environment`."""

_ALIASES = {"model_name_or_path": "--model", "output_dir": "--out"}
"""Field -> the name that the other commands use for it."""

_SAYS_NO = ("eval_strategy", "logging_strategy", "save_strategy")
"""Options with a value "no", which YAML reads as false."""

_ONLY_WITH_PEFT = ("use_rslora", "use_dora")

EXAMPLES = {
    "sft": """
  llm-envs train sft --env llm/Calculator-v0 --model DIR --output_dir runs/sft --max_steps 100
  llm-envs train sft --source runs/oracle --model DIR --output_dir runs/sft --use_peft --lora_r 8
  llm-envs train sft --config sft.yaml --learning_rate 1e-5
""",
    "grpo": """
  llm-envs train grpo --env llm/Calculator-v0 --model DIR --output_dir runs/grpo --max_steps 20 --algorithm dapo
  llm-envs train grpo --env '{"llm/Calculator-v0": 2, "llm/Countdown-v0": 1}' --model DIR --output_dir runs/both
  llm-envs train grpo --config grpo.yaml --learning_rate 1e-6 --dry_run
""",
    "ppo": """
  llm-envs train ppo --env llm/Calculator-v0 --model DIR --output_dir runs/ppo --max_steps 20
  llm-envs train ppo --env llm/Calculator-v0 --model DIR --critic DIR --output_dir runs/ppo --lam 0.95
  llm-envs train ppo --config ppo.yaml --dry_run
""",
    "dpo": """
  llm-envs train dpo --env llm/Calculator-v0 --model DIR --output_dir runs/online --num_generations 8
  llm-envs train dpo --source pairs.jsonl --model DIR --output_dir runs/offline --loss_type ipo
  llm-envs train dpo --config dpo.yaml --beta 0.05
""",
    "sft-rl": """
  llm-envs train sft-rl --config run.yaml --dry_run
  llm-envs train sft-rl --config run.yaml --mode rl --rl.max_steps 5
""",
}
"""Training -> examples at the end of its help."""


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the defaults of options, and keeps the line breaks of the examples."""


class Parser(Grammar, TrlParser):
    """TRL's parser, but an error is one line instead of the full usage.

    Args:
        kinds: Dataclasses, whose fields are the options.
        **kwargs: For argparse.
    """

    def __init__(self, kinds: Any, **kwargs: Any) -> None:
        examples = EXAMPLES.get(str(kwargs.get("prog", "")).rpartition(" ")[2])
        epilog = None if examples is None else f"examples:{examples}"
        super().__init__(kinds, **{"formatter_class": _Help, "epilog": epilog} | kwargs)

    def _known_as(self, argument: str) -> str | None:
        """Return an argument with its option in the parser's spelling; `--sft.NAME` and `--rl.NAME` stay unchanged."""
        section = re.match(r"--(sft|rl)\.", argument)
        return super()._known_as(argument) if section is None else argument

    def set_values(self, values: Mapping[str, Any], path: str) -> None:
        """Use a file's values as defaults, converted and checked as on the command line.

        Raises:
            InvalidConfigError: If a key is unknown or a value is invalid; the message names the file.
        """
        actions = {action.dest: action for action in self._actions}
        by_key = {name.lstrip("-"): action for name, action in self._option_string_actions.items()} | actions
        for key, value in values.items():
            action = by_key.get(key) or by_key.get(key.replace("-", "_"))
            if action is None or key in ("config", "help", "h"):
                raise InvalidConfigError(f"{path}: {key}: there is no such option.{nearest(key, actions)}")
            try:
                converted = self._converted(action, value)
            except argparse.ArgumentError as error:
                raise InvalidConfigError(f"{path}: {error}") from error
            self.set_defaults_with_config(**{action.dest: converted})

    def _converted(self, action: argparse.Action, value: Any) -> Any:
        """Return a YAML value in the option's type; a text or a mapping for an option of type text is unchanged."""
        # YAML 1.1 reads an unquoted `no` as false, and `save_strategy: no` is common.
        if value is False and action.dest in _SAYS_NO:
            return "no"
        if isinstance(value, list) and action.nargs in ("+", "*"):
            return [self._converted_one(action, item) for item in value]
        return value if value is None else self._converted_one(action, value)

    def _converted_one(self, action: argparse.Action, value: Any) -> Any:
        # YAML reads 1e-4 as text, since it has no dot: convert numbers from their text, as on the command line.
        if action.type in (int, float) or (isinstance(value, str) and action.type is not None):
            value = self._get_value(action, str(value))
        self._check_value(action, value)
        return value


def parse(name: str, kinds: Sequence[type], arguments: Sequence[str]) -> tuple[Any, ...]:
    """Return one object of each kind, from the command line and the YAML file that it names.

    Args:
        name: Name of the training.
        kinds: Dataclasses, whose fields are the options.
        arguments: The arguments after the training's name.

    Raises:
        InvalidConfigError: If a field is unknown or a value is invalid.
    """
    parser = make_parser(name, kinds)
    path, rest = take_config(arguments)
    in_file = {} if path is None else read_yaml(path)
    # Set the environment variables before the dataclasses are built: transformers and accelerate read them there.
    set_process_environment(in_file.pop("env", None), path)
    # The file's values become defaults, so an option on the command line overrides them.
    parser.set_values(in_file, str(path))
    namespace, unknown = parser.parse_known_args(rest)
    if unknown:
        raise InvalidConfigError(f"{unknown[0]}: there is no such option.{nearest(unknown[0], vars(namespace))}")
    return tuple(make(kind, vars(namespace)) for kind in kinds)


def make_parser(name: str, kinds: Sequence[type]) -> Parser:
    """Return the parser of a training, whose options are the fields of dataclasses."""
    parser = Parser(kinds, prog=f"llm-envs train {name}")
    parser.add_argument("--config", metavar="FILE", help="YAML file with values of the options; those given here win.")
    for action in parser._actions:
        if alias := _ALIASES.get(action.dest):
            action.option_strings = [*action.option_strings, alias]
            parser._option_string_actions[alias] = action
    return parser


def read_environment(text: str | None) -> Any:
    """Return an environment id unchanged, and a mixture as a mapping.

    Raises:
        InvalidConfigError: If the text starts with "{" but is not valid JSON.
    """
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConfigError(f"--env {text!r} is no JSON ({error}).") from error


def check_model(name: str | None, option: str = "--model_name_or_path", marks: Sequence[str] = ("config.json",)) -> str:
    """Return a model's name, after checking that it is given and that a local path has a model.

    Args:
        name: A folder, or a name on a hub.
        option: The option with the name, for the error.
        marks: File names. A folder with a model has at least one of them.

    Raises:
        InvalidConfigError: If the name is missing, or is a path without a model.
    """
    if name is None:
        raise InvalidConfigError(f"{option} is missing: a folder that save_pretrained wrote, or a name on a hub.")
    folder = Path(name)
    if folder.is_dir() and not any((folder / mark).is_file() for mark in marks):
        if (folder / "adapter_config.json").is_file():
            raise InvalidConfigError(
                f"{option} {name}: the folder holds an adapter and no model. Merge it into the weights that it was "
                "trained on first: AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload() of peft."
            )
        inside = sorted({path.parent.name for path in folder.glob("*/config.json")})
        hint = f"; there is one in {', '.join(inside)} below it" if inside else ""
        raise InvalidConfigError(f"{option} {name}: the folder holds no model, it has no config.json{hint}.")
    if not folder.is_dir() and (folder.exists() or _is_path(name)):
        raise InvalidConfigError(
            f"{option} {name}: there is no such folder. It takes one that save_pretrained wrote, or a name on a hub."
        )
    return name


@contextmanager
def loading(**given: str | None) -> Iterator[None]:
    """If a model cannot be loaded inside the block, name the options in the error.

    Args:
        **given: Option -> folder or name on a hub; None: not given.

    Raises:
        ModelError: Instead of an OSError.
    """
    try:
        yield
    except LLMEnvsError:
        raise
    except OSError as error:
        names = ", ".join(f"--{option} {name}" for option, name in given.items() if name is not None)
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{names}: {first_line} Each is a folder that is there, or a name on a hub.") from error


def _is_path(name: str) -> bool:
    """Return whether a name must be a local path, because hub names have the form `name` or `owner/name`."""
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1


def model_arguments(model: ModelConfig, args: Any) -> dict[str, Any]:
    """Return a trainer's arguments from TRL's `ModelConfig`, and put the rest into `args.model_init_kwargs`.

    Args:
        model: The model options of the command line.
        args: The trainer's settings; their `model_init_kwargs` take precedence.

    Returns:
        `peft_config`, and `quantization_config` if quantization is set.

    Raises:
        InvalidConfigError: If the options contradict one another, or set up an adapter without `use_peft`.
    """
    wanted = {
        "revision": model.model_revision,
        "dtype": model.dtype,
        "attn_implementation": model.attn_implementation,
        "trust_remote_code": getattr(args, "trust_remote_code", None) or None,
    }
    if not model.use_peft:
        _refuse_adapter_settings(model)
    given = args.model_init_kwargs or {}
    args.model_init_kwargs = {key: value for key, value in wanted.items() if value is not None} | given
    try:
        quantization = get_quantization_config(model)
        further = {} if quantization is None else {"quantization_config": quantization}
        return {"peft_config": get_peft_config(model), **further}
    except (ValueError, ImportError) as error:
        raise InvalidConfigError(str(error)) from error


def _refuse_adapter_settings(model: ModelConfig) -> None:
    """Reject adapter options without `use_peft`, which TRL would silently ignore."""
    for field in fields(model):
        value = getattr(model, field.name)
        if (field.name.startswith("lora_") or field.name in _ONLY_WITH_PEFT) and value != field.default:
            said = " ".join(map(str, value)) if isinstance(value, list) else "" if value is True else str(value)
            raise InvalidConfigError(f"{f'--{field.name} {said}'.strip()} needs --use_peft: no adapter is trained.")


def make(kind: type, values: Mapping[str, Any]) -> Any:
    """Return a dataclass; convert the errors that it raises into ours."""
    of_kind: Any = getattr(kind, "__dataclass_fields__", {})
    try:
        return kind(**{key: values[key] for key, field in of_kind.items() if field.init})
    except LLMEnvsError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise InvalidConfigError(_explained(" ".join(str(error).split()), values)) from error


def _explained(message: str, values: Mapping[str, Any]) -> str:
    """Return TRL's message. If it is about a generation batch size that the user did not set, name the settings."""
    found = re.match(r"generation_batch_size \((\d+)\) must be divisible by num_generations \((\d+)\)", message)
    if found is None or values.get("generation_batch_size") is not None:
        return message
    total, group = map(int, found.groups())
    name = "gradient_accumulation_steps" if values["steps_per_generation"] is None else "steps_per_generation"
    rows, steps = values["per_device_train_batch_size"], values[name]
    whole = group // math.gcd(group, steps)  # rows of one process, of which groups can be made
    n_processes = total // (rows * steps)
    return (
        f"per_device_train_batch_size {rows} * {name} {steps} * {n_processes} process{'es' * (n_processes > 1)} = "
        f"{total} episodes a generation, which do not make whole groups of num_generations {group}: set for example "
        f"--per_device_train_batch_size {-(-rows // whole) * whole}."
    )


def nearest(option: str, known: Iterable[str]) -> str:
    """Return a sentence with the known option that is spelled most like an unknown one."""
    return did_you_mean(option, sorted(known)) or " --help lists them."
