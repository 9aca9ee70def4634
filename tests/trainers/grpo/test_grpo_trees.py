"""Groups that are trees, in the trainer and in the plain loop."""

from dataclasses import replace

import pytest
from dense_env import DenseEnv
from graph_algorithms import TREE

from llm_envs.data.datasets import to_groups
from llm_envs.errors import InvalidConfigError
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector, EnvChoice, RolloutLimits
from llm_envs.rollout.tree import is_root
from llm_envs.tracking.metrics import trajectory_metrics
from llm_envs.trainers import EnvGRPOTrainer
from llm_envs.trainers.loop import create_training_state, train
from llm_envs.types import SamplingParams, validate_batch

pytestmark = pytest.mark.trainings


def dense():
    return EnvChoice("dense", factory=DenseEnv)


def assert_trees(groups):
    """Two of each group are roots; the others continue from later turns of these, whose tokens are context."""
    for group in groups:
        *roots, one, other = group
        assert [is_root(t) for t in group] == [True, True, False, False]
        for branch in (one, other):
            fork = branch.metadata["fork"]
            root = roots[fork["member"]]
            assert fork["group_id"] == root.group_id and fork["turn"] >= 1
            start = root.rows[0].spans[fork["turn"]][0]
            assert branch.rows[0].ids[:start].tolist() == root.rows[0].ids[:start].tolist()
            assert not branch.rows[0].mask[:start].any()


@pytest.mark.smoke
def test_the_trainer_grows_its_groups(tiny_folder, config):
    """Also with dynamic sampling, whose filter sees two roots of a group: they differ. First turns earn something."""
    algorithm = replace(TREE, dynamic_sampling=True)
    trainer = EnvGRPOTrainer(tiny_folder, dense(), config(num_train_seeds=4, max_refills=1), algorithm=algorithm)
    outputs, make = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: outputs.append(make(inputs)) or outputs[-1]
    trainer.train()
    trainer.close()
    played = trainer.last_trajectories
    assert validate_batch(played) == []
    assert_trees(to_groups(played))
    firsts = [outputs[0]["advantages"][row, 0].item() for row, t in enumerate(played) if is_root(t)]
    assert len(firsts) == 8 and any(firsts)  # with one root, each is exactly 0
    logged = next(entry for entry in trainer.state.log_history if "env/reward" in entry)
    roots = [t for t in played if is_root(t)]
    assert len(roots) == 8
    assert logged["env/reward"] == pytest.approx(trajectory_metrics(roots)["reward"])


def test_the_loop_grows_its_groups(tiny_folder):
    model = load_model(tiny_folder)
    policy = TransformersPolicy(model, load_tokenizer(tiny_folder))
    seen = []

    def look(state, groups, metrics):
        seen.append(groups)
        return {}

    with Collector(
        dense(),
        policy,
        codec=policy.codec,
        sampling=SamplingParams(max_new_tokens=8),
        limits=RolloutLimits(max_completion_tokens=80),
        progress=False,
    ) as collector:
        state = train(
            create_training_state(model),
            collector,
            n_iterations=2,
            n_groups=2,
            group_size=4,
            algorithm=TREE,
            iteration_hook=look,
        )
    assert state.iteration == 2
    for groups in seen:
        assert_trees(groups)


def test_what_a_tree_cannot_be(tiny_folder, config):
    with pytest.raises(ValueError, match=r"branches is 1\.0"):
        replace(TREE, branches=1.0)
    with pytest.raises(ValueError, match="branch_at is 'nowhere'"):
        replace(TREE, branch_at="nowhere")
    with pytest.raises(InvalidConfigError, match=r"branches=0\.75 .* 2 "):
        EnvGRPOTrainer(tiny_folder, dense(), config(num_generations=2), algorithm=TREE)
    ahead = config(async_generations=1, use_vllm=True)
    with pytest.raises(InvalidConfigError, match=r"async_generations=1.* branches=0"):
        EnvGRPOTrainer(tiny_folder, dense(), ahead, algorithm=TREE)
