"""Inference by hand: a conversation with a tool turn by turn, its tokens scored again, two models compared exactly.

Command:   python examples/inference_by_hand.py              (--model FOLDER or a name takes a real model)
Hardware:  one CPU core, a few seconds. Without --model one is made on the spot, and says nothing that means anything.
Expect:    the turns; log-probabilities at sampling and afterwards that agree to about 1e-6; the exact KL to a copy of
           the model with some noise on its weights, in both directions.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
from typing import Any

import numpy as np
import torch

from llm_envs.chat import ChatCodec
from llm_envs.policies.inference import (
    aconversation_turn,
    conversation_turn,
    create_executor,
    create_generator,
    create_policy_generator,
    create_template_fn,
    generate_text,
    load_model,
    load_tokenizer,
    next_prompt_ids,
    parse_thinking,
    token_logits,
    token_logps,
)
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.functional.kl import exact_kl
from llm_envs.types import Message, SamplingParams


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a * b


def main() -> None:
    """Talk, score, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a name; default: a tiny model with random weights")
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    tokenizer = tiny_tokenizer() if args.model is None else load_tokenizer(args.model)
    model = tiny_model(tokenizer) if args.model is None else load_model(args.model)
    codec, params = ChatCodec(tokenizer), SamplingParams(max_new_tokens=48, seed=0)
    messages = [Message("system", "Use the tool."), Message("user", "What is 6 times 7?")]

    print("in one call:", repr(generate_text(model, tokenizer, messages, params)[0]))

    parts: dict[str, Any] = {
        "template_fn": create_template_fn(tokenizer),
        "decode_fn": codec.decode_reply,
        "tools": [multiply],
        "executor": create_executor([multiply], timeout_s=10.0),
        "params": params,
    }
    generate_fn, prompt_ids = create_generator(model, stop_token_ids=codec.stop_token_ids), None
    for number in range(args.turns):
        turn = conversation_turn(messages, generate_fn, prompt_ids=prompt_ids, **parts)
        thinking, said = parse_thinking(turn.text)
        print(f"turn {number}: thought {thinking!r}, said {said!r}, heard {[r.output for r in turn.tool_results]}")
        whole, n = np.concatenate([turn.prompt_ids, turn.sampled.token_ids]), len(turn.sampled.token_ids)
        logps = token_logps(model, [whole])[0][-n:]
        print(f"  scored again: off by at most {abs(logps - turn.sampled.logps).max():.1e} nats")
        if number + 1 < args.turns:
            prompt_ids = next_prompt_ids(turn, [] if turn.tool_results else [Message("user", "Go on.")], codec=codec)

    async def by_policy() -> str:
        policy = TransformersPolicy(model, tokenizer)
        turn = await aconversation_turn(messages, create_policy_generator(policy), **parts)
        await policy.aclose()
        return turn.text

    print("by a policy:", repr(asyncio.run(by_policy())))

    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    logits, other_logits = (token_logits(m, [whole])[0][-n:] for m in (model, other))
    print(f"exact KL per token: {exact_kl(logits, other_logits).mean():.4f} to the other model, ", end="")
    print(f"{exact_kl(other_logits, logits).mean():.4f} from it")


if __name__ == "__main__":
    main()
