"""Compare `ChatCodec` and `parse_reply` with the library `renderers`, on generated conversations.

    PYTHONPATH=.:tests/support .venv-verifiers/bin/python benchmarks/renderers_trial.py [--templates FOLDER]

For every family that `renderers` knows and whose chat template is here: TRL's templates, and with `--templates` those
of a folder, such as `vendor/llama.cpp/models/templates` in PyPI's source archive of llama-cpp-python. The tokenizers
are byte-level, with the family's special tokens. A conversation has up to 8 turns: answers, thinking, one or two calls
with arguments of every JSON type, empty results, results that quote markers, turns that a token limit cut. It counts:

| count | the question |
|---|---|
| prompt | does the first prompt have equal ids |
| turn | does the text between two turns: `encode_delta` against `bridge_to_next_turn` (`thinking_retention="all"`) |
| cut | the same after a turn without its end |
| forged | how often a quoted marker became a special token of the model |
| reply | does the reply that was written come back from `parse_reply`, and from `parse_response` |
| cut reply | how many calls come back from a reply that was cut |
| served | are the first prompt, the turns and an oracle's words of `ChatCodec(renderer=NAME)` the template's |

Where two differ, the one is right that has the text of the model's own template, encoded in one piece.
"""

from __future__ import annotations

import argparse
import json
import random
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from families import LOOK_UP, NAMES, family_tokenizer
from renderers import config_from_name, create_renderer
from transformers import AddedToken

from llm_envs.chat import ChatCodec
from llm_envs.errors import ModelError
from llm_envs.parsers import FORMATTERS, parse_reply
from llm_envs.types import Message, ToolCall


class Pair(NamedTuple):
    template: str
    """A template of TRL, or a file of the folder."""
    renderer: str
    model: str = ""
    """The name on the hub, where the renderer decides by it."""


PAIRS = [
    Pair("deepseek_r1_distill", "deepseek-r1"),
    Pair("deepseekv3", "deepseek-v3"),
    *(Pair(f"gemma4{version}", "gemma4") for version in ("", "_v2", "_v3", "_v4", "_v5")),
    Pair("glm4moe", "glm-4.5"),
    Pair("gptoss", "gpt-oss"),
    Pair("llama3_1", "llama-3"),
    Pair("llama3_2", "llama-3"),
    Pair("nemotron_3_nano", "nemotron-3"),
    Pair("nemotron_3_super", "nemotron-3", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
    Pair("nemotron_3_ultra", "nemotron-3-ultra"),
    Pair("nemotron_3_5_lightning", "nemotron-3.5"),
    Pair("qwen3", "qwen3"),
    Pair("qwen3_instruct_2507", "qwen3"),
    Pair("qwen3_vl", "qwen3-vl"),
    Pair("qwen3_5_think", "qwen3.5"),
    Pair("qwen3_5_nothink", "qwen3.5", "Qwen/Qwen3.5-0.8B"),
    Pair("qwen3_6", "qwen3.6"),
    Pair("qwen3_8", "qwen3.8"),
    Pair("GLM-4.7-Flash", "glm-5"),
    Pair("moonshotai-Kimi-K2", "kimi-k2"),
    Pair("MiniMax-M2", "minimax-m2"),
    Pair("deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek-v4"),
    Pair("poolside-Laguna-XS.2", "laguna-xs.2"),
    Pair("poolside-Laguna-XS-2.1", "laguna-xs-2.1"),
    Pair("poolside-Laguna-S-2.1", "laguna-s-2.1"),
    Pair("tencent-Hy3", "hy3"),
]
TOOLS = [
    LOOK_UP,
    {
        "type": "function",
        "function": {
            "name": "note",
            "description": "Take a note.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "flag": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "more": {"type": "object"},
                },
                "required": ["text"],
            },
        },
    },
]
WORDS = [
    "Four.",
    "It's 12, isn't it?",
    "a\n\nb",
    "naïve — 東京 🙂",
    "x < y > z",
    '{"value": 12}',
    "line 1\nline 2",
    "def f(x):\n    return [x]",
]
THOUGHTS = ["I look it up.", "2 + 2 = 4\n\nso it is 4", "naïve 🙂"]


class Reply(NamedTuple):
    thinking: str | None
    content: str
    calls: tuple[ToolCall, ...]

    def text(self) -> str:
        """Return the reply in the canonical form."""
        thinking = "" if self.thinking is None else f"<think>\n{self.thinking}\n</think>\n\n"
        return (
            thinking + self.content + ("\n" if self.content and self.calls else "") + FORMATTERS["hermes"](self.calls)
        )

    def message(self) -> Message:
        metadata = {} if self.thinking is None else {"reasoning_content": self.thinking, "thinking": self.thinking}
        return Message("assistant", self.content, self.calls, metadata=metadata)


@dataclass
class Counts:
    """The counts of one family, and the first example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, outcome: str, example: object = "") -> None:
        self.counts[f"{what}: {outcome}"] += 1
        self.examples.setdefault(f"{what}: {outcome}", str(example))


def make_call(rng: random.Random, n: int) -> ToolCall:
    if rng.random() < 0.5:
        return ToolCall("look_up", {"x": rng.choice([*WORDS, "12", "true", "null", ""])}, f"functions.look_up:{n}")
    optional: dict[str, Any] = {
        "count": rng.choice([0, 12, -3]),
        "flag": rng.random() < 0.5,
        "tags": ["a", "b"],
        "more": {"a": [1, 2.5, None]},
    }
    kept = {name: value for name, value in optional.items() if rng.random() < 0.5}
    return ToolCall("note", {"text": rng.choice(WORDS), **kept}, f"functions.note:{n}")


def make_reply(rng: random.Random, n_calls_so_far: int, thinks: bool, several: bool) -> Reply:
    n_calls = rng.choice([0, 1, 1, 2] if several else [0, 1, 1])
    calls = tuple(make_call(rng, n_calls_so_far + i) for i in range(n_calls))
    content = rng.choice(WORDS) if not calls or rng.random() < 0.3 else ""
    return Reply(rng.choice(THOUGHTS) if thinks and rng.random() < 0.5 else None, content, calls)


def make_answer(rng: random.Random, reply: Reply, quoted: str) -> list[Message]:
    """Return the environment's messages: a result for each call, or a user's words."""
    results = ["", " 12 ", *WORDS, "null", "Error: no such page"]
    said = [quoted] if quoted else (results if reply.calls else WORDS)
    if not reply.calls:
        return [Message("user", rng.choice(said))]
    return [Message("tool", rng.choice(said), tool_call_id=c.id, metadata={"name": c.name}) for c in reply.calls]


def as_dict(message: Message) -> dict[str, Any]:
    out = message.to_dict()
    metadata = out.pop("metadata", {})
    return out | {key: metadata[key] for key in ("name", "reasoning_content") if key in metadata}


class Wanted:
    """A tokenizer that records the markers that a renderer asks for."""

    name_or_path, unk_token_id, eos_token_id, bos_token_id, chat_template = "", None, 0, None, ""

    def __init__(self) -> None:
        self.markers: list[str] = []

    def convert_tokens_to_ids(self, token: str) -> int:
        self.markers.append(token)
        return 100_000 + len(self.markers)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self.convert_tokens_to_ids(text)] if text.strip() and len(text) < 60 else [ord(c) for c in text]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return ""


def tokenizer_of(pair: Pair, folder: Path | None) -> Any:
    """Return the byte-level tokenizer of a pair, with the renderer's markers; None without a template."""
    if pair.template in NAMES:
        tokenizer = deepcopy(family_tokenizer(pair.template))
    elif folder is not None and (path := folder / f"{pair.template}.jinja").exists():
        tokenizer = deepcopy(family_tokenizer("qwen3"))
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    else:
        return None
    wanted = Wanted()
    create_renderer(wanted, config_from_name(pair.renderer))
    known = {token.content for token in tokenizer.added_tokens_decoder.values()}
    for m in dict.fromkeys(wanted.markers):
        if m not in known and not m.strip().isalnum() and m.strip() == m != "":
            is_special = "｜" in m or "|" in m or m[0] in "[]〈" or m in ("<image>", "<assistant>", "</assistant>")  # noqa: RUF001
            tokenizer.add_tokens([AddedToken(m, special=is_special, normalized=False)], special_tokens=is_special)
    if pair.template not in NAMES:
        ends = {  # DeepSeek's and Hunyuan's own characters
            "deepseek-v4": "<｜end▁of▁sentence｜>",  # noqa: RUF001
            "hy3": "<｜hy_eos:opensource｜>",  # noqa: RUF001
            "minimax-m2": "[e~[",
            "glm-5": "<|user|>",
        }
        tokenizer.eos_token = ends.get(pair.renderer, "〈|EOS|〉" if "laguna" in pair.renderer else "<|im_end|>")
        starts = {"deepseek-v4": "<｜begin▁of▁sentence｜>", "hy3": "<｜hy_begin_of_sentence:opensource｜>"}  # noqa: RUF001
        tokenizer.bos_token = starts.get(pair.renderer)
    tokenizer.name_or_path = pair.model
    return tokenizer


def specials(codec: ChatCodec, ids: Sequence[int]) -> list[int]:
    return [i for i in ids if i in codec.tokenizer.added_tokens_decoder]


def harmless(messages: Sequence[Message]) -> list[Message]:
    return [replace(m, content="x") if m.role in ("user", "tool") else m for m in messages]


class Trial:
    """One family: our codec, their renderer, and the counts."""

    def __init__(self, pair: Pair, tokenizer: Any) -> None:
        self.codec = ChatCodec(tokenizer, renderer="template")
        self.default = create_renderer(tokenizer, config_from_name(pair.renderer))
        self.renderer = create_renderer(tokenizer, type(self.default.config)(thinking_retention="all"))
        self.served = ChatCodec(tokenizer, renderer=pair.renderer)
        self.tokenizer = tokenizer
        self.found = Counts()
        added = tokenizer.added_tokens_decoder
        self.markers = " ".join(added[i].content for i in sorted(added))
        self.is_thinking = self.writes(Reply("I think.", "Four.", ()))
        calls = tuple(make_call(random.Random(seed), seed) for seed in range(2))
        self.several = self.writes(Reply(None, "", calls))

    def writes(self, reply: Reply) -> bool:
        """Return whether the template writes such a reply, in its last turn, with all of its parts."""
        try:
            self.codec.encode_reply(reply.text())
            text = self.codec.template.render([Message("user", "x"), reply.message()], generation_prompt=False)
        except ModelError:
            return False
        return all(part in text for part in [reply.thinking or "", reply.content, *(c.name for c in reply.calls)])

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return their first prompt."""
        shown = [as_dict(message) for message in messages]
        return list(self.renderer.render_ids(shown, tools=TOOLS, add_generation_prompt=True))

    def bridge(self, renderer: Any, prompt: list[int], reply: list[int], new: Sequence[Message]) -> list[int] | None:
        """Return their ids behind the reply; None if the renderer asks for a new rendering."""
        bridged = renderer.bridge_to_next_turn(prompt, reply, [as_dict(m) for m in new], tools=TOOLS)
        before = prompt + reply
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def play(self, rng: random.Random, kind: str) -> None:
        """Play one conversation: "plain", "quoted" (the environment quotes all markers) or "cut"."""
        codec = self.codec
        quote = f"a {self.markers} b" if kind == "quoted" else ""
        messages = [Message("system", "Be brief."), Message("user", quote or rng.choice(WORDS))]
        if rng.random() < 0.3:
            messages = messages[1:]
        start = codec.start_of(messages, TOOLS)
        prompt = codec.encode_prompt(messages, TOOLS).tolist()
        self.compare_prompt(messages, prompt, kind)
        n_calls = 0
        for _ in range(rng.randint(1, 8)):
            reply = make_reply(rng, n_calls, self.is_thinking, self.several)
            n_calls += len(reply.calls)
            ids = codec.encode_reply(reply.text()).tolist()
            if kind == "plain":
                self.compare_reply(prompt, ids, reply)
                is_same = self.served.encode_reply(reply.text()).tolist() == ids
                self.found.add("served words", "right" if is_same else "other")
            if kind == "cut":
                ids = ids[: rng.randint(1, len(ids) - 1)]
                self.compare_cut_reply(prompt, ids)
            new = make_answer(rng, reply, quote)
            ours, plain, served, served_plain = (
                by.encode_delta(said, reply_ids=np.array(ids, np.int32), start=start).tolist()
                for by in (codec, self.served)
                for said in (new, harmless(new))
            )
            messages += [reply.message(), *new]
            if kind == "quoted":
                theirs = self.bridge(self.renderer, prompt, ids, new)
                if theirs is not None:
                    self.count_forged(theirs, self.bridge(self.renderer, prompt, ids, harmless(new)) or [], "them")
                self.count_forged(ours, plain, "us")
                self.count_forged(served, served_plain, "us, served")
            elif kind == "cut":  # no template has a form for an open thought in the middle, so this is the end
                self.compare_cut(prompt, ids, new, ours)
                return
            else:
                self.compare_turn(messages, new, prompt, ids, ours)
                self.found.add("served turn", "right" if self.is_right(messages, ids, served) else "other")
            prompt = prompt + ids + ours

    def count_forged(self, ids: list[int], plain: list[int], by: str) -> None:
        is_forged = specials(self.codec, ids) != specials(self.codec, plain)
        self.found.add("forged", f"by {by}" if is_forged else f"not by {by}")

    def compare_prompt(self, messages: list[Message], ours: list[int], kind: str) -> None:
        theirs, served = self.prompt(messages), self.served.encode_prompt(messages, TOOLS).tolist()
        if kind == "quoted":
            plain = self.codec.encode_prompt(harmless(messages), TOOLS).tolist()
            self.count_forged(theirs, self.prompt(harmless(messages)), "them")
            self.count_forged(ours, plain, "us")
            self.count_forged(served, self.served.encode_prompt(harmless(messages), TOOLS).tolist(), "us, served")
            return
        right = self.tokenizer.encode(self.codec.template.render(messages, TOOLS), add_special_tokens=False)
        self.judge("prompt", ours, theirs, ours == right, theirs == right)
        self.found.add("served prompt", "right" if served == right else "other")

    def judge(self, what: str, ours: list[int], theirs: list[int], is_ours: bool, is_theirs: bool) -> None:
        """Count who is right, and keep the first example."""
        mine, other = self.tokenizer.decode(ours), self.tokenizer.decode(theirs)
        if ours == theirs:
            outcome = "equal" if is_ours else "equal, and not the template's"
        else:
            right = {(True, False): "ours is right", (False, True): "theirs is right"}
            outcome = right.get((is_ours, is_theirs), "neither is right") + ("; same text" if mine == other else "")
        self.found.add(what, outcome, f"\nOURS {_tail(mine, other)!r}\nTHEIRS {_tail(other, mine)!r}")

    def compare_turn(
        self, messages: list[Message], new: list[Message], prompt: list[int], ids: list[int], ours: list[int]
    ) -> None:
        default = self.bridge(self.default, prompt, ids, new)
        role = "a tool" if new[0].role == "tool" else "a user"
        self.found.add(f"default bridge after {role}", "none" if default is None else "some")
        theirs = self.bridge(self.renderer, prompt, ids, new)
        if theirs is None:
            self.found.add("turn", "they return none", f"{self.tokenizer.decode(ids)!r} then {new}")
        else:
            self.judge("turn", ours, theirs, self.is_right(messages, ids, ours), self.is_right(messages, ids, theirs))

    def is_right(self, messages: list[Message], ids: list[int], delta: list[int]) -> bool:
        """Return whether the template writes this text behind the turn, and encodes it to these ids."""
        whole = self.codec.template.render(messages, TOOLS)
        text, end = self.tokenizer.decode(delta), self.tokenizer.decode(ids[-1:])
        encoded = self.tokenizer.encode(end + text, add_special_tokens=False)
        before = whole[: len(whole) - len(text)]
        return whole.endswith(text) and before.endswith(end) and encoded[1:] == delta

    def compare_cut(self, prompt: list[int], ids: list[int], new: list[Message], ours: list[int]) -> None:
        theirs = self.bridge(self.renderer, prompt, ids, new)
        decode = self.tokenizer.decode
        if theirs is None:
            outcome = "they return none"
        else:
            first = decode(theirs[:1])
            outcome = "equal" if ours == theirs else f"differs: they begin with {first}, we with {decode(ours[:1])}"
        self.found.add("cut", outcome, f"{decode(ids)!r}\nOURS {decode(ours)!r}\nTHEIRS {decode(theirs or [])!r}")

    def compare_reply(self, prompt: list[int], ids: list[int], reply: Reply) -> None:
        written = self.tokenizer.decode(ids)
        # A prompt may have closed the thought, and some templates have no place for words next to a call.
        thinking = reply.thinking if reply.thinking is not None and reply.thinking in written else None
        wanted = _read(thinking, reply.content if reply.content in written else "", reply.calls)
        mine = parse_reply(self.codec.decode_reply(np.array(ids, np.int32)))
        served = parse_reply(self.served.decode_reply(np.array(ids, np.int32)))
        theirs = self.renderer.parse_response(ids, tools=TOOLS, prompt_ids=prompt)
        calls = [call for call in theirs.tool_calls if call.status == "ok"]
        for by, read in (
            ("us", _read(mine.thinking, mine.content, mine.tool_calls)),
            ("us, served", _read(served.thinking, served.content, served.tool_calls)),
            ("them", _read(theirs.reasoning_content, theirs.content, calls)),
        ):
            outcome = "read" if read == wanted else "read, but a type" if _loose(read) == _loose(wanted) else "not read"
            self.found.add("reply", f"{outcome} by {by}", f"{written!r} -> {read}")

    def compare_cut_reply(self, prompt: list[int], ids: list[int]) -> None:
        mine = parse_reply(self.codec.decode_reply(np.array(ids, np.int32)))
        parsed = self.renderer.parse_response(ids, tools=TOOLS, prompt_ids=prompt)
        theirs = [call for call in parsed.tool_calls if call.status == "ok"]
        outcome = f"{len(mine.tool_calls)} calls by us, {len(theirs)} by them"
        self.found.add("cut reply", outcome, f"{self.tokenizer.decode(ids)!r} -> {mine} {parsed}")


def _read(thinking: str | None, content: str, calls: Sequence[Any]) -> tuple[Any, ...]:
    return (thinking or "").strip(), content.strip(), [(call.name, call.arguments) for call in calls]


def _loose(value: Any) -> Any:
    """Return a value in which a string that spells another value of JSON or Python is that value."""
    if isinstance(value, str):
        try:
            return json.loads({"None": "null", "True": "true", "False": "false"}.get(value, value))
        except ValueError:
            return value
    if isinstance(value, Mapping):
        return {key: _loose(item) for key, item in value.items()}
    return [_loose(item) for item in value] if isinstance(value, list | tuple) else value


def _tail(text: str, other: str) -> str:
    """Return a text from a little before the first difference."""
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return text[max(0, at - 40) : at + 160]


def try_pair(pair: Pair, folder: Path | None, n: int) -> dict[str, Any] | None:
    try:
        tokenizer = tokenizer_of(pair, folder)
        if tokenizer is None:
            return None
        trial = Trial(pair, tokenizer)
    except Exception as error:  # a family that one of the two cannot serve at all
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    for seed in range(n):
        for kind in ("plain", "quoted", "cut"):
            try:
                trial.play(random.Random(seed), kind)
            except Exception as error:  # a renderer raises what it likes
                trial.found.add(kind, f"raises {type(error).__name__}", error)
    return {"counts": dict(sorted(trial.found.counts.items())), "examples": trial.found.examples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=Path, help="a folder with further chat templates")
    parser.add_argument("--conversations", type=int, default=40, help="of each of three kinds, for each family")
    parser.add_argument("--only", help="one template's name")
    parser.add_argument("--json", type=Path, help="write everything, with examples, to this file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    for pair in PAIRS:
        if args.only in (None, pair.template):
            found = try_pair(pair, args.templates, args.conversations)
            if found is not None:
                results[f"{pair.template} / {pair.renderer}"] = found
                print(f"{pair.template} / {pair.renderer}: {found.get('error') or found['counts']}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
