"""Parses the command lines of `llm-envs train`: every field of the settings is an option, through TRL's parser.

`--config FILE` reads the fields from YAML, and options override the file, as in the other commands.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from llm_envs.cli.arguments import check_one, concurrency
from llm_envs.cli.parser import Parser, dashed
from llm_envs.errors import InvalidConfigError, LLMEnvsError, ModelError, did_you_mean
from llm_envs.objects import env_id, load_object
from llm_envs.parsers.json_calls import strict_json
from llm_envs.policies.inference.names import name_problem
from llm_envs.trainers.episodes.rewards import RewardSettings
from llm_envs.trainers.functional.algorithm import ALGORITHMS, Algorithm

__all__ = [
    "ENV",
    "EXAMPLES",
    "TrainingParser",
    "check_model",
    "loading",
    "make",
    "model_arguments",
    "own_settings",
    "parse",
    "read_algorithm",
    "read_environment",
    "read_played",
    "read_rewards",
]

ENV: dict[str, Any] = {
    "help": "Id of a registered environment, such as llm/Calculator-v0, or FILE.py:NAME of your own class, function "
    'or PromptTask; or a mixture of these as JSON: {"llm/Calculator-v0": 2, "llm/Countdown-v0": 1}.'
}
"""Metadata of the field `env`."""

_ALIASES = {
    "--model-name-or-path": "--model",
    "--output-dir": "--out",
    "--num-generations": "--group-size",
    "--resume-from-checkpoint": "--resume",
}
"""TRL's name of an option -> the name in the other commands."""

COMMON_SETTINGS = frozenset(
    [
        *("env", "source", "eval_source", "teacher", "critic", "algorithm", "rewards", "env_kwargs", "mode", "config"),
        *("model_name_or_path", "output_dir", "resume_from_checkpoint", "dry_run", "max_steps", "num_train_epochs"),
        *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"),
        *("num_generations", "beta", "loss_type", "max_turns", "max_turn_tokens", "max_completion_length"),
        *("max_length", "temperature", "thinking", "use_vllm", "vllm_mode", "use_peft", "lora_r", "dtype", "seed"),
        *("save_steps", "logging_steps", "eval_strategy", "report_to"),
    ]
)
"""The settings that most trainings set: the first part of the help."""

_ONLY_WITH_PEFT = ("use_rslora", "use_dora")

EXAMPLES = {
    "sft": """
  llm-envs train sft --env llm/Calculator-v0 --model DIR --out runs/sft --max-steps 100
  llm-envs train sft --source runs/oracle --model DIR --out runs/sft --use-peft --lora-r 8
  llm-envs train sft --config sft.yaml --learning-rate 1e-5
""",
    "grpo": """
  llm-envs train grpo --env llm/Calculator-v0 --model DIR --out runs/grpo --max-steps 20 --algorithm dapo
  llm-envs train grpo --env '{"llm/Calculator-v0": 2, "llm/Countdown-v0": 1}' --model DIR --out runs/both
  llm-envs train grpo --env llm/Calculator-v0 --model DIR --out runs/pairs --algorithm pairwise
  llm-envs train grpo --config grpo.yaml --learning-rate 1e-6 --dry-run
""",
    "ppo": """
  llm-envs train ppo --env llm/Calculator-v0 --model DIR --out runs/ppo --max-steps 20
  llm-envs train ppo --env llm/Calculator-v0 --model DIR --critic DIR --out runs/ppo --lam 0.95
  llm-envs train ppo --config ppo.yaml --dry-run
""",
    "dpo": """
  llm-envs train dpo --source runs/collected --model DIR --out runs/dpo
  llm-envs train dpo --source pairs.jsonl --model DIR --out runs/dpo --loss-type ipo
  llm-envs train dpo --config dpo.yaml --beta 0.05
""",
    "sft-rl": """
  llm-envs train sft-rl --config run.yaml --dry-run
  llm-envs train sft-rl --config run.yaml --mode rl --rl.max-steps 5
""",
}
"""Training -> examples at the end of its help."""


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the defaults of options, and keeps the line breaks of the examples."""


_USAGE = "%(prog)s [OPTION ...]"
_PARTS = ("common settings", "further settings of llm-envs", "further settings of TRL and transformers")
"""Titles of the parts of a training's help."""


def own_settings(kind: type) -> set[str]:
    """Return the settings of a dataclass that are ours: those that no class of another package has."""
    ours: set[str] = set()
    theirs: set[str] = set()
    for base in kind.__mro__:
        (ours if base.__module__.startswith("llm_envs.") else theirs).update(vars(base).get("__annotations__", {}))
    return ours - theirs


def read_bool(text: str) -> bool:
    """Read a truth value."""
    found = {"false": False, "no": False, "off": False, "0": False, "true": True, "yes": True, "on": True, "1": True}
    if text.lower() not in found:
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return found[text.lower()]


class Switch(argparse.Action):
    """A truth value: `--NAME`, `--NAME true`, `--NAME false` or `--no-NAME`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        names = [*option_strings, *(f"--no-{name.removeprefix('--')}" for name in option_strings)]
        given = {"nargs": "?", "const": True, "type": read_bool, "metavar": "BOOL"}
        super().__init__(names, dest, **kwargs | given)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Set the value."""
        setattr(namespace, self.dest, values != str(option_string).startswith("--no-"))


class TrainingParser(Parser, TrlParser):
    """TRL's parser with our rules.

    Args:
        kinds: Dataclasses, whose fields are the options.
        **kwargs: For argparse.
    """

    def __init__(self, kinds: Any, **kwargs: Any) -> None:
        self._ours = frozenset(name for kind in kinds for name in own_settings(kind))
        self._parts: list[Any] = []
        examples = EXAMPLES.get(str(kwargs.get("prog", "")).rpartition(" ")[2])
        epilog = None if examples is None else f"examples:{examples}"
        super().__init__(kinds, **{"formatter_class": _Help, "epilog": epilog, "usage": _USAGE} | kwargs)
        self.add_config_argument()

    def add_argument(self, *names: str, **kwargs: Any) -> Any:
        """Add an option as TRL asks for it, under the other commands' name too."""
        if kwargs.get("action") == "store_false":  # TRL's `--no-NAME`, which each `Switch` has
            return None
        if getattr(kwargs.get("type"), "__name__", "") == "string_to_bool":
            kwargs["action"] = Switch
        if "--max_concurrency" in names:
            kwargs["type"] = concurrency
        if "--report_to" in names:
            kwargs["nargs"] = "+"
        if "--resume_from_checkpoint" in names:
            kwargs |= {"nargs": "?", "const": "true"}
        if alias := _ALIASES.get(dashed(names[0])):
            kwargs["dest"] = names[0].removeprefix("--")
            names = (alias, *names)
        dest = str(kwargs.get("dest", names[-1])).lstrip("-").replace("-", "_")
        if dest == "help":  # argparse's own, before there are groups
            return super().add_argument(*names, **kwargs)
        self._parts = self._parts or [self.add_argument_group(title) for title in _PARTS]
        part = self._parts[0 if dest in COMMON_SETTINGS else 1 if dest in self._ours else 2]
        return part.add_argument(*dict.fromkeys(map(dashed, names)), **kwargs)

    def none_is_default(self, action: argparse.Action) -> bool:
        """Return whether a key without a value leaves the default: only where a value is needed."""
        return action.required

    def takes_unchanged(self, action: argparse.Action, value: Any) -> bool:
        """Return whether a YAML value needs no conversion. TRL's fields of type text may also take other values."""
        is_structure = isinstance(value, list | Mapping) and action.nargs not in ("+", "*")
        return value is None or (is_structure and action.type not in (int, float) and action.choices is None)


def parse(name: str, kinds: Sequence[type], arguments: Sequence[str]) -> tuple[Any, ...]:
    """Return one object of each kind, from the command line and the YAML file that it names.

    Args:
        name: Name of the training.
        kinds: Dataclasses, whose fields are the options.
        arguments: The arguments after the training's name.

    Raises:
        InvalidConfigError: If a field is unknown or a value is invalid.
    """
    values = vars(TrainingParser(kinds, prog=f"llm-envs train {name}").parse_args(arguments))
    return tuple(make(kind, values) for kind in kinds)


def read_played(env: str | None, others: Sequence[Any]) -> Any:
    """Return what a training plays.

    Args:
        env: The option `--env`.
        others: The options in place of it: the `TrainingOptions` of `llm_envs.cli.room_options`.

    Raises:
        InvalidConfigError: If not exactly one is given, or the one that is cannot be read.
    """
    check_one({"--env": env} | {f"--{name}": value for other in others for name, value in vars(other).items()})
    played = [found for other in others if (found := other.played()) is not None]
    return played[0] if played else read_environment(env)


def read_environment(text: str | Mapping[str, float] | None) -> Any:
    """Return an environment's id, also of one named by `FILE.py:NAME`, and a mixture as a mapping of ids.

    Raises:
        InvalidConfigError: If the text starts with "{" but is not valid JSON, or there is no such object.
    """
    if text is None:
        return None
    if isinstance(text, str) and not text.lstrip().startswith("{"):
        return env_id(text, "--env")
    try:
        mixture = text if isinstance(text, Mapping) else strict_json(text)
    except ValueError as error:
        raise InvalidConfigError(f"--env {text!r:.200} is no JSON ({error}).") from error
    return {env_id(str(name), "--env"): weight for name, weight in mixture.items()}


def read_algorithm(text: str | None) -> Algorithm | None:
    """Return a published algorithm by its name, or one of the user's as `FILE.py:NAME`; None: none is given.

    Raises:
        InvalidConfigError: If the algorithm is unknown, or the module cannot be imported.
    """
    if text is None or text in ALGORITHMS:
        return None if text is None else ALGORITHMS[text]
    if ":" not in text:
        near = did_you_mean(text, ALGORITHMS)
        raise InvalidConfigError(
            f"algorithm={text!r} is not known; give FILE.py:NAME or one of {', '.join(ALGORITHMS)}.{near}"
        )
    found: Algorithm = load_object("--algorithm", text, Algorithm)
    return found


def read_rewards(text: str | None) -> RewardSettings | None:
    """Return the rewards that an option names: a `RewardSettings`, a function, a list or a mapping of functions."""
    if text is None:
        return None
    found = load_object("--rewards", text)
    if not isinstance(found, RewardSettings | Mapping | list | tuple) and not callable(found):
        raise InvalidConfigError(
            f"--rewards {text}: it is of type {type(found).__name__}; it must be a reward function, a list or a "
            "mapping of them, or a RewardSettings."
        )
    return RewardSettings.of(found)


def check_model(name: str | None, option: str = "--model", marks: Sequence[str] = ("config.json",)) -> str:
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
    if (problem := name_problem(name)) is not None:
        raise InvalidConfigError(
            f"{option} {name}: {problem}. It takes one that save_pretrained wrote, or a name on a hub."
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
            option = dashed(f"--{field.name}")
            raise InvalidConfigError(f"{f'{option} {said}'.strip()} needs --use-peft: no adapter is trained.")


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
        f"{total} episodes a generation, which do not make full groups of num_generations {group}: set for example "
        f"--per-device-train-batch-size {-(-rows // whole) * whole}."
    )
