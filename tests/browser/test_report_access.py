"""The report for everyone: by keyboard, on a phone, in the dark, read aloud."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import Chromium
from report_runs import make_episode, make_row, write_evaluation

from llm_envs.evaluation import Results
from llm_envs.report import write_report

pytestmark = [pytest.mark.browser, pytest.mark.smoke]

VIEWS = ("#summary", "#episodes", "#episode/0", "#group/0", "#problem/0", "#compare")


def test_the_keyboard_reaches_everything(chromium: Chromium, page: Path) -> None:
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


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report of two evaluations with long names, and with rows that were not sampled."""
    folder = tmp_path_factory.mktemp("evaluated")
    unsampled = make_row(logps=(float("nan"), -1.5, -0.3))
    runs = []
    for name, won in (("a-run-with-quite-a-long-name-before-training", 1), ("after", 2)):
        episodes = [
            make_episode(seed, member, is_success=seed < won, text="123456789*" * 9, rows=(unsampled,))
            for seed in range(3)
            for member in range(2)
        ]
        runs.append(write_evaluation(folder / name, episodes, model=name))
        results = Results.load(runs[-1])
        replace(results, thresholds={task.name: {"min_success": 0.5} for task in results}).save(runs[-1])
    write_report(runs, folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("name", ["page", "evaluated"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 768, 1200])
def test_no_sideways_scrolling_and_enough_contrast(
    chromium: Chromium, request: pytest.FixtureRequest, name: str, dark: bool, width: int
) -> None:
    """WCAG 2.2: reflow (1.4.10) down to 320 pixels; contrast of text 4.5 (1.4.3) and of what plots show 3 (1.4.11)."""
    chromium.open(request.getfixturevalue(name), width=width, height=812, dark=dark)
    backgrounds = set()
    for view in VIEWS:
        chromium.go(view)
        chromium.unfold()
        assert chromium.js("document.documentElement.scrollWidth") <= width, view
        assert chromium.js(OUTSIDE) == [], view
        backgrounds.add(chromium.js("getComputedStyle(document.body).backgroundColor"))
        assert chromium.js(CONTRAST) == [], view
    assert backgrounds == {"rgb(18, 22, 28)" if dark else "rgb(246, 247, 249)"}


OUTSIDE = """
[...document.querySelectorAll('main *, header *')].filter((node) => {
  const box = node.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !node.closest('.wide, svg, .begins, .hidden, .skip');
}).map((node) => node.tagName + '.' + node.className + ': ' + node.textContent.slice(0, 30))
"""
"""What is drawn beyond the window's edge and not within a part that scrolls by itself."""

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
  const ratio = (one, other) => {
    const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const poor = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, inPlot = node.closest('svg') !== null;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest('title, script, style, button:disabled, option, .hidden')) continue;
    const colour = rgb(getComputedStyle(node)[inPlot ? 'fill' : 'color']);
    const contrast = ratio(colour, behind(inPlot ? node.closest('figure') : node));
    if (contrast < 4.5) poor.add(node.className + ': ' + walker.currentNode.data.slice(0, 30));
  }
  const marks = 'figure rect.series, figure path.line, figure circle.series, .strip .on, .bar rect';
  for (const node of document.querySelectorAll(marks)) {
    const style = getComputedStyle(node), colour = rgb(node.classList.contains('line') ? style.stroke : style.fill);
    const contrast = ratio(colour, behind(node.closest('figure, td, section, main')));
    if (contrast < 3) poor.add('plot: ' + node.getAttribute('class'));
  }
  return [...poor];
})()
"""
"""Texts whose contrast is below 4.5 to 1, WCAG 2.2's level AA, and marks of plots below 3 to 1."""


@pytest.mark.parametrize("name", ["page", "evaluated"])
def test_a_screen_reader_finds_its_way(chromium: Chromium, request: pytest.FixtureRequest, name: str) -> None:
    chromium.open(request.getfixturevalue(name))
    for view in VIEWS:
        chromium.go(view)
        nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
        found = [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]
        roles = [role for role, _ in found]
        assert {"banner", "main", "contentinfo", "navigation"} <= set(roles), view
        assert any(role == "heading" and text.startswith("Report: ") for role, text in found)
        nameless = ("link", "button", "combobox", "searchbox", "navigation", "region", "image", "checkbox")
        assert [one for one in found if one[0] in nameless and not one[1]] == [], view
        levels = chromium.js("[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => Number(one.tagName[1]))")
        assert levels[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels)), view
        headless = "[...document.querySelectorAll('table')].filter((one) => !one.querySelector('th[scope=col]')).length"
        assert chromium.js(headless) == 0
    chromium.go("#summary")
    assert chromium.js("document.documentElement.lang") == "en"
    assert chromium.js("document.querySelector('body a') === document.querySelector('.skip')")
    assert chromium.js("[...document.querySelectorAll('[tabindex]')].every((one) => one.tabIndex <= 0)")


def test_what_changes_is_said(chromium: Chromium, page: Path) -> None:
    """A filter's results, the order, the view and a token are in live regions, which are there before they change."""
    chromium.open(page, hash="#episodes")
    live = "[...document.querySelectorAll('[role=status]')].map((one) => one.id)"
    assert chromium.js(live) == ["found", "announce"]
    node = "document.querySelector('#found').same = true"
    chromium.js(node)
    chromium.choose("#filter-outcome", "errored")
    assert chromium.js("document.querySelector('#found').same") and chromium.text("#found") == "1 episode of 36"
    chromium.click("[data-sort=reward]")
    assert chromium.js("document.getElementById('announce').textContent") == "sorted by Reward, descending"
    chromium.go("#compare")
    assert chromium.js("document.getElementById('announce').textContent") == "Compare"
    chromium.go("#episode/0")
    tree = chromium.call("Accessibility.getFullAXTree")["nodes"]
    statuses = [node for node in tree if node.get("role", {}).get("value") == "status"]
    assert len(statuses) == 2
    for status in statuses:
        assert {"name": "live", "value": {"type": "token", "value": "polite"}} in status["properties"]
    named = [
        node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "group" and node.get("name")
    ]
    assert {"2 tokens written by the model, turn 1", "1 token written by the model, turn 2"} <= set(named)


def test_the_focus_goes_from_the_top_to_the_bottom(chromium: Chromium, page: Path) -> None:
    chromium.open(page, hash="#episodes")
    focused = "document.activeElement.id || document.activeElement.dataset.sort || document.activeElement.textContent"
    order = []
    for _ in range(12):
        chromium.press("Tab")
        order.append(chromium.js(focused))
    assert order[:5] == ["Skip to the content", "Summary", "Episodes", "Compare", "search"]
    assert order[5:11] == ["filter-run", "filter-env", "filter-outcome", "filter-stop", "parts", "env"]
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert chromium.js(ring) == "solid"  # the focus is seen
    chromium.open(page, hash="#episodes")
    chromium.press("Tab")
    chromium.press("Enter")
    assert chromium.js("document.activeElement.id") == "main"
    chromium.press("Tab")
    assert chromium.js("document.activeElement.id") == "search"


def test_tokens_are_read_by_the_arrow_keys(chromium: Chromium, page: Path) -> None:
    chromium.open(page, hash="#episode/0")
    chromium.js("document.querySelector('.tokens').focus()")
    for key, expected in (
        ("ArrowRight", "token 0, id 100: given to the model, mask 0"),
        ("ArrowRight", "token 1, id 101: given to the model, mask 0"),
        ("ArrowRight", "token 2, id 102: mask 1, log-probability -0.01, probability 99%"),
        ("ArrowLeft", "token 1, id 101: given to the model, mask 0"),
    ):
        chromium.press(key)
        assert chromium.text(".readout") == expected
    assert chromium.js("location.hash") == "#episode/0"  # not the next episode
    chromium.press("j")
    chromium.wait("location.hash === '#episode/1'")


def test_the_keys_are_listed(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    chromium.press("?")
    assert chromium.js("document.activeElement === document.querySelector('#keys summary')")
    assert chromium.js("document.getElementById('keys').open")
    assert {"/", "j", "k", "g", "?", "Esc", "Enter"} <= set(chromium.texts("#keys kbd"))
