"""`certify`: whether anyone's text environment is fit for training; `llm-envs certify` on the command line.

It examines all clauses of `clauses.CHECKS`, for tasks of ours and environments of others. A clause that has nothing to
examine is "not applicable", with its reason.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gymnasium as gym

from llm_envs.checker.catalogue import example_kwargs
from llm_envs.checker.check import Finding, Status, examine
from llm_envs.checker.clauses import CHECKS
from llm_envs.checker.subject import QUICK, Settings, Subject
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.objects import load_object
from llm_envs.problems import check_choice
from llm_envs.registration import task_spec

__all__ = ["Certificate", "certify", "certify_levels"]

_N_HOSTILE = 6
"""Episodes of each kind of hostile action, of an environment that is not a task: its steps may be slow."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of `certify`."""

    env: str
    findings: tuple[Finding, ...]
    examined: Mapping[str, Any] = field(default_factory=dict)
    """The subject of the checks, as JSON types: `levels`, `splits`, `arguments`, `problems`, `versions`."""

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed, in their order."""
        return tuple(name for name in self.checks if self.status(name) == "failed")

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the checks that were run, in their order."""
        return tuple(dict.fromkeys(finding.check for finding in self.findings))

    def status(self, check: str) -> Status:
        """Return a check's status: that of its worst part; "not applicable" if none of its parts applies."""
        found = {finding.status for finding in self.findings if finding.check == check}
        return "failed" if "failed" in found else "passed" if "passed" in found else "not applicable"

    def to_json(self) -> dict[str, Any]:
        """Return all findings, with the reason and the bound of each check, as JSON types."""
        about = {check.name: check for check in CHECKS}
        return {
            "env": self.env,
            "passed": self.passed,
            "examined": dict(self.examined),
            "checks": [
                {
                    "name": name,
                    "status": self.status(name),
                    "reason": about[name].reason,
                    "bound": about[name].bound,
                    "findings": [asdict(finding) for finding in self.findings if finding.check == name],
                }
                for name in self.checks
            ],
        }

    def __str__(self) -> str:
        marks = {"passed": "ok  ", "failed": "FAIL", "not applicable": "n/a "}
        lines = [f"{marks[found.status]} {found.check}: {found.clause}: {found.detail}" for found in self.findings]
        return "\n".join([self.env, *self.about(), *lines])

    def about(self) -> list[str]:
        """Return what was examined, a line for each kind of fact."""
        return [f"{name}: {_shown(value)}" for name, value in self.examined.items() if value]


def certify(
    env: str | Callable[..., gym.Env[str, str]],
    settings: Settings | None = None,
    *,
    checks: Sequence[str] | None = None,
    **kwargs: Any,
) -> Certificate:
    """Examine whether a text environment is fit for training, whoever wrote it.

    Args:
        env: A registered id, such as "llm/Calculator-v0" or "my_package:my/Task-v0"; "module:Class"; or any function
            that makes the environment.
        settings: Declarations about the environment, and the bounds to hold it to.
        checks: Names of the checks to run; None runs all of `CHECKS`.
        **kwargs: Keyword arguments of the environment.

    Returns:
        The certificate, with a finding for each clause of each check.

    Raises:
        InvalidConfigError: If the environment is not one of texts, or a name of a check is unknown.
        UnknownTaskError: If the id, module or class does not exist.
        MissingExtraError: If a package that the environment needs is not installed.
    """
    names = [check.name for check in CHECKS]
    for name in checks or ():
        check_choice("certify", "check", name, names)
    subject = _subject(env, settings or Settings(), kwargs)
    findings: list[Finding] = []
    with closing(subject.env):
        for check in CHECKS:
            if checks is not None and check.name not in checks:
                continue
            if check.name == "contract" and (subject.maker is not None or not subject.is_task):
                findings.append(Finding(check.name, check.name, "not applicable", "only for registered tasks", 0.0))
                continue
            findings += examine(subject, (*check.clauses, *check.further))
            if check is CHECKS[0] and not findings[-1].passed:
                break
        examined = _examined(subject, kwargs)
    return Certificate(subject.env_id, tuple(findings), examined)


def certify_levels(env: str, settings: Settings | None = None, **others: Any) -> Certificate:
    """Examine each level of a task as `certify` does; a clause's finding names its level.

    Args:
        env: As in `certify`.
        settings: Likewise.
        **others: Likewise, without `difficulty`.

    Raises:
        InvalidConfigError: Like `certify`, and if the environment declares no levels.
    """
    with closing(_subject(env, settings or Settings(), {k: v for k, v in others.items() if k != "checks"}).env) as made:
        levels = list(getattr(made.unwrapped, "difficulties", {}))
    if not levels:
        raise InvalidConfigError(f"{env} declares no levels (`difficulties`): leave out --all-levels.")
    found = {level: certify(env, settings, difficulty=level, **others) for level in levels}
    findings = [replace(f, clause=f"{f.clause} [{level}]") for level, one in found.items() for f in one.findings]
    order = [check.name for check in CHECKS]
    findings.sort(key=lambda finding: order.index(finding.check))
    first = next(iter(found.values()))
    return Certificate(first.env, tuple(findings), {**first.examined, "levels": levels, "arguments": {}})


def _examined(subject: Subject, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    made = subject.env.unwrapped
    level = getattr(made, "difficulty", None)
    versions = {name: version(name) for name in ("llm-envs", "gymnasium")}
    if (package := type(made).__module__.partition(".")[0]) not in ("llm_envs", "gymnasium", "__main__"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "levels": [str(level)] if isinstance(level, str) else [],
        "splits": list(subject.splits) if subject.is_task else [],
        "arguments": json.loads(json.dumps(dict(kwargs), default=str)),
        "problems": subject.effort.n_seeds,
        "versions": {"python": platform.python_version(), **versions},
    }


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _subject(env: str | Callable[..., gym.Env[str, str]], settings: Settings, kwargs: dict[str, Any]) -> Subject:
    effort = replace(QUICK, n_seeds=settings.n_episodes)
    if isinstance(env, str):
        subject = replace(_found(env, kwargs), effort=effort, settings=settings)
    else:
        subject = Subject(getattr(env, "__qualname__", repr(env)), kwargs, effort, settings, env)
    name = subject.env_id
    try:
        made = subject.env
    except (InvalidConfigError, MissingExtraError):
        raise
    except Exception as error:
        raise InvalidConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, gym.Env):
        raise InvalidConfigError(
            f"{name} is a {type(made).__name__}; it must be a gymnasium.Env with reset and step. Agents with a loop of "
            "theirs are examined by the environments that they play."
        )
    for space in (made.observation_space, made.action_space):
        if not isinstance(space, gym.spaces.Text):
            raise InvalidConfigError(
                f"{name} has the space {space}; it must be a gymnasium.spaces.Text. For numbers take "
                f"llm_envs.bridges.gymnasium:GymnasiumEnv with env, which puts them into words."
            )
    return subject if subject.is_task else replace(subject, effort=replace(effort, n_hostile_episodes=_N_HOSTILE))


def _found(name: str, kwargs: dict[str, Any]) -> Subject:
    """Return the subject of "module:Class" or "FILE.py:Class", or of a registered id."""
    module, _, attribute = name.rpartition(":")
    if module and attribute.isidentifier():
        return Subject(name, kwargs, maker=load_object("ENV", name))
    spec = task_spec(name)
    return Subject(spec.id, example_kwargs(spec.id) | kwargs)
