"""How the trainings read their command lines: TRL's grammar, with what is wrong said in one line.

Every field of the settings is an option, `--config FILE` reads them from YAML, options win over the file, and in the
file `env:` has environment variables of the process (as in TRL), `environment:` what is played.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from llm_envs.errors import InvalidConfigError, LLMEnvsError, MissingExtraError, ModelError

try:
    import yaml  # type: ignore[import-untyped]
    from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

__all__ = [
    "ENVIRONMENT",
    "Parser",
    "check_model",
    "loading",
    "make",
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


class Parser(TrlParser):
    """TRL's, which raises where argparse would print the hundreds of options that there are.

    Args:
        kinds: Dataclasses, whose fields are the options.
        **kwargs: For argparse.
    """

    def __init__(self, kinds: Any, **kwargs: Any) -> None:
        super().__init__(kinds, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong."""
        raise InvalidConfigError(f"{message}. `{self.prog} --help` lists every option.")


def parse(
    name: str,
    kinds: Sequence[type],
    arguments: Sequence[str],
    *,
    defaults: Callable[[Any], Mapping[str, Any]] | None = None,
) -> tuple[Any, ...]:
    """Return one object of each kind, from the command line and the YAML file that it names.

    Args:
        name: Of the training.
        kinds: Dataclasses, whose fields are the options.
        arguments: What stands behind the training's name.
        defaults: `(given) -> {field: value}`: defaults that depend on what is given, an object with all fields.

    Raises:
        InvalidConfigError: If a field is unknown, or a value is none that can be meant.
    """
    parser = Parser(kinds, prog=f"llm-envs train {name}", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="YAML file with values of the options; those given here win.")
    path, rest = _take_config(arguments)
    in_file = {} if path is None else read_yaml(path)
    set_process_environment(in_file.pop("env", None), path)
    known = {action.dest for action in parser._actions}
    for key in in_file.keys() - known:
        raise InvalidConfigError(f"{path}: {key}: there is no such option.{nearest(key, known)}")
    parser.set_defaults_with_config(**in_file)
    if defaults is not None:
        given = parser.parse_known_args(rest)[0]
        parser.set_defaults(**{key: value for key, value in defaults(given).items() if key not in in_file})
    namespace, unknown = parser.parse_known_args(rest)
    if unknown:
        raise InvalidConfigError(f"{unknown[0]}: there is no such option.{nearest(unknown[0], known)}")
    return tuple(make(kind, vars(namespace)) for kind in kinds)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        InvalidConfigError: If there is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidConfigError(f"--config {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InvalidConfigError(f"--config {path} has {content!r:.80}; it must be a mapping, `option: value` a line.")
    return {str(key): value for key, value in content.items()}


def read_environment(text: str | None) -> Any:
    """Return an id as it is, and a mixture as a mapping.

    Raises:
        InvalidConfigError: If it begins as JSON does and is none.
    """
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConfigError(f"--env {text!r} is no JSON ({error}).") from error


def check_model(name: str | None, option: str = "--model_name_or_path", marks: Sequence[str] = ("config.json",)) -> str:
    """Return the name, unless it is missing or a path to no model.

    Args:
        name: A folder, or a name on a hub.
        option: What gave it.
        marks: Files of which a folder with a model has one.

    Raises:
        InvalidConfigError: If it is.
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
    """Say which names were asked for, where a model could not be loaded in the block.

    Args:
        **given: Option -> folder or name on a hub; None: not given.

    Raises:
        ModelError: In place of an OSError.
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
    """Say whether a name can be none on a hub (`name`, or `owner/name`)."""
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1


def model_arguments(model: ModelConfig, args: Any) -> dict[str, Any]:
    """Return what of TRL's `ModelConfig` a trainer takes as arguments, and put the rest into the settings.

    Args:
        model: What the command line says of the model.
        args: The trainer's settings; what their `model_init_kwargs` say wins.

    Returns:
        `peft_config`, and `quantization_config` where one is asked for.

    Raises:
        InvalidConfigError: If the two contradict one another.
    """
    wanted = {
        "revision": model.model_revision,
        "dtype": model.dtype,
        "attn_implementation": model.attn_implementation,
        "trust_remote_code": getattr(args, "trust_remote_code", None) or None,
    }
    given = args.model_init_kwargs or {}
    args.model_init_kwargs = {key: value for key, value in wanted.items() if value is not None} | given
    try:
        quantization = get_quantization_config(model)
        further = {} if quantization is None else {"quantization_config": quantization}
        return {"peft_config": get_peft_config(model), **further}
    except (ValueError, ImportError) as error:
        raise InvalidConfigError(str(error)) from error


def _take_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the file that `--config` names, and the other arguments."""
    rest, path = list(arguments), None
    for place, argument in enumerate(rest):
        if argument == "--config":
            if place + 1 == len(rest):
                raise InvalidConfigError("--config: the YAML file behind it is missing.")
            path = rest[place + 1]
            return path, rest[:place] + rest[place + 2 :]
        if argument.startswith("--config="):
            return argument.partition("=")[2], rest[:place] + rest[place + 1 :]
    return path, rest


def set_process_environment(variables: Any, path: str | None) -> None:
    """Set the variables of the process that a YAML file has under `env`, as TRL does."""
    if variables is not None and not isinstance(variables, Mapping):
        raise InvalidConfigError(
            f"{path}: env is {variables!r:.80}: there it is a mapping of the process's environment variables, as in "
            "TRL. What is played is `environment:`."
        )
    for key, value in (variables or {}).items():
        os.environ[str(key)] = str(value)


def make(kind: type, values: Mapping[str, Any]) -> Any:
    """Return a dataclass; what it does not accept is said as our own errors are."""
    fields: Any = getattr(kind, "__dataclass_fields__", {})
    try:
        return kind(**{key: values[key] for key, field in fields.items() if field.init})
    except LLMEnvsError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise InvalidConfigError(f"{' '.join(str(error).split())}") from error


def nearest(option: str, known: set[str]) -> str:
    """Return a sentence with the known option that is spelled most like an unknown one."""
    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f" Is {near[0]} meant?" if near else " --help lists them."
