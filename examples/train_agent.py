"""Train the model inside an agent: a loop around an OpenAI client, which GRPO plays as it is.

Command:   python examples/train_agent.py        (--model NAME --steps 20 --seed 0)
Needs:     pip install 'llm-envs[train,agents]'
Hardware:  one CPU core, some minutes. The model that it makes by default has seen the task played well and badly.
Expect:    it runs; no success has been measured with it yet.
"""

from __future__ import annotations

from typing import Any

from warm_model import GUESS, OUT, QUIET, SHORT, options, train, warm_model

from llm_envs.agents import AgentEnv, EnvTask
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer


async def agent(task: EnvTask, client: Any) -> None:
    """Play an environment with nothing but chat completions."""
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        answer = await client.chat.completions.create(model="policy", messages=messages)
        reply = answer.choices[0].message
        messages += [reply, *task.step(reply)]


given = options(__doc__, steps=20, episodes=200)
args = EnvGRPOConfig(
    output_dir=str(OUT / "agent"),
    env_kwargs={"difficulty": "easy"},
    max_steps=given.steps,
    per_device_train_batch_size=64,
    num_generations=8,
    learning_rate=6e-4,
    lr_scheduler_type="constant",
    seed=given.seed,
    **SHORT,
    **QUIET,
)
trainer = EnvGRPOTrainer(given.model or warm_model(), AgentEnv(agent, GUESS), args)
curve = train(trainer)
trainer.close()
