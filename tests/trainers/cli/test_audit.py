"""`llm-envs audit`: clean runs of every trainer are silent, and every injected corruption is found in its part."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from audit_corruptions import CORRUPTIONS, Corruption, rewrite_record
from audit_table import pages
from graph_algorithms import GRAPH_ALGORITHMS
from peft import LoraConfig
from trainings import QUIET

from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.shaping import create_step_cost
from llm_envs.spaces import TextSpace
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer, RewardSettings
from llm_envs.trainers.cli.audit.parts import PARTS, Audit
from llm_envs.trainers.cli.audit.run import audit_training
from llm_envs.trainers.functional.algorithm import ALGORITHMS, DR_GRPO, GRPO, PER_TURN
from llm_envs.trainers.functional.references import frozen_copy
from llm_envs.types import ToolResult

pytestmark = [pytest.mark.trainings, pytest.mark.slow]

ENV = "test/Audited-v0"
SHAPED = RewardSettings(shaping_fns=create_step_cost(0.01), weights={"reward": 2.0})
COSTLY = replace(GRPO, kl_coef=0.05)


class AuditedEnv(gym.Env[str, str]):
    """Say letters of the problem's word, twice. The tool counts what was said; the reward has two components."""

    observation_space = action_space = TextSpace()

    def __init__(self, split: str = "train", extra: str = "") -> None:
        self.split, self.extra = split, extra
        self.system_prompt = "Say letters."
        self.tools = [{"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}]
        self.tool_results: tuple[ToolResult, ...] = ()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = "".join(self.np_random.choice(list("abcdefgh"), size=4)) + self.extra
        self.n_turns, self.tool_results = 0, ()
        return f"Letters of {self.word}?", {}

    def state_key(self) -> tuple[str, int]:
        return self.word, self.n_turns

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.n_turns += 1
        n = sum(character in self.word for character in action.lower())
        self.tool_results = (ToolResult("count", {"n": len(action)}, f"{n} of {len(action)}", True),)
        parts = {"letters": n / 8, "length": len(action) / 100}
        text = f"counted {n}"
        info = {"messages": [{"role": "tool", "content": text}], "reward_components": parts, "is_success": n > 2}
        return text, sum(parts.values()), self.n_turns == 2, False, info


gym.register(ENV, AuditedEnv)


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "max_completion_length": 90,
        "max_turn_tokens": 16,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "num_train_seeds": 64,
        **QUIET,
        **{"save_strategy": "steps", "save_steps": 1},
        **changes,
    }


def finish(trainer: Any) -> Path:
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    trainer.close()
    return Path(trainer.args.output_dir)


def grpo(model: str, folder: Path, kwargs: dict[str, Any] | None = None, **changes: Any) -> Path:
    from llm_envs.trainers import EnvGRPOConfig

    args = EnvGRPOConfig(**settings(folder, num_generations=4, **changes))
    return finish(EnvGRPOTrainer(model, ENV, args, **(kwargs or {})))


def ppo(model: str, folder: Path, kwargs: dict[str, Any] | None = None, **changes: Any) -> Path:
    args = EnvPPOConfig(**settings(folder, value_learning_rate=1e-2, **changes))
    return finish(EnvPPOTrainer(model, ENV, args, **(kwargs or {})))


def train_all(model: str, root: Path, **changes: Any) -> dict[str, Path]:
    """Return a training with shaping, tools, a KL and two checkpoints, and one by PPO."""
    # With more tokens a turn, some turns end by themselves.
    more = {"per_device_train_batch_size": 16, "max_turn_tokens": 22, **changes}
    return {
        "grpo": grpo(model, root / "grpo", {"rewards": SHAPED, "algorithm": COSTLY}, **more),
        "ppo": ppo(model, root / "ppo", **changes),
    }


@pytest.fixture(scope="module")
def runs(tiny_folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trainings in float32."""
    return train_all(tiny_folder, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def trained(runs: dict[str, Path]) -> Path:
    """The training by GRPO."""
    return runs["grpo"]


@pytest.fixture(scope="module")
def half_runs(tiny_folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same trainings in bfloat16, as by default on a GPU."""
    return train_all(tiny_folder, tmp_path_factory.mktemp("half_runs"), bf16=True)


def check_clean(audit: Audit, *not_recomputed: str) -> None:
    """Nothing differs, and every part was compared, except those that are named."""
    assert audit.first is None, str(audit.first)
    empty = {name for name, part in audit.parts.items() if not part.n}
    assert empty == set(not_recomputed), {name: part.missing for name, part in audit.parts.items()}


def check_found(corruption: Corruption, run: Path, model: str, folder: Path) -> None:
    shutil.copytree(run, folder)
    corruption.inject(folder)
    rewards = SHAPED if corruption.trainer == "grpo" else None
    found = audit_training(folder, model=model, rewards=rewards).first
    assert found is not None and found.part == corruption.part, str(found)
    assert found.file and found.by and (folder / found.file).exists()


@pytest.mark.smoke
@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=[c.name for c in CORRUPTIONS])
def test_a_corruption_is_found_in_its_part(
    corruption: Corruption, runs: dict[str, Path], tiny_folder: str, tmp_path: Path
) -> None:
    check_found(corruption, runs[corruption.trainer], tiny_folder, tmp_path / "run")


@pytest.mark.parametrize(
    "corruption",
    [
        # Smoke: one of tokens, and one of sums of many.
        pytest.param(c, id=c.name, marks=[pytest.mark.smoke] if "by 0.1" in c.name or "normalised" in c.name else [])
        for c in CORRUPTIONS
        if c.part in ("log-probabilities", "loss")
    ],
)
def test_a_corruption_is_found_in_bfloat16(
    corruption: Corruption, half_runs: dict[str, Path], tiny_folder: str, tmp_path: Path
) -> None:
    check_found(corruption, half_runs[corruption.trainer], tiny_folder, tmp_path / "run")


@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_a_clean_run_in_bfloat16_is_silent(trainer: str, half_runs: dict[str, Path], tiny_folder: str) -> None:
    audit = audit_training(half_runs[trainer], model=tiny_folder, rewards=SHAPED if trainer == "grpo" else None)
    assert audit.first is None, str(audit.first)
    assert audit.parts["log-probabilities"].n > 100 and audit.parts["loss"].n > 0
    found = dict(audit.parts["log-probabilities"].limits, **audit.parts["loss"].limits)
    assert found["a token's log-probability"][0] < 0.1 and found["a loss"][0] < 0.05


@pytest.mark.smoke
def test_they_are_at_least_thirty_and_of_every_part() -> None:
    assert len({corruption.name for corruption in CORRUPTIONS}) == len(CORRUPTIONS) >= 30
    assert {corruption.part for corruption in CORRUPTIONS} == set(PARTS)


def test_the_page_has_the_table() -> None:
    ((page, text),) = pages().items()
    assert page.read_text(encoding="utf-8") == text, "run python docs/audit_table.py"


def test_a_clean_run_is_silent(trained: Path, tiny_folder: str) -> None:
    audit = audit_training(trained, model=tiny_folder, rewards=SHAPED)
    check_clean(audit)
    assert {name: dict(part.missing) for name, part in audit.parts.items() if part.missing} == {}
    assert audit.parts["log-probabilities"].n > 100 and audit.parts["loss"].n == 2 and audit.parts["metrics"].n == 6


ALGORITHMS_HERE = [name for name in ALGORITHMS if not name.startswith("distill")]


@pytest.mark.parametrize("algorithm", [*ALGORITHMS_HERE, *GRAPH_ALGORITHMS, "kl_in_reward", "kl_in_advantage"])
def test_clean_by_each_algorithm(algorithm: str, tiny_folder: str, tmp_path: Path) -> None:
    values = GRAPH_ALGORITHMS | {
        "kl_in_reward": replace(DR_GRPO, kl_coef=0.05, kl_in="reward"),
        "kl_in_advantage": replace(PER_TURN, kl_coef=0.05, kl_in="advantage"),
    }
    folder = grpo(tiny_folder, tmp_path / "run", {"algorithm": values.get(algorithm, algorithm)})
    check_clean(audit_training(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"history": "template"},
        {"loss_type": "grpo", "beta": 0.05, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
        {"loss_type": "dr_grpo", "scale_rewards": "none", "kwargs": {"rewards": RewardSettings(components=True)}},
        {"scale_rewards": "batch", "history": "template", "max_turns": 1},
    ],
    ids=["dapo", "template", "grpo", "dr_grpo", "batch"],
)
def test_clean_by_trls_settings(changes: dict[str, Any], tiny_folder: str, tmp_path: Path) -> None:
    check_clean(audit_training(grpo(tiny_folder, tmp_path / "run", **changes)))


def test_clean_with_an_adapter(tiny_folder: str, tmp_path: Path) -> None:
    peft = {"peft_config": LoraConfig(r=4, target_modules="all-linear"), "algorithm": COSTLY}
    audit = audit_training(grpo(tiny_folder, tmp_path / "run", peft))
    check_clean(audit)
    assert audit.parts["loss"].n == 2 and not audit.parts["log-probabilities"].missing


def test_an_adapter_that_does_not_begin_at_nothing_is_not_the_model(tiny_folder: str, tmp_path: Path) -> None:
    peft = {"peft_config": LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)}
    audit = audit_training(grpo(tiny_folder, tmp_path / "run", {**peft, "algorithm": "grpo"}))
    check_clean(audit)
    assert audit.parts["loss"].n == 1
    assert any("--model" in why for why in audit.parts["log-probabilities"].missing)


@pytest.mark.parametrize("changes", [{}, {"whiten_advantages": False, "discount": "turn", "gamma": 0.9}])
def test_clean_by_ppo(changes: dict[str, Any], tiny_folder: str, tmp_path: Path) -> None:
    check_clean(audit_training(ppo(tiny_folder, tmp_path / "run", **changes)))


def test_pairs_against_a_reference_that_a_function_made_have_no_loss(tiny_folder: str, tmp_path: Path) -> None:
    pairs = {"algorithm": "pairwise", "ref_model_fn": frozen_copy}
    audit = audit_training(grpo(tiny_folder, tmp_path / "run", pairs))
    check_clean(audit, "loss")
    assert audit.parts["loss"].n == 0 and audit.parts["log-probabilities"].n > 0


def test_a_run_of_online_dpo_is_refused_by_name(trained: Path, tmp_path: Path) -> None:
    """Earlier versions had it, and its record names it."""
    shutil.copytree(trained, tmp_path / "run")
    rewrite_record(tmp_path / "run", lambda lines: lines[0].update(trainer="dpo"))
    with pytest.raises(InvalidConfigError, match=r"run .*online DPO"):
        audit_training(tmp_path / "run")


def test_what_cannot_be_recomputed_is_said_and_never_equal(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    shutil.rmtree(folder / "checkpoint-1")
    rewrite_record(folder, lambda lines: lines[0].update(model=None))
    audit = audit_training(folder)
    assert audit.first is None
    for name in ("log-probabilities", "loss"):
        assert audit.parts[name].n == 0 and audit.parts[name].missing
    assert "FILE.py:NAME" in " ".join(audit.parts["rewards"].missing)


def test_the_command(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewards = f"{__name__}:SHAPED"
    assert main(["audit", str(trained), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clean"] is True
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    next(c for c in CORRUPTIONS if c.name == "a reward is edited").inject(folder)
    assert main(["audit", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "rewards: reward\n" in said and "llm_envs.rollout.fork.replay_to" in said and "stored" in said
    assert main(["audit", str(tmp_path)]) == 2
    assert "not a training's" in capsys.readouterr().err
    assert main(["audit", str(trained), "--rewards", rewards.partition(":")[0] + ":NONE"]) == 2
