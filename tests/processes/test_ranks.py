"""Each trainer on two processes, started by `accelerate launch` with examples/accelerate/multi_cpu.yaml (ranks.py).

On process 1 no episode ends before process 0 has played its whole share, so each part that plays also shows that
nothing is gathered while episodes run, and that a slow process is waited for.
"""

from __future__ import annotations

import pytest
import torch
from launched import SUPPORT, launch

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PARTS = [
    *("sft", "dpo_offline", "grpo", "pairwise", "tree", "resumed", "inside", "ppo", "ppo_separate"),
    *("reference", "reference_lora", "forks", "failing", "skipped", "errors"),
]


SMOKE = ("sft", "dpo_offline", "grpo", "ppo", "failing")


def smoked(parts):
    """Return parameters for parts, of which CI plays some."""
    return [pytest.param(part, marks=pytest.mark.smoke) if part in SMOKE else part for part in parts]


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory, model_folder, episodes):
    """Return a function from a part to what the two processes had of it, all from one launch; and the folder."""
    chosen = [item for item in request.session.items if item.path == request.path]
    parts = SMOKE if all(item.get_closest_marker("smoke") for item in chosen) else PARTS
    out = tmp_path_factory.mktemp("ranks")
    launch(SUPPORT / "ranks.py", model_folder, str(out), episodes, *parts, limit_s=1200).check()

    def both(part):
        return [torch.load(out / f"{part}-{rank}.pt", weights_only=False) for rank in (0, 1)]

    both.out = out
    return both


def assert_same(one, other, atol=0.0):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def moved(weights, model_folder):
    """How far the weights are from those of the start; an adapter's second matrix begins at 0."""
    from llm_envs.policies.inference import load_model

    start = load_model(model_folder, dtype=torch.float32).state_dict()
    places = {name: start.get(name, 0) for name in weights if name in start or "lora_B.default" in name}
    return max((weights[name] - place).abs().max().item() for name, place in places.items())


@pytest.mark.parametrize("part", smoked(part for part in PARTS if part != "errors"))
def test_the_weights_stay_alike(ranks, model_folder, part):
    one, other = ranks(part)
    assert one["step"] == other["step"] == (3 if "reference" in part else 2)
    assert_same(one["weights"], other["weights"])
    assert moved(one["weights"], model_folder) > 1e-4
    if "critic" in one:
        assert_same(one["critic"], other["critic"])
        assert one["critic"]["head.weight"].abs().max() > 1e-4


@pytest.mark.parametrize("part", smoked(part for part in PARTS if part != "errors"))
def test_what_is_logged_is_of_both(ranks, part):
    own = {"step_time"}
    logs = [[{k: v for k, v in e.items() if k not in own} for e in rank["logged"]] for rank in ranks(part)]
    assert str(logs[0]) == str(logs[1])  # as text, where NaN is itself


@pytest.mark.parametrize("part", ["grpo", "tree", "resumed", "ppo", "ppo_separate", "forks", "failing"])
def test_the_processes_have_as_many_rows_and_episodes_of_their_own(ranks, part):
    one, other = (rank["batches"] for rank in ranks(part))
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert mine["n_rows"] == theirs["n_rows"]
        assert mine["items"] == theirs["items"] == mine["n_tokens"] + theirs["n_tokens"]
        assert not set(mine["groups"]) & set(theirs["groups"])
        if part != "failing":
            assert mine["texts"] != theirs["texts"]
    if part == "forks":  # three turns there, two here
        assert other[0]["n_tokens"] > 1.3 * one[0]["n_tokens"]


def test_group_statistics_are_over_both(ranks):
    """Advantages with `scale_rewards="batch"`, by hand: over the standard deviation of all 16 rewards."""
    for mine, theirs in zip(*(rank["batches"][:2] for rank in ranks("grpo")), strict=True):
        rewards = torch.cat([mine["rewards"], theirs["rewards"]]).float()
        centred = rewards - rewards.view(-1, 2).mean(1).repeat_interleave(2)
        expected = centred / (rewards.std() + 1e-4)
        found = torch.cat([mine["advantages"], theirs["advantages"]])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert (mine["rewards"].std() - rewards.std()).abs() > 1e-3  # or one process's would do as well


def test_ppo_whitens_over_both(ranks):
    for part in ("ppo", "ppo_separate"):
        one, other = ([b["on_tokens"] for b in rank["batches"]] for rank in ranks(part))
        for mine, theirs in zip(one, other, strict=True):
            raise_on_all_ranks = torch.cat([mine, theirs])
            assert raise_on_all_ranks.mean().item() == pytest.approx(0, abs=1e-5)
            assert raise_on_all_ranks.std().item() == pytest.approx(1, abs=1e-4)
            assert abs(mine.mean().item()) > 1e-3


def test_references_move_alike(ranks):
    one, other = ranks("reference")
    assert_same(one["ref"], other["ref"])
    assert one["updates"] == other["updates"] >= 1  # triggered by a KL that is measured over both
    one, other = ranks("reference_lora")
    assert one["ref"] is None and one["updates"] == other["updates"] == 3
    references = [name for name in one["weights"] if "lora_B.ref" in name]
    assert references and all(one["weights"][name].abs().max() > 0 for name in references)
    for name in references:  # an average of where the adapter has been since it was 0
        assert not torch.equal(one["weights"][name], one["weights"][name.replace(".ref.", ".default.")])


def test_a_data_set_that_differs_is_refused_on_both(ranks):
    """Process 1 has an episode less to imitate, and four less to compare."""
    for part, fewer in (("sft", 1), ("dpo_offline", 2)):
        one, other = ranks(part)
        n = one["rows"]
        assert n == other["rows"] and n >= 16
        assert one["unequal"] == other["unequal"]
        assert (
            f"InvalidConfigError: the processes have different {'rows' if part == 'sft' else 'pairs'}" in one["unequal"]
        )
        assert f"({n}, {n - fewer} rows, process by process" in one["unequal"]
    assert [rank["oracle"] for rank in ranks("sft")] == [9, 9]


def test_a_prefix_tree_makes_the_same_step_on_both(ranks):
    for padded, tree in zip(ranks("grpo"), ranks("tree"), strict=True):
        assert_same(tree["weights"], padded["weights"], atol=1e-6)


def test_a_resumed_run_is_the_whole_one_on_both(ranks):
    for whole, resumed in zip(ranks("grpo"), ranks("resumed"), strict=True):
        assert_same(resumed["weights"], whole["weights"], atol=1e-6)
        assert resumed["batches"][0]["texts"] == whole["batches"][1]["texts"]


def test_a_run_resumed_inside_a_generation_is_the_whole_one_on_both(ranks):
    for rank in ranks("inside"):
        assert rank["generations"] == 1
        assert_same(rank["resumed"], rank["weights"], atol=1e-6)


def test_episodes_that_fail_on_one_process_leave_the_others_to_learn_from(ranks):
    for mine, theirs in zip(*(rank["batches"] for rank in ranks("failing")), strict=True):
        assert set(mine["status"]) == {"ok"} and set(theirs["status"]) == {"errored"}
        assert theirs["n_tokens"] == 0 and mine["advantages"].abs().max() > 0.1


def test_what_one_process_finds_stops_both(ranks):
    one, other = ranks("errors")
    assert one["guard"] == other["guard"] and "log-probabilities at sampling differ" in one["guard"]
    # A reward function that fails leaves episodes unscored: the other process still learns.
    assert one["reward"] == other["reward"] == "nothing was raised"
    assert one["filter"].startswith("KeyError")
    assert other["filter"].startswith("ProcessFailedError: training cannot continue without process 0: KeyError")


def test_a_function_that_never_ends_on_one_process_ends_both(ranks):
    """Long before the process group's timeout: the launch would not end in its time."""
    one, other = ranks("errors")
    assert "TimeLimitError: the reward function 'endless' was not done" in other["endless"]
    assert "max_function_s=0.5 s for episode 0 of group 'train-0-0-1-0'" in other["endless"]
    assert one["endless"] == f"ProcessFailedError: training cannot continue without process 1: {other['endless']}"
    assert "the trajectory_filter was not done" in other["endless_filter"]
    assert one["endless_filter"].startswith("ProcessFailedError: training cannot continue without process 1: TimeLimit")


def test_a_gradient_that_is_not_finite_on_one_process_is_no_step_on_both(ranks):
    for rank in ranks("skipped"):
        assert [entry["skipped"] for entry in rank["logged"] if "skipped" in entry] == [1.0, 0.0]
        assert rank["unchanged"] and rank["head"] == 0.0


def test_a_rollout_is_over_before_the_process_group_gives_up(ranks):
    """After 1,800 s. Of eight episodes four are played at once: half of the time is for two, one after the other."""
    for rank in ranks("errors"):
        assert "a rollout may take 1800 s" in rank["too_long"] and "lower max_episode_s" in rank["too_long"]
        assert rank["limit"] == 450.0


# One process on the same episodes, with a batch as large as those of the two together.


@pytest.mark.parametrize("part", smoked(["sft", "dpo_offline", "grpo", "ppo", "ppo_separate", "pairwise"]))
def test_two_processes_take_the_steps_of_one(ranks, model_folder, episodes, part):
    from ranks import Parts

    two, _ = ranks(part)
    played = None if part in ("sft", "dpo_offline") else replayed(ranks.out / part)
    one = Parts(model_folder, ranks.out / "alone", episodes, played, per_device_train_batch_size=8)
    numbers = one.run(part)
    assert_same(two["weights"], numbers["weights"], atol=2e-6)
    if "critic" in two:
        assert_same(two["critic"], numbers["critic"], atol=2e-6)
    assert len(two["logged"]) == len(numbers["logged"]) >= 3
    for both, alone in zip(two["logged"], numbers["logged"], strict=True):
        if any(name.startswith("eval_") for name in both):  # it plays, in batches of other sizes
            continue
        own = {name for name in both.keys() | alone.keys() if "time" in name or "flos" in name}
        assert both.keys() - own == alone.keys() - own
        for name in sorted(both.keys() - own):
            assert both[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-5, nan_ok=True), name


def replayed(folder):
    """Return what both processes have played, step by step, process 0's before process 1's."""
    from llm_envs.rollout import read_trajectories

    steps = {}
    for rank in (0, 1):
        for trajectory in read_trajectories(folder / "trajectories" / f"process-{rank}"):
            mode, step, *_ = trajectory.group_id.split("-")
            if mode == "train":
                steps.setdefault(int(step), []).append(trajectory)
    assert sorted(steps) == [0, 1] and all(len(rows) == 16 for rows in steps.values())
    return steps
