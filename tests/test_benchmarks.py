"""The benchmarks: their parts run at a small size, and their results are checked, compared and rendered."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.pages

HERE = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Import a benchmark, which finds its neighbours as it does when it is run."""
    monkeypatch.syspath_prepend(str(HERE))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__).parent == HERE:
            del sys.modules[name]


def run(script, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, str(HERE / f"{script}.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def result(name, figures, **changes):
    report = {"format": 1, "name": name, "title": name, "method": "By hand.", "columns": [], "rows": [], "settings": {}}
    return report | {"hardware": {"cpu": "a", "cpus": 2}, "versions": {"python": "3"}, "figures": figures} | changes


def write(folder, *results):
    folder.mkdir()
    for one in results:
        (folder / f"{one['name']}.json").write_text(json.dumps(one))
    return folder


def test_every_part_of_the_comparison_that_is_switched_off_exists(load):
    parts = load("mathematics").parts()
    assert [name for name, (module, attribute, _) in parts.items() if not hasattr(module, attribute)] == []


@pytest.mark.smoke
def test_the_scripted_collector_is_measured_against_the_ideal(load):
    """16 episodes, 8 at once, of 50 ms: at best 0.1 s, 160 episodes/s."""
    row = load("collector_scripted").measure(16, concurrency=8, rounds=1)
    assert (row["episodes"], row["ideal_per_s"]) == (16, 160.0)
    assert 0 < row["share_of_ideal"] <= 1


@pytest.mark.smoke
def test_memory_counts_arrays_and_what_they_are_views_of(load):
    """9 bytes a token, and three array objects, spread over 352 tokens and more."""
    row = load("memory").measure(352, 2)
    assert 352 <= row["row_tokens"] < 704
    assert 9 < row["array_bytes"] < 12
    assert row["all_bytes"] > row["array_bytes"]
    assert row["log_bytes"] > row["file_bytes"] > 1


def test_the_pages_workload_is_the_same_for_every_width(load):
    """4 replies an episode of a token a byte and two ends of turn each; the drawn latencies have exactly the mean."""
    pages, concurrency = load("pages"), load("concurrency")
    latencies = pages.draw_latencies(64, 3, 0.01)
    assert latencies.shape == (64, 3)
    assert latencies.mean() == pytest.approx(0.01, abs=1e-12)
    (narrow,) = concurrency.measure_scripted("environment", [4])
    assert (narrow["width"], narrow["episodes"]) == (4, 32)
    assert 0 < narrow["episodes_per_s"] <= narrow["ideal_per_s"]


@pytest.mark.parametrize("name", ["processor", "tools"])
def test_shards_are_measured_with_their_merge(load, name):
    """Four episodes of three turns: no side is faster than its waits (0.15 s each, 2 at once) or its processor time."""
    shards = load("shards")
    (work,) = [work for work in shards.WORKS if work.name == name and work.at_once <= 128]
    one, two = shards.measure(replace(work, at_once=2), 4, n_shards=2, rounds=1)
    assert (one["side"], two["side"], two["episodes"], two["at_once"]) == ("one process", "2 shards", 4, 2)
    assert one["seconds"] >= 0.24 and two["seconds"] >= 0.12 and two["merge_s"] > 0
    assert two["gain"] == pytest.approx(one["seconds"] / (two["seconds"] + two["merge_s"]))


def test_a_step_is_measured_here_in_a_worker_and_at_a_server(load, monkeypatch):
    monkeypatch.setenv("LLM_ENVS_ENV_TOKEN", "")  # restored afterwards
    benchmark = load("env_servers")
    rows = benchmark.measure_all(n_steps=40, rounds=1)
    assert [(row["step"], row["place"]) for row in rows] == [
        (s, p) for s in ("at once", "20 ms") for p in benchmark.PLACES
    ]
    at_once, slow = rows[:3], rows[3:]
    assert all(row["latency_us"] > at_once[0]["latency_us"] for row in at_once[1:])
    assert all(row["latency_us"] >= 20_000 and row["late_us"] >= row["latency_us"] for row in slow)
    assert slow[0]["steps_per_s"] <= 50
    assert all(quick["latency_us"] < waits["latency_us"] for quick, waits in zip(at_once, slow, strict=True))


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("rollout_vs_engine", ["--episodes", 4, "--pairs", 1, "--width", 128]),
        ("rollout_vs_trl", ["--cells", "2x1x4x1"]),
        ("latency", ["--rollouts", 4, "--pairs", 1, "--width", 128]),
        ("beside", ["--pushes", 4]),
    ],
)
def test_a_benchmark_with_an_engine_runs(tmp_path, script, arguments):
    """Those with two sides check themselves that both sampled the same number of tokens, or the same tokens."""
    pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
    run(script, *arguments, "--out", tmp_path / "result.json")
    data = json.loads((tmp_path / "result.json").read_text())
    assert (data["format"], data["name"]) == (1, script)
    assert data["hardware"]["cpus"] >= 1
    assert data["versions"]["trl"]
    assert data["figures"][0]["value"] > 0


def test_a_missed_limit_is_said_and_fails_only_a_check(load, tmp_path):
    measuring = load("measuring")
    held = [measuring.Figure("a", 0.95, at_least=0.95), measuring.Figure("b", 12.0, "bytes", "lower", at_most=12.0)]
    missed = [measuring.Figure("c", 0.94, at_least=0.95), measuring.Figure("d", float("nan"), at_most=12.0)]
    report = measuring.Report("x", "X", "By hand.", [measuring.Column("n", "n")], [{"n": 1}], [*held, *missed])
    assert [miss.partition(":")[0] for miss in report.misses()] == ["c", "d"]
    parser = measuring.make_parser("x.py", None)
    for check, code in (([], 0), (["--check"], 1)):
        assert measuring.finish(report, parser.parse_args([*check, "--out", str(tmp_path / "x.json")])) == code
    data = measuring.read_results(tmp_path / "x.json")
    assert data["hardware"]["cpus"] >= 1
    assert data["versions"]["numpy"]
    assert measuring.figures_of(data)["a"] == held[0]


@pytest.mark.smoke
def test_comparison_marks_what_is_worse_by_more_than_the_tolerance(load):
    measuring, compare = load("measuring"), load("compare")

    def mark(old, new, better, tolerance=0.1):
        sides = [{"f": measuring.Figure("f", value, "", better)} for value in (old, new)]
        (row,) = compare.compare(*sides, tolerance)
        assert row["ratio"] == new / old
        return row["mark"]

    assert [mark(100, new, "higher") for new in (89, 91, 200)] == ["WORSE", "", ""]
    assert [mark(10, new, "lower") for new in (11.1, 10.9, 5)] == ["WORSE", "", ""]
    assert mark(100, 89, "higher", tolerance=0.2) == ""


@pytest.mark.smoke
def test_comparison_of_two_folders_says_what_it_cannot_compare(tmp_path):
    figure = {"name": "rate", "unit": "1/s", "value": 100.0}
    old = write(tmp_path / "old", result("x", [figure]), result("gone", [figure]))
    slower = result("x", [figure | {"value": 89.0}], hardware={"cpu": "b"})
    new = write(tmp_path / "new", slower, result("y", [figure], format=0))
    done = run("compare", old, new, code=1)
    (line,) = [line for line in done.stdout.splitlines() if "WORSE" in line]
    assert line.split() == ["x", "rate", "1/s", "100", "89", "0.890", "WORSE"]
    assert "x: other hardware" in done.stdout
    assert "gone: only in" in done.stdout
    assert "y.json has form 0" in done.stderr
    assert "no result in common" in run("compare", old, tmp_path, code=2).stderr


@pytest.mark.smoke
def test_tables_go_between_their_marks_in_a_document(load, tmp_path):
    run_all = load("run_all")
    columns = [{"key": "what", "title": "what", "form": ""}, {"key": "n", "title": "n", "form": ",d"}]
    figure = {"name": "size", "unit": "bytes", "value": 9.5, "better": "lower", "at_most": 12.0}
    data = result("memory", [figure], columns=columns, rows=[{"what": "a", "n": 1234}])
    document = tmp_path / "page.md"
    document.write_text("A\n<!-- benchmark memory -->\nold\n<!-- end memory -->\nB\n")
    for _ in range(2):
        assert run_all.put_into(document, {"memory": data, "env_steps": data}) == ["env_steps", "held"]
    assert document.read_text() == (
        "A\n<!-- benchmark memory -->\n\n`python benchmarks/memory.py --check`: By hand.\n\n"
        "| what | n |\n| --- | ---: |\n| a | 1,234 |\n\n(a, 2 cores; python 3.)\n\n<!-- end memory -->\nB\n"
    )
    assert "| size | 9.5 | bytes | ≤ 12 | held |" in run_all.render_all({"memory": data})


@pytest.mark.smoke
def test_names_put_only_their_tables_into_a_document(tmp_path):
    """A benchmark that is run by hand is not run; the table of all limits stays, since not all results are there."""
    out = write(tmp_path / "out", result("million", []), result("memory", []))
    document, held = tmp_path / "page.md", "<!-- benchmark held -->\nall\n<!-- end held -->\n"
    document.write_text(
        "".join(f"<!-- benchmark {name} -->\n<!-- end {name} -->\n" for name in ("million", "memory")) + held
    )
    run("run_all", "million", "--out", out, "--docs", document)
    page = document.read_text()
    assert "benchmarks/million.py" in page and "benchmarks/memory.py" not in page and page.endswith(held)


@pytest.mark.smoke
def test_a_figure_with_an_upper_limit_is_better_lower():
    figures = [f for path in (HERE / "baselines").glob("*.json") for f in json.loads(path.read_text())["figures"]]
    limited = [figure for figure in figures if figure["at_most"] is not None]
    assert limited and [figure["name"] for figure in limited if figure["better"] != "lower"] == []
