"""Environments with one planted defect each, and the sound ones that they differ from. None of them knows of us.

`python tests/support/planted_defects.py` certifies them all and writes the table of docs/guides/certify.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import gymnasium as gym
import planted_costs
import planted_sameness
import planted_scores
from sound_envs import Backwards, Sum

from llm_envs.checker import Settings
from llm_envs.checker.certification import Certificate, certify
from llm_envs.checker.clauses import CHECKS

SETTINGS = Settings(n_episodes=12, max_step_s=0.004, max_reset_s=0.004)
SOUND = (Sum, Backwards)
PLANTED = planted_sameness.DEFECTS | planted_scores.DEFECTS | planted_costs.DEFECTS
DEFECTS: Mapping[str, tuple[type[gym.Env[str, str]], ...]] = {
    check.name: PLANTED[check.name] for check in CHECKS if check.name in PLANTED
}
"""The check that should catch a defect -> environments with one."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "certify.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@cache
def measured(cls: type[gym.Env[str, str]]) -> Certificate:
    """Certify an environment, once in this process."""
    return certify(cls, SETTINGS)


def table() -> str:
    """Return the table of the page: the planted defects by the checks that failed for them."""
    lines = ["| check | planted | caught by it | by another check too | defects |", "|---|---|---|---|---|"]
    totals = [0, 0, 0]
    for check, planted in DEFECTS.items():
        failed = [measured(cls).failed for cls in planted]
        counts = len(planted), sum(check in names for names in failed), sum(len(names) > 1 for names in failed)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        about = "; ".join(str(cls.__doc__).rstrip(".") for cls in planted)
        lines.append(f"| {check} | {' | '.join(map(str, counts))} | {about} |")
    lines.append(f"| all | {' | '.join(map(str, totals))} | |")
    n_alarms = sum(len(measured(cls).failed) for cls in SOUND)
    lines.append(f"| none: {len(SOUND)} sound environments | 0 | {n_alarms} | 0 | |")
    return "\n".join(lines)


def main() -> int:
    """Write the table; return 1 if a defect was not caught by just its check."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    wrong = {cls.__name__: measured(cls).failed for check, planted in DEFECTS.items() for cls in planted
             if measured(cls).failed != (check,)}  # fmt: skip
    wrong |= {cls.__name__: measured(cls).failed for cls in SOUND if measured(cls).failed}
    print(wrong or "each defect was caught by just its check")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
