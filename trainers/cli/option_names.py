"""Lists the options of the trainings for shell completion, from the source code, because importing TRL takes seconds.

Every field of a training's dataclasses is an option. The classes are found by name in the source files, including TRL's
and transformers'. Nothing is imported. A test compares the result with the parsers of `cli.parser`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["TRAININGS", "dpo", "fields_of", "grpo", "options", "ppo", "sft", "sft_rl"]

_TRAINERS = Path(__file__).parents[1]
_COMMANDS = _TRAINERS / "cli" / "commands.py"

TRAININGS: Mapping[str, tuple[str, ...]] = {
    "sft": ("SFTArguments", "EnvSFTConfig", "ModelConfig"),
    "grpo": ("GRPOArguments", "EnvGRPOConfig", "ModelConfig"),
    "ppo": ("PPOArguments", "EnvPPOConfig", "ModelConfig"),
    "dpo": ("DPOArguments", "EnvDPOConfig", "ModelConfig"),
    "sft-rl": ("ModelConfig",),
}
"""Training -> the dataclasses of its options, by their names in `commands`."""

_ALIASES = {"environment": "--env", "model_name_or_path": "--model", "output_dir": "--out"}
_OF_SFT_RL = (
    "--mode",
    "--model",
    "--environment",
    "--env",
    "--output_dir",
    "--out",
    "--seed",
    "--env_kwargs",
    "--dry_run",
)


def options(name: str) -> dict[str, tuple[str, ...] | None]:
    """Return {option: its values} of a training; None: any value."""
    found: dict[str, tuple[str, ...] | None] = {"--help": (), "--config": None}
    for kind in TRAININGS[name]:
        for field, values in fields_of(_COMMANDS, kind).items():
            found[f"--{field}"] = values
            if field in _ALIASES:
                found[_ALIASES[field]] = values
    if name == "sft-rl":
        found |= dict.fromkeys(_OF_SFT_RL)
        found |= {"--mode": ("sft", "rl", "sft+rl"), "--dry_run": ()}
        for section, kind in (("sft", "EnvSFTConfig"), ("rl", "EnvGRPOConfig")):
            fields = fields_of(_COMMANDS, kind)
            found |= {f"--{section}.{field}": values for field, values in fields.items()}
    return found


def sft() -> dict[str, tuple[str, ...] | None]:
    """Return the options of SFT; see `options`."""
    return options("sft")


def grpo() -> dict[str, tuple[str, ...] | None]:
    """Return the options of GRPO; see `options`."""
    return options("grpo")


def ppo() -> dict[str, tuple[str, ...] | None]:
    """Return the options of PPO; see `options`."""
    return options("ppo")


def dpo() -> dict[str, tuple[str, ...] | None]:
    """Return the options of DPO; see `options`."""
    return options("dpo")


def sft_rl() -> dict[str, tuple[str, ...] | None]:
    """Return the options of SFT followed by RL; see `options`."""
    return options("sft-rl")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def fields_of(path: Path, name: str) -> dict[str, tuple[str, ...] | None]:
    """Return {field: its values, or None if the source does not list them} of a dataclass and its base classes.

    Args:
        path: A source file that defines or imports the class.
        name: Name of the class. A class that is not found has no fields.
    """
    found = _find(path, name)
    if found is None:
        return {}
    where, node = found
    fields: dict[str, tuple[str, ...] | None] = {}
    # In reverse, as dataclasses collect fields: the first base overrides the later ones, and the class overrides all.
    for base in reversed(node.bases):
        if isinstance(base, ast.Name):
            fields |= fields_of(where, base.id)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and _is_option(item):
            fields[item.target.id] = _values(item)
    return fields


def _is_option(item: ast.AnnAssign) -> bool:
    """Return whether an annotated name of a class is a field that its constructor takes."""
    text = ast.unparse(item.annotation)
    arguments = {word.arg: word.value for word in item.value.keywords} if isinstance(item.value, ast.Call) else {}
    init = arguments.get("init")
    return "ClassVar" not in text and not (isinstance(init, ast.Constant) and init.value is False)


def _values(item: ast.AnnAssign) -> tuple[str, ...] | None:
    """Return a field's possible values, if it is a bool or has `choices`; else None."""
    if ast.unparse(item.annotation).replace(" | None", "") == "bool":
        return ("true", "false")
    if not isinstance(item.value, ast.Call):
        return None
    for node in ast.walk(item.value):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "choices" and isinstance(value, ast.List):
                return tuple(str(part.value) for part in value.elts if isinstance(part, ast.Constant))
    return None


def _find(path: Path, name: str) -> tuple[Path, ast.ClassDef] | None:
    """Return the file that defines a class, and the definition; follow the file's imports."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return path, node
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                for target in _files(path, node):
                    if (found := _find(target, alias.name)) is not None:
                        return found
    return None


def _files(path: Path, node: ast.ImportFrom) -> Iterator[Path]:
    """Yield the source file that a `from ... import` reads, if there is one."""
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        folder = path.parents[node.level - 1]
    # Our own modules are below this folder. Others are found on the path, without importing them.
    elif parts[:2] == ["llm_envs", "trainers"]:
        folder, parts = _TRAINERS, parts[2:]
    else:
        spec = PathFinder.find_spec(parts[0])
        if spec is None or not spec.submodule_search_locations:
            return
        folder, parts = Path(spec.submodule_search_locations[0]), parts[1:]
    target = folder.joinpath(*parts)
    yield from (file for file in (target.with_suffix(".py"), target / "__init__.py") if file.is_file())
