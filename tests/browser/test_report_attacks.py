"""What a model, a tool, a task, a log or a folder's name could do to the page: nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from report_runs import ATTACKS, make_episode, report_of, write_evaluation, write_run

from llm_envs.report import write_report
from llm_envs.tracking import visible_text
from llm_envs.types import Message, RolloutError, StopReason, ToolCall, ToolResult, Trajectory, Turn

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:.*could not be compacted"),  # half a pair in a setting's name stays in the log
]

ODD = "script, style, img, iframe, object, embed, base, meta, svg svg, [onload], [onerror], [onclick], [style], [src]"
REORDERING = re.compile("[\u202a-\u202e\u2066-\u2069]")


def hostile_episode(number: int, text: str) -> Trajectory:
    """Return an episode that has the text wherever somebody else writes one."""
    result = ToolResult(text, {text: text}, text, number % 2 == 0, None if number % 2 == 0 else text, 1.0)
    return make_episode(
        number,
        env_id=f"llm/{text}".encode(errors="ignore").decode(),  # half a pair is refused in a name
        env_kwargs={text: text},
        group_id=ascii(text),
        messages=(
            Message("system", text),
            Message("user", text),
            Message(
                "assistant", f"<think>{text}</think>{text}<answer>{text}</answer>", (ToolCall(text, {text: text}),)
            ),
            Message("tool", text),
            Message("assistant", text, (ToolCall(text, {text: text}),)),
        ),
        tools=({"type": "function", "function": {"name": text, "description": text}},),
        turns=(Turn(0.0, {text: -1.0}, row=0, span=0, tool_results=(result,)), Turn(1.0, {text: 1.0}, row=0, span=1)),
        metadata={text: text},
    )


def hostile_errors() -> list[Trajectory]:
    return [
        make_episode(
            100 + n,
            status="errored",
            is_success=None,
            error=RolloutError(text, text, text),
            stop_reason=StopReason.ERROR,
            turns=(),
        )
        for n, text in enumerate(ATTACKS)
    ]


def assert_harmless(chromium: Chromium) -> None:
    chromium.unfold()
    assert chromium.js("window.attacked === undefined")
    assert chromium.js(f"document.querySelectorAll('main :is({ODD}), header :is({ODD})').length") == 0
    links = chromium.js("[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))")
    assert [link for link in links if not re.fullmatch(r"#\w+(/\d+)?", link)] == []
    assert not REORDERING.search(chromium.js("document.documentElement.textContent"))


@pytest.mark.parametrize("place", range(len(ATTACKS)))
def test_nothing_that_anybody_wrote_does_anything(chromium: Chromium, tmp_path: Path, place: int) -> None:
    text = ATTACKS[place]
    shown = visible_text(text)
    page = report_of(tmp_path, [hostile_episode(0, text), hostile_episode(1, text), *hostile_errors()], title=text)
    chromium.open(page)
    assert chromium.js("document.querySelector('h1').textContent") == shown
    assert chromium.js("document.title").split() == shown.split()
    for view in ("#summary", "#episodes", "#episode/0", "#episode/1", "#episode/2", "#group/0", "#nothing", f"#{text}"):
        chromium.go(view.split("\0")[0].encode(errors="replace").decode())
        assert_harmless(chromium)
    chromium.go("#episode/0")
    said = chromium.js("[...document.querySelectorAll('.said')].map((one) => one.textContent)")
    assert shown in said and f"<answer>{shown}</answer>" in said
    names = chromium.js("[...document.querySelectorAll('.call-card b, .call-card pre')].map((one) => one.textContent)")
    assert names[0] == shown and names[2] == shown
    chromium.go("#episodes")
    chromium.js(f"document.getElementById('search').value = {json.dumps(text)}")
    chromium.js("document.getElementById('search').dispatchEvent(new Event('input'))")
    chromium.wait("document.getElementById('found').textContent.includes(' of ')")
    assert_harmless(chromium)
    assert [address.split(":")[0] for address in chromium.requests()] == ["file"]
    assert chromium.problems() == []


@pytest.mark.smoke
def test_logs_results_and_folders_do_nothing_either(chromium: Chromium, tmp_path: Path) -> None:
    """Metrics' names, an evaluation's tasks, settings, versions and errors, and the paths of the runs."""
    nasty = tmp_path / "<img src=x onerror=attacked=1>" / "a<" / "script><script>window.attacked = 1<"  # joined by /
    folders = []
    for n, name in enumerate(("script>", "<svg onload=window.attacked=1>")):
        episodes = [make_episode(seed, member, is_success=seed > n) for seed in range(3) for member in range(2)]
        folder = write_evaluation(nasty / name, episodes, **{text: text for text in ATTACKS if text.isprintable()}, n=n)
        (folder / "results.json").write_text(json.dumps(poisoned(json.loads((folder / "results.json").read_text()))))
        lines = [{"step": step, **dict.fromkeys(ATTACKS, step)} for step in range(3)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "trainer_state.json").write_text("{")
        folders.append(folder)
    notes = write_report(folders, tmp_path / "report.html")
    assert any("</script>" in note for note in notes)
    chromium.open(tmp_path / "report.html")
    captions = chromium.js("[...document.querySelectorAll('figcaption')].map((one) => one.textContent)")
    for text in ATTACKS:
        assert visible_text(text) in captions or visible_text(text) in chromium.text(), text
    assert f"pass@k and pass^k: {ATTACKS[1]}" in captions
    for view in ("#summary", "#episodes", "#episode/0", "#group/0", "#problem/0", "#compare"):
        chromium.go(view)
        chromium.js("new Promise(requestAnimationFrame)")
        assert_harmless(chromium)
    assert ATTACKS[1] in chromium.js("document.querySelector('[aria-label=\"Evaluations compared\"]').textContent")
    assert chromium.problems() == []


def poisoned(results: dict[str, Any]) -> dict[str, Any]:
    """Return results whose texts are attacks."""
    (task,) = results["tasks"]
    many = {text: n + 1 for n, text in enumerate(ATTACKS)}
    task |= {"name": ATTACKS[1], "stop_reasons": many, "errors": many}
    task["components"] = dict.fromkeys(ATTACKS, task["reward"])
    return results | {
        "by_difficulty": dict.fromkeys(ATTACKS, results["success"]),
        "versions": {text: text for text in ATTACKS},
        "played_with": {text: text for text in ATTACKS},
        "settings": {text: text for text in ATTACKS} | {"n": results["settings"]["n"]},
        "thresholds": {ATTACKS[1]: {"min_success": 0.5}},
    }


@pytest.mark.smoke
def test_the_browser_itself_would_refuse_markup_and_requests(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    refused = "(() => { try { document.body.innerHTML = '<b>'; return false; } catch { return true; } })()"
    assert chromium.js(refused)
    assert chromium.js("fetch('data:,x').then(() => false, () => true)")
    for element in (
        "Object.assign(document.createElement('img'), {src: 'data:image/gif;base64,R0lGODlhAQABAAAAACw='})",
        "Object.assign(document.createElement('iframe'), {src: 'about:blank#x'})",
    ):
        chromium.js(f"document.body.append({element})")
    chromium.wait("document.querySelector('img').complete && document.querySelector('img').naturalWidth === 0")
    chromium.js(
        "(() => { const one = document.createElement('a'); one.href = 'javascript:window.attacked = 1';"
        " document.body.append(one); one.click(); })()"
    )
    chromium.js(
        "new Promise((done) => { const one = document.createElement('style'); one.append('h1{color:red}');"
        " document.head.append(one); requestAnimationFrame(done); })"
    )
    assert chromium.js("getComputedStyle(document.querySelector('h1')).color") != "rgb(255, 0, 0)"
    assert chromium.js("window.attacked === undefined")


def test_no_mark_that_reorders_text_is_in_the_file(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "run", [hostile_episode(n, text) for n, text in enumerate(ATTACKS)])]
    write_report(runs, tmp_path / "report.html", title="".join(ATTACKS))
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not REORDERING.search(source) and "\u2028" not in source.split("<title>")[1].split("</title>")[1]
    assert "[U+202E]right to left" in source and "[U+2067]isolated" in source
