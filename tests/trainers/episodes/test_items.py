"""What a trainer's rows stand for: mixtures, data sets of episodes, curricula, refills."""

from itertools import islice

import pytest
from datasets import Dataset

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import Curriculum, EnvChoice, read_trajectories
from llm_envs.sources.prompt_task import PromptTask
from llm_envs.testing import NumbersEnv
from llm_envs.trainers import EnvGRPOTrainer
from llm_envs.trainers.episodes.items import (
    MANY,
    ListedItems,
    SeedItems,
    episode_seed,
    index_dataset,
    make_items,
    refills,
)

MIXTURE = {"llm/Arithmetic-v0": 3.0, "llm/Countdown-v0": 1.0}


def test_a_mixture_is_drawn_by_weight_and_every_environment_gets_the_split():
    items = SeedItems(MIXTURE, "test", 400, seed=5, env_kwargs={})
    specs = [items.spec(index, "g") for index in range(400)]
    share = sum(spec.env_id == "llm/Arithmetic-v0" for spec in specs) / 400
    assert 0.68 < share < 0.82  # 0.75, three standard errors of 0.02
    assert {tuple(spec.env_kwargs.items()) for spec in specs} == {(("split", "test"),)}
    assert specs[7].seed == episode_seed(5, "test", 7)
    assert specs == [SeedItems(MIXTURE, "test", 400, seed=5, env_kwargs={}).spec(index, "g") for index in range(400)]


def test_a_choice_may_have_no_split():
    items = SeedItems([EnvChoice("a", kwargs={"split": None}), "b"], "train", 50, seed=0, env_kwargs={"x": 1})
    kwargs = {spec.env_id: dict(spec.env_kwargs) for spec in (items.spec(index, "g") for index in range(50))}
    assert kwargs == {"a": {"x": 1}, "b": {"x": 1, "split": "train"}}


def test_rows_of_a_data_set_are_played_as_they_are():
    rows = Dataset.from_list(
        [
            {"env": "llm/Arithmetic-v0", "seed": 3, "options": None, "env_kwargs": '{"difficulty": "easy"}'},
            {"env": "llm/Countdown-v0", "seed": 4, "options": '{"problem": {"target": 5}}', "env_kwargs": None},
        ]
    )
    items = make_items(rows, "train", 99, seed=0, env_kwargs={"split": "train"})
    assert len(items) == 2 and len(index_dataset(items, "train")) == 2
    first, second = items.spec(0, "a"), items.spec(1, "b")
    assert (first.env_id, first.seed, first.options) == ("llm/Arithmetic-v0", 3, None)
    assert first.env_kwargs == {"split": "train", "difficulty": "easy"}
    assert (second.env_id, second.seed, second.options) == ("llm/Countdown-v0", 4, {"problem": {"target": 5}})
    assert {spec.env_id for spec in items.source.variants()} == {"llm/Arithmetic-v0", "llm/Countdown-v0"}


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"env": ["x/Y-v0"]}, "needs seed too"),
        ({"prompt": ["x"]}, "needs env and seed too"),
        ({"env": [], "seed": []}, "is empty"),
        ({"env": ["x/Y-v0"], "seed": [-1]}, "row 0 .* seed -1"),
        ({"env": ["x/Y-v0"], "seed": ["1"]}, "row 0 .* seed '1'"),
        ({"env": ["x/Y-v0", "x/Y-v0"], "seed": [1, 2], "options": ["{}", "[1]"]}, "row 1 .*options is .1.; it must be"),
        ({"env": ["x/Y-v0"], "seed": [1], "env_kwargs": ["{"]}, "row 0 .*env_kwargs is not JSON"),
    ],
)
def test_a_data_set_that_cannot_be_played_says_where(columns, match):
    with pytest.raises(InvalidConfigError, match=match):
        ListedItems(Dataset.from_dict(columns), "train", env_kwargs={})


def test_refills_repeat_by_key_and_have_ids_of_their_own():
    items = SeedItems(MIXTURE, "train", 1000, seed=0, env_kwargs={})
    first = list(islice(refills(items, (0, "train", 3, 0, 1)), 20))
    assert first == list(islice(refills(items, (0, "train", 3, 0, 1)), 20))
    assert len({spec.group_id for spec in first}) == 20 and len({spec.seed for spec in first}) > 15
    other = list(islice(refills(items, (0, "train", 4, 0, 1)), 20))
    assert not {spec.group_id for spec in first} & {spec.group_id for spec in other}
    assert [spec.seed for spec in first] != [spec.seed for spec in other]


@pytest.fixture
def make(tiny_folder, config, keep):
    def build(env, settings=None, **kwargs):
        return keep(EnvGRPOTrainer(tiny_folder, env, config(**(settings or {})), **kwargs))

    return build


def test_a_factory_and_a_mixture_are_trained_on_and_counted_apart(make):
    def numbers(split):
        return NumbersEnv(n_turns=1)

    trainer = make([("test/Say-v0", 1.0), EnvChoice("numbers", factory=numbers)])
    trainer.train()
    played = {t.env_id for t in trainer.last_trajectories}
    assert played == {"test/Say-v0", "numbers"}
    for group in range(4):  # a group is one environment and one seed
        assert len({(t.env_id, t.seed) for t in trainer.last_trajectories[4 * group : 4 * group + 4]}) == 1
    logged = trainer.state.log_history[0]
    weights = {env: sum(t.env_id == env for t in trainer.last_trajectories) / 16 for env in played}
    assert logged["env/reward"] == pytest.approx(
        sum(weights[env] * logged[f"env/{env}/reward"] for env in played), abs=1e-6
    )


def test_a_data_set_of_episodes_is_trained_on_and_another_is_evaluated(make):
    train = Dataset.from_dict({"env": ["test/Say-v0"] * 8, "seed": list(range(100, 108))})
    test = Dataset.from_dict({"env": ["test/Say-v0"] * 2, "seed": [7, 8]})
    trainer = make(train, {"per_device_eval_batch_size": 8, "num_generations_eval": 4}, eval_env=test)
    trainer.train()
    assert {t.seed for t in trainer.last_trajectories} <= set(range(100, 108))
    trainer.evaluate()
    assert {t.seed for t in trainer.last_trajectories} == {7, 8}
    assert {t.env_kwargs["split"] for t in trainer.last_trajectories} == {"test"}


def test_a_row_may_have_a_split_or_none():
    rows = [{"env": "a", "seed": 0, "env_kwargs": kwargs} for kwargs in (None, '{"split": "train"}', '{"split": null}')]
    items = make_items(Dataset.from_list(rows), "test", 99, seed=0, env_kwargs={})
    assert [items.spec(index, "g").env_kwargs for index in range(3)] == [{"split": "test"}, {"split": "train"}, {}]


@pytest.mark.trainings
def test_a_curriculum_learns_and_goes_on_where_a_checkpoint_left_it(make, tmp_path):
    """Level "long" cannot be told from "short" by the policy, so both open as soon as they are mastered: at once."""

    def curriculum():
        return Curriculum(
            {"short": {"fail_every": 0}, "long": {"fail_every": 1000}}, band=(0.0, 1e-9), window=16, min_episodes=4
        )

    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.0, "output_dir": str(tmp_path / "run")}
    whole = make(
        "test/Say-v0", settings | {"max_steps": 4, "output_dir": str(tmp_path / "whole")}, curriculum=curriculum()
    )
    whole.train()
    make("test/Say-v0", settings | {"max_steps": 2}, curriculum=curriculum()).train()
    resumed = make("test/Say-v0", settings | {"max_steps": 4}, curriculum=curriculum())
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    known = [trainer.items["train"].source.state_dict() for trainer in (whole, resumed)]
    assert known[0] == known[1] and sum(map(len, known[0]["curricula"]["test/Say-v0"]["recent"].values())) > 4
    assert "env/curriculum/open" in whole.state.log_history[0]
    expected = read_trajectories(tmp_path / "whole" / "trajectories" / "process-0")[32:]
    second = read_trajectories(tmp_path / "run" / "trajectories" / "process-0.2")
    assert [(t.group_id, t.env_kwargs, t.messages) for t in second] == [
        (t.group_id, t.env_kwargs, t.messages) for t in expected
    ]


def test_an_epoch_is_the_rows_of_a_data_set_or_the_declared_problems():
    rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(20)]
    task = PromptTask(rows, lambda row, reply: 1.0, disjoint_splits=False)
    items = make_items(task, "train", None, seed=0, env_kwargs={})
    asked = [items.spec(index, "g").options["problem"]["answer"] for index in range(len(items))]
    assert len(items) == 20 and sorted(map(int, asked)) == [2 * n for n in range(20)]
    assert len(make_items(task, "train", None, seed=0, env_kwargs={}, least=32)) == 32
    assert len(make_items(task, "train", 7, seed=0, env_kwargs={})) == 7
    assert len(make_items("llm/Calculator-v0", "train", None, seed=0, env_kwargs={})) == MANY


def test_an_evaluation_has_at_most_the_problems_of_the_split():
    rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(20)]
    task = PromptTask(rows, lambda row, reply: 1.0, test_prompts=rows[:8])
    settings = {"seed": 0, "env_kwargs": {}}
    items = make_items(task, "test", None, **settings, most=64)
    asked = [items.spec(index, "g").options["problem"]["answer"] for index in range(len(items))]
    assert sorted(map(int, asked)) == [2 * n for n in range(8)]
    assert [len(make_items(task, "test", None, **settings, most=most)) for most in (5, 8)] == [5, 8]
    assert len(make_items("llm/Calculator-v0", "test", None, **settings, most=64)) == 64
    untested = PromptTask(rows[:1], lambda row, reply: 1.0)  # its one row is in the train split
    assert len(make_items(untested, "test", None, **settings, most=64)) == 64
