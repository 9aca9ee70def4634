"""A curriculum over two environments: of each the next level opens when the last is mastered.

Command:   python examples/17_curriculum.py            (--model NAME --steps 40 --seed 0)
Time:      12 seconds on one CPU core, and 25 once for the warm model.
Expect:    both levels of both open; success of the last digit 0.922 short, 0.984 long; of the first 0.812 short,
           0.172 long, which has just opened (seed 0).
"""

from warm_model import GRPO, OUT, options, train, warm_model

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.parsers import format_answer
from llm_envs.registration import register_task
from llm_envs.rollout import Curriculum
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer


class LastDigit(SingleTurnEnv):
    """Name the last digit of a number."""

    asked, place = "last", -1
    difficulties = {
        "short": Difficulty("two digits", chance_rate=0.1, n_problems=90, settings={"digits": 2}),
        "long": Difficulty("four digits", chance_rate=0.1, n_problems=9000, settings={"digits": 4}),
    }
    default_difficulty, problem_fields = "short", {"number": str}

    def generate(self):
        least = 10 ** (self.settings["digits"] - 1)
        return {"number": str(self.np_random.integers(least, 10 * least))}

    def prompt(self):
        return f"What is the {self.asked} digit of {self.problem['number']}?"

    def solution(self):
        return self.problem["number"][self.place]


class FirstDigit(LastDigit):
    """Name the first digit of a number."""

    asked, place = "first", 0


register_task("my/Last-v0", LastDigit)
register_task("my/First-v0", FirstDigit)
given = options(__doc__, steps=40)
both = {"my/Last-v0": 1, "my/First-v0": 1}  # by weight
any_digit = lambda env, chance: format_answer(chance.choice(env.unwrapped.problem["number"]))  # noqa: E731
model = given.model or warm_model(both, name="both", other=any_digit, steps=800)
curricula = {env: Curriculum(["short", "long"], band=(0.2, 0.8), window=64) for env in both}
settings = {"max_steps": given.steps, "seed": given.seed, "logging_steps": 1, **GRPO}
args = EnvGRPOConfig(output_dir=str(OUT / "curriculum"), **settings)
trainer = EnvGRPOTrainer(model, both, args, curriculum=curricula)
curve = train(trainer)
trainer.close()
for env, curriculum in curricula.items():
    levels = ", ".join(f"{name} {rate:.3f}" for name, rate in curriculum.success.items() if rate is not None)
    print(f"{env}: {curriculum.n_open} of {len(curriculum.levels)} levels open; success {levels}")
