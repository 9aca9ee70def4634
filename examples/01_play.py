"""Play a task: a Gymnasium environment whose observations and actions are texts.

Command:   python examples/01_play.py            (another seed: python examples/01_play.py 7)
Time:      a second. Needs no torch.
Expect:    the question "What is 342+136?", the oracle's call of the calculator, its result 478, the answer; return
           1.0.
"""

import sys

import gymnasium as gym

import llm_envs  # noqa: F401  # registers the tasks

env = gym.make("llm/Calculator-v0", difficulty="easy", split="train")
observation, info = env.reset(seed=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
print("system:", env.get_wrapper_attr("system_prompt"))
print("tools:", [tool["function"]["name"] for tool in env.get_wrapper_attr("tools")])
print("user:", observation)

total, done = 0.0, False
while not done:
    action = env.unwrapped.oracle()  # any text: what a model wrote, tool calls included
    observation, reward, terminated, truncated, info = env.step(action)
    total, done = total + reward, terminated or truncated
    print("assistant:", action)
    print("env:", observation, info["reward_components"])
print(f"return {total}, success {info['is_success']}")
