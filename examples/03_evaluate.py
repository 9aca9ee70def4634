"""Evaluate: any policy on the same seeds of the test split; success with its 95% interval.

Command:   python examples/03_evaluate.py            (--model NAME --episodes 200 --seed 1)
Time:      15 seconds on one CPU core, and 20 once for the warm model.
Expect:    success of the oracle 1.000, of one who always says 5 0.100, of the warm model 0.435.
"""

import asyncio

from warm_model import GUESS, options, warm_model

from llm_envs import evaluate
from llm_envs.policies import ConstantPolicy, OraclePolicy, TransformersPolicy
from llm_envs.types import SamplingParams

given = options(__doc__, episodes=200)
model = TransformersPolicy.from_pretrained(given.model or warm_model())
policies = {"oracle": OraclePolicy(), "always 5": ConstantPolicy("<answer>5</answer>"), "model": model}
for name, policy in policies.items():
    result = evaluate(
        GUESS,
        policy,
        n=given.episodes,
        split="test",
        seed=given.seed,  # equal seeds compare policies on equal problems
        codec=model.codec,  # messages to token ids; only a token policy needs it
        sampling=SamplingParams(max_new_tokens=16),
        progress=False,
    )
    low, high = result.interval
    print(f"{name:>8}: success {result.success_rate:.3f} ({low:.3f} to {high:.3f}), {result.mean_turns:.2f} turns")
asyncio.run(model.aclose())
