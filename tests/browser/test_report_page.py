"""The report in headless Chromium: what is drawn, found, sorted, reached by keys, and what no text can do."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from report_runs import ATTACKS, make_episode, make_row, write_run

from llm_envs.errors import ModelError
from llm_envs.report.site import write_report
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import Message, RolloutError, Row, StopReason, Trajectory, Turn

pytestmark = pytest.mark.browser


class Browser(Protocol):
    """What `conftest.Chromium` offers."""

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, hash: str = "") -> None: ...
    def resize(self, width: int, height: int) -> None: ...
    def js(self, expression: str) -> Any: ...
    def wait(self, expression: str) -> None: ...
    def text(self, selector: str = "main") -> str: ...
    def texts(self, selector: str) -> list[str]: ...
    def click(self, selector: str) -> None: ...
    def press(self, key: str) -> None: ...
    def type(self, text: str) -> None: ...
    def choose(self, selector: str, option: str) -> None: ...
    def call(self, method: str, **parameters: Any) -> dict[str, Any]: ...
    def problems(self) -> list[str]: ...
    def requests(self) -> list[str]: ...


NONE = "\N{EN DASH}"
VIEWS = ("#summary", "#episodes", "#episode/0", "#group/0", "#problem/0", "#compare")


def before() -> list[Trajectory]:
    """Return 12 problems of two members, every third success; one has an error, one goes on to a limit."""
    episodes = [
        make_episode(seed, member, is_success=seed % 3 == 0, text=f"{seed}+{member}")
        for seed in range(12)
        for member in range(2)
    ]
    error = RolloutError("TimeoutError", "the tool hung", "env.step")
    values: dict[str, Any] = {"status": "errored", "error": error, "is_success": None, "stop_reason": StopReason.ERROR}
    episodes[3] = make_episode(1, 1, env_id="llm/Broken-v0", text="7+7", **values)
    episodes[5] = make_episode(2, 1, stop_reason=StopReason.MAX_TOKENS, is_success=False, text="5+5")
    return episodes


def after() -> list[Trajectory]:
    """Return the same problems, every second success, once each."""
    return [make_episode(seed, is_success=seed % 2 == 0, text=f"{seed}+0") for seed in range(12)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    history = [{"step": step, "reward": step / 10, "loss": 1 / step} for step in range(1, 21)]
    one, other = write_run(folder / "before", before()), write_run(folder / "after", after())
    (one / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    write_report([one, other], folder / "report.html")
    return folder / "report.html"


def report_of(folder: Path, episodes: Sequence[Trajectory], **options: Any) -> Path:
    write_report([write_run(folder / "run", episodes)], folder / "report.html", **options)
    return folder / "report.html"


def go(chromium: Browser, hash: str) -> None:
    """Go to a view and wait until it is there."""
    if chromium.js("location.hash") == hash:
        return
    chromium.js(f"document.querySelector('main h2').dataset.old = 1, location.hash = {json.dumps(hash)}, 0")
    chromium.wait("document.querySelector('main h2:not([data-old])') !== null")


def rows(chromium: Browser) -> list[int]:
    """Return the episodes that the table shows."""
    found = chromium.js("[...document.querySelectorAll('tr[data-episode]')].map((row) => Number(row.dataset.episode))")
    return [int(episode) for episode in found]


def test_the_summary_has_its_numbers_and_plots(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    table = chromium.texts("main table tbody tr")
    assert table[0].split("\t")[:4] == ["before", "llm/Sums-v0", "23", "0"]
    assert table[0].split("\t")[4].startswith("35% (")
    assert table[1].split("\t")[:3] == ["after", "llm/Sums-v0", "12"] and table[1].split("\t")[4].startswith("50% (")
    assert table[2].split("\t")[1:] == ["llm/Broken-v0", "1", "1", NONE, NONE]
    assert chromium.texts("figcaption") == [
        "Success by environment", "Why episodes ended", "Reward components, mean of an episode", "Reward", "Turns",
        "Sampled tokens", "reward", "loss",
    ]  # fmt: skip
    labels = chromium.js("[...document.querySelectorAll('figure svg')].map((one) => one.getAttribute('aria-label'))")
    assert "of 23 episodes of 12 problems" in labels[0]
    assert "before: terminated in 22 episodes of 24" in labels[1]
    assert "before from 0.1 to 2 over 20 points" in labels[6]
    assert chromium.problems() == []


def test_episodes_are_filtered_sorted_and_searched(chromium: Browser, page: Path) -> None:
    chromium.open(page, hash="#episodes")
    assert rows(chromium) == list(range(36))
    chromium.choose("#filter-outcome", "errored")
    assert rows(chromium) == [3]
    chromium.choose("#filter-outcome", "success")
    chromium.choose("#filter-run", "after")
    assert rows(chromium) == [24, 26, 28, 30, 32, 34]
    assert chromium.text("#found") == "6 episodes of 36"
    chromium.click("[data-sort=seed]")
    chromium.click("[data-sort=seed]")
    assert rows(chromium) == [34, 32, 30, 28, 26, 24]
    assert chromium.js("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"
    chromium.choose("#filter-outcome", "all")
    chromium.choose("#filter-run", "all")
    chromium.click("[data-sort=reward]")
    assert rows(chromium)[-1] == 3  # without a reward: last
    chromium.press("/")
    chromium.wait("document.activeElement.id === 'search'")
    chromium.type("THINK 11+1")
    chromium.wait("document.getElementById('found').textContent.startsWith('1 episode of')")
    assert rows(chromium) == [23]
    chromium.press("Escape")
    chromium.wait("document.querySelectorAll('tr[data-episode]').length === 36")
    assert chromium.js("document.getElementById('search').value") == ""
    chromium.press("/")
    chromium.wait("document.activeElement.id === 'search'")
    chromium.type("no such words")
    chromium.wait("document.getElementById('found').textContent.startsWith('0 episodes')")
    assert rows(chromium) == []


def test_the_keyboard_reaches_everything(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.press("/")
    chromium.wait("location.hash === '#episodes' && document.activeElement.id === 'search'")
    chromium.press("Escape")
    focused = "Number(document.activeElement.closest('tr')?.dataset.episode ?? -1)"
    chromium.press("j")
    assert chromium.js(focused) == 0
    for key, expected in (("j", 1), ("ArrowDown", 2), ("k", 1), ("ArrowUp", 0), ("k", 0), ("j", 1)):
        chromium.press(key)
        assert chromium.js(focused) == expected, key
    chromium.press("Enter")
    chromium.wait("location.hash === '#episode/1'")
    for key, expected in (("j", 2), ("ArrowRight", 3), ("k", 2), ("ArrowLeft", 1)):
        chromium.press(key)
        chromium.wait(f"location.hash === '#episode/{expected}' && document.querySelector('.chat') !== null")
    chromium.press("g")
    chromium.wait("location.hash === '#group/1' && document.querySelectorAll('.beside article').length === 2")
    chromium.press("Escape")
    chromium.wait(f"location.hash === '#episodes' && {focused} === 1")
    chromium.press("/")
    chromium.wait("document.activeElement.id === 'search'")
    chromium.press("Escape")
    chromium.js("history.back()")
    chromium.wait("location.hash === '#group/1' && document.querySelectorAll('.beside article').length === 2")


def test_an_episode_is_a_chat(chromium: Browser, page: Path) -> None:
    chromium.open(page, hash="#episode/0")
    assert chromium.texts(".chat > li > .role") == ["system", "user", "assistant · turn 1", "assistant · turn 2"]
    assert chromium.js("document.querySelector('.thinking').open") is False
    assert chromium.js("document.querySelector('.thinking .said').textContent") == "<think>I think of 0+0</think>"
    card = chromium.text(".call-card")  # the call beside its result, and no second time as a message
    assert [card.splitlines()[0], card.splitlines()[-1]] == ["0+0", "0+0"] and "ok" in card and "0.25 s" in card
    assert chromium.text(".said.answer") == "<answer>0+0</answer>"
    assert chromium.texts(".turn") == ["reward -0.25 · cost -0.25 · stop", "reward +1 · correct +1 · stop"]
    lines = [line.split() for line in chromium.texts(".turns tbody tr")]
    assert lines == [["1", "-0.25", "-0.25", "2", "stop", NONE], ["2", "+1", "+1", "1", "stop", NONE]]
    go(chromium, "#episode/3")
    assert "env.step: TimeoutError: the tool hung" in chromium.text()


def test_thinking_and_calls_of_many_forms_are_told_apart(chromium: Browser, page: Path) -> None:
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


def test_the_mask_and_the_probabilities_are_seen(chromium: Browser, page: Path) -> None:
    chromium.open(page, hash="#episode/0")
    chromium.click(".token-view summary")
    chromium.wait("document.querySelectorAll('.tokens i').length === 6")
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
    chromium.js("document.querySelectorAll('.tokens i')[3].click()")
    assert chromium.text(".readout") == "token 3, id 103: mask 1, log-probability -1.50, probability 22%"
    chromium.click(".token-view input")
    assert chromium.js(colour.format(3)) == chromium.js(colour.format(5)) == shown[1]


def test_long_rows_are_drawn_in_parts_with_texts_where_there_are_any(chromium: Browser, tmp_path: Path) -> None:
    turns = tuple(Turn(0.0, {}, row=0, span=span) for span in range(len(make_row(9000).spans)))
    path = report_of(tmp_path, [make_episode(rows=(make_row(9000),), turns=turns)])
    chromium.open(path, hash="#episode/0")
    chromium.click(".token-view summary")
    chromium.wait("document.querySelectorAll('.tokens i').length === 4000")
    for n in (8000, 9000):
        chromium.click(".token-view button")
        assert chromium.js("document.querySelectorAll('.tokens i').length") == n
    assert chromium.js("document.querySelector('.token-view button').hidden")
    assert chromium.js("document.querySelectorAll('.tokens .sampled i').length") == 4500


def test_a_tokenizer_in_the_run_gives_tokens_their_texts(chromium: Browser, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(["What is 12+30? <b>42</b>"], vocab_size=300)
    ids = np.array(tokenizer.encode("1\n<b>42")[:6], np.int32)
    n = len(ids)
    row = Row(ids, np.ones(n, np.bool_), np.full(n, -0.5, np.float32), ((0, n),))
    run = write_run(tmp_path / "trajectories", [make_episode(rows=(row,), turns=(Turn(1.0, {}, row=0, span=0),))])
    tokenizer.save_pretrained(run.parent)
    assert write_report([tmp_path], tmp_path / "report.html") == []
    chromium.open(tmp_path / "report.html", hash="#episode/0")
    chromium.click(".token-view summary")
    chromium.wait(f"document.querySelectorAll('.tokens i').length === {n}")
    assert "".join(chromium.texts(".tokens i")).replace("\n", "") == "1\N{RETURN SYMBOL}<b>42"
    with pytest.raises(ModelError):
        write_report([tmp_path], tmp_path / "report.html", tokenizer=run)


def test_groups_and_runs_are_compared(chromium: Browser, page: Path) -> None:
    chromium.open(page, hash="#compare")
    assert chromium.texts(".wins tbody td") == ["4", "6", "2"]
    # 2, 4, 8 and 10 won, 3 and 9 lost: 2/12. With one more of each 1/7, and t = 2.160 times sqrt((8 - 2/7) / 14²).
    assert chromium.text("#difference") == "+16.7 (-28.6 to +57.1)"
    assert len(chromium.texts(".episodes tbody tr")) == 6
    chromium.click(".episodes tbody a")
    chromium.wait("location.hash.startsWith('#problem/') && document.querySelectorAll('.beside article').length === 3")
    assert chromium.texts(".beside h3") == [
        "before · member 0 success reward 0.75", "before · member 1 success reward 0.75",
        "after · member 0 failure reward -0.25",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*could not be compacted")  # half a pair in a setting's name stays in the log
def test_nothing_that_a_model_wrote_does_anything(chromium: Browser, tmp_path: Path) -> None:
    hostile = [
        make_episode(0, n, text=text, env_id=f"llm/{text}", env_kwargs={text: text}, turns=(
            *make_episode(text=text).turns[:1], Turn(1.0, {text: 1.0}, row=0, span=1)))
        for n, text in enumerate(ATTACKS)
    ]  # fmt: skip
    error = RolloutError(ATTACKS[0], ATTACKS[1], ATTACKS[3])
    hostile.append(make_episode(0, 99, status="errored", is_success=None, error=error, stop_reason=StopReason.ERROR))
    chromium.open(report_of(tmp_path, hostile, title=ATTACKS[1]))
    assert chromium.text("h1") == ATTACKS[1] == chromium.js("document.title")
    for view in (
        "#summary",
        "#episodes",
        *(f"#episode/{n}" for n in range(len(hostile))),
        "#group/0",
        "#nothing",
        "#episode/1e9",
    ):
        go(chromium, view)
        chromium.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert chromium.js("window.attacked === undefined")
        odd = "main script, main style, main img, main iframe, main [onload], main [onerror], main [style]"
        assert chromium.js(f"document.querySelectorAll({json.dumps(odd)}).length") == 0
        links = chromium.js("[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))")
        assert [link for link in links if not re.fullmatch(r"#\w+(/\d+)?", link)] == []
    go(chromium, "#episode/1")
    said = chromium.js("[...document.querySelectorAll('.said')].map((one) => one.textContent)")
    assert f"What is {ATTACKS[1]}?" in said and f"<answer>{ATTACKS[1]}</answer>" in said
    assert [address.split(":")[0] for address in chromium.requests()] == ["file"]
    assert chromium.problems() == []


def test_the_browser_itself_would_refuse_markup_and_requests(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    refused = "(() => { try { document.body.innerHTML = '<b>'; return false; } catch { return true; } })()"
    assert chromium.js(refused)
    assert chromium.js("fetch('data:,x').then(() => false, () => true)")
    chromium.js("document.body.append(Object.assign(document.createElement('img'), {src: 'data:,x'}))")
    chromium.js(
        "new Promise((done) => { const one = document.createElement('style'); one.append('h1{color:red}');"
        " document.head.append(one); requestAnimationFrame(done); })"
    )
    assert chromium.js("getComputedStyle(document.querySelector('h1')).color") != "rgb(255, 0, 0)"


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_sideways_scrolling_and_text_has_contrast(chromium: Browser, page: Path, dark: bool) -> None:
    chromium.open(page, width=390, height=844, dark=dark)
    backgrounds = set()
    for view in VIEWS:
        go(chromium, view)
        chromium.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert chromium.js("document.documentElement.scrollWidth") <= 390, view
        backgrounds.add(chromium.js("getComputedStyle(document.body).backgroundColor"))
        assert chromium.js(CONTRAST) == [], view
    assert backgrounds == {"rgb(18, 22, 28)" if dark else "rgb(246, 247, 249)"}


CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((total, v, place) => total + v * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a = 1] = rgb(getComputedStyle(node).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const poor = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest('svg, script, style, button:disabled, option')) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.add(node.className + ': ' + walker.currentNode.data.slice(0, 30));
  }
  return [...poor];
})()
"""
"""Texts whose contrast is below 4.5 to 1, WCAG 2.2's level AA."""


def test_a_screen_reader_finds_its_way(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    for view in VIEWS:
        go(chromium, view)
        nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
        found = [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]
        roles = [role for role, _ in found]
        assert {"banner", "main", "contentinfo", "navigation"} <= set(roles), view
        assert ("heading", "Report: before, after") in found
        nameless = ("link", "button", "combobox", "searchbox", "navigation", "region", "image", "checkbox")
        assert [one for one in found if one[0] in nameless and not one[1]] == [], view
        levels = chromium.js("[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))")
        assert levels[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels)), view
        headless = "[...document.querySelectorAll('table')].filter((one) => !one.querySelector('th[scope=col]')).length"
        assert chromium.js(headless) == 0
    go(chromium, "#summary")
    assert chromium.js("document.documentElement.lang") == "en"
    assert chromium.js("document.querySelector('body a') === document.querySelector('.skip')")
    assert chromium.js("[...document.querySelectorAll('[tabindex]')].every((one) => one.tabIndex <= 0)")


def test_ten_thousand_episodes_are_opened_by_their_table_alone(chromium: Browser, tmp_path: Path) -> None:
    messages = (Message("user", "a" * 500), Message("assistant", "b" * 500))
    episodes = [
        make_episode(n, text=str(n), messages=messages, rows=(), turns=(Turn(n / 10_000, {"r": n / 10_000}),), tools=())
        for n in range(10_000)
    ]
    chromium.open(report_of(tmp_path, episodes))
    assert chromium.js("[...blocks.keys()]") == []  # no conversation has been parsed
    go(chromium, "#episodes")
    assert rows(chromium) == list(range(100))
    assert chromium.text(".pages span") == "page 1 of 100"
    chromium.click(".pages button:last-child")
    assert rows(chromium) == list(range(100, 200))
    chromium.click("[data-sort=reward]")
    assert rows(chromium)[0] == 9999
    go(chromium, "#episode/5000")
    assert "seed 5000" in chromium.text()
    assert len(chromium.js("[...blocks.keys()]")) <= 2
    print("opened in ms:", chromium.js("performance.getEntriesByType('navigation')[0].duration"))
    print("of it, until drawn:", chromium.js("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))


def test_metrics_alone_and_episodes_alone_are_shown(chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    write_report([tmp_path], tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    assert "has metrics and no trajectories" in chromium.text(".notes")
    assert chromium.texts("figcaption") == ["reward"]
    go(chromium, "#episodes")
    assert chromium.text("#found") == "0 episodes"
    chromium.press("j")
    error = RolloutError("E", "m", "env.make")
    nothing: dict[str, Any] = {"turns": (), "rows": (), "messages": ()}
    errored = make_episode(status="errored", is_success=None, error=error, stop_reason=StopReason.ERROR, **nothing)
    chromium.open(report_of(tmp_path / "errored", [errored]))
    assert NONE in chromium.text("main table")
    go(chromium, "#episode/0")
    assert "env.make: E: m" in chromium.text()
    assert chromium.problems() == []
