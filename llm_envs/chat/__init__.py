"""Messages to token ids and back: the codec, the capabilities of chat templates, the text between turns."""

from __future__ import annotations

from llm_envs.chat.codec import ChatCodec
from llm_envs.chat.context import create_window, observed_messages, render_reply, with_call_ids
from llm_envs.chat.summarize import Summarize

__all__ = [
    "ChatCodec",
    "Summarize",
    "create_window",
    "observed_messages",
    "render_reply",
    "with_call_ids",
]
