"""Runs `llm-envs audit` and prints what it found."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from llm_envs.tracking.loggers import visible_text
from llm_envs.trainers.cli.audit.parts import Audit
from llm_envs.trainers.cli.audit.run import audit_training
from llm_envs.trainers.cli.parser import read_algorithm, read_rewards

__all__ = ["run", "shown"]


def run(arguments: argparse.Namespace) -> int:
    """Audit, print, and return the exit code: 0 if nothing differs, else 1."""
    audit = audit_training(
        arguments.folder,
        model=arguments.model,
        rewards=read_rewards(arguments.rewards),
        algorithm=read_algorithm(arguments.algorithm),
        tolerance=arguments.tolerance,
    )
    print(json.dumps(_as_json(audit), indent=2, default=str) if arguments.json else visible_text(shown(audit)))
    return 0 if audit.first is None else 1


def shown(audit: Audit) -> str:
    """Return the first difference, and a line for each part."""
    lines = []
    if audit.first is not None:
        lines = [f"the first of {len(audit.differences)} differences, {audit.first}", ""]
    for name, part in audit.parts.items():
        said = f"{len(part.differences)} differ" if part.differences else "equal" if part.n else "not compared"
        lines.append(f"{name:17} {said:13} {f'{part.n:,} {part.unit}' if part.n else ''}".rstrip())
        lines += [f"{'':17} finds {what} that differs by {n:.2g} {u}".rstrip() for what, (n, u) in part.limits.items()]
        lines += [f"{'':17} not recomputed{f' ({n})' if n else ''}: {why}" for why, n in part.missing.items()]
    return "\n".join(lines)


def _as_json(audit: Audit) -> dict[str, Any]:
    return {
        "clean": audit.first is None,
        "first": None if audit.first is None else asdict(audit.first),
        "parts": {name: asdict(part) for name, part in audit.parts.items()},
    }
