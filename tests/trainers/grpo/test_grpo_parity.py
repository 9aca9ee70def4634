"""EnvGRPOTrainer and TRL's own GRPOTrainer, fed the same rows and rewards, take the same steps."""

import copy
import warnings

import pytest
import torch
from trainings import DENSE, spy_on_episodes
from trl import GRPOConfig, GRPOTrainer

from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.trainers import EnvGRPOTrainer
from llm_envs.trainers.episodes.batches import rollout_output
from llm_envs.trainers.episodes.items import index_dataset

pytestmark = [pytest.mark.transformers, pytest.mark.trainings, pytest.mark.smoke]
SETTINGS = {
    **{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 3, "seed": 7},
    **{"optim": "sgd", "learning_rate": 0.5},  # AdamW makes steps of gradients that are nothing but rounding
}

SHARED = (
    "num_generations",
    "max_completion_length",
    "lr_scheduler_type",
    "gradient_checkpointing",
    "logging_steps",
    "save_strategy",
    "report_to",
    "disable_tqdm",
)


def stored_reward(prompts, completions, trajectory_reward, **columns):
    return trajectory_reward


def stock_trainer(model, args, own, generations):
    """Return TRL's trainer, whose rollouts are given."""
    waiting = iter(generations)

    def replay(prompts, trainer):
        rows = rollout_output(next(waiting), pad_id=int(own.processing_class.pad_token_id))
        assert len(rows["prompt_ids"]) == len(prompts)
        return rows

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")
        return GRPOTrainer(
            model,
            reward_funcs=[stored_reward],
            args=args,
            train_dataset=index_dataset(own.items["train"], "train"),
            processing_class=own.processing_class,
            rollout_func=replay,
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss_type": "dr_grpo", "beta": 0.1, "num_iterations": 2},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2, "beta": 0.1},
        {"beta": 0.1, "use_bias_correction_kl": False, "scale_rewards": "batch", "delta": 1.5, "epsilon_high": 0.28},
        {"loss_type": "cispo", "epsilon_high": 1.01, "num_iterations": 2, "beta": 0.1},
        {"loss_type": "luspo", "scale_rewards": "none", "importance_sampling_level": "sequence", "learning_rate": 0.05},
        {"top_entropy_quantile": 0.3, "num_iterations": 2},
        {"multi_objective_aggregation": "normalize_then_sum"},
    ],
)
def test_the_same_rows_and_rewards_give_the_same_steps(tiny_folder, config, tmp_path, changes):
    tokenizer = load_tokenizer(tiny_folder)
    settings = config(**SETTINGS | changes)
    ours = EnvGRPOTrainer(load_model(tiny_folder), DENSE, settings, processing_class=tokenizer)
    kept = spy_on_episodes(ours)
    ours.train()
    ours.close()

    shared = {name: getattr(settings, name) for name in SHARED}
    args = GRPOConfig(**shared | SETTINGS | changes, output_dir=str(tmp_path / "stock"), bf16=False)
    stock = stock_trainer(load_model(tiny_folder), args, ours, kept)
    before = copy.deepcopy(stock.model.state_dict())
    stock.train()
    moved = max((stock.model.state_dict()[name] - value).abs().max().item() for name, value in before.items())
    assert moved > 1e-3  # they did learn something
    for name, value in stock.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, rtol=0, atol=1e-6)
