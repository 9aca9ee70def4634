"""A pretrained model on every task without any training: success, reward, malformed replies, and replies to read.

    python -m proof.baselines [TASK ...] [--n 100] [--docs docs/results/baselines.md]

Plays each task at its easiest level on the test split in three forms: as the task is ("plain"), after three solved
problems ("few-shot", `FewShot`), and with `answer_form="natural"` if the task has it. Plain tasks are played at
temperature 1 and greedily, the other forms greedily unless `--samplings` says otherwise.
Writes one JSON file for each task, form and sampling into `--out`, so a run that was stopped continues with the missing
ones. `--docs` puts the table into a document, and three replies of each task into `replies.md` beside the JSON. The
default sizes suit the model of `make real-model` on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium as gym

from benchmarks.measuring import Column, describe_hardware, describe_versions, find_commit, markdown_table
from llm_envs.checker.catalogue import family_of, suite_ids
from llm_envs.env import SingleTurnEnv, TextEnv
from llm_envs.evaluation import evaluate
from llm_envs.evaluation.statistics import wilson_interval
from llm_envs.rewards import own_words
from llm_envs.rollout import RolloutLimits
from llm_envs.testing import REAL_MODEL_FOLDER
from llm_envs.types import SamplingParams, Trajectory
from llm_envs.wrappers import FewShot

RESULTS = Path("proof/results/baselines")
FORMS = ("plain", "few-shot", "natural")
TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}
SAMPLINGS = {"plain": ("sampled", "greedy"), "few-shot": ("greedy",), "natural": ("greedy",)}
TURN_TOKENS = {True: 128, False: 64}
"""Whether a task has one turn -> tokens of a turn."""
LONG_EXAMPLES = frozenset(
    f"llm/{name}-v0" for name in ("Blackjack", "CliffWalking", "FixRepository", "FrozenLake", "GridPrograms", "Taxi")
)
"""Tasks whose three solved problems leave too little of `--episode-tokens`."""
LONG_TOKENS = 8192
"""Their tokens of an episode then: all that the model of `make real-model` has."""
N_SHOTS = 3
N_REPLIES = 3
"""Replies to keep of each task and setting."""
MAX_SHOWN = 600
"""Characters of a question or a reply in `replies.md`."""
COMMAND = "make baselines"


def make_env(env_id: str, form: str, **kwargs: Any) -> gym.Env[str, str]:
    """Make a task in one of the forms."""
    if form == "natural":
        return gym.make(env_id, answer_form="natural", **kwargs)
    env = gym.make(env_id, **kwargs)
    return FewShot(env, N_SHOTS) if form == "few-shot" else env


def easiest(env_id: str) -> tuple[str, list[str], bool]:
    """Return the name of a task's easiest level, the forms that it can be played in, and whether it has one turn."""
    env = gym.make(env_id)
    task = env.unwrapped
    assert isinstance(task, TextEnv)
    level, forms = next(iter(task.difficulties)), [form for form in FORMS if form != "natural" or task.has_natural_form]
    env.close()
    return level, forms, isinstance(task, SingleTurnEnv)


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the outcomes of one setting as JSON types, by episode."""
    scored = [t for t in trajectories if t.status == "ok"]
    kept = [t for t in scored if t.turns][:N_REPLIES]
    return {
        "seeds": [t.seed for t in scored],
        "successes": [int(t.is_success is True) for t in scored],
        "rewards": [round(t.reward, 6) for t in scored],
        "malformed": [sum(turn.components.get("malformed", 0.0) > 0 for turn in t.turns) for t in scored],
        "turns": [len(t.turns) for t in scored],
        "cut": [int(t.is_cut) for t in scored],
        "tokens": [t.n_sampled_tokens for t in scored],
        "not_played": sum(t.status != "ok" for t in trajectories),
        "errors": sorted(
            {f"{t.error.where}: {t.error.kind}: {t.error.message}"[:300] for t in trajectories if t.error}
        ),
        "replies": [
            {
                "seed": t.seed,
                "asked": [m.content for m in t.messages if m.role == "user"][t.n_example_replies :][:1],
                "reply": own_words(t) or t.messages[-1].content,
                "success": t.is_success,
            }
            for t in kept
        ],
    }


def play(env_id: str, form: str, sampling: str, policy: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Play one task in one form with one sampling; return the contents of its file."""
    settings = describe_setting(env_id, form, sampling, options)
    started = time.perf_counter()
    result = evaluate(
        partial(make_env, env_id, form),
        policy,
        n=options.n,
        codec=policy.codec,
        split="test",
        env_kwargs={"difficulty": settings["level"]},
        sampling=SamplingParams(temperature=TEMPERATURES[sampling], max_new_tokens=settings["turn_tokens"]),
        limits=RolloutLimits(max_turns=options.max_turns, max_episode_tokens=settings["episode_tokens"]),
        max_concurrency=options.batch,
        progress=False,
    )
    return {
        "settings": settings,
        "outcomes": summarize(result.trajectories),
        "engine": options.engine,
        "seconds": round(time.perf_counter() - started, 1),
        "hardware": describe_hardware(),
        "versions": describe_versions(),
        "commit": find_commit(),
    }


def describe_setting(env_id: str, form: str, sampling: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what decides the episodes of one file, except the code."""
    limits = {name: getattr(options, name) for name in ("n", "max_turns", "turn_tokens", "episode_tokens")}
    level, _, has_one_turn = easiest(env_id)
    limits["turn_tokens"] = limits["turn_tokens"] or TURN_TOKENS[has_one_turn]
    if form == "few-shot" and env_id in LONG_EXAMPLES:
        limits["episode_tokens"] = max(options.episode_tokens, LONG_TOKENS)
    return {"env": env_id, "level": level, "form": form, "sampling": sampling, "model": options.model.name} | limits


def file_of(env_id: str, form: str, sampling: str, folder: Path) -> Path:
    """Return the file of one setting."""
    name = env_id.removeprefix("llm/").replace("/", "-")
    return folder / f"{name}-{form}-{sampling}.json"


def is_done(path: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether a file holds the results of these settings."""
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["settings"] == settings


def play_all(
    env_ids: Sequence[str], options: argparse.Namespace, load: Callable[[argparse.Namespace], Any] | None = None
) -> int:
    """Play all settings that have no result; return the number that failed.

    Args:
        env_ids: Tasks.
        options: From `parse_options`.
        load: Makes the policy when the first setting is played; `load_policy` if None.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    policy, n_failed = None, 0
    for env_id in env_ids:
        for form in (form for form in easiest(env_id)[1] if form in options.forms):
            for sampling in options.samplings or SAMPLINGS[form]:
                path = file_of(env_id, form, sampling, options.out)
                if not options.fresh and is_done(path, describe_setting(env_id, form, sampling, options)):
                    continue
                policy = policy or (load or load_policy)(options)
                try:
                    result = play(env_id, form, sampling, policy, options)
                except Exception:
                    traceback.print_exc()
                    n_failed += 1
                    continue
                temporary = path.with_suffix(".tmp")
                temporary.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                temporary.replace(path)
                print(f"{path.stem}: {describe(result)['success']}, {result['seconds']:.0f} s", flush=True)
    return n_failed


def load_policy(options: argparse.Namespace) -> Any:
    """Load the model."""
    from llm_envs.policies import TransformersPolicy, VLLMEnginePolicy

    if not (options.model / "config.json").exists():
        sys.exit(f"{options.model} has no model: run `make real-model`, or give --model.")
    if options.engine == "transformers":
        return TransformersPolicy.from_pretrained(options.model, max_batch_size=options.batch)
    return VLLMEnginePolicy.from_pretrained(
        options.model, max_model_len=max(options.episode_tokens, LONG_TOKENS), max_num_seqs=options.batch
    )


def describe(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    settings, outcomes = result["settings"], result["outcomes"]
    row = {name: settings[name] for name in ("env", "level", "form", "sampling")} | {
        "family": family_of(settings["env"])
    }
    row |= {"n": len(outcomes["seeds"]), "not_played": outcomes["not_played"], "success": "not played"}
    if not outcomes["seeds"]:
        return row
    n, n_won, n_turns = len(outcomes["seeds"]), sum(outcomes["successes"]), max(sum(outcomes["turns"]), 1)
    low, high = wilson_interval(n_won, n)
    return row | {
        "success": f"{n_won / n:.0%} ({low:.0%} to {high:.0%})",
        "reward": fmean(outcomes["rewards"]),
        "malformed": sum(outcomes["malformed"]) / n_turns,
        "cut": fmean(outcomes["cut"]),
        "tokens": fmean(outcomes["tokens"]),
    }


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table, with the command and the hardware."""
    if not results:
        return "(not run)"
    columns = [Column(name, name) for name in ("family", "env", "level", "form", "sampling")]
    columns += [Column("n", "episodes"), Column("success", "success (95%)"), Column("reward", "reward", ".3f")]
    columns += [Column("malformed", "malformed", ".0%"), Column("cut", "cut", ".0%"), Column("tokens", "tokens", ".0f")]
    columns += [Column("not_played", "not played")]
    rows = sorted(map(describe, results), key=lambda row: (row["family"], row["env"], FORMS.index(row["form"])))
    lines = {
        f"- {result['settings']['model']} with {result.get('engine', 'transformers')} on "
        f"{result['hardware']['cpu']}, {result['hardware']['cpus']} cores; "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items() if name != "llm-envs")
        for result in results
    }
    hours = sum(result["seconds"] for result in results) / 3600
    made = [f"Made with `{COMMAND}` in {hours:.1f} hours on:", "", *sorted(lines)]
    return "\n".join([markdown_table(columns, rows), "", *made])


def render_replies(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the stored replies as a document to read."""
    parts = ["# Replies\n\nThe first replies of each task and setting. Long texts are cut.\n"]
    for result in results:
        settings = result["settings"]
        parts.append(f"## {settings['env']} ({settings['level']}), {settings['form']}, {settings['sampling']}\n")
        for reply in result["outcomes"]["replies"]:
            for title, text in (("Asked", "\n".join(reply["asked"])), ("Replied", reply["reply"])):
                shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} [...]"
                parts.append("\n".join([f"{title}:\n", *(f"    {line}" for line in shown.splitlines()), ""]))
            parts.append(f"Success: {reply['success']}\n")
    return "\n".join(parts)


def put_into(document: Path, folder: Path) -> None:
    """Put the table of all stored results into a document, and their replies into `replies.md` in the folder."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    start, end = "<!-- proof baselines -->\n", "<!-- end baselines -->"
    head, marked, rest = document.read_text(encoding="utf-8").partition(start)
    if not marked or end not in rest:
        raise ValueError(f"{document} has no lines {start.strip()} and {end}.")
    document.write_text(f"{head}{start}\n{render(results)}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")
    if results:
        (folder / "replies.md").write_text(render_replies(results), encoding="utf-8")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="only these: Arithmetic, llm/Arithmetic-v0")
    parser.add_argument("--model", type=Path, default=REAL_MODEL_FOLDER, help="a model's folder")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="only these")
    parser.add_argument("--samplings", nargs="+", choices=TEMPERATURES, help="these in each form")
    parser.add_argument("--n", type=int, default=100, help="episodes of each task and setting")
    parser.add_argument("--max-turns", type=int, default=6, help="turns of an episode")
    parser.add_argument(
        "--turn-tokens", type=int, help="tokens of a turn; by default 128, and 64 if a task has several turns"
    )
    parser.add_argument("--episode-tokens", type=int, default=3072, help="tokens of an episode, prompt included")
    parser.add_argument(
        "--engine",
        choices=["transformers", "vllm"],
        default="transformers",
        help="vllm is faster where conversations are long",
    )
    parser.add_argument("--batch", type=int, default=32, help="episodes that are played at once")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the table into this document")
    parser.add_argument("--only-table", action="store_true", help="play nothing")
    parser.add_argument("--fresh", action="store_true", help="play again what has a result")
    options = parser.parse_args(arguments)
    known = suite_ids()
    named = {name for env_id in known for name in (env_id, env_id.removeprefix("llm/").rpartition("-v")[0])}
    if unknown := set(options.tasks) - named:
        parser.error(f"unknown tasks: {', '.join(sorted(unknown))}; `llm-envs list` names them")
    wanted = set(options.tasks)
    options.env_ids = [
        i for i in known if not wanted or i in wanted or i.removeprefix("llm/").rpartition("-v")[0] in wanted
    ]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what has no result yet, and write the table."""
    options = parse_options(arguments)
    n_failed = 0 if options.only_table else play_all(options.env_ids, options)
    if options.docs is not None:
        put_into(options.docs, options.out)
    if n_failed:
        print(f"{n_failed} settings failed; their errors are above. Run the command again for them.", file=sys.stderr)
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
