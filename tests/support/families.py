"""A tokenizer for every chat template that TRL ships: byte-level, with the special tokens of the template's family."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, PreTrainedTokenizerBase, PreTrainedTokenizerFast

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
"""A tool's schema, for prompts."""
THINK = ("<think>", "</think>")
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


class Family(NamedTuple):
    special: tuple[str, ...]
    """Tokens that the family's tokenizer calls special."""
    added: tuple[str, ...] = ()
    """Added tokens that it does not."""
    eos: str = ""
    bos: str | None = None


def _pipes(*names: str) -> tuple[str, ...]:
    return tuple(f"<|{name}|>" for name in names)


QWEN = Family(
    _pipes("endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad"),
    (*THINK, *TOOL_TAGS),
    "<|im_end|>",
)
DEEPSEEK = Family(
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),  # noqa: RUF001 - DeepSeek's own characters
    (
        "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",  # noqa: RUF001
        "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>",  # noqa: RUF001
        "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", *THINK,  # noqa: RUF001
    ),
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "<｜begin▁of▁sentence｜>",  # noqa: RUF001
)  # fmt: skip
GEMMA = Family(("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), (), "<eos>", "<bos>")
GEMMA_4 = Family(
    ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>',
     "<|tool_response>", "<tool_response|>", "<|tool>", "<tool|>", "<|think|>"),
    (), "<eos>", "<bos>",
)  # fmt: skip
FAMILIES: dict[str, Family] = {
    "cohere": Family(
        ("<BOS_TOKEN>", *_pipes("START_OF_TURN_TOKEN", "END_OF_TURN_TOKEN", "SYSTEM_TOKEN", "USER_TOKEN",
                                "CHATBOT_TOKEN", "START_RESPONSE", "END_RESPONSE", "START_THINKING", "END_THINKING",
                                "START_ACTION",
                                "END_ACTION")),
        (), "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>",
    ),
    "deepseek": DEEPSEEK,
    "diffusion_gemma": GEMMA_4,
    "gemma4": GEMMA_4,
    "gemma": GEMMA,
    "glm4moe": Family(
        ("[gMASK]", "<sop>", *_pipes("endoftext", "system", "user", "assistant", "observation")),
        (*THINK, *TOOL_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), "<|endoftext|>",
    ),
    "gptoss": Family(
        _pipes("startoftext", "endoftext", "start", "end", "message", "channel", "constrain", "call", "return"),
        (), "<|return|>", "<|startoftext|>",
    ),
    "idefics3": Family(
        ("<|begin_of_text|>", "<|end_of_text|>", "<end_of_utterance>", "<image>"), (), "<end_of_utterance>"
    ),
    "smolvlm": Family(("<|im_start|>", "<|im_end|>", "<end_of_utterance>", "<image>"), (), "<end_of_utterance>"),
    "lfm2": Family(
        ("<|startoftext|>", *_pipes("pad", "endoftext", "im_start", "im_end", "tool_list_start", "tool_list_end",
                                    "tool_call_start", "tool_call_end", "tool_response_start", "tool_response_end")),
        THINK, "<|im_end|>", "<|startoftext|>",
    ),
    "llama3": Family(
        _pipes("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag"),
        (), "<|eot_id|>", "<|begin_of_text|>",
    ),
    "llava_next": Family(("<s>", "</s>", "<unk>"), ("<image>",), "</s>", "<s>"),
    "muse_glimmer": Family(
        _pipes("begin_of_text", "start", "message", "eot", "eom", "patch"), (), "<|eot|>", "<|begin_of_text|>"
    ),
    "nemotron": QWEN,
    "phi3": Family(("<s>", *_pipes("endoftext", "system", "user", "assistant", "end")), (), "<|endoftext|>", "<s>"),
    "qwen": QWEN,
}  # fmt: skip

CORPUS = ['The user\'s tool returned {"value": 12}\n\nThe answer is\n\n the following.\n'] * 4 + [
    "  \n\t 12.5 + 3 = 15.5"
]


def family_of(name: str) -> Family:
    """Return the family of a template: the longest name that its file name begins with."""
    return FAMILIES[max((prefix for prefix in FAMILIES if name.startswith(prefix)), key=len)]


def template_text(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def byte_level() -> Tokenizer:
    """Return a byte-level tokenizer without special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _marks_spaces() -> Tokenizer:
    """Return a tokenizer in the manner of SentencePiece: a mark for each space and for the start of the text."""
    pieces = (
        [f"<0x{byte:02X}>" for byte in range(256)] + [chr(code) for code in range(33, 127)] + ["▁", "▁a", "an", "▁\n"]
    )
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("a", "n")], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@cache
def family_tokenizer(name: str, *, metaspace: bool = False) -> PreTrainedTokenizerBase:
    """Return a tokenizer with the template of that name; with `metaspace` one that marks a space at a text's start."""
    family = family_of(name)
    tokenizer = _marks_spaces() if metaspace else byte_level()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=family.eos, bos_token=family.bos)
    fast.add_tokens([AddedToken(text, special=True, normalized=False) for text in family.special], special_tokens=True)
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.added])
    fast.chat_template = template_text(name)
    return fast
