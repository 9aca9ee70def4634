"""Gradients and weights that are not finite, in each trainer of TRL: steps are skipped, weights are not saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from preferences import message_pairs
from trainings import DENSE, PLAYED, QUIET, TRAINERS, logged
from transformers import AutoTokenizer, TrainerCallback

from llm_envs.chat import ChatCodec
from llm_envs.errors import ModelError
from llm_envs.policies import ConstantPolicy
from llm_envs.rollout import Collector
from llm_envs.trainers.functional.references import create_ema_update
from llm_envs.trainers.run.checkpoints import check_files
from llm_envs.trainers.run.finite import MAX_SKIPPED_STEPS, check_weights, count_skipped

pytestmark = pytest.mark.trainings

ANY: dict[str, Any] = {
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "weight_decay": 0.1,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "linear",
    **QUIET,
}
FEW = PLAYED | {"max_turn_tokens": 4, "num_train_seeds": 16}


def sft(model: str, **changes: Any) -> Any:
    codec = ChatCodec(AutoTokenizer.from_pretrained(model))
    with Collector(DENSE, ConstantPolicy("bb"), codec=codec, progress=False) as collector:
        played = [t for group in collector.collect(8) for t in group]
    trainer, config = TRAINERS["sft"]
    return trainer(model, args=config(**ANY | changes), source=played)


def grpo(model: str, **changes: Any) -> Any:
    trainer, config = TRAINERS["grpo"]
    args = config(**ANY | FEW | {"num_generations": 2, "beta": 0.1} | changes)
    return trainer(model, DENSE, args, reference_update_fn=create_ema_update(0.5))


def ppo(model: str, **changes: Any) -> Any:
    trainer, config = TRAINERS["ppo"]
    return trainer(model, DENSE, config(**ANY | FEW | {"value_learning_rate": 1e-2} | changes))


def dpo(model: str, **changes: Any) -> Any:
    trainer, config = TRAINERS["dpo"]
    return trainer(model, config(**ANY | changes), source=message_pairs(), reference_update_fn=create_ema_update(0.5))


@pytest.fixture
def make(tiny_folder: str, tmp_path: Path, keep: Any) -> Any:
    """Return a function from a function above and its settings to a trainer."""

    def build(maker: Callable[..., Any], **changes: Any) -> Any:
        return keep(maker(tiny_folder, output_dir=str(tmp_path / "out"), **changes))

    return build


class Watch(TrainerCallback):
    """Keeps, after each step, everything that a step may change."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.after = [self.now()]

    def now(self) -> dict[str, torch.Tensor]:
        trainer = self.trainer
        modules = {name: getattr(trainer, name, None) for name in ("model", "ref_model", "critic")}
        kept = {f"{n}.{k}": v.clone() for n, m in modules.items() if m is not None for k, v in m.state_dict().items()}
        critic = getattr(trainer, "_critic_optimizer", None)
        for optimizer in (trainer.optimizer, None if critic is None else critic.optimizer):
            for number, state in enumerate(optimizer.state_dict()["state"].values() if optimizer else ()):
                kept |= {f"{id(optimizer)}.{number}.{key}": torch.as_tensor(v).clone() for key, v in state.items()}
        return kept

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.after.append(self.now())


def changed(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    """Return what differs, by the first parts of the names."""
    return {name.split(".")[0] for name in other if name not in one or not torch.equal(one[name], other[name])}


def spoil(trainer: Any, steps: set[int], value: float = torch.nan, module: str = "model") -> None:
    """Let one number of the gradient be NaN in these steps, counted from 1, as a backward pass may leave it."""
    parameter = next(p for p in getattr(trainer, module).parameters() if p.requires_grad)

    def spoiled(gradient: torch.Tensor) -> torch.Tensor:
        if trainer.state.global_step + 1 in steps:
            gradient = gradient.clone()
            gradient.view(-1)[0] = value
        return gradient

    parameter.register_hook(spoiled)


@pytest.mark.parametrize(
    ("maker", "changes"), [pytest.param(sft, {}, marks=pytest.mark.smoke), (ppo, {"log_completions": True})]
)
def test_nothing_is_written_through_links_in_the_output_folder(
    make: Any, maker: Any, changes: Any, tmp_path: Path
) -> None:
    """A folder of somebody else may have links where transformers, TRL and this package write."""
    trainer = make(maker, save_strategy="steps", save_steps=1, max_steps=1, **changes)
    out, files, folder = tmp_path / "out", tmp_path / "files", tmp_path / "folder"
    names = ("model.safetensors", "optimizer.pt", "trainer_state.json", "llm_envs_state.json", "critic/critic.json")
    table = out / "completions" / "completions_00001.parquet"
    places = [out / "README.md", out / "config.json", table, *(out / "checkpoint-1" / name for name in names)]
    files.mkdir()
    folder.mkdir()
    for number, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        (files / str(number)).write_text("important")
        link = (place.symlink_to, place.hardlink_to)[number % 2]
        link(files / str(number))
    (out / "critic").symlink_to(folder)
    (out / "data").symlink_to(folder)  # nothing is written there
    trainer.train()
    trainer.save_model()
    assert [path.read_text() for path in files.iterdir()] == ["important"] * len(places)
    assert not list(folder.iterdir()) and (out / "data").is_symlink()
    assert all((place / "model.safetensors").is_file() for place in (out, out / "checkpoint-1"))
    check_files(out / "checkpoint-1")


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
@pytest.mark.parametrize("maker", [pytest.param(sft, marks=pytest.mark.smoke), grpo, ppo, dpo])
def test_a_step_without_a_finite_gradient_changes_nothing(make: Any, maker: Any, max_grad_norm: float) -> None:
    trainer = make(maker, max_grad_norm=max_grad_norm)
    spoil(trainer, {2}, torch.inf if max_grad_norm else torch.nan)
    trainer.add_callback(watch := Watch(trainer))
    trainer.train()
    start, first, second, third = watch.after
    assert {"model"} < changed(start, first) and changed(first, second) == set()
    assert {"model"} < changed(second, third)
    assert all(value.isfinite().all() for value in third.values())
    assert logged(trainer, "skipped") == [0.0, 1.0, 0.0] and trainer.state.global_step == 3
    # The schedule moves on: the run ends at the rate that its settings say.
    assert logged(trainer, "learning_rate") == pytest.approx([1e-3, 2e-3 / 3, 1e-3 / 3])


def test_a_bad_gradient_of_the_critic_skips_the_policys_step_too(make: Any) -> None:
    trainer = make(ppo)
    spoil(trainer, {2}, module="critic")
    trainer.add_callback(watch := Watch(trainer))
    trainer.train()
    assert changed(watch.after[1], watch.after[2]) == set() and logged(trainer, "skipped") == [0.0, 1.0, 0.0]


def test_bad_steps_in_a_row_end_the_run(make: Any, caplog: Any) -> None:
    trainer = make(sft, max_steps=MAX_SKIPPED_STEPS + 3, save_strategy="steps", save_steps=1)
    spoil(trainer, set(range(2, 99)))
    with pytest.raises(ModelError, match=f"step {MAX_SKIPPED_STEPS + 1} .*{MAX_SKIPPED_STEPS} in"):
        trainer.train()
    assert "step 2 was skipped, because the norm of its gradient is nan (1 in a row)" in caplog.text
    assert (Path(trainer.args.output_dir) / f"checkpoint-{MAX_SKIPPED_STEPS}").is_dir()  # these weights are fine


def test_a_loss_of_nan_is_logged_as_such(make: Any) -> None:
    trainer = make(sft, max_steps=2)
    compute = trainer.compute_loss

    def spoiled(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        return loss * torch.nan if trainer.state.global_step == 0 else loss

    trainer.compute_loss = spoiled
    trainer.train()
    first, second = logged(trainer, "loss")
    assert first != first and second == second and logged(trainer, "skipped") == [1.0, 0.0]


class Break(TrainerCallback):
    """Sets a weight to infinity after the second step."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            with torch.no_grad():
                next(p for p in self.module.parameters() if p.requires_grad).view(-1)[0] = torch.inf


@pytest.mark.parametrize(("maker", "broken"), [(sft, "model"), (grpo, "model"), (ppo, "critic"), (dpo, "model")])
def test_weights_that_are_not_finite_are_not_saved(make: Any, maker: Any, broken: str) -> None:
    trainer = make(maker, save_strategy="steps", save_steps=1, max_steps=2)
    trainer.add_callback(Break(getattr(trainer, broken)))
    with pytest.raises(ModelError, match=rf"step 2, 1 of \d+ .* {broken} "):
        trainer.train()
    folder = Path(trainer.args.output_dir)
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-1"]
    for keywords in ({}, {"_internal_call": True}):  # `push_to_hub` saves so
        with pytest.raises(ModelError, match=f" {broken} "):
            trainer.save_model(**keywords)
    assert not list(folder.glob("*.safetensors"))


def test_counting() -> None:
    n = 0
    for step in range(1, MAX_SKIPPED_STEPS):
        n = count_skipped(n, step, float("inf"))
    assert n == MAX_SKIPPED_STEPS - 1
    with pytest.raises(ModelError, match=r"step 9 .* inf"):
        count_skipped(n, 9, float("inf"))


def test_only_trained_weights_count() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.weight.data[0, 0] = torch.nan
    layer.weight.requires_grad_(False)
    check_weights({"it": layer}, 1)
    layer.weight.requires_grad_(True)
    with pytest.raises(ModelError, match=r"step 1, 1 of 2 .*weight"):
        check_weights({"it": layer}, 1)
