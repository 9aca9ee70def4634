"""Supervised learning, then reinforcement learning, from one YAML file.

    mode: sft+rl                # or sft, or rl: from the newest checkpoint of an earlier sft
    model: runs/base            # a folder, or a name on a hub
    env: llm/Calculator-v0
    output_dir: runs/calculator # gets sft/ and rl/
    seed: 0
    env_kwargs: {difficulty: easy}
    sft:                        # fields of EnvSFTConfig, and `source`
      source: oracle            # or a saved data set: the folder of a run, a JSONL file of conversations, ...
      num_episodes: 500
      max_steps: 100
    rl:                         # fields of EnvGRPOConfig
      max_steps: 20

What stands above the sections holds for both.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    import yaml  # type: ignore[import-untyped]
    from trl import TrlParser
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.grpo import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.sft import EnvSFTConfig, EnvSFTTrainer

__all__ = ["MODES", "SFTRLSettings", "main", "newest_checkpoint", "read_settings", "train", "train_rl", "train_sft"]

MODES = ("sft", "rl", "sft+rl")


@dataclass(frozen=True)
class SFTRLSettings:
    """What is trained, on what, and how; the module shows it as YAML."""

    mode: str
    """One of `MODES`."""
    model: str
    """A folder, or a name on a hub. In mode "rl" it is what is trained only if there is no checkpoint of an sft."""
    env: str
    """Id of a registered environment."""
    output_dir: str
    """Gets the folders `sft` and `rl`."""
    seed: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of gym.make."""
    sft: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EnvSFTConfig`, and `source`: "oracle", or what `sft_source.load_source` takes."""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EnvGRPOConfig`."""

    def __post_init__(self) -> None:
        """Check the mode, and that the sections are such."""
        if self.mode not in MODES:
            raise InvalidConfigError(f"mode is {self.mode!r}; it must be one of {', '.join(MODES)}.")
        for name in ("env_kwargs", "sft", "rl"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidConfigError(f"{name} is {getattr(self, name)!r:.80}; it must be a mapping.")

    @property
    def sft_config(self) -> EnvSFTConfig:
        """The section `sft` with what stands above it."""
        section = {key: value for key, value in self.sft.items() if key != "source"}
        config: EnvSFTConfig = self._parse(EnvSFTConfig, section, "sft")
        return config

    @property
    def rl_config(self) -> EnvGRPOConfig:
        """The section `rl` with what stands above it."""
        config: EnvGRPOConfig = self._parse(EnvGRPOConfig, self.rl, "rl")
        return config

    def _parse(self, config: Any, section: Mapping[str, Any], name: str) -> Any:
        """Return a config of TRL's parser, which reads "1e-4" as YAML writes it, as a number."""
        common = {"seed": self.seed, "output_dir": str(Path(self.output_dir) / name)}
        given = common | dict(section)
        given["env_kwargs"] = dict(self.env_kwargs) | dict(section.get("env_kwargs", {}))
        parser = TrlParser(config)
        if unknown := parser.set_defaults_with_config(**given)[::2]:
            names = ", ".join(key.removeprefix("--") for key in unknown)
            raise InvalidConfigError(f"the section {name} has {names}: {config.__name__} has no such field.")
        return parser.parse_args_into_dataclasses(args=[])[0]


def read_settings(path: str | Path, **changes: Any) -> SFTRLSettings:
    """Read the settings from a YAML file.

    Args:
        path: The file.
        **changes: Values in place of the file's; None changes nothing.

    Raises:
        InvalidConfigError: If it is no mapping, a key is unknown or missing, or a value is wrong.
    """
    with open(path, encoding="utf-8") as file:
        given = yaml.safe_load(file)
    known = [item.name for item in fields(SFTRLSettings)]
    if not isinstance(given, Mapping) or (unknown := sorted(set(map(str, given)) - set(known))):
        what = f"the unknown keys {unknown}" if isinstance(given, Mapping) else f"{given!r:.80}"
        raise InvalidConfigError(f"{path} has {what}; known are {', '.join(known)}.")
    values = dict(given) | {key: value for key, value in changes.items() if value is not None}
    if missing := [key for key in ("mode", "model", "env", "output_dir") if key not in values]:
        raise InvalidConfigError(f"{path} has no {', no '.join(missing)}.")
    return SFTRLSettings(**values)


def train(settings: SFTRLSettings) -> Path:
    """Train in the mode of the settings, and return the folder of the model."""
    folder = Path(settings.output_dir)
    if settings.mode in ("sft", "sft+rl"):
        folder = train_sft(settings)
    if settings.mode in ("rl", "sft+rl"):
        folder = train_rl(settings)
    return folder


def train_sft(settings: SFTRLSettings) -> Path:
    """Train on what the oracle plays or on a saved data set; return the folder of the model."""
    args, source = settings.sft_config, settings.sft.get("source", "oracle")
    if source == "oracle":
        trainer = EnvSFTTrainer(settings.model, settings.env, args)
    else:
        trainer = EnvSFTTrainer(settings.model, args=args, source=source)
    trainer.train()
    trainer.save_model()
    return Path(str(args.output_dir))


def train_rl(settings: SFTRLSettings) -> Path:
    """Train by GRPO, from the newest checkpoint of an earlier `train_sft` if there is one; return the folder."""
    args = settings.rl_config
    start = newest_checkpoint(Path(settings.output_dir) / "sft")
    trainer = EnvGRPOTrainer(settings.model if start is None else str(start), settings.env, args)
    try:
        trainer.train()
        trainer.save_model()
    finally:
        trainer.close()
    return Path(str(args.output_dir))


def newest_checkpoint(folder: str | Path) -> Path | None:
    """Return the model in a trainer's output folder that was saved last: the folder's own or a checkpoint's; or None.

    A checkpoint that was not written to its end (no `trainer_state.json`) does not count.
    """
    folder = Path(folder)
    whole = [state.parent for state in folder.glob("checkpoint-*/trainer_state.json")]
    found = [(_saved_ns(place), _step(place), place) for place in [folder, *whole] if _saved_ns(place)]
    return max(found)[2] if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line: `--config FILE`, and what is to replace the file's values; return the exit code."""
    parser = argparse.ArgumentParser(description="Supervised, then reinforcement learning, from one YAML file.")
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file")
    parser.add_argument("--mode", choices=MODES)
    for name in ("model", "env", "output_dir"):
        parser.add_argument(f"--{name}")
    given = vars(parser.parse_args(arguments))
    print(f"the model is in {train(read_settings(given.pop('config'), **given))}")
    return 0


def _saved_ns(folder: Path) -> int:
    """Return when the folder's weights were written; 0 if it has none."""
    names = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
    return max((path.stat().st_mtime_ns for path in map(folder.joinpath, names) if path.exists()), default=0)


def _step(folder: Path) -> float:
    """Return the step of a checkpoint; the folder that holds them comes behind all."""
    number = folder.name.partition("-")[2]
    return int(number) if number.isdigit() else float("inf")
