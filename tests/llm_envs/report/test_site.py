from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from report_runs import ATTACKS, make_episode, make_row, write_evaluation, write_run

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import Results, compare
from llm_envs.report import write_report
from llm_envs.report.site import SCRIPTS, script_json
from llm_envs.tiny_model import tiny_tokenizer


class Page(html.parser.HTMLParser):
    """Tags, attributes, and the scripts' texts, as a browser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.contents: dict[str, str] = {}
        self._inside = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        self._inside = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.contents[self._inside] = self.contents.get(self._inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def data(self, name: str) -> Any:
        return json.loads(self.contents[name])


def report(tmp_path: Path, *runs: Path, **options: Any) -> tuple[Page, list[str]]:
    out = tmp_path / "out" / "report.html"
    notes = write_report(runs, out, **options)
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    return Page(out), notes


def test_the_data_are_what_was_played(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", [make_episode(1), make_episode(2, is_success=False)])
    page, notes = report(tmp_path, run)
    index, details = page.data("index"), page.data("chunk-0")
    columns = index["columns"]
    assert (columns["seed"], columns["reward"], columns["turns"], columns["tokens"]) == (
        [1, 2], [0.75, -0.25], [2, 2], [3, 3],
    )  # fmt: skip
    assert [index["outcomes"][code] for code in columns["outcome"]] == ["success", "failure"]
    assert details[0]["r"] == [[[100, 101, 102, 103, 104, 105], [2, 4, 5, 6], [-0.01, -1.5, -5.0]]]
    assert details[0]["m"][0] == ["system", 0] and page.data("shared")["system"] == ["Use the calculator."]
    assert [turn[0] for turn in details[0]["t"]] == [-0.25, 1.0]
    (part,) = index["summary"]
    assert (part["success"], part["reward"], part["components"]) == (0.5, 0.25, {"correct": 0.5, "cost": -0.25})
    assert notes == ["Tokens are shown as ids: there is no tokenizer in the run; --tokenizer DIR gives them texts."]


@pytest.mark.filterwarnings("ignore:.*could not be compacted")  # half a pair in a setting's name stays in the log
def test_no_text_becomes_markup(tmp_path: Path) -> None:
    plain = report(tmp_path, write_run(tmp_path / "a", [make_episode(n) for n in range(len(ATTACKS))]), title="a")[0]
    hostile = [  # a name must be Unicode
        make_episode(
            n, text=text, env_id=f"llm/{text}".replace("\ud800", ""), group_id=ascii(text), env_kwargs={text: text}
        )
        for n, text in enumerate(ATTACKS)
    ]
    (tmp_path / "out" / "report.html").unlink()
    page, _ = report(tmp_path, write_run(tmp_path / "b", hostile, note=ATTACKS[1]), title=ATTACKS[1])
    assert page.tags == plain.tags
    assert page.data("index")["title"] == ATTACKS[1]
    assert page.data("chunk-0")[0]["m"][1] == ["user", f"What is {ATTACKS[0]}?"]
    assert page.data("chunk-0")[9]["m"][3][1] == "half \\ud800 a pair, [U+202E]right to left, ␛[31mred␀"


def test_json_stays_inside_its_element() -> None:
    value = ["</script><!--", "&", "\u2028\u2029", "\ud800", "\U0001f600"]
    text = script_json(value)
    assert not re.search("[<>&\u2028\u2029\ud800]", text)
    assert json.loads(text) == value
    with pytest.raises(ValueError):
        script_json(float("nan"))


def test_the_policy_allows_this_script_and_style_and_no_request(tmp_path: Path) -> None:
    page, _ = report(tmp_path, write_run(tmp_path / "one", [make_episode()]))
    metas = [one for one in page.attributes if one.get("http-equiv") == "Content-Security-Policy"]
    policy = dict(part.strip().split(" ", 1) for part in str(metas[0]["content"]).split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        digest = hashlib.sha256(page.contents[tag].encode()).digest()
        assert policy[directive] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert not [
        one for one in page.attributes if "src" in one or "style" in one or any(k.startswith("on") for k in one)
    ]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.source)


def test_the_script_never_parses_text() -> None:
    folder = resources.files("llm_envs.report").joinpath("page")
    scripts = [file for file in folder.iterdir() if file.name.endswith(".js")]
    assert sorted(file.name for file in scripts) == sorted(SCRIPTS)
    for file in scripts:
        source = file.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|srcdoc", source)


def test_beyond_the_limits_episodes_keep_their_numbers_and_the_page_says_so(tmp_path: Path) -> None:
    rows = (make_row(60),)
    run = write_run(tmp_path / "one", [make_episode(n, rows=rows, turns=()) for n in range(4)])
    size = sum(len(message.content) for message in make_episode().messages)
    page, notes = report(tmp_path, run, max_tokens=130, max_characters=3 * size)
    details = page.data("chunk-0")
    assert [detail["r"] is not None for detail in details] == [True, True, False, False]
    assert ["m" in detail for detail in details] == [True, True, True, False]
    assert page.data("index")["columns"]["tokens"] == [30] * 4
    assert notes[1:] == page.data("index")["notes"][1:] == [
        "2 of 4 episodes are without their token view: a page keeps 130 tokens (--max-tokens).",
        f"1 of 4 episodes are without their conversation: a page keeps {3 * size} characters.",
    ]  # fmt: skip


def test_details_are_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_envs.report.site.CHUNK_CHARACTERS", 2000)
    page, _ = report(tmp_path, write_run(tmp_path / "one", [make_episode(n) for n in range(6)]))
    chunks = page.data("index")["columns"]["chunk"]
    assert chunks == sorted(chunks) and chunks[-1] > 0
    assert [len(page.data(f"chunk-{n}")) for n in range(chunks[-1] + 1)] == [
        chunks.count(n) for n in range(chunks[-1] + 1)
    ]


def test_groups_and_problems(tmp_path: Path) -> None:
    one = write_run(tmp_path / "x" / "run", [make_episode(1, 0), make_episode(1, 1), make_episode(2)])
    other = write_run(tmp_path / "y" / "run", [make_episode(1, 0), make_episode(3), make_episode(1, env_kwargs={})])
    index = report(tmp_path, one, other)[0].data("index")
    assert [run["name"] for run in index["runs"]] == ["x/run", "y/run"]
    assert index["columns"]["group"] == [0, 0, 1, 2, 3, 2]
    assert index["columns"]["problem"] == [0, 0, 1, 0, 2, 3]


def test_the_table_says_how_an_episode_begins(tmp_path: Path) -> None:
    long = make_episode(2, text="word " * 30)
    index = report(tmp_path, write_run(tmp_path / "one", [make_episode(1, 0), make_episode(1, 1), long]))[0].data(
        "index"
    )
    assert index["columns"]["begins"] == [0, 0, 1]
    first, other = index["names"]["begins"]
    assert first == "What is 37*24?" and other.startswith("What is word word") and other.endswith("…")
    assert len(other) <= 90


def test_results_of_two_evaluations_are_on_the_page_and_compared(tmp_path: Path) -> None:
    before = [make_episode(seed, member, is_success=seed == 1) for seed in range(4) for member in range(2)]
    after = [make_episode(seed, member, is_success=seed != 2) for seed in range(4) for member in range(2)]
    one, other = write_evaluation(tmp_path / "before", before), write_evaluation(tmp_path / "after", after)
    index = report(tmp_path, one, other)[0].data("index")
    (task,) = index["runs"][1]["results"]["tasks"]
    assert (task["success"]["value"], task["pass_at"]["2"]["value"], task["pass_hat"]["2"]["value"]) == (0.75,) * 3
    assert "problems" not in task and task["n_problems"] == 4
    (pair,) = index["evaluations"]
    expected = compare(Results.load(other), Results.load(one), names=("after", "before")).to_dict()
    assert pair == {"runs": [0, 1], "found": expected}
    assert (expected["tasks"][0]["wins"], expected["tasks"][0]["losses"], expected["tasks"][0]["ties"]) == (2, 0, 2)
    (tmp_path / "out" / "report.html").unlink()
    another = write_evaluation(
        tmp_path / "another", [make_episode(seed, member) for seed in (7, 8) for member in range(2)]
    )
    (pair,) = report(tmp_path, one, another)[0].data("index")["evaluations"]
    assert pair["runs"] == [0, 1] and "the seeds do not match" in pair["refused"]


def test_each_run_has_the_texts_of_its_own_tokenizer(tmp_path: Path) -> None:
    folders = []
    for name, words in (("a", "What is 12+30?"), ("b", "<b>42</b> is what"), ("c", "What is 12+30?")):
        folder = tmp_path / name
        write_run(folder / "trajectories", [make_episode()])
        tiny_tokenizer([words], vocab_size=300).save_pretrained(folder)
        folders.append(folder)
    bare = write_run(tmp_path / "bare", [make_episode()])
    page, notes = report(tmp_path, *folders, bare)
    assert [run["tokens"] for run in page.data("index")["runs"]] == [0, 1, 0, None]
    tables = page.data("tokens")
    assert len(tables) == 2 and all(sorted(table) == [str(n) for n in range(100, 106)] for table in tables)
    assert notes == [
        "bare: tokens are shown as ids: there is no tokenizer in the run; --tokenizer DIR gives them texts."
    ]


def test_seeds_that_javascript_cannot_hold_are_texts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", [make_episode(2**53 - 1), make_episode(2**60 + 1)])
    assert report(tmp_path, run)[0].data("index")["columns"]["seed"] == [2**53 - 1, str(2**60 + 1)]


def test_what_is_no_report_is_not_replaced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", [make_episode()])
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(InvalidConfigError, match=r"mine\.html is there already and is no report"):
        write_report([run], tmp_path / "mine.html")
    write_report([run], tmp_path / "a.html", title="first")
    write_report([run], tmp_path / "a.html", title="second")
    assert "<title>second</title>" in (tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"cannot be written: .*mine\.html is a file and no folder"):
        write_report([run], tmp_path / "mine.html" / "a.html")
    with pytest.raises(InvalidConfigError, match="is a folder"):
        write_report([run], tmp_path)
    with pytest.raises(InvalidConfigError, match="given twice"):
        write_report([run, run / ".." / "one"], tmp_path / "b.html")
    with pytest.raises(InvalidConfigError, match=r"--tokenizer .*: there is no such folder"):
        write_report([run], tmp_path / "b.html", tokenizer=tmp_path / "none")


def test_a_large_run_is_sampled_by_problem_and_the_page_says_so(tmp_path: Path) -> None:
    """Half of 200 problems, give or take; the smaller run's sample is part of it, so that both can be compared."""
    episodes = [make_episode(seed, member, is_success=seed % 4 > 0) for seed in range(200) for member in range(2)]
    whole, half = write_run(tmp_path / "whole", episodes), write_run(tmp_path / "half", episodes[:200])
    page, notes = report(tmp_path, whole, half, max_episodes=100)
    columns, (one, other) = page.data("index")["columns"], page.data("index")["summary"]
    seeds = [
        {
            (seed, member)
            for run, seed, member in zip(columns["run"], columns["seed"], columns["member"], strict=True)
            if run == number
        }
        for number in range(2)
    ]
    assert 60 < len(seeds[0]) == one["episodes"] < 140 and 60 < len(seeds[1]) == other["episodes"] < 140
    assert all({(seed, 0), (seed, 1)} <= found for found in seeds for seed, _ in found)
    assert {key for key in seeds[0] if key[0] < 100} <= seeds[1]
    assert abs(one["success"] - 0.75) < 0.15
    (pair,) = page.data("index")["comparisons"]
    assert pair["problems"] == len({seed for seed, _ in seeds[0] if seed < 100})
    said = f"whole: this page samples. It shows, and counts in its numbers, {len(seeds[0])} of 400 episodes: all those"
    assert any(said in note for note in notes) and any(said in note for note in page.data("index")["notes"])
    assert report(tmp_path, half, max_episodes=200)[0].data("index")["summary"][0]["episodes"] == 200  # they fit
