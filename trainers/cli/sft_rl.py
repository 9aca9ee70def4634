"""Supervised learning, then reinforcement learning, from one YAML file.

    mode: sft+rl                # or sft, or rl: from the newest checkpoint of an earlier sft
    model: runs/base
    env: llm/Calculator-v0
    out: runs/calculator        # gets sft/ and rl/
    seed: 0
    rewards: mine.py:REWARDS    # optional, of rl; so is `algorithm`
    env_kwargs: {difficulty: easy}
    use_peft: false             # and the other fields of TRL's ModelConfig
    sft:                        # fields of EnvSFTConfig, and `source`
      source: oracle            # or a saved data set: the folder of a run, a JSONL file of conversations, ...
      num_episodes: 500
      max_steps: 100
    rl:                         # fields of EnvGRPOConfig
      max_steps: 20

Settings above the sections apply to both. With `use_peft`, both trainings train an adapter. The first one's is merged
into the weights (`out/merged`) before the second starts.

    llm-envs train sft-rl --config run.yaml --mode rl --rl.max-steps 5      # options win over the file
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from accelerate import PartialState
from trl import ModelConfig

from llm_envs.data.files import remove
from llm_envs.data.yaml_files import read_yaml_text
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.loading import load_tokenizer
from llm_envs.trainers.cli.ending import run_training
from llm_envs.trainers.cli.parser import (
    ENV,
    Switch,
    TrainingParser,
    check_model,
    make,
    model_arguments,
    read_algorithm,
    read_environment,
    read_rewards,
)
from llm_envs.trainers.grpo.trainer import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.run.checkpoints import find_checkpoints, resume_point
from llm_envs.trainers.settings.checks import check_env_kwargs, check_values
from llm_envs.trainers.sft.trainer import EnvSFTConfig, EnvSFTTrainer

__all__ = ["SFTRLSettings", "main", "make_parser", "newest_checkpoint", "read_settings"]


@dataclass(kw_only=True)
class SFTRLSettings(ModelConfig):
    """The settings of both trainings, with the fields of TRL's `ModelConfig`. The module's header shows them as YAML.

    Mode "rl" trains `model_name_or_path` only if `output_dir` has no model from an earlier sft.
    """

    mode: Literal["sft", "rl", "sft+rl"] = field(metadata={"help": "Which trainings to run."})
    env: str = field(metadata=ENV)
    output_dir: str = field(metadata={"help": "Folder for the subfolders sft and rl."})
    seed: int = field(default=0, metadata={"help": "Seed of both trainings."})
    env_kwargs: dict[str, Any] | str | None = field(default=None, metadata={"help": "Arguments of gym.make, as JSON."})
    algorithm: str | None = field(
        default=None, metadata={"help": "A published algorithm, or FILE.py:NAME of yours, for the section rl."}
    )
    rewards: str | None = field(default=None, metadata={"help": "FILE.py:NAME of your rewards, for the section rl."})
    sft: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Fields of EnvSFTConfig, and source (oracle, or a saved data set). --sft.FIELD VALUE sets one."
        },
    )
    rl: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Fields of EnvGRPOConfig. --rl.FIELD VALUE sets one."}
    )

    def __post_init__(self) -> None:
        """Check the mode, and that the sections are mappings."""
        super().__post_init__()
        check_values(self)
        self.env_kwargs = check_env_kwargs(self.env_kwargs)
        for name in ("sft", "rl"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise InvalidConfigError(f"{name} is {getattr(self, name)!r:.80}; it must be a mapping.")

    @property
    def source(self) -> Any:
        """The data of the supervised training: "oracle", or a source for `sft.source.load_source`."""
        return self._section("sft").get("source", "oracle")

    @property
    def sft_config(self) -> EnvSFTConfig:
        """The section `sft` with the common settings."""
        section = {key: value for key, value in self._section("sft").items() if key != "source"}
        # SFT on a saved data set plays nothing, and its config rejects env_kwargs as unused.
        config: EnvSFTConfig = self._config(EnvSFTConfig, section, "sft", is_played=self.source == "oracle")
        return config

    @property
    def rl_config(self) -> EnvGRPOConfig:
        """The section `rl` with the common settings."""
        config: EnvGRPOConfig = self._config(EnvGRPOConfig, self._section("rl"), "rl", is_played=True)
        return config

    def _section(self, name: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = getattr(self, name) or {}
        return section

    def _config(self, kind: Any, section: Mapping[str, Any], name: str, *, is_played: bool) -> Any:
        """Return the config of a section, its values converted as from a file."""
        shared = cast("dict[str, Any]", self.env_kwargs) if is_played else {}
        common = {"seed": self.seed, "output_dir": str(Path(self.output_dir) / name)}
        own = {"env_kwargs": shared | check_env_kwargs(section.get("env_kwargs"))}
        parser, where = TrainingParser((kind,), prog="llm-envs train sft-rl"), f"the section {name}"
        parser.set_values({**common, **section, **own}, where)
        try:
            return make(kind, vars(parser.parse_args([])))
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{where}: {error}") from error


def make_parser() -> TrainingParser:
    """Return the parser of the command."""
    parser = TrainingParser((SFTRLSettings,), prog="llm-envs train sft-rl")
    parser.add_argument("--dry-run", action=Switch, default=False, help="say what would be done, and do not train")
    return parser


def read_settings(path: str | Path) -> SFTRLSettings:
    """Read the settings from a YAML file.

    Raises:
        InvalidConfigError: If the file is not a mapping, a key is unknown or missing, or a value is invalid.
    """
    return _parsed(["--config", str(path)])[0]


def _joined(section: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with changes."""
    both = [part for part in (section, changes) if isinstance(part, Mapping)]
    return {key.replace("-", "_"): value for part in both for key, value in part.items()}


def _sft_trainer(settings: SFTRLSettings, args: EnvSFTConfig) -> EnvSFTTrainer:
    name, further = check_model(settings.model_name_or_path), model_arguments(settings, args)
    if settings.source == "oracle":
        return EnvSFTTrainer(name, read_environment(settings.env), args, **further)
    return EnvSFTTrainer(name, args=args, source=settings.source, **further)


def _rl_trainer(settings: SFTRLSettings, args: EnvGRPOConfig) -> EnvGRPOTrainer:
    start = newest_checkpoint(Path(settings.output_dir) / "sft")
    name = check_model(settings.model_name_or_path) if start is None else str(_merged(start, settings))
    further: dict[str, Any] = {
        "algorithm": read_algorithm(settings.algorithm),
        "rewards": read_rewards(settings.rewards),
    }
    env = read_environment(settings.env)
    return EnvGRPOTrainer(name, env, args, **further, **model_arguments(settings, args))


def _merged(start: Path, settings: SFTRLSettings) -> Path:
    """Return a folder with a full model. If `start` has an adapter, merge it into its base model first."""
    if not (start / "adapter_config.json").exists():
        return start
    place, state = Path(settings.output_dir) / "merged", PartialState()
    # All ranks then load the same folder, so the others wait until rank 0 has written it.
    with state.main_process_first():
        if state.is_main_process:
            from peft import AutoPeftModelForCausalLM

            # The folder may have the merged model of an earlier run.
            remove(place)
            adapted = AutoPeftModelForCausalLM.from_pretrained(start, dtype=settings.dtype)
            adapted.merge_and_unload().save_pretrained(place)
            load_tokenizer(start).save_pretrained(place)
    return place


def newest_checkpoint(folder: str | Path) -> Path | None:
    """Return the most recently saved model of an output folder: the folder itself or a checkpoint in it; or None.

    An incomplete checkpoint (without `trainer_state.json`) does not count.
    """
    # Of several that were saved at the same time, `max` takes the first: the folder itself, or the latest step.
    newest = max((Path(folder), *reversed(find_checkpoints(folder))), key=_saved_ns)
    return newest if _saved_ns(newest) else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line: `--config FILE`, and options that override the file; return the exit code."""
    settings, is_dry = _parsed(sys.argv[1:] if arguments is None else arguments)
    rank, code = settings.lora_r if settings.use_peft else None, 0
    for name in settings.mode.split("+"):
        if is_dry:
            print(name)
        trainer: EnvSFTTrainer | EnvGRPOTrainer
        had_folder = (Path(settings.output_dir) / name).exists()
        if name == "sft":
            sft = settings.sft_config
            checkpoint, option = resume_point(sft, "SFT", rank), "--sft.resume-from-checkpoint true"
            trainer = _sft_trainer(settings, sft)
        else:
            rl = settings.rl_config
            checkpoint, option = resume_point(rl, "GRPO", rank), "--mode rl --rl.resume-from-checkpoint true"
            trainer = _rl_trainer(settings, rl)
        code = max(code, run_training(trainer, checkpoint, had_folder, is_dry=is_dry, option=option))
    return code


def _parsed(arguments: Sequence[str]) -> tuple[SFTRLSettings, bool]:
    """Return the settings of a command line, and whether it is a dry run."""
    rest, sections = _sections(arguments)
    values = vars(make_parser().parse_args(rest))
    values |= {name: _joined(values[name], changes) for name, changes in sections.items()}
    return make(SFTRLSettings, values), bool(values["dry_run"])


def _sections(arguments: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the arguments without options such as `--rl.max-steps 5`, and the values of these by section."""
    changes: dict[str, dict[str, Any]] = {}
    rest, left = [], list(arguments)
    while left:
        argument = left.pop(0)
        found = re.fullmatch(r"(--(sft|rl)\.([\w-]+))(=.*)?", argument, re.DOTALL)
        if found is None:
            rest.append(argument)
            continue
        option, section, name, value = found.groups()
        if value is None and (not left or left[0].startswith("--")):
            raise InvalidConfigError(f"{option}: the value behind it is missing.")
        text = left.pop(0) if value is None else value[1:]
        try:
            changes.setdefault(section, {})[name.replace("-", "_")] = read_yaml_text(text)
        except ValueError as error:
            raise InvalidConfigError(f"{option}: {text:.200} is not YAML ({error}).") from error
    return rest, changes


def _saved_ns(folder: Path) -> int:
    """Return the time at which the folder's weights were written; 0 if it has no weights."""
    names = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
    return max((path.stat().st_mtime_ns for path in map(folder.joinpath, names) if path.exists()), default=0)
