"""What a turn costs to encode: the codec's delta against the chat template applied anew to the whole conversation.

    python benchmarks/codec_turns.py [--check] [--out FILE]

A conversation of 8, 16, 32 and 64 turns, each a call and a tool's result of about 200 characters. The codec encodes
what the environment said; the other way renders and tokenises everything before every turn, as a client of a chat
server does. Each number is the CPU time of one whole conversation, the median of seven, the two ways by turns. `growth`
is the time for twice the turns over the time for once: 2 is linear, 4 quadratic. With `--check` the exit code is 1 if
the codec grows by more than 2.5 from 32 to 64 turns, or is not at least 5 times as fast there.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import Column, Figure, Report, finish, make_parser

from llm_envs.chat import ChatCodec
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import Message

TURNS = (8, 16, 32, 64)
ROUNDS = 7
MAX_GROWTH = 2.5
MIN_SPEEDUP = 5.0
METHOD = (
    "The CPU time to encode one whole conversation of a call and a result of about 200 characters a turn (median of "
    "seven, the two ways by turns). *Template* applies the chat template to all messages before each turn. Growth is "
    "against half the turns: 2 is linear, 4 quadratic. Both include the first prompt."
)
COLUMNS = [
    Column("turns", "turns"),
    Column("tokens", "tokens", ",d"),
    Column("delta_ms", "codec, ms", ".2f"),
    Column("delta_growth", "growth", ".2f"),
    Column("template_ms", "template, ms", ".2f"),
    Column("template_growth", "growth", ".2f"),
    Column("speedup", "times as fast", ".1f"),
]
START = [Message("system", "Use the tool."), Message("user", "How many are there?")]
CALL = Message("assistant", '<tool_call>\n{"name": "look_up", "arguments": {"page": 12}}\n</tool_call>')
WORDS = "The page says: of the 4,812 entries that were counted in the first half of the year, 1,377 were returned. "


def result(turn: int) -> Message:
    return Message("tool", f"{turn}: {WORDS * 2}", metadata={"name": "look_up"})


def by_delta(codec: ChatCodec, n_turns: int) -> int:
    """Encode a conversation as a rollout does; return its tokens (the replies are the sampler's, and cost nothing)."""
    reply = np.array([codec.end_of_turn_id], dtype=np.int32)
    n_tokens = len(codec.encode_prompt(START))
    for turn in range(n_turns):
        n_tokens += len(codec.encode_delta([result(turn)], reply_ids=reply))
    return n_tokens


def by_template(codec: ChatCodec, n_turns: int) -> int:
    """Encode the same by applying the chat template to all messages before each turn."""
    messages, n_tokens = list(START), 0
    for turn in range(n_turns + 1):
        ids = codec.tokenizer.apply_chat_template(
            [message.to_dict() for message in messages], add_generation_prompt=True, return_dict=False
        )
        n_tokens = len(ids)
        messages += [CALL, result(turn)]
    return n_tokens


def measure(codec: ChatCodec) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for n_turns in TURNS:
        times: dict[str, list[float]] = {"delta": [], "template": []}
        for _ in range(ROUNDS):
            for name, way in (("delta", by_delta), ("template", by_template)):
                times[name].append(timed(lambda way=way, n_turns=n_turns: way(codec, n_turns)))
        row: dict[str, Any] = {"turns": n_turns, "tokens": by_template(codec, n_turns)}
        for name, seconds in times.items():
            row[f"{name}_ms"] = round(1e3 * statistics.median(seconds), 2)
            row[f"{name}_growth"] = round(row[f"{name}_ms"] / rows[-1][f"{name}_ms"], 2) if rows else None
        row["speedup"] = round(row["template_ms"] / row["delta_ms"], 1)
        rows.append(row)
    return rows


def timed(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> int:
    options = make_parser(__file__, __doc__).parse_args()
    codec = ChatCodec(tiny_tokenizer([WORDS] * 4, vocab_size=500))
    by_delta(codec, 2)  # finds out the shape, once
    rows = measure(codec)
    last = rows[-1]
    figures = [
        Figure("codec, growth from 32 to 64 turns", last["delta_growth"], better="lower", at_most=MAX_GROWTH),
        Figure("codec over template at 64 turns", last["speedup"], "times as fast", at_least=MIN_SPEEDUP),
    ]
    return finish(Report("codec_turns", "A turn costs its new tokens", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
