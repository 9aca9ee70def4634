"""Lists the options of the trainings for shell completion, from their parsers."""

from __future__ import annotations

from functools import partial

from llm_envs.trainers.cli.commands import KINDS
from llm_envs.trainers.cli.parser import Switch, TrainingParser
from llm_envs.trainers.cli.sft_rl import make_parser
from llm_envs.trainers.grpo.trainer import EnvGRPOConfig
from llm_envs.trainers.sft.trainer import EnvSFTConfig

__all__ = ["dpo", "grpo", "options", "ppo", "sft", "sft_rl"]


def options(name: str) -> dict[str, tuple[str, ...] | None]:
    """Return {option: its values} of a training; (): it takes none; None: any value."""
    if name != "sft-rl":
        return _values(TrainingParser(KINDS[name]))
    sections = {"sft": TrainingParser((EnvSFTConfig,)), "rl": TrainingParser((EnvGRPOConfig,))}
    found = {
        f"--{part}.{key[2:]}": values for part, parser in sections.items() for key, values in _values(parser).items()
    }
    return found | _values(make_parser())


def _values(parser: TrainingParser) -> dict[str, tuple[str, ...] | None]:
    found: dict[str, tuple[str, ...] | None] = {}
    for option, action in parser.options().items():
        if isinstance(action, Switch):
            found[option] = () if option.startswith("--no-") else ("true", "false")
        elif option.startswith("--"):
            found[option] = () if action.nargs == 0 else tuple(map(str, action.choices or ())) or None
    return found


sft, grpo, ppo, dpo = (partial(options, name) for name in ("sft", "grpo", "ppo", "dpo"))
sft_rl = partial(options, "sft-rl")
