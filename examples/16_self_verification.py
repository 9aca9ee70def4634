"""Self-verification under a budget: a look costs, so how often is it worth checking before one answers?

Command:   python examples/16_self_verification.py            (--model NAME --steps 30 --seed 0)
Time:      30 seconds on one CPU core, and ten once for the warm model.
Expect:    where a look costs 0.1, looks 0.89 -> 0.87 an episode, paid 0.72 -> 0.83 (0.90 is best); where it costs 1,
           looks 0.54 -> 0.01, paid 0.13 -> 0.47 (0.50 is best; seed 0, means of five steps).
"""

from statistics import fmean

from warm_model import GRPO, OUT, options, train, warm_model

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.registration import register_task
from llm_envs.rewards import create_self_verification
from llm_envs.tools import Budget, budgeted
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, RewardSettings


class Lamp(ToolEnv):
    """Say whether a lamp is on. A look is never wrong, a guess half of the time."""

    difficulties = {"only": Difficulty("on or off", chance_rate=0.5, n_problems=2, disjoint_splits=False)}
    default_difficulty, default_max_turns, problem_fields = "only", 6, {"state": str}

    def make_tools(self):
        return budgeted([self.look], Budget(4.0))  # a fifth look is refused

    def look(self) -> str:
        """Look."""
        return self.problem["state"]

    def generate(self):
        return {"state": "on" if self.np_random.random() < 0.5 else "off"}

    def prompt(self):
        return "Is the lamp on or off?"

    def is_correct(self, answer):
        return answer == self.problem["state"]

    def next_action(self):
        return format_tool_call("look") if self.n_turns == 0 else format_answer(self.problem["state"])


def doubter(env, chance):
    """Go on looking as a coin says, then say what was seen, or guess."""
    if env.unwrapped.n_turns < 4 and chance.random() < 0.6:
        return format_tool_call("look")
    return format_answer(env.unwrapped.problem["state"] if env.unwrapped.n_turns else chance.choice(["on", "off"]))


register_task("my/Lamp-v0", Lamp)
given = options(__doc__, steps=30)
model = given.model or warm_model("my/Lamp-v0", name="lamp", other=doubter, steps=100)
for price in (0.4, 4.0):  # of the whole budget, so that a look costs 0.1 or 1
    paid = create_self_verification(lambda t: float(t.is_success), {"look": 1.0}, total=4.0, cost_weight=price)
    rewards = RewardSettings(reward_fns=[paid], weights={"reward": 0.0})
    args = EnvGRPOConfig(output_dir=str(OUT / "lamp"), max_steps=given.steps, seed=given.seed, logging_steps=1, **GRPO)
    curve = train(trainer := EnvGRPOTrainer(model, "my/Lamp-v0", args, rewards=rewards))
    trainer.close()
    looks, paid = ([fmean(curve[key][:5]), fmean(curve[key][-5:])] for key in ("env/tool_calls", "reward"))
    print("a look costs {}: looks {:.2f} -> {:.2f}, paid {:.2f} -> {:.2f}".format(price / 4, *looks, *paid))
