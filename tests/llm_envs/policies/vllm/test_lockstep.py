"""What the processes of a group tell each other before a step; with real engines: tests/processes/test_engines.py."""

import json

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from llm_envs.policies.vllm.lockstep import Agreed, Lockstep, PeerFailedError

SCENARIOS = ("requests", "agreement", "failure in a step", "failure before")


class Engine:
    """Notes what it is told; refuses the prompt "bad"."""

    def __init__(self):
        self.told, self.open = [], set()

    def add_request(self, name, prompt, params):
        self.told.append(["add", name, prompt, params])
        if prompt == "bad":
            raise ValueError("no")
        self.open.add(name)

    def abort_request(self, names):
        self.told.append(["abort", *names])
        self.open -= set(names)

    def has_unfinished_requests(self):
        return bool(self.open)

    def step(self):
        self.told.append(["step"])
        return sorted(self.open)


def work(rank, folder, scenario):
    """Play a scenario in one of the two processes, and write down what it found."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/{scenario}-store", rank=rank, world_size=2)
    engine = Engine()
    both = Lockstep(engine, dist.new_group([0, 1], backend="gloo"))
    found = {"steps": [], "agreed": []}
    if scenario == "requests":
        both.add_request(f"{rank}-1", "bad" if rank else "good", 0.5)
        both.add_request(f"{rank}-2", "good", 1.0)
        found["steps"].append(both.step())
        found["refused"] = {name: str(error) for name, error in both.refused.items()}
        if rank == 0:
            both.abort_request(["0-1", "0-2"])
        found["steps"] += [both.step(), both.step()]
        if rank == 1:
            both.abort_request(["1-2"])
        found["steps"].append(both.step())
        found["told"] = engine.told
    elif scenario == "agreement":
        for busy, update, closed in (
            ((0, 0), (0, 0), (0, 0)),
            ((0, 1), (0, 0), (1, 0)),
            ((0, 1), (1, 0), (0, 0)),
            ((1, 0), (1, 1), (0, 0)),
            ((0, 0), (0, 1), (1, 0)),
            ((1, 0), (0, 0), (1, 1)),
        ):
            agreed = both.agree(is_busy=bool(busy[rank]), has_update=bool(update[rank]), is_closed=bool(closed[rank]))
            found["agreed"].append(agreed.name)
    else:
        try:
            if rank == 0:
                raise ValueError("out of memory")
            both.step() if scenario == "failure in a step" else both.agree(
                is_busy=False, has_update=False, is_closed=False
            )
        except (ValueError, PeerFailedError) as error:
            both.fail(error)
            found["error"] = str(error)
    with open(f"{folder}/{scenario}-{rank}.json", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


def work_through(rank, folder):
    for scenario in SCENARIOS:
        work(rank, folder, scenario)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two processes play all scenarios: importing torch takes them longer than all of it."""
    folder = tmp_path_factory.mktemp("lockstep")
    mp.spawn(work_through, (str(folder),), nprocs=2)
    return lambda scenario: [json.loads((folder / f"{scenario}-{rank}.json").read_text()) for rank in (0, 1)]


def test_every_engine_is_told_the_same_in_the_same_order_and_a_refusal_goes_to_who_asked(run):
    one, other = run("requests")
    assert one["told"] == other["told"] and one["steps"] == other["steps"]
    assert one["told"][:4] == [["add", f"{rank}-{n}", p, 0.5 * n] for rank, n, p in (
        (0, 1, "good"), (0, 2, "good"), (1, 1, "bad"), (1, 2, "good"),
    )]  # fmt: skip
    assert one["steps"] == [["0-1", "0-2", "1-2"], ["1-2"], ["1-2"], []]
    assert (one["refused"], other["refused"]) == ({}, {"1-1": "no"})


def test_weights_change_when_all_have_new_ones_and_the_end_comes_when_all_are_closed(run):
    one, other = run("agreement")
    assert one["agreed"] == other["agreed"] == ["WAIT", "STEP", "STEP", "UPDATE", "UPDATE", "CLOSE"]
    assert set(one["agreed"]) <= {agreed.name for agreed in Agreed}


@pytest.mark.parametrize("scenario", SCENARIOS[2:])
def test_a_failure_is_everybodys(run, scenario):
    one, other = run(scenario)
    assert one["error"] == "out of memory"
    assert other["error"] == "the engine of process 0 of its group failed: ValueError: out of memory"
