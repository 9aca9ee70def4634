"""Reinforcement learning in five lines: prompts, a reward, a model.

Command:   python examples/quickstart.py [MODEL] [ITERATIONS]     (MODEL: a folder, or a name on a hub)
Hardware:  anything that runs the model. Without MODEL one CPU core and half a minute: a model of 0.3 M parameters with
           random weights is made on the spot.
Expect:    without MODEL the reward, the share of digits in 16 characters, rises from about 0.03 to above 0.9.
"""

import sys

from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import quick_start_training

rows = [{"prompt": f"Count to {n}."} for n in range(100)]
reward_fn = lambda row, reply: sum(map(str.isdigit, reply.content[:16])) / 16  # noqa: E731
if len(sys.argv) > 1:
    model, settings = sys.argv[1], {}
else:
    tokenizer = tiny_tokenizer()
    model, settings = tiny_model(tokenizer), {"tokenizer": tokenizer, "learning_rate": 5e-3, "max_turn_tokens": 16}
n = int(sys.argv[2]) if len(sys.argv) > 2 else 40
result = quick_start_training(model, prompts=rows, reward_fn=reward_fn, num_iterations=n, **settings)
result.save("quickstart-model")
