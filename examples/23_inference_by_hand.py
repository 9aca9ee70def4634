"""Inference by hand: a conversation with a tool turn by turn, its tokens scored again, two models compared exactly.

Command:   python examples/23_inference_by_hand.py            (--model NAME takes a real model; --turns 2 --seed 0)
Time:      a few seconds. Without --model one with random weights is made, which says nothing that means anything.
Expect:    the turns; log-probabilities at sampling and afterwards that agree to about 1e-6; the exact KL to a copy of
           the model with some noise on its weights, 0.0276 nats a token, and back, 0.0275 (seed 0).
"""

import asyncio
import copy
from functools import partial

import numpy as np
import torch
from warm_model import options

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies import inference as inf
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.functional.kl import exact_kl
from llm_envs.types import Message, SamplingParams


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


given = options(__doc__, turns=2)
tokenizer = tiny_tokenizer() if given.model is None else inf.load_tokenizer(given.model)
model = tiny_model(tokenizer) if given.model is None else inf.load_model(given.model)
codec, params = ChatCodec(tokenizer), SamplingParams(max_new_tokens=48, seed=given.seed)
messages = [Message("system", "Use the tool."), Message("user", "What is 6 times 7?")]
print("in one call:", repr(inf.generate_text(model, tokenizer, messages, params)[0]))

parts = {"template_fn": codec.encode_prompt, "decode_fn": codec.decode_reply, "params": params}
parts |= {"tools": [multiply], "executor": inf.create_executor([multiply], timeout_s=10.0)}  # each may be another's
generate_fn, prompt_ids = partial(inf.generate, model, stop_token_ids=codec.stop_token_ids), None
for number in range(given.turns):
    turn = inf.conversation_turn(messages, generate_fn, prompt_ids=prompt_ids, **parts)
    thinking, said = turn.reply.thinking, turn.reply.content
    print(f"turn {number}: thought {thinking!r}, said {said!r}, heard {[r.output for r in turn.tool_results]}")
    whole, n = np.concatenate([turn.prompt_ids, turn.sampled.token_ids]), len(turn.sampled.token_ids)
    logps = inf.token_logps(model, [whole])[0][-n:]
    print(f"  scored again: off by at most {abs(logps - turn.sampled.logps).max():.1e} nats")
    prompt_ids = inf.next_prompt_ids(turn, [] if turn.tool_results else [Message("user", "Go on.")], codec=codec)

by_policy = inf.create_policy_generator(TransformersPolicy(model, tokenizer))  # any token policy
print("by a policy:", repr(asyncio.run(inf.aconversation_turn(messages, by_policy, **parts)).text))
torch.manual_seed(given.seed)
other = copy.deepcopy(model)
with torch.no_grad():
    for parameter in other.parameters():
        parameter.add_(0.01 * torch.randn_like(parameter))
logits, other_logits = (inf.token_logits(m, [whole])[0][-n:] for m in (model, other))
to, back = exact_kl(logits, other_logits).mean(), exact_kl(other_logits, logits).mean()
print(f"exact KL per token: {to:.4f} to the other model, {back:.4f} from it")
