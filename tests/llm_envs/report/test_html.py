from __future__ import annotations

import html.parser
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llm_envs.report import write_episode_page
from llm_envs.types import Message, RolloutError, Row, StopReason, ToolCall, ToolResult, Trajectory, Turn

ATTACK = """<script>alert("x")</script><img src=x onerror='alert(1)'>"></div></textarea>{{ 7*7 }}{% raw %}&lt;"""


class Page(html.parser.HTMLParser):
    """What a browser would see: tags, attributes, and the text with entities resolved."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def trajectory(text: str, **changes: object) -> Trajectory:
    row = Row(
        ids=np.array([5, 6, 7, 8], np.int32),
        mask=np.array([False, True, True, False]),
        logps=np.array([0, -0.25, -1.5, 0], np.float32),
        spans=((1, 3),),
    )
    result = ToolResult(text, {"expression": text}, text, success=False, error=text)
    values = {
        "env_id": f"llm/{text}",
        "env_kwargs": {"difficulty": text},
        "seed": 3,
        "group_id": "g",
        "member": 0,
        "messages": (
            Message("system", text),
            Message("user", text),
            Message("assistant", f"<think>{text}</think><tool_call>{text}</tool_call>", (ToolCall(text, {"a": text}),)),
            Message("tool", text),
        ),
        "tools": ({"type": "function", "function": {"name": text, "description": text}},),
        "rows": (row,),
        "turns": (Turn(0.75, {text: 1.0, "step_cost": -0.25}, row=0, span=0, tool_results=(result,)),),
        "terminated": True,
        "truncated": False,
        "stop_reason": StopReason.TERMINATED,
        "status": "ok",
        "is_success": True,
    }
    return Trajectory(**(values | changes))  # type: ignore[arg-type]


def write(tmp_path: Path, *trajectories: Trajectory, **options: object) -> str:
    path = write_episode_page(tmp_path / "new" / "page.html", {"Before": trajectories}, **options)  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


def test_nothing_that_an_episode_holds_becomes_markup(tmp_path: Path) -> None:
    error = RolloutError(ATTACK, ATTACK, ATTACK)
    hostile = [trajectory(ATTACK), trajectory(ATTACK, status="errored", error=error, is_success=None)]
    path = write_episode_page(tmp_path / "page.html", {ATTACK: hostile}, title=ATTACK, decode_token=lambda _: ATTACK)
    page = Page(path.read_text(encoding="utf-8"))
    harmless = Page(
        write(tmp_path, trajectory("a"), trajectory("a", status="errored", error=RolloutError("a", "a", "a")))
    )
    assert page.tags == harmless.tags
    assert page.open == harmless.open == []
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    # Shown as written: title (twice), heading (twice), and per episode id, settings, four messages' five texts, ...
    assert page.text.count(ATTACK) > 30


def test_the_page_asks_for_nothing_and_runs_nothing(tmp_path: Path) -> None:
    page = Page(write(tmp_path, trajectory("a")))
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href") and not str(value).startswith("#")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_a_conversation_is_readable(tmp_path: Path) -> None:
    page = Page(write(tmp_path, trajectory("37*24"), decode_token=lambda token: f"<{token}>"))
    shown = " ".join(page.text.split())
    for expected in ("1 episode, success 100%, mean reward 0.75", "reward +0.75", "step_cost -0.25", "seed 3"):
        assert expected in shown
    for role in ("system", "user", "assistant", "tool"):
        assert ("class", f"bubble {role}") in page.attributes
    assert "<tool_call>37*24</tool_call>" in page.text
    assert "4 tokens, of which 2 written by the model" in shown


def test_the_mask_colours_exactly_what_was_sampled(tmp_path: Path) -> None:
    source = write(tmp_path, trajectory("a"), decode_token=lambda token: f"t{token}")
    view = source[source.index('<div class="tokens">') :].split("</div>")[0]
    first, sampled, last = view.split("<span")[1:]
    assert ("given" in first, "sampled" in sampled, "given" in last) == (True, True, True)
    assert ("t5" in first, "t6" in sampled, "t7" in sampled, "t8" in last) == (True, True, True, True)
    assert 'title="token 2, id 7, log-probability -1.500"' in sampled
    assert "log-probability" not in first + last


def test_what_a_browser_would_hide_or_obey_is_visible(tmp_path: Path) -> None:
    source = write(tmp_path, trajectory("a\x00b\x1bc\u202ed\ud800e"))
    assert "a\u2400b\u241bc[U+202E]d\\ud800e" in source
    assert "\u202e" not in source


def test_an_episode_that_errored_is_no_failure_of_the_model(tmp_path: Path) -> None:
    error = RolloutError("TimeoutError", "the tool hung", "env.step")
    source = write(tmp_path, trajectory("a", status="errored", error=error, is_success=None))
    shown = " ".join(Page(source).text.split())
    assert "1 without a score" in shown
    assert "env.step: TimeoutError: the tool hung" in shown
    assert "success 0%" not in shown


def test_without_jinja2_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['jinja2'] = None; sys.modules['matplotlib'] = None\n"
        "from llm_envs.errors import MissingExtraError\n"
        "from llm_envs.report import plot_training_curves, write_episode_page\n"
        "for call, *arguments in ((write_episode_page, 'x', {}), (plot_training_curves, [{'step': 0, 'a': 1}], 'x')):\n"
        "    try:\n"
        "        call(*arguments)\n"
        "    except MissingExtraError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'llm-envs[report]'") == 2


@pytest.mark.parametrize("length", [4000, 4001])
def test_the_token_view_says_when_it_stops(tmp_path: Path, length: int) -> None:
    row = Row(
        np.arange(length, dtype=np.int32), np.ones(length, np.bool_), np.zeros(length, np.float32), ((0, length),)
    )
    source = write(tmp_path, trajectory("a", rows=(row,)))
    assert source.count("<i ") == 4000
    assert ("The first 4000 are shown" in source) == (length == 4001)
