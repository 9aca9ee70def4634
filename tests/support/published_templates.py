# ruff: noqa: RUF001 - the wide bars are the families' own
"""The chat templates that `proof/templates.py` fetches, each with a byte-level tokenizer that has its markers."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from families import byte_level
from transformers import AddedToken, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from llm_envs.chat import ChatCodec

FOLDER = Path(os.environ.get("LLM_ENVS_TEMPLATES") or "build/templates")
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.jinja"))
SPECIAL = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|<\|[a-z_]+>|<[a-z_]+\|>|\[/?[A-Z_]{3,25}\]|\[\|[a-z]+\|\]|</?s>"
    r"|<[a-z]+:(?:bos|eos)>|<(?:bos|eos|start_of_turn|end_of_turn|sop|end_of_msg|sep|SPECIAL_\d+)>"
    r"|<(?:end|beginning)_of_sentence>|\[gMASK\]|\]~!?b\]|\[e~\[|</?(?:assistant|user|system)>"
)
"""Texts in a template that are special tokens of its family."""
ADDED = re.compile(
    r"</?(?:think|tool_call|tool_response|arg_key|arg_value|seed:think|seed:tool_call|minimax:tool_call)>"
)
HUNYUAN_3 = tuple(f"<｜hy_{name}:opensource｜>" for name in ("bos", "eos", "User", "Assistant"))
ENDS = re.compile(
    r"im_end|eot|end_of_turn|END_OF_TURN|end▁of▁sentence|:eos|</s>|\[e~\[|end_of_text|<\|end\|>|endoftext|<eos>|return"
    r"|assistant_end|end_of_msg|endofturn|hy_eos|end_of_sentence|SPECIAL_12|</assistant>|<sep>"
)
REFUSED = {
    "llama.cpp/llama-cpp-rwkv-world": "has no special token",  # its roles are plain text
    "axolotl/llava": "has no special token",
    "llama.cpp/CohereForAI-c4ai-command-r-plus-tool_use": "NoneType",  # it needs tools in every prompt
    "llama.cpp/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "NoneType",
    "llama.cpp/NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "NoneType",
    "llama.cpp/fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",  # tools under another name
}
"""Templates that no codec serves -> a part of the error."""
UNREADABLE = {
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use": "it begins the next turn without being asked to",
    "llama.cpp/GigaChat3-10B-A1.8B": "calls are turns of another role; version 3.1 has a marker",
    "llama.cpp/MiniMax-M3": "nested tags for nested arguments",
    "llama.cpp/upstage-Solar-Open-100B": "a format that only Solar has",
    "llama.cpp/meetkai-functionary-medium-v3.1": "<function=name>{...}</function> without a tag around it",
    "llama.cpp/meetkai-functionary-medium-v3.2": ">>>name and JSON, without a closing tag",
}
"""Templates with calls that no parser reads -> the reason."""
ONE_CALL_A_TURN = ("llama.cpp/GigaChat3.1-10B-A1.8B", "llama.cpp/openai-gpt-oss-120b")


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """Return a byte-level tokenizer with the markers that a template names."""
    text = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    special = sorted({*SPECIAL.findall(text), *(HUNYUAN_3 if "HYTK" in text else ())})
    ends = [marker for marker in special if ENDS.search(marker)]
    bos = next((marker for marker in special if re.search(r"begin|bos|<s>", marker)), "<s>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token=ends[0] if ends else "<|endoftext|>", bos_token=bos
    )
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in special], special_tokens=True)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in sorted(set(ADDED.findall(text)))])
    tokenizer.chat_template = text
    return tokenizer


@cache
def codec_of(name: str) -> ChatCodec:
    return ChatCodec(tokenizer_of(name))


SERVED = [name for name in NAMES if name not in REFUSED]
