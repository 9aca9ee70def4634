"""Check a task: whether it keeps the contract of environments, and what is said of one that does not.

Command:   python examples/02_check.py            (from the command line: llm-envs check llm/Countdown-v0)
Time:      two seconds. Needs no torch.
Expect:    all 44 clauses hold for llm/Countdown-v0; the task that forgets its seed breaks 5, is_deterministic one of
           them.
"""

import sys

import numpy as np

from llm_envs import check_task
from llm_envs.registration import register_task
from llm_envs.tasks.arithmetic.countdown import CountdownEnv

task = sys.argv[1] if len(sys.argv) > 1 else "llm/Countdown-v0"
report = check_task(task)
print(f"{task}: {sum(result.passed for result in report.results)} of {len(report.results)} clauses hold")


class Forgetful(CountdownEnv):  # noqa: D101  # it is on the next line
    __doc__ = CountdownEnv.__doc__

    def generate(self):
        """Draw a problem by chance, and not by the seed of the episode."""
        self.np_random = np.random.default_rng()
        return super().generate()


register_task("my/Forgetful-v0", Forgetful)
report = check_task("my/Forgetful-v0", raise_on_failure=False)
print(f"my/Forgetful-v0: {len(report.failures)} of {len(report.results)} clauses do not hold:")
for failure in report.failures:
    print(f"  {failure.clause}: {failure.detail[:100]}")
