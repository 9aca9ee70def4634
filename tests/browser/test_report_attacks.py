"""What a model, a tool, a task or a folder's name could do to the page: nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from chromium import Chromium
from report_runs import ATTACKS, make_episode, report_of

from llm_envs.types import RolloutError, StopReason, Turn

pytestmark = pytest.mark.browser


@pytest.mark.filterwarnings("ignore:.*could not be compacted")  # half a pair in a setting's name stays in the log
def test_nothing_that_a_model_wrote_does_anything(chromium: Chromium, tmp_path: Path) -> None:
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
        chromium.go(view)
        chromium.unfold()
        assert chromium.js("window.attacked === undefined")
        odd = "main script, main style, main img, main iframe, main [onload], main [onerror], main [style]"
        assert chromium.js(f"document.querySelectorAll({json.dumps(odd)}).length") == 0
        links = chromium.js("[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))")
        assert [link for link in links if not re.fullmatch(r"#\w+(/\d+)?", link)] == []
    chromium.go("#episode/1")
    said = chromium.js("[...document.querySelectorAll('.said')].map((one) => one.textContent)")
    assert f"What is {ATTACKS[1]}?" in said and f"<answer>{ATTACKS[1]}</answer>" in said
    assert [address.split(":")[0] for address in chromium.requests()] == ["file"]
    assert chromium.problems() == []


def test_the_browser_itself_would_refuse_markup_and_requests(chromium: Chromium, page: Path) -> None:
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
