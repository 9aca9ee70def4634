"""GRPO is read in four files, and the trainers' signatures stay short."""

import inspect
import sys
from pathlib import Path

import pytest

from llm_envs.trainers import EnvDPOTrainer, EnvGRPOTrainer, EnvPPOTrainer
from llm_envs.trainers.functional.batch import Batch

TRAINERS = Path(__file__).resolve().parents[3] / "trainers"
FILES = ("grpo/trainer.py", "episodes/batches.py", "episodes/advantages.py", "functional/algorithm.py")
"""The files that a reader opens who wants to know how GRPO works here."""
NOT_READ = {
    "functional/masking.py::trim_padding": "cuts columns that are padding in every row, and changes nothing else",
    "grpo/base.py::EpisodeTrainer.compute_loss": "splits micro-batches of too many rows or tokens; passes others on",
    "grpo/base.py::EpisodeTrainer._parts": "tells into which parts",
    "grpo/base.py::EpisodeTrainer._guard": "compares the sampler with the trained model on the first batch, and raises",
    "episodes/guard.py::sampling_gaps": "the comparison itself",
    "grpo/base.py::EpisodeTrainer._log_episodes": "logs the generation and has it recorded",
    "episodes/training_record.py::RecordsLearning._record_generation": "writes what was learned, for `llm-envs audit`",
    "episodes/training_record.py::RecordsLearning._generation_record": "what is written of a generation",
    "episodes/training_record.py::rows_of": "the rows that are written",
    "grpo/base.py::EpisodeTrainer._padded": "pads rows and moves them to the device",
    "grpo/logs.py::LogsGenerations._log_rows": "logs lengths and importance weights",
    "grpo/logs.py::LogsGenerations._log_rewards": "logs rewards",
    "grpo/logs.py::LogsGenerations._gathered_table": "the rewards that are logged, and texts for `log_completions`",
    "grpo/logs.py::LogsGenerations._log_policy": "logs how far the policy is from the one that sampled",
    "grpo/base.py::EpisodeTrainer._count_learning": "counts generations that teach nothing",
    "episodes/nothing_learned.py::has_signal": "tells whether a generation teaches anything",
    "functional/batch.py::Batch.need": "reads a field, for the record too",
}
"""The other functions that take the rows, and why a reader need not open them."""


def has_rows(value):
    """Whether a value is the batch, as TRL's dict or as ours, or a tuple with one."""
    if isinstance(value, tuple):
        return any(map(has_rows, value))
    return isinstance(value, Batch) or (isinstance(value, dict) and "completion_ids" in value)


class Watch:
    """Collects the functions of `trainers/` that take or return rows, while a method of a trainer runs."""

    def __init__(self):
        self.found = set()

    def __call__(self, frame, event, arg):
        path = Path(frame.f_code.co_filename).resolve()
        if not path.is_relative_to(TRAINERS) or event not in ("call", "return"):
            return
        if has_rows(arg) or any(map(has_rows, list(frame.f_locals.values()) if event == "call" else [])):
            self.found.add((path.relative_to(TRAINERS).as_posix(), frame.f_code.co_qualname))

    def wrap(self, trainer, name):
        original = getattr(trainer, name)

        def watched(*args, **kwargs):
            before = sys.getprofile()
            sys.setprofile(self)
            try:
                return original(*args, **kwargs)
            finally:
                sys.setprofile(before)

        setattr(trainer, name, watched)


@pytest.mark.trainings
@pytest.mark.transformers
def test_the_rows_pass_through_four_files(tiny_folder, config):
    """From the episodes to the loss, only functions of `FILES` take or return rows of tokens, in a real step.

    Functions that take no rows are equations on tensors (`functional/losses.py`, `advantages.py`, ...), a formula each.
    """
    trainer, watch = EnvGRPOTrainer(tiny_folder, "test/Say-v0", config()), Watch()
    watch.wrap(trainer, "_generate_and_score_completions")
    watch.wrap(trainer, "compute_loss")
    trainer.train()
    trainer.close()
    names = {name for path, name in watch.found if path in FILES}
    assert {"EnvGRPOTrainer._scored_rows", "rollout_output", "EnvGRPOTrainer._compute_loss"} <= names
    assert {"EnvGRPOTrainer._make_advantages", "with_advantages", "algorithm_loss"} <= names
    others = {f"{path}::{name.split('.<locals>')[0]}" for path, name in watch.found if path not in FILES}
    assert others == NOT_READ.keys()


def test_the_documents_name_the_four_files():
    root = TRAINERS.parent
    page, doc = (root / "docs" / "grpo.md").read_text(), (EnvGRPOTrainer.__doc__ or "")
    intro = page.split("## Usage")[0]
    for name in FILES:
        assert f"(../trainers/{name})" in intro
    assert [name for name in FILES[1:] if f"`{name}`" not in doc] == []


@pytest.mark.parametrize(("trainer", "most"), [(EnvGRPOTrainer, 12), (EnvDPOTrainer, 7), (EnvPPOTrainer, 4)])
def test_signatures_stay_short(trainer, most):
    """Our arguments; TRL's own go through `**kwargs`. `docs/grpo.md` and `docs/dpo.md` say why each is there."""
    arguments = inspect.signature(trainer.__init__).parameters
    named = [name for name, value in arguments.items() if name != "self" and value.kind is not value.VAR_KEYWORD]
    assert len(named) <= most, named
    assert len(inspect.getsource(trainer.__init__).splitlines()) <= 60
