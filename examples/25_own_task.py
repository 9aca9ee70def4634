"""Your own task: one class, checked, measured, and trained on.

Command:   python examples/25_own_task.py            (--model NAME --steps 30 --episodes 200 --seed 0)
Time:      ten seconds on one CPU core, and ten once for the warm model.
Expect:    44 clauses hold; success on the test split 0.355 -> 0.820 (seed 0).
"""

from warm_model import GRPO, OUT, options, success, train, warm_model

from llm_envs import check_task
from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.parsers import format_answer
from llm_envs.registration import register_task
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer


class LastDigit(SingleTurnEnv):
    """Name the last digit of a number.

    ## Description
    One level: "easy" (three digits).
    ## Observation
    The number in a sentence.
    ## Action
    A digit in <answer> tags.
    ## Reward
    1 for the right digit, -0.1 for a reply without a readable answer, else 0.
    ## Episode End
    Terminates after one reply.
    ## Arguments
    `split`, `difficulty`.
    ## Version History
    v0.
    """

    difficulties = {"easy": Difficulty("three digits", chance_rate=0.1, n_problems=900)}
    default_difficulty, problem_fields = "easy", {"number": str}

    def generate(self):
        return {"number": str(self.np_random.integers(100, 1000))}

    def prompt(self):
        return f"What is the last digit of {self.problem['number']}?"

    def solution(self):
        return self.problem["number"][-1]


register_task("my/LastDigit-v0", LastDigit)
report = check_task("my/LastDigit-v0")  # on the command line: llm-envs check my/LastDigit-v0
print(f"{len(report.results)} clauses hold")
given = options(__doc__, steps=30, episodes=200)
first_digit = lambda env, chance: format_answer(env.unwrapped.problem["number"][0])  # noqa: E731
model = given.model or warm_model("my/LastDigit-v0", name="digit", other=first_digit)
args = EnvGRPOConfig(output_dir=str(OUT / "own-task"), max_steps=given.steps, seed=given.seed, **GRPO)
trainer = EnvGRPOTrainer(model, "my/LastDigit-v0", args)
before = success(trainer, "my/LastDigit-v0", n=given.episodes)
train(trainer)
print(f"success on the test split: {before:.3f} -> {success(trainer, 'my/LastDigit-v0', n=given.episodes):.3f}")
trainer.close()
