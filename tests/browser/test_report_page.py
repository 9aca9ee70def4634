"""The report in headless Chromium: what is drawn, found, sorted, and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Chromium
from report_runs import make_episode, make_row, report_of, write_run

from llm_envs.errors import ModelError
from llm_envs.report import write_report
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import Message, RolloutError, Row, StopReason, ToolCall, ToolResult, Turn

pytestmark = [pytest.mark.browser, pytest.mark.smoke]

NONE = "\N{EN DASH}"


def test_the_summary_has_its_numbers_and_plots(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    table = chromium.texts("main table tbody tr")
    lines = [line.split("\t") for line in table]
    assert [[line[0], line[2], *line[4:]] for line in lines] == [
        ["before", "llm/Sums-v0", "23", "12", "0"],
        ["after", "llm/Sums-v0", "12", "12", "0"],
        ["before", "llm/Broken-v0", "1", "0", "1"],
    ]
    assert lines[0][1].startswith("35% (") and lines[1][1].startswith("50% (") and lines[1][3] == "0.25"
    assert [lines[2][1], lines[2][3]] == [NONE, NONE]
    assert chromium.texts("figcaption") == [
        "reward", "loss", "Success by environment", "Why episodes ended",
        "Reward components, mean of an episode, before weights", "Reward", "Turns", "Sampled tokens",
    ]  # fmt: skip
    labels = chromium.js("[...document.querySelectorAll('figure svg')].map((one) => one.getAttribute('aria-label'))")
    assert "before from 0.1 to 2 over 20 points" in labels[0]
    assert "of 23 episodes of 12 problems" in labels[2]
    assert "before: terminated in 22 episodes of 24" in labels[3]
    assert "from -0.25 to 0.75; before: mean 0.0978; after: mean 0.25" in labels[5]
    assert chromium.problems() == []


def test_episodes_are_filtered_sorted_and_searched(chromium: Chromium, page: Path) -> None:
    chromium.open(page, hash="#episodes")
    assert chromium.rows() == list(range(36))
    chromium.choose("#filter-outcome", "errored")
    assert chromium.rows() == [3]
    chromium.choose("#filter-outcome", "success")
    chromium.choose("#filter-run", "after")
    assert chromium.rows() == [24, 26, 28, 30, 32, 34]
    assert chromium.text("#found") == "6 episodes of 36"
    chromium.click("[data-sort=seed]")
    chromium.click("[data-sort=seed]")
    assert chromium.rows() == [34, 32, 30, 28, 26, 24]
    assert chromium.js("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"
    chromium.choose("#filter-outcome", "all")
    chromium.choose("#filter-run", "all")
    chromium.click("[data-sort=reward]")
    assert chromium.rows()[-1] == 3  # without a reward: last
    chromium.press("/")
    chromium.wait("document.activeElement.id === 'search'")
    chromium.type("THINK 11+1")
    chromium.wait("document.getElementById('found').textContent.startsWith('1 episode of')")
    assert chromium.rows() == [23]
    chromium.press("Escape")
    chromium.wait("document.querySelectorAll('tr[data-episode]').length === 36")
    assert chromium.js("document.getElementById('search').value") == ""
    chromium.press("/")
    chromium.wait("document.activeElement.id === 'search'")
    chromium.type("no such words")
    chromium.wait("document.getElementById('found').textContent.startsWith('0 episodes')")
    assert chromium.rows() == []


def test_an_episode_is_a_chat(chromium: Chromium, page: Path) -> None:
    chromium.open(page, hash="#episode/0")
    assert chromium.texts(".chat > li > .role") == ["system", "user", "assistant · turn 1", "assistant · turn 2"]
    assert chromium.js("document.querySelector('.thinking').open") is False
    assert chromium.js("document.querySelector('.thinking .said').textContent") == "<think>I think of 0+0</think>"
    card = chromium.text(".call-card")  # the call beside its result, and no second time as a message
    assert [card.splitlines()[0], card.splitlines()[-1]] == ["0+0", "0+0"] and "ok" in card and "0.25 s" in card
    assert chromium.text(".said.answer") == "<answer>0+0</answer>"
    assert chromium.texts(".turn") == ["reward -0.25 · cost -0.25 · stop", "reward +1 · correct +1 · stop"]
    commands = chromium.js("[...document.querySelectorAll('.play-on pre')].map((one) => one.textContent)")
    place = "before --episode g0/0"
    assert commands == [f"llm-envs branch {place} --turn {turn} --times 16 --model DIR" for turn in (0, 1)]
    lines = [line.split() for line in chromium.texts(".turns tbody tr")]
    assert lines == [["1", "-0.25", "-0.25", "2", "stop", NONE], ["2", "+1", "+1", "1", "stop", NONE]]
    chromium.go("#episode/3")
    assert "env.step: TimeoutError: the tool hung" in chromium.text()


def test_thinking_and_calls_of_many_forms_are_told_apart(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    for text, kinds in (
        ("plain", ["text"]),
        ("so</think>then", ["thinking", "text"]),
        ("<think>a</think>b<tool_call>{}</tool_call>c", ["thinking", "text", "call", "text"]),
        ("<think>never closed <tool_call>", ["thinking"]),
        ("[THINK]a[/THINK][TOOL_CALLS]f[ARGS]{}", ["thinking", "call"]),
        ("<|channel|>analysis<|message|>a<|end|>rest", ["thinking", "text"]),
        ("x</think>y<answer>1</answer>", ["thinking", "text", "answer"]),
        ("", ["text"]),
    ):
        parts = chromium.js(f"partsOf({json.dumps(text)})")
        assert [kind for kind, _ in parts] == kinds, text
        assert "".join(part for _, part in parts) == text


def test_the_mask_and_the_probabilities_are_seen(chromium: Chromium, page: Path) -> None:
    chromium.open(page, hash="#episode/0")
    assert chromium.js("document.querySelectorAll('.tokens i').length") == 6  # the first row is open
    assert chromium.texts(".tokens i") == ["100", "101", "102", "103", "104", "105"]
    classes = chromium.js(
        "[...document.querySelectorAll('.tokens i')].map((i) => [i.parentNode.className, i.className])"
    )
    assert classes == [
        ["given", ""],
        ["given", ""],
        ["sampled", "l0"],
        ["sampled", "l4"],
        ["given", ""],
        ["sampled", "l6"],
    ]
    colour = "getComputedStyle(document.querySelectorAll('.tokens i')[{}]).backgroundColor"
    shown = [chromium.js(colour.format(place)) for place in (0, 2, 3, 5)]
    assert shown[0] == "rgba(0, 0, 0, 0)" and len(set(shown)) == 4
    strip = chromium.js("[...document.querySelectorAll('.strip rect')].map((r) => Math.round(r.getAttribute('x')))")
    assert strip == [333, 833]
    chromium.click(".tokens i:nth-child(2)")
    assert chromium.text(".readout") == "token 1, id 101: given to the model, mask 0"
    assert chromium.texts(".turn-mark") == ["turn 1", "turn 2"]
    marked = "[...document.querySelectorAll('.turn-mark')].map((mark) => mark.nextElementSibling.textContent)"
    assert chromium.js(marked) == ["102", "105"]
    chromium.js("document.querySelectorAll('.tokens i')[3].click()")
    assert chromium.text(".readout") == "token 3, id 103: mask 1, log-probability -1.50, probability 22%"
    chromium.click(".token-view input")
    assert chromium.js(colour.format(3)) == chromium.js(colour.format(5)) == shown[1]


def test_a_masking_mistake_is_seen_at_a_glance(chromium: Chromium, tmp_path: Path) -> None:
    """Two episodes of the same tokens; in the second the mask has the tool's words 4 to 6 too."""
    right, wrong = make_row(9, mask=(0, 0, 1, 1, 0, 0, 0, 1, 1)), make_row(9, mask=(0, 0, 1, 1, 1, 1, 1, 1, 1))
    episodes = [
        make_episode(n, rows=(row,), turns=(Turn(1.0, {}, row=0, span=0),)) for n, row in enumerate((right, wrong))
    ]
    path = report_of(tmp_path, episodes)
    is_plain = "(i) => getComputedStyle(i).backgroundColor === 'rgba(0, 0, 0, 0)'"
    transparent = f"[...document.querySelectorAll('.tokens i')].map({is_plain})"
    strip = "[...document.querySelectorAll('.strip rect')].map((r) => Math.round(r.getAttribute('width') * 9 / 1000))"
    for number, given, masked in ((0, [0, 1, 4, 5, 6], [2, 2]), (1, [0, 1], [7])):
        chromium.open(path, hash=f"#episode/{number}")
        shown = chromium.js(transparent)  # without a click
        assert [place for place, is_unmarked in enumerate(shown) if is_unmarked] == given
        assert chromium.js(strip) == masked
        assert f"of which {sum(masked)} written by the model" in chromium.text(".token-view summary")


def test_long_rows_are_drawn_in_parts_with_texts_where_there_are_any(chromium: Chromium, tmp_path: Path) -> None:
    turns = tuple(Turn(0.0, {}, row=0, span=span) for span in range(len(make_row(9000).spans)))
    path = report_of(tmp_path, [make_episode(rows=(make_row(9000),), turns=turns)])
    chromium.open(path, hash="#episode/0")
    assert chromium.js("document.querySelectorAll('.tokens i').length") == 4000
    for n in (8000, 9000):
        chromium.click(".token-view button")
        assert chromium.js("document.querySelectorAll('.tokens i').length") == n
    assert chromium.js("document.querySelector('.token-view button').hidden")
    assert chromium.js("document.querySelectorAll('.tokens .sampled i').length") == 4500


def test_a_tokenizer_in_the_run_gives_tokens_their_texts(chromium: Chromium, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(["What is 12+30? <b>42</b>"], vocab_size=300)
    ids = np.array(tokenizer.encode("1\n<b>42")[:6], np.int32)
    n = len(ids)
    row = Row(ids, np.ones(n, np.bool_), np.full(n, -0.5, np.float32), ((0, n),))
    run = write_run(tmp_path / "trajectories", [make_episode(rows=(row,), turns=(Turn(1.0, {}, row=0, span=0),))])
    tokenizer.save_pretrained(run.parent)
    assert write_report([tmp_path], tmp_path / "report.html") == []
    chromium.open(tmp_path / "report.html", hash="#episode/0")
    assert chromium.js("document.querySelectorAll('.tokens i').length") == n
    assert "".join(chromium.texts(".tokens i")).replace("\n", "") == "1\N{RETURN SYMBOL}<b>42"
    with pytest.raises(ModelError):
        write_report([tmp_path], tmp_path / "report.html", tokenizer=run)


def test_groups_and_runs_are_compared(chromium: Chromium, page: Path) -> None:
    chromium.open(page, hash="#compare")
    assert chromium.texts(".wins tbody td") == ["4", "6", "2"]
    # 2, 4, 8 and 10 won, 3 and 9 lost: 2/12. With one more of each 1/7, and t = 2.160 times sqrt((8 - 2/7) / 14²).
    assert chromium.text("#difference") == "+16.7 (-28.6 to +57.1)"
    assert len(chromium.texts(".episodes tbody tr")) == 6
    chromium.click(".episodes tbody a")
    chromium.wait("location.hash.startsWith('#problem/') && document.querySelectorAll('.beside article').length === 3")
    assert chromium.texts("main > h3") == ["before", "after"]
    assert chromium.texts(".beside h4") == [
        "member 0 success reward 0.75", "member 1 success reward 0.75", "member 0 failure reward -0.25",
    ]  # fmt: skip
    labels = chromium.js("[...document.querySelectorAll('article')].map((one) => one.getAttribute('aria-label'))")
    assert labels == ["before · member 0", "before · member 1", "after · member 0"]


def test_a_group_shows_its_common_beginning_once_and_then_its_members(chromium: Chromium, tmp_path: Path) -> None:
    episodes = [make_episode(1, member, text="7*6", is_success=member == 2) for member in (3, 0, 2, 1)]
    answer = Message("assistant", "<answer>41</answer>")
    episodes[0] = make_episode(1, 3, text="7*6", messages=(*episodes[1].messages[:2], answer), turns=(Turn(0.0, {}),))
    chromium.open(report_of(tmp_path, episodes), hash="#episode/1")
    chips = chromium.texts(".group a")
    assert chips[:4] == ["0 ✗ -0.25", "1 ✗ -0.25", "2 ✓ 0.75", "3 ✓ 0"] and chips[4] == "Side by side"
    chromium.click(".group a:last-child")
    chromium.wait("document.querySelectorAll('.beside article').length === 4")
    assert chromium.texts("main > section .bubble .said") == ["Use the calculator.", "What is 7*6?"]
    assert [title.split(" success")[0].split(" failure")[0] for title in chromium.texts(".beside h3")] == [
        f"member {n}" for n in range(4)
    ]
    assert "What is 7*6?" not in chromium.text(".beside")
    assert chromium.texts(".beside article:last-child .said") == ["<answer>41</answer>"]
    tops = chromium.js(
        "[...document.querySelectorAll('.beside article')].map((one) => one.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == 1  # beside each other


def test_calls_stand_with_their_results(chromium: Chromium, tmp_path: Path) -> None:
    text = 'I ask twice.<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}</tool_call>'
    calls = (ToolCall("a", {"x": 1}), ToolCall("b", {"y": [2, 3]}))
    results = (
        ToolResult("a", {"x": 1}, "one", True, None, 0.0),
        ToolResult("b", {"y": [2, 3]}, "", False, "timed out", 2.5),
    )
    messages = (
        Message("user", "?"),
        Message("assistant", text, calls),
        Message("tool", "one"),
        Message("tool", "Error: late"),
    )
    turns = (Turn(0.0, {}, row=0, span=0, tool_results=results),)
    chromium.open(report_of(tmp_path, [make_episode(messages=messages, turns=turns)]), hash="#episode/0")
    assert chromium.texts(".chat > li > .role") == ["user", "assistant · turn 1"]
    cards = [card.split("\n") for card in chromium.texts(".call-card")]
    assert [[line for line in card if line] for card in cards] == [
        ["a", "ok", '{"x": 1}', "result", "one"],
        ["b", "timed out", "2.5 s", '{"y": [2, 3]}', "result", "Error: late"],
    ]
    assert chromium.js("[...document.querySelectorAll('details.call')].map((one) => one.open)") == [False, False]
    assert chromium.js("document.querySelector('.said.call').textContent") == '<tool_call>{"name": "a"}</tool_call>'
    asked = make_episode(messages=messages[:2], turns=(Turn(0.0, {}, row=0, span=0),))  # the episode ended at the call
    chromium.open(report_of(tmp_path / "asked", [asked]), hash="#episode/0")
    assert chromium.texts(".said.call") == [
        '<tool_call>{"name": "a"}</tool_call>',
        '<tool_call>{"name": "b"}</tool_call>',
    ]


def test_metrics_alone_and_episodes_alone_are_shown(chromium: Chromium, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    write_report([tmp_path], tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    assert "has metrics and no trajectories" in chromium.text(".notes")
    assert chromium.texts("figcaption") == ["reward"]
    chromium.go("#episodes")
    assert chromium.text("#found") == "0 episodes"
    chromium.press("j")
    error = RolloutError("E", "m", "env.make")
    nothing: dict[str, Any] = {"turns": (), "rows": (), "messages": ()}
    errored = make_episode(status="errored", is_success=None, error=error, stop_reason=StopReason.ERROR, **nothing)
    chromium.open(report_of(tmp_path / "errored", [errored]))
    assert NONE in chromium.text("main table")
    chromium.go("#episode/0")
    assert "env.make: E: m" in chromium.text()
    assert chromium.problems() == []


def test_the_shares_of_a_runs_time_are_one_plot(chromium: Chromium, tmp_path: Path) -> None:
    shares = {"sampling": 0.75, "environment": 0.25, "training": 0.5, "waiting": 0.5}
    records = [{"step": step} | {f"time/{name}": value for name, value in shares.items()} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record | {"reward": 1.0}) + "\n" for record in records))
    write_report([tmp_path], tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    assert chromium.texts("figcaption") == ["reward", f"Shares of the time, {tmp_path.name}"]
    assert [text for text in chromium.texts(".legend li") if text in shares] == list(shares)
    label = chromium.js("[...document.querySelectorAll('figure svg')].at(-1).getAttribute('aria-label')")
    assert "sampling from 0.75 to 0.75 over 2 points; environment from 0.25 to 0.25 over 2 points" in label
    assert chromium.problems() == []
