"""A section for TRL's model cards: the environments of the training, its seeds, versions and results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_envs.data.files import remove_link
from llm_envs.errors import counted
from llm_envs.evaluation.results import installed_versions
from llm_envs.sources.source import EnvChoice
from llm_envs.tracking.describing import describing

__all__ = ["EnvironmentCard", "environment_section", "without_none"]

_PACKAGES = ("llm-envs", "trl", "transformers", "torch", "peft", "vllm", "gymnasium")
_ONLY_IN_TRANSFORMERS_5 = ("TokenizersBackend", "PythonBackend", "SentencePieceBackend", "MistralCommonBackend")
"""Classes of tokenizers that transformers 5 introduced. It saves a tokenizer that lacks a class as one."""
_NEEDS_TRANSFORMERS_5 = (
    " The tokenizer is saved as a `{}`, which only transformers 5 or later can load: with transformers 4, load the "
    "tokenizer of the base model."
)


class EnvironmentCard:
    """Adds a section to the card of a TRL trainer, which `create_model_card` and `push_to_hub` write."""

    args: Any
    state: Any
    items: Any
    """Split -> its episodes; empty or missing for a trainer that reads them."""
    card_environments: Mapping[str, Sequence[EnvChoice]] | str = "It was trained on stored episodes."
    """For such a trainer: the environments of each split, or a sentence about its data."""

    def create_model_card(self, *arguments: Any, **keywords: Any) -> None:
        """Write TRL's card, and behind it the environments, seeds, versions and results. An error is a warning."""
        with describing("the model card"):
            self._write_card(*arguments, **keywords)

    def _write_card(self, *arguments: Any, **keywords: Any) -> None:
        path, is_main = Path(self.args.output_dir) / "README.md", self.is_world_process_zero()  # type: ignore[attr-defined]
        if is_main:
            remove_link(path)
        super().create_model_card(*arguments, **keywords)  # type: ignore[misc]
        if not is_main:
            return
        splits = {split: items.source.choices for split, items in getattr(self, "items", {}).items()}
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)  # type: ignore[attr-defined]
        section = environment_section(
            splits or self.card_environments,
            self.args.seed,
            self.state.global_step,
            self.state.log_history,
            tokenizer_class=type(tokenizer).__name__,
        )
        base = getattr(self.model.config, "name_or_path", None)  # type: ignore[attr-defined]
        card = without_none(path.read_text(encoding="utf-8"), base, self.args.output_dir)
        path.write_text(card + section, encoding="utf-8")


def without_none(card: str, base: str | None, folder: str) -> str:
    """Return TRL's card without the `None` that stands for a model of a folder.

    Args:
        card: TRL's text.
        base: Source of the trained model; only the last part of its path is written.
        folder: The folder of the trained model; likewise.
    """
    named = f"`{Path(base).name}`, a model of a folder" if base else "a new model"
    card = card.replace("[None](https://huggingface.co/None)", named)
    return card.replace('model="None"', f'model="{Path(folder).resolve().name}"')


def environment_section(
    environments: Mapping[str, Iterable[EnvChoice]] | str,
    seed: int,
    steps: int,
    logs: Sequence[Mapping[str, Any]],
    *,
    tokenizer_class: str = "",
) -> str:
    """Return the section of a card as Markdown.

    Args:
        environments: The environments of each split, or a sentence about the data.
        seed: The run's seed.
        steps: Optimizer steps.
        logs: The trainer's log. The results are the last of an evaluation, else of the last step.
        tokenizer_class: Name of the tokenizer's class, which a checkpoint's `tokenizer_config.json` repeats.
    """
    if isinstance(environments, str):
        played = environments
    else:
        lines = [
            f"| {split} | `{choice.env_id}` | `{json.dumps(dict(choice.kwargs), default=str)}` | {choice.weight:g} |"
            for split, choices in environments.items()
            for choice in choices
        ]
        played = "| split | environment | arguments | weight |\n|---|---|---|---|\n" + "\n".join(lines)
    needs = _NEEDS_TRANSFORMERS_5.format(tokenizer_class) if tokenizer_class in _ONLY_IN_TRANSFORMERS_5 else ""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions(_PACKAGES).items())
    return f"""
## Environments

{played}

Seed {seed}, from which the seeds of all episodes are computed; {counted(steps, "step")}. {versions}.{needs}

## Results

{_results(logs)}
"""


def _results(logs: Sequence[Mapping[str, Any]]) -> str:
    for prefix, about in (
        ("eval_", "On held-out episodes (of the split test)"),
        ("", "Not evaluated on held-out episodes. While training, at the last logged step"),
    ):
        names = [prefix + name for name in ("env/success", "reward", "env/reward", "env/episodes", "loss")]
        for entry in reversed(logs):
            numbers = {name: entry[name] for name in names if entry.get(name) is not None}  # None: nothing was scored
            if results := {name.removeprefix(prefix): value for name, value in numbers.items()}:
                rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in results.items())
                return f"{about}, step {entry.get('step', '?')}:\n\n| measure | value |\n|---|---|\n{rows}"
    return "Nothing was logged."
