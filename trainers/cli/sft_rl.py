"""Supervised learning, then reinforcement learning, from one YAML file.

    mode: sft+rl                # or sft, or rl: from the newest checkpoint of an earlier sft
    model_name_or_path: runs/base
    environment: llm/Calculator-v0
    output_dir: runs/calculator # gets sft/ and rl/
    seed: 0
    env_kwargs: {difficulty: easy}
    use_peft: false             # and the other fields of TRL's ModelConfig
    sft:                        # fields of EnvSFTConfig, and `source`
      source: oracle            # or a saved data set: the folder of a run, a JSONL file of conversations, ...
      num_episodes: 500
      max_steps: 100
    rl:                         # fields of EnvGRPOConfig
      max_steps: 20

Settings above the sections apply to both. `model:` and `env:` are short for `model_name_or_path:` and `environment:`;
an `env:` that is a mapping sets environment variables of the process, as in TRL. With `use_peft`, both trainings train
an adapter. The first one's is merged into the weights (`output_dir/merged`) before the second starts.

    llm-envs train sft-rl --config run.yaml --mode rl --rl.max_steps 5      # options win over the file
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    import yaml  # type: ignore[import-untyped]
    from accelerate import PartialState
    from trl import ModelConfig
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.policies.inference.loading import load_tokenizer
from llm_envs.trainers.bridge.checkpoints import resume_point
from llm_envs.trainers.bridge.checks import check_env_kwargs
from llm_envs.trainers.cli.dry_run import describe_training
from llm_envs.trainers.cli.parser import (
    Parser,
    check_model,
    make,
    model_arguments,
    nearest,
    read_environment,
    read_yaml,
    set_process_environment,
)
from llm_envs.trainers.grpo.trainer import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.sft.trainer import EnvSFTConfig, EnvSFTTrainer

__all__ = [
    "MODES",
    "SFTRLSettings",
    "describe",
    "main",
    "newest_checkpoint",
    "read_settings",
    "train",
    "train_rl",
    "train_sft",
]

MODES = ("sft", "rl", "sft+rl")


@dataclass(frozen=True)
class SFTRLSettings:
    """The settings of both trainings. The module's docstring shows them as YAML."""

    mode: str
    """One of `MODES`."""
    model: str
    """A folder, or a name on a hub. Mode "rl" trains it only if `output_dir` has no model from an earlier sft."""
    env: str
    """Id of a registered environment, or a mixture as JSON."""
    output_dir: str
    """Folder for the subfolders `sft` and `rl`."""
    seed: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of gym.make."""
    sft: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EnvSFTConfig`, and `source`: "oracle", or a source for `sft.source.load_source`."""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EnvGRPOConfig`."""
    of_model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TRL's `ModelConfig`; in the file they are above the sections."""

    def __post_init__(self) -> None:
        """Check the mode, and that the sections are mappings."""
        if self.mode not in MODES:
            raise InvalidConfigError(f"mode is {self.mode!r}; it must be one of {', '.join(MODES)}.")
        for name in ("env_kwargs", "sft", "rl", "of_model"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidConfigError(f"{name} is {getattr(self, name)!r:.80}; it must be a mapping.")

    @property
    def sft_config(self) -> EnvSFTConfig:
        """The section `sft` with the common settings."""
        section = {key: value for key, value in self.sft.items() if key != "source"}
        config: EnvSFTConfig = self._parse(EnvSFTConfig, section, "sft")
        return config

    @property
    def rl_config(self) -> EnvGRPOConfig:
        """The section `rl` with the common settings."""
        config: EnvGRPOConfig = self._parse(EnvGRPOConfig, self.rl, "rl")
        return config

    @property
    def model_config(self) -> ModelConfig:
        """The model options of both trainings."""
        return _read(ModelConfig, self.of_model, "what stands above the sections")

    def _parse(self, config: Any, section: Mapping[str, Any], name: str) -> Any:
        """Return the config of a section."""
        common = {"seed": self.seed, "output_dir": str(Path(self.output_dir) / name)}
        given = common | dict(section)
        # SFT on a saved data set plays nothing, and its config rejects env_kwargs as unused.
        is_played = name == "rl" or self.sft.get("source", "oracle") == "oracle"
        shared = dict(self.env_kwargs) if is_played else {}
        given["env_kwargs"] = shared | check_env_kwargs(section.get("env_kwargs"))
        return _read(config, given, f"the section {name}")


def _read(config: Any, given: Mapping[str, Any], where: str) -> Any:
    """Return a config from TRL's parser, which converts texts such as "1e-4" to numbers; YAML leaves them as text."""
    parser = Parser((config,), prog="llm-envs train sft-rl", add_help=False)
    # TRL returns what it does not know as "--key", value, "--key", value, ...
    if unknown := parser.set_defaults_with_config(**given)[::2]:
        names = [key.removeprefix("--") for key in unknown]
        known = {item.name for item in fields(config)}
        raise InvalidConfigError(
            f"{where} has {', '.join(names)}: {config.__name__} has no such field.{nearest(names[0], known)}"
        )
    try:
        return make(config, vars(parser.parse_known_args([])[0]))
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{where}: {error}") from error


def read_settings(path: str | Path, **changes: Any) -> SFTRLSettings:
    """Read the settings from a YAML file.

    Args:
        path: The file.
        **changes: Values that override the file's, under its names; None changes nothing. A mapping for `sft`, `rl` or
            `env_kwargs` overrides only its keys.

    Raises:
        InvalidConfigError: If the file is not a mapping, a key is unknown or missing, or a value is invalid.
    """
    values = read_yaml(path)
    if isinstance(values.get("env"), Mapping):
        set_process_environment(values.pop("env"), str(path))
    values, changes = ({_OUR_NAMES.get(key, key): given[key] for key in given} for given in (values, changes))
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(values.get(key), Mapping)
        values |= {} if value is None else {key: {**values[key], **value} if both else value}
    known = [item.name for item in fields(SFTRLSettings) if item.name != "of_model"]
    of_model = {item.name for item in fields(ModelConfig)} - {"model_name_or_path"}
    if unknown := sorted(values.keys() - {*known, *of_model}):
        raise InvalidConfigError(f"{path} has the unknown keys {unknown}; known are {', '.join(known)}.")
    if missing := [key for key in ("mode", "model", "env", "output_dir") if key not in values]:
        raise InvalidConfigError(f"{path} has no {', no '.join(missing)}.")
    above = {key: value for key, value in values.items() if key in of_model}
    return SFTRLSettings(**{key: value for key, value in values.items() if key in known}, of_model=above)


def train(settings: SFTRLSettings) -> Path:
    """Run the trainings of the settings' mode; return the folder of the model."""
    folder = Path(settings.output_dir)
    if settings.mode in ("sft", "sft+rl"):
        folder = train_sft(settings)
    if settings.mode in ("rl", "sft+rl"):
        folder = train_rl(settings)
    return folder


def train_sft(settings: SFTRLSettings) -> Path:
    """Train on the oracle's episodes or on a saved data set; return the folder of the model."""
    args = settings.sft_config
    checkpoint = resume_point(args, "SFT", _rank(settings))
    trainer = _sft_trainer(settings, args)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    return Path(str(args.output_dir))


def train_rl(settings: SFTRLSettings) -> Path:
    """Train by GRPO, starting from the newest model of an earlier `train_sft` if there is one; return the folder."""
    args = settings.rl_config
    checkpoint = resume_point(args, "GRPO", _rank(settings))
    trainer = _rl_trainer(settings, args)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
    finally:
        trainer.close()
    return Path(str(args.output_dir))


def describe(settings: SFTRLSettings, *, colour: bool = False) -> str:
    """Return a description of the trainings without running them. The one of rl uses the present model.

    Args:
        settings: The settings.
        colour: Whether to mark trained tokens by colour, for a terminal.
    """
    parts = []
    if settings.mode in ("sft", "sft+rl"):
        trainer = _sft_trainer(settings, settings.sft_config)
        parts.append(f"sft\n{describe_training(trainer, colour=colour)}")
    if settings.mode in ("rl", "sft+rl"):
        player = _rl_trainer(settings, settings.rl_config)
        try:
            parts.append(f"rl\n{describe_training(player, colour=colour)}")
        finally:
            player.close()
    return "\n\n".join(parts)


def _rank(settings: SFTRLSettings) -> int | None:
    """Return the rank of the trained adapters; None: all weights are trained."""
    model = settings.model_config
    return model.lora_r if model.use_peft else None


def _sft_trainer(settings: SFTRLSettings, args: EnvSFTConfig) -> EnvSFTTrainer:
    source: Any = settings.sft.get("source", "oracle")
    further = model_arguments(settings.model_config, args)
    if source == "oracle":
        return EnvSFTTrainer(check_model(settings.model), read_environment(settings.env), args, **further)
    return EnvSFTTrainer(check_model(settings.model), args=args, source=source, **further)


def _rl_trainer(settings: SFTRLSettings, args: EnvGRPOConfig) -> EnvGRPOTrainer:
    start, model = newest_checkpoint(Path(settings.output_dir) / "sft"), settings.model_config
    name = check_model(settings.model) if start is None else str(_merged(start, settings.output_dir, model))
    return EnvGRPOTrainer(name, read_environment(settings.env), args, **model_arguments(model, args))


def _merged(start: Path, output_dir: str, model: ModelConfig) -> Path:
    """Return a folder with a whole model. If `start` has an adapter, merge it into its base model first."""
    if not (start / "adapter_config.json").exists():
        return start
    place, state = Path(output_dir) / "merged", PartialState()
    # All ranks then load the same folder, so the others wait until rank 0 has written it.
    with state.main_process_first():
        if state.is_main_process:
            from peft import AutoPeftModelForCausalLM

            # The folder may have the merged model of an earlier run.
            shutil.rmtree(place, ignore_errors=True)
            adapted = AutoPeftModelForCausalLM.from_pretrained(start, dtype=model.dtype)
            adapted.merge_and_unload().save_pretrained(place)
            load_tokenizer(start).save_pretrained(place)
    return place


def newest_checkpoint(folder: str | Path) -> Path | None:
    """Return the most recently saved model of an output folder: the folder itself or a checkpoint in it; or None.

    An incomplete checkpoint (without `trainer_state.json`) does not count.
    """
    folder = Path(folder)
    whole = [state.parent for state in folder.glob("checkpoint-*/trainer_state.json")]
    found = [(_saved_ns(place), _step(place), place) for place in [folder, *whole] if _saved_ns(place)]
    return max(found)[2] if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line: `--config FILE`, and options that override the file; return the exit code."""
    parser = Parser(
        (ModelConfig,),
        prog="llm-envs train sft-rl",
        allow_abbrev=False,
        description="Supervised, then reinforcement learning, from one YAML file. --sft.FIELD VALUE and --rl.FIELD "
        "VALUE change its sections.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file")
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--model", dest="model_name_or_path", help="another name of --model_name_or_path")
    parser.add_argument("--environment", "--env", help="what is played")
    parser.add_argument("--output_dir", "--output-dir", "--out")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--env_kwargs", "--env-kwargs", type=check_env_kwargs, metavar="JSON")
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help="say what would be done, and do not train")
    known = {action.dest for action in parser._actions}
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # an option that is not given must not override the file
    given, further = parser.parse_known_args(list(sys.argv[1:] if arguments is None else arguments))
    changes = vars(given) | _sections(further, known)
    path, is_dry = changes.pop("config"), changes.pop("dry_run", False)
    settings = read_settings(path, **changes)
    if is_dry:
        print(describe(settings, colour=sys.stdout.isatty()))
    else:
        print(f"the model is in {train(settings)}")
    return 0


_OUR_NAMES = {"model_name_or_path": "model", "environment": "env"}
"""Name of an option and in the file -> field of the settings."""


def _sections(arguments: Sequence[str], known: set[str]) -> dict[str, dict[str, Any]]:
    """Return the values of options such as `--rl.max_steps 5`, by section."""
    changes: dict[str, dict[str, Any]] = {}
    rest = [part for argument in arguments for part in argument.split("=", 1 if argument.startswith("--") else 0)]
    while rest:
        option = rest.pop(0)
        section, _, name = option.removeprefix("--").partition(".")
        if not option.startswith("--") or section not in ("sft", "rl") or not name:
            raise InvalidConfigError(f"{option}: there is no such option.{nearest(option, known)}")
        if not rest or rest[0].startswith("--"):
            raise InvalidConfigError(f"{option}: the value behind it is missing.")
        changes.setdefault(section, {})[name.replace("-", "_")] = yaml.safe_load(rest.pop(0))
    return changes


def _saved_ns(folder: Path) -> int:
    """Return the time at which the folder's weights were written; 0 if it has no weights."""
    names = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
    return max((path.stat().st_mtime_ns for path in map(folder.joinpath, names) if path.exists()), default=0)


def _step(folder: Path) -> float:
    """Return the step of a checkpoint; infinity for the output folder itself, so that it wins a tie."""
    number = folder.name.partition("-")[2]
    return int(number) if number.isdigit() else float("inf")
