"""The proof that training learns: its parts at a small size, and that its results and its document belong together."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "proof" / "results"


def result(name, before, seeds, **changes):
    outcomes = {"seeds": [5, 6, 7, 8], "successes": before, "rewards": before}
    trained = {
        seed: {
            "outcomes": {"seeds": [5, 6, 7, 8], "successes": after, "rewards": after},
            "steps": 30,
            "cpu_seconds": 61.4,
            "versions": {"llm-envs": "1", "python": "3"},
            "hardware": {"cpu": "a", "cpus": 2},
        }
        for seed, after in seeds.items()
    }
    known = {"name": name, "env": "llm/A-v0", "engine": "vllm", "algorithm": "grpo", "warm": {"outcomes": outcomes}}
    return known | {"seeds": trained} | changes


@pytest.mark.smoke
def test_every_turn_of_the_letters_is_paid_by_itself():
    from proof.letters import LettersEnv

    env = LettersEnv()
    first, _ = env.reset(seed=0, options={"problem": {"letters": "ahcdabcdabcdabcd"}})
    assert first == "a"
    assert env.step("b")[:4] == ("h", 1 / 16, False, False)
    assert env.step("a")[:2] == ("c", 1 / 16)
    assert env.step("c")[:2] == ("d", 0)
    assert env.step("e ")[:2] == ("a", 0)
    for asked in "abcdabcdabc":
        assert env.step(chr(ord(asked) + 1))[1] == 1 / 16
    *_, terminated, truncated, info = env.step("e")
    assert (terminated, truncated, info["is_success"]) == (True, False, False)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("expression", "written"),
    [("47+85", "7+5=12, 4+8+1=13"), ("21+34", "1+4=5, 2+3=5"), ("92-38", "12-8=4, 9-3-1=5"), ("92-92", "2-2=0, 9-9=0")],
)
def test_sums_in_writing(expression, written):
    from proof.tasks import add_in_writing

    assert add_in_writing(expression) == written


@pytest.mark.smoke
def test_a_coin_decides_how_an_episode_is_played():
    from proof.tasks import CoinPolicy

    policy = CoinPolicy((lambda env, random: "well", lambda env, random: "badly"))
    said = [policy.for_episode(seed).act(None, "") for seed in range(100)]
    assert 30 < said.count("well") < 70
    assert said == [policy.for_episode(seed).act(None, "") for seed in range(100)]


@pytest.mark.smoke
def test_differences_are_paired_over_the_same_episodes():
    """0 1 0 0 -> 1 1 0 1: mean 1/2, standard deviation 0.57735, half a width of 1.95996 * 0.57735 / 2 = 0.5658."""
    from proof.tables import compare

    before = {"seeds": [5, 6, 7, 8], "successes": [0, 1, 0, 0]}
    difference, interval = compare(before, {"seeds": [5, 6, 7, 8], "successes": [1, 1, 0, 1]}, "successes")
    assert difference == 0.5
    assert interval == pytest.approx((-0.0658, 1.0658), abs=1e-4)
    with pytest.raises(ValueError, match="same test episodes"):
        compare(before, {"seeds": [5, 6, 8, 7], "successes": [1, 1, 0, 1]}, "successes")


@pytest.mark.smoke
def test_ppo_and_dpo_are_told_by_their_kind_and_engine():
    from proof.tables import render

    names = ("ppo-shared-guess", "ppo-separate-arithmetic-vllm", "dpo-offline-calculator")
    tables = render({name: result(name, [0, 1, 0, 0], {"0": [1, 1, 0, 1]}) for name in names})
    heads = {
        name: [[cell.strip() for cell in line.split("|")[1:5]] for line in tables[name].splitlines() if "llm/" in line]
        for name in ("ppo", "dpo")
    }
    assert heads["ppo"] == [["llm/A-v0", "ppo-shared", "transformers", "0"], ["llm/A-v0", "ppo-separate", "vllm", "0"]]
    assert heads["dpo"] == [["llm/A-v0", "dpo-offline", "transformers", "0"]]
    assert "Not run yet: ppo-shared-" in tables["ppo"] and "ppo-shared-guess," not in tables["ppo"].split("Not run")[1]


@pytest.mark.smoke
def test_what_a_run_is_decides_its_results_and_nothing_else_does():
    from proof.run import describe_run
    from proof.runs import Run
    from proof.tasks import TASKS

    run = Run("a", "guess", "ppo", kind="ppo-shared")
    described = describe_run(run, TASKS["guess"])
    assert (described["kind"], described["engine"]) == ("ppo-shared", "transformers")
    assert describe_run(replace(run, name="b", seeds=(1, 2)), TASKS["guess"]) == described
    for changes in (
        {"kind": "pairwise"},
        {"algorithms": {0: "dapo"}},
        {"engine": "vllm"},
        {"settings": {"max_steps": 1}},
    ):
        assert describe_run(replace(run, **changes), TASKS["guess"]) != described


@pytest.mark.smoke
def test_tables_say_what_rose_and_by_how_much():
    from proof.tables import render

    results = {"grpo-guess-vllm": result("grpo-guess-vllm", [0, 1, 0, 0], {"0": [1, 1, 1, 1], "1": [0, 1, 0, 1]})}
    for name, after in (("credit-trajectory", [0, 0, 0, 1]), ("credit-turn", [1, 1, 1, 1])):
        results[name] = result(name, [0, 0, 0, 0], {"0": after, "1": after}, algorithm=name)
    tables = render(results)
    rows = [line.split("|")[1:-1] for line in tables["grpo"].splitlines()[2:4]]
    assert [[cell.strip() for cell in row][:7] for row in rows] == [
        ["llm/A-v0", "vllm", "0", "25.0%", "100.0%", "+75.0 points (+26.0 to +124.0)", "yes"],
        ["llm/A-v0", "vllm", "1", "25.0%", "50.0%", "+25.0 points (-24.0 to +74.0)", "no"],
    ]
    credit = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables["credit"].splitlines()[2:5]]
    assert credit[0] == ["0", "0.000", "0.250", "1.000", "+0.750 (+0.260 to +1.240)"]
    assert credit[2] == ["mean of 2", "", "0.250", "1.000", "+0.750, better on 2 of 2"]
    assert tables["credit"].endswith("\n\nNot run yet: credit-trajectory-slow, credit-return-to-go.")
    assert tables["machine"] == "- a, 2 cores; python 3 (grpo-guess-vllm, credit-trajectory, credit-turn)"


@pytest.mark.smoke
def test_the_table_of_long_replies_compares_lambda_by_tokens_and_by_turns():
    """Of four episodes by tokens one succeeds, by turns three: 50 points more; a task without its pair is left out."""
    from proof.runs import LONG, LONG_TASKS, RUNS
    from proof.tables import render

    names = [f"{kind}-{task}" for task in LONG_TASKS for kind in LONG]
    assert sorted(names) == sorted(name for name, run in RUNS.items() if run.table == "long")
    outcomes = {"ppo-token": [0, 1, 0, 0], "ppo-turn": [0, 1, 1, 1]}
    played = {f"{kind}-{LONG_TASKS[0]}": result(kind, [0, 0, 0, 0], {"0": outcomes[kind]}) for kind in LONG}
    text = render(played | {names[2]: result(names[2], [0] * 4, {"0": [0] * 4})})["long"]
    header, _, row, *rest = text.splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert "lambda of tokens" in header
    assert cells[1:5] == ["0", "0.0%", "25.0%", "75.0%"] and cells[5].startswith("+50.0 points")
    assert "ppo-token-guess-aloud" in cells[-1] and "ppo-turn-guess-aloud" in cells[-1]
    assert rest[-1] == f"Not run yet: {names[3]}."


@pytest.mark.smoke
def test_the_document_has_the_tables_of_the_results(tmp_path):
    from proof.tables import put_into

    document = tmp_path / "learning.md"
    shutil.copy(ROOT / "docs" / "results" / "learning.md", document)
    assert put_into(document, RESULTS) == []
    assert document.read_text() == (ROOT / "docs" / "results" / "learning.md").read_text()


@pytest.mark.smoke
def test_results_are_of_the_runs_as_they_are():
    """A run whose settings have changed must be run again."""
    from proof.run import describe_run
    from proof.runs import RUNS
    from proof.tasks import TASKS

    for path in sorted(RESULTS.glob("*.json")):
        data, run = json.loads(path.read_text()), RUNS[path.stem]
        data["run"]["settings"].pop("share_prompts", None)  # gone; it only saved time
        assert data["run"] == describe_run(run, TASKS[run.task]), path.name
        assert list(map(int, data["seeds"])) == list(run.seeds), path.name


@pytest.mark.smoke
def test_what_is_claimed_is_what_was_measured():
    """Every task and algorithm rises, its interval clear of zero; turns' own credit and trained summaries are better.

    Of a task that stands for its family it is the reward: success may be out of a tiny model's reach.
    """
    from proof.runs import RUNS, SUMMARIES
    from proof.tables import compare

    results = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    for name, data in results.items():
        is_baseline = name.startswith("ppo-token-") or name == SUMMARIES[0]  # what others are compared with
        is_claimed = not is_baseline and RUNS[name].table != "credit"
        for seed, trained in data["seeds"].items() if is_claimed else ():
            what = "rewards" if RUNS[name].table == "suite" else "successes"
            _, interval = compare(data["warm"]["outcomes"], trained["outcomes"], what)
            assert interval.low > 0, (name, seed, interval)
    whole, turn = results["credit-trajectory"]["seeds"], results["credit-turn"]["seeds"]
    assert len(whole) >= 5
    for seed in whole:
        _, interval = compare(whole[seed]["outcomes"], turn[seed]["outcomes"], "rewards")
        assert interval.low > 0, (seed, interval)
    untrained, summarised = (results[name]["seeds"] for name in SUMMARIES)
    assert len(untrained) == len(summarised) == 5
    for seed in untrained:
        _, interval = compare(untrained[seed]["outcomes"], summarised[seed]["outcomes"], "successes")
        assert interval.low > 0.1, (seed, interval)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The letters at a small size, warm enough to be right now and then, and a folder where that model is kept."""
    pytest.importorskip("trl")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from proof.tasks import TASKS

        task = replace(TASKS["letters"], n_traces=16, sft_steps=12, sft_learning_rate=1e-2, n_test=4)
        return task, tmp_path_factory.mktemp("proof")


def test_a_run_trains_measures_and_goes_on_where_it_was(small):
    """Two seeds of one step; what is in the file is not trained again, unless its settings were others."""
    from proof.run import train
    from proof.runs import RUNS

    task, work = small
    run = RUNS["credit-turn"]
    run = replace(run, settings={**run.settings, "max_steps": 1, "per_device_train_batch_size": 8})
    path = work / "results" / "credit-turn.json"
    first = train(run, task, (3,), path, fresh=False, work=work)
    assert first["seeds"]["3"]["steps"] == 1
    assert len(first["seeds"]["3"]["train_rewards"]) == 1
    assert len(first["warm"]["outcomes"]["rewards"]) == 4
    stamp = (work / "warm" / "letters" / "warm.json").stat().st_mtime_ns
    both = train(run, task, (3, 4), path, fresh=False, work=work)
    assert both["seeds"]["3"] == first["seeds"]["3"]
    assert both["seeds"]["4"]["outcomes"]["seeds"] == first["warm"]["outcomes"]["seeds"]
    assert (work / "warm" / "letters" / "warm.json").stat().st_mtime_ns == stamp
    assert json.loads(path.read_text()) == both
    hotter = replace(run, settings={**run.settings, "learning_rate": 1e-5})
    assert train(hotter, task, (), path, fresh=False, work=work)["seeds"] == {}


@pytest.mark.parametrize("kind", ["ppo-shared", "ppo-separate", "dpo-offline", "pairwise", "switching"])
def test_every_kind_of_run_trains_and_is_measured(small, kind):
    from proof.run import train
    from proof.runs import Run

    task, work = small
    settings = {"max_steps": 1, "per_device_train_batch_size": 4}
    settings |= {"groups_per_round": 4} if kind.startswith("dpo") else {}
    settings |= {} if kind.startswith("ppo") else {"num_generations": 2}
    algorithms = {0: "pairwise"} if kind == "switching" else {}
    run = Run(kind, "letters", "ppo", kind=kind, algorithms=algorithms, settings=settings)
    trained = train(run, task, (3,), work / "results" / f"{kind}.json", fresh=False, work=work)["seeds"]["3"]
    assert trained["steps"] == 1
    assert len(trained["outcomes"]["rewards"]) == 4
    assert len(trained["train_rewards"]) == (0 if kind == "dpo-offline" else 1)
    assert (work / "models" / f"{kind}-3" / "model" / "critic").exists() == kind.startswith("ppo")


@pytest.mark.smoke
def test_the_data_set_of_offline_training_is_the_warm_models_play_of_a_fixed_seed(small):
    from llm_envs.rollout import read_trajectories
    from proof.kinds import play_data
    from proof.runs import Run
    from proof.warm import warm_start

    task, work = small
    run = Run("dpo-offline", "letters", "dpo", kind="dpo-offline")
    warm, _ = warm_start("letters", task, work / "warm")
    played = []
    for name in ("once", "twice"):
        folder = play_data(run, task, warm, work / name, n_groups=2, group_size=2)
        played.append({(t.group_id, t.member): (t.seed, t.rows[0].ids.tolist()) for t in read_trajectories(folder)})
        assert {t.env_kwargs["split"] for t in read_trajectories(folder)} == {"train"}
    assert played[0] == played[1] and len(played[0]) == 4
    assert len({seed for seed, _ in played[0].values()}) == 2


@pytest.mark.smoke
def test_every_level_was_checked_as_its_files_are_now():
    """`make check-tasks-levels` checks what has changed, and records it."""
    from proof.checked import levels, out_of_date, read

    assert len(levels()) > 200
    assert list(out_of_date(read())) == []


@pytest.mark.smoke
def test_a_record_is_of_the_files_that_a_task_is_made_of():
    from proof.checked import _reached, fingerprint, levels, out_of_date, read

    names = {str(path.relative_to(ROOT / "tasks")) for path in _reached("llm_envs.tasks.language.acrostic")}
    assert {"language/acrostic.py", "language/english.py", "language/english_words.txt", "draws.py"} <= names
    assert not names & {"language/haystack.py", "games/game.py"}
    assert len({fingerprint(env_id) for env_id, _ in levels()}) > 50
    changed = {name: {**entry, "files": "0"} for name, entry in read().items() if "Acrostic" in name}
    stale = {f"{env_id} {level}" for env_id, level in out_of_date(read() | changed)}
    assert stale == set(changed)
    assert len(list(out_of_date(read(), "thorough"))) > 100


def credit_curve(*points):
    return {
        "curve": [
            {"steps": step, "tokens": tokens, "env_steps": env_steps, "rewards": [reward], "successes": [0]}
            for step, tokens, env_steps, reward in points
        ],
        "seconds": 1.0,
    }


@pytest.mark.smoke
def test_credit_is_compared_at_the_least_that_any_run_used():
    """Differences 0.1, 0.3, 0.2: mean 0.2, standard deviation 0.1, t(2) = 4.3027, half a width of 0.2484."""
    from proof.credit import at_budget, compare, verdict

    data = {
        "warm": {"rewards": [0.0, 0.2]},
        "ways": {
            "grpo": {"seeds": {str(seed): credit_curve((10, 100, 60, 0.3), (20, 200, 100, 0.5)) for seed in range(3)}},
            "tree": {
                "seeds": {str(i): credit_curve((20, 100, 100, reward)) for i, reward in enumerate((0.4, 0.6, 0.5))}
            },
        },
    }
    curve = data["ways"]["grpo"]["seeds"]["0"]["curve"]
    assert [at_budget(curve, "tokens", budget, 0.1) for budget in (0, 50, 150, 200)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.5]
    )
    budget, rewards, gains = compare(data, "tokens")
    assert budget == 100
    assert rewards["grpo"] == pytest.approx({"0": 0.3, "1": 0.3, "2": 0.3})
    assert (gains["tree"].low, gains["tree"].high) == pytest.approx((0.2 - 0.2484, 0.2 + 0.2484), abs=1e-4)
    assert verdict(gains["tree"]) == "tie"
    _, rewards, gains = compare(data, "env_steps")
    assert rewards["grpo"] == pytest.approx({"0": 0.5, "1": 0.5, "2": 0.5})
    assert gains["tree"].low < 0 < gains["tree"].high
