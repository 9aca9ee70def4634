"""Reads a reply with tags in one pass, for every format that puts its calls between tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from llm_envs.parsers.deepseek import END_OF_SENTENCE
from llm_envs.parsers.json_calls import Calls, Document, skip_space
from llm_envs.parsers.reply import MAX_PROBLEMS, BrokenCallError, Draft, ParsedReply
from llm_envs.types import ToolCall

__all__ = [
    "RESPONSE",
    "THINK",
    "Block",
    "ReplyGrammar",
    "Thinking",
    "Whole",
    "calls_in",
    "parse_tagged",
    "read_tagged",
    "read_thought",
    "without_end_of_turn",
]

_END_OF_TURN = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<|END_OF_TURN_TOKEN|>"),
    *(END_OF_SENTENCE, "<end_of_turn>", "<turn|>", "<eos>", "<|tool_response>", "<|observation|>", "<|user|>"),
    *("<|call|>", "<|return|>", "<|end|>", "<|eot|>", "<|eom|>", "<seed:eos>", "[e~[", "<|assistant_end|>"),
    *("<|role_end|>", "<|end_of_msg|>", "<|message_sep|>"),
)
"""End-of-turn markers of all families; some servers leave them in the text."""


class Thinking(NamedTuple):
    """Tags around thinking."""

    opening: str
    closing: str
    format: str | None
    """The only format that uses these tags; None for `<think>`, which many share."""


class Block(NamedTuple):
    """Tags around calls."""

    format: str
    opening: str
    closing: str | None
    """None if a block ends with the reply, or where the next block begins."""
    read: Callable[[str, int], tuple[Calls, int]]
    """(text, position after the opening tag) -> (calls, position after the block)."""
    begins: re.Pattern[str] | None = None
    """Matches the text after the opening tag. Among several blocks with one opening tag, the first match counts."""


class Whole(NamedTuple):
    """Calls without tags that make up the whole reply except for thinking."""

    format: str
    begins: re.Pattern[str]
    """The beginning of such a reply."""
    read: Callable[[str], Calls | None]


_BETWEEN_CALLS = re.compile(r"[\s;]*")
_THINKING_WORDS = ("think", "THINK")

THINK = Thinking("<think>", "</think>", None)
RESPONSE = ("<response>", "</response>")
_SPOKEN = Thinking("Here is my thought process:", "Here is my response:", None)
_SPOKEN_THOUGHT = re.compile(r"Here(?: is|'s) my thought process:(.*?)Here(?: is|'s) my response:", re.DOTALL)


class ReplyGrammar:
    """The elements that a parser looks for.

    Args:
        blocks: Blocks of calls. Among several with one opening tag, the last needs no `begins`.
        thinking: Pairs of tags around thinking.
        untagged: Forms of a reply that is nothing but calls, without tags.
        wrappers: Pairs of tags around content, by format. The opening tag may be in the prompt.
        strays: Misplaced tags -> the format that they belong to.
        unread: Beginnings of calls that this grammar does not read -> their format.
        answer_tag: Name of the tag of the final answer; None: replies have no answer.
        calls_in_thinking: Whether complete calls inside thinking are calls of the reply.
        spoken: Whether thinking may be introduced by a sentence instead of tags (Granite 3).
        frame: Tags that may surround all content behind thinking (ERNIE, Granite 3.3); they are not content.
    """

    def __init__(
        self,
        blocks: Sequence[Block] = (),
        *,
        thinking: Sequence[Thinking] = (THINK,),
        untagged: Sequence[Whole] = (),
        wrappers: Mapping[str, tuple[str, str]] | None = None,
        strays: Mapping[str, str] | None = None,
        unread: Mapping[str, str] | None = None,
        answer_tag: str | None = "answer",
        calls_in_thinking: bool = False,
        spoken: bool = False,
        frame: tuple[str, str] | None = None,
    ) -> None:
        self.calls_in_thinking, self.spoken, self.frame = calls_in_thinking, spoken, frame
        self.thinking = {pair.opening: pair for pair in thinking}
        self.blocks: dict[str, list[Block]] = {}
        for block in blocks:
            self.blocks.setdefault(block.opening, []).append(block)
        self.untagged = tuple(untagged)
        # A group for each: only the first form that begins so is tried.
        self.untagged_begins = re.compile("|".join(f"({whole.begins.pattern})" for whole in untagged) or r"(?!)")
        self.wrappers = {opening: (name, closing) for name, (opening, closing) in (wrappers or {}).items()}
        self.wrapper_ends = {closing: (name, opening) for opening, (name, closing) in self.wrappers.items()}
        self.strays = dict(strays or {})
        self.unread = dict(unread or {})
        self.answer = (f"<{answer_tag}>", f"</{answer_tag}>") if answer_tag else ("", "")
        self.openings: dict[str, str] = {pair.closing: pair.opening for pair in thinking}
        """Opening tag by closing tag."""
        self.openings |= {block.closing: block.opening for block in blocks if block.closing}
        if answer_tag:
            self.openings[self.answer[1]] = self.answer[0]
        tags = {
            *self.thinking,
            *self.blocks,
            *self.wrappers,
            *self.wrapper_ends,
            *self.strays,
            *self.unread,
            *self.openings,
        }
        self.tags = any_of(tags | set(self.openings.values()))
        self.block_tags = any_of(self.blocks)
        ends = [pair.closing for pair in thinking]
        self.thinking_tags = any_of([*self.thinking, *ends])
        words = [next((word for word in _THINKING_WORDS if word in end), end) for end in ends]
        self.thinking_words = tuple(dict.fromkeys(words))
        """A text without any of these has no closing tag of thinking. Every reply is searched for them."""


def any_of(literals: Sequence[str] | set[str] | Mapping[str, object]) -> re.Pattern[str]:
    """Return a pattern for any of the literals, longer ones first; it is a tree by their characters."""
    return re.compile(_tree(set(literals)) if literals else r"(?!)")


def _tree(literals: set[str]) -> str:
    if len(literals) == 1:
        return re.escape(next(iter(literals)))
    heads: dict[str, set[str]] = {}
    for literal in sorted(literals - {""}):
        heads.setdefault(literal[0], set()).add(literal[1:])
    branches = [re.escape(head) + _tree(rests) for head, rests in heads.items()] + [""] * ("" in literals)
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def without_end_of_turn(text: str) -> str:
    """Return the text without surrounding white space, and without one end-of-turn marker."""
    text = text.strip()
    if text.endswith(_END_OF_TURN):
        return text.removesuffix(next(filter(text.endswith, _END_OF_TURN))).rstrip()
    return text


def parse_tagged(grammar: ReplyGrammar, text: str) -> ParsedReply:
    """Parse a reply, without the end-of-turn marker at its end."""
    draft = Draft()
    read_tagged(without_end_of_turn(text), grammar, draft)
    return draft.finish()


def read_tagged(reply: str, grammar: ReplyGrammar, draft: Draft) -> None:
    """Read a reply, or a part of one, into the draft: from left to right, block by block."""
    text = Document(reply)
    text.quirks = draft.quirks
    position = _read_first_thinking(text, grammar, draft)
    may_be_whole = is_blank = bool(grammar.untagged)
    while True:
        if may_be_whole and _read_whole(text, position, grammar, draft):
            return
        match = grammar.tags.search(text, position)
        if match is None:
            break
        draft.content.append(text[position : match.start()])
        tag, after = match.group(), match.end()
        may_be_whole = is_blank = is_blank and tag in grammar.thinking and not draft.content[-1].strip()
        if tag in grammar.thinking:
            position = _read_thinking(text, after, grammar, draft, grammar.thinking[tag])
        elif tag in grammar.blocks:
            position = _read_block(text, after, grammar, draft, tag)
        elif tag == grammar.answer[0]:
            position = _read_answer(text, after, grammar, draft)
        elif tag in grammar.wrappers or tag in grammar.wrapper_ends:
            position = _read_wrapper(after, grammar, draft, tag)
        else:
            if tag in grammar.unread:
                draft.complain(f"{tag} begins a call in the format of {grammar.unread[tag]}, which is not read here")
                draft.content.append(tag)
            elif tag in grammar.strays:
                draft.use(grammar.strays[tag])
                draft.complain(f"{tag} does not belong there")
            else:
                draft.complain(f"{tag} stands without {grammar.openings[tag]} before it")
            position = after
    draft.content.append(text[position:])
    for opening, (_, closing) in grammar.wrappers.items():
        if draft.wrappers.get(opening, 0) > draft.wrappers.get(closing, 0):
            draft.complain(f"{opening} is not closed by {closing}")
    if grammar.frame is not None and draft.thoughts:
        _remove_frame(draft, *grammar.frame)


def _remove_frame(draft: Draft, opening: str, closing: str) -> None:
    """Remove a pair of tags around all content. Other tags of that name are the content's own."""
    content = "".join(draft.content).strip()
    if content.startswith(opening) and content.endswith(closing) and content.count(opening) == 1:
        draft.content = [content[len(opening) : -len(closing)]]


def calls_in(text: str, grammar: ReplyGrammar) -> Iterator[ToolCall]:
    """Yield the complete calls in tags that a text contains, in one of the grammar's formats."""
    text, end, n_broken = Document(text), 0, 0  # not the reply's own: its quirks do not count
    for match in grammar.block_tags.finditer(text):
        if match.start() < end:
            continue
        try:
            calls, end = _choose(grammar.blocks[match.group()], text, match.end()).read(text, match.end())
        except BrokenCallError:
            n_broken += 1
            if n_broken == MAX_PROBLEMS:
                return
            continue
        yield from calls


def _read_first_thinking(text: str, grammar: ReplyGrammar, draft: Draft) -> int:
    """Read thinking that a sentence introduces, or that begins in the prompt: the first thinking tag is a closing one.

    The exception is a tag inside a valid call that begins the reply, or is all of it.
    """
    if grammar.spoken and text.startswith("Here") and (spoken := _SPOKEN_THOUGHT.match(text)) is not None:
        _add_thought(spoken[1], grammar, draft, _SPOKEN)
        return spoken.end()
    if not any(map(text.__contains__, grammar.thinking_words)):
        return 0
    closing = grammar.thinking_tags.search(text)
    if closing is None or closing.group() in grammar.thinking:
        return 0
    if _read_whole(text, 0, grammar, whole := Draft()) and not whole.problems:
        return 0
    first = grammar.tags.search(text)
    if first is not None and first.group() in grammar.blocks:
        trial = Document(text)
        try:
            _, end = _choose(grammar.blocks[first.group()], trial, first.end()).read(trial, first.end())
        except BrokenCallError:
            end = 0
        if end > closing.start():
            return 0
    pair = grammar.thinking[grammar.openings[closing.group()]]
    _add_thought(text[: closing.start()], grammar, draft, pair)
    return closing.end()


def _read_thinking(text: str, start: int, grammar: ReplyGrammar, draft: Draft, pair: Thinking) -> int:
    end = text.find(pair.closing, start)
    if end < 0:
        draft.complain(f"{pair.opening} is not closed by {pair.closing}")
        draft.thoughts.append(text[start:].strip())
        return len(text)
    inner = text[start:end]
    if pair.opening in inner:
        draft.complain(f"{pair.opening} stands inside {pair.opening}")
    _add_thought(inner, grammar, draft, pair)
    return end + len(pair.closing)


def _add_thought(thought: str, grammar: ReplyGrammar, draft: Draft, pair: Thinking) -> None:
    if pair.format is not None:
        draft.use(pair.format)
    draft.thoughts.append(thought.strip())
    read_thought(thought, grammar, draft, f"inside {pair.opening}: close {pair.closing} before calling")


def read_thought(thought: str, grammar: ReplyGrammar, draft: Draft, where: str) -> None:
    """Note a complete call in thinking; read it if the grammar accepts it there."""
    if grammar.block_tags.search(thought) is None:
        return
    calls = calls_in(thought, grammar)
    if (call := next(calls, None)) is None:
        return
    draft.quirks.append("call_in_thinking")
    if grammar.calls_in_thinking:
        draft.tool_calls += [call, *calls]
    else:
        draft.call_in_thought = f"a tool call stands {where}"


def _read_whole(text: str, position: int, grammar: ReplyGrammar, draft: Draft) -> bool:
    """Read the rest as calls without tags; return whether it is such calls, valid or broken."""
    start = skip_space(text, position)
    if (begin := grammar.untagged_begins.match(text, start)) is None:
        return False
    whole = grammar.untagged[begin.lastindex - 1]  # type: ignore[operator]
    rest = Document(text[start:].rstrip())
    rest.quirks = []
    try:
        calls = whole.read(rest)
    except BrokenCallError as error:
        draft.use(whole.format)
        draft.complain(str(error))
        draft.content.append(rest)
        return True
    if calls is None:
        return False
    draft.use(whole.format)
    draft.tool_calls.extend(calls)
    draft.quirks += rest.quirks
    return True


def _choose(blocks: Sequence[Block], text: str, position: int) -> Block:
    for block in blocks:
        if block.begins is not None and block.begins.match(text, position) is not None:
            return block
    return blocks[-1]


def _read_block(text: Document, start: int, grammar: ReplyGrammar, draft: Draft, opening: str) -> int:
    block = _choose(grammar.blocks[opening], text, start)
    draft.use(block.format)
    problem, n_quirks = "a tool call is broken", len(text.quirks)
    if len(draft.broken_calls) < MAX_PROBLEMS:  # after that many, no call of the reply counts
        try:
            calls, end = block.read(text, start)
        except BrokenCallError as error:
            problem = str(error)
            del text.quirks[n_quirks:]
        else:
            draft.tool_calls.extend(calls)
            if block.closing is not None:
                return end
            end = _BETWEEN_CALLS.match(text, end).end()  # type: ignore[union-attr] # matches everywhere
            if end < len(text) and not text.startswith(opening, end):
                draft.complain("a tool call is followed by other text")
                draft.content.append(text[end:])
                return len(text)
            return end
    end = len(text) if block.closing is None else text.find(block.closing, start)
    if end < 0:
        draft.drop_call(f"{opening} is not closed by {block.closing}")
        draft.content.append(text[start:].strip())
        return len(text)
    draft.drop_call(problem)
    return end + len(block.closing or "")


def _read_answer(text: str, start: int, grammar: ReplyGrammar, draft: Draft) -> int:
    opening, closing = grammar.answer
    end = text.find(closing, start)
    if end < 0:
        draft.complain(f"{opening} is not closed by {closing}")
        draft.content.append(text[start:].strip())
        return len(text)
    last = str.rfind(text, opening, start, end)
    if last >= 0:  # an earlier tag was only mentioned: "I answer in <answer> tags. <answer>42</answer>"
        draft.content.append(text[start - len(opening) : last])
        start = last + len(opening)
    inner = text[start:end]
    draft.content.append(opening + inner + closing)
    tag = grammar.tags.search(inner)
    if tag is not None:
        draft.complain(f"{tag.group()} stands inside {opening}")
    draft.answers.append(inner.strip())
    return end + len(closing)


def _read_wrapper(after: int, grammar: ReplyGrammar, draft: Draft, tag: str) -> int:
    """Record a tag around content: a pair, or only the closing tag if the prompt has the opening one."""
    draft.wrappers[tag] = draft.wrappers.get(tag, 0) + 1
    name = (grammar.wrappers.get(tag) or grammar.wrapper_ends[tag])[0]
    draft.use(name)
    if draft.wrappers[tag] > 1:
        draft.complain(f"{tag} stands twice")
    if tag in grammar.wrappers and grammar.wrappers[tag][1] in draft.wrappers:
        draft.complain(f"{tag} stands after {grammar.wrappers[tag][1]}")
    return after
