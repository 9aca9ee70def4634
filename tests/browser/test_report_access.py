"""The report for everyone: by keyboard, on a phone, in the dark, read aloud."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from chromium import Chromium

pytestmark = pytest.mark.browser

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


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_sideways_scrolling_and_text_has_contrast(chromium: Chromium, page: Path, dark: bool) -> None:
    chromium.open(page, width=390, height=844, dark=dark)
    backgrounds = set()
    for view in VIEWS:
        chromium.go(view)
        chromium.unfold()
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


def test_a_screen_reader_finds_its_way(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    for view in VIEWS:
        chromium.go(view)
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
    chromium.go("#summary")
    assert chromium.js("document.documentElement.lang") == "en"
    assert chromium.js("document.querySelector('body a') === document.querySelector('.skip')")
    assert chromium.js("[...document.querySelectorAll('[tabindex]')].every((one) => one.tabIndex <= 0)")
