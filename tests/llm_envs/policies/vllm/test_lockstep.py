"""What the processes of a group tell each other before a step; with real engines: tests/processes/test_engines.py."""

import json

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from llm_envs.policies.vllm.lockstep import Agreed, Lockstep, PeerFailedError


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


def play(rank, scenario):
    """Play a scenario as one of two processes; return what came of it."""
    engine = Engine()
    both = Lockstep(engine, dist.new_group([0, 1], backend="gloo"))
    if scenario == "requests":
        both.add_request(f"{rank}-1", "bad" if rank else "good", 0.5)
        both.add_request(f"{rank}-2", "good", 1.0)
        steps = [both.step()]
        refused = {name: str(error) for name, error in both.refused.items()}
        if rank == 0:
            both.abort_request(["0-1", "0-2"])
        steps += [both.step(), both.step()]
        if rank == 1:
            both.abort_request(["1-2"])
        steps.append(both.step())
        return {"steps": steps, "refused": refused, "told": engine.told}
    if scenario == "agreement":
        return [
            both.agree(is_busy=bool(busy[rank]), has_update=bool(update[rank]), is_closed=bool(closed[rank])).name
            for busy, update, closed in (
                ((0, 0), (0, 0), (0, 0)),
                ((0, 1), (0, 0), (1, 0)),
                ((0, 1), (1, 0), (0, 0)),
                ((1, 0), (1, 1), (0, 0)),
                ((0, 0), (0, 1), (1, 0)),
                ((1, 0), (0, 0), (1, 1)),
            )
        ]
    try:
        if rank == 0:
            raise ValueError("out of memory")
        if scenario == "failure in a step":
            both.step()
        both.agree(is_busy=False, has_update=False, is_closed=False)
    except (ValueError, PeerFailedError) as error:
        both.fail(error)
        return str(error)


def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {name: play(rank, name) for name in ("requests", "agreement", "failure in a step", "failure before")}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of both processes by scenario. Each process imports torch only once."""
    folder = tmp_path_factory.mktemp("lockstep")
    mp.spawn(work, (folder,), nprocs=2)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return {scenario: [rank[scenario] for rank in ranks] for scenario in ranks[0]}


def test_every_engine_is_told_the_same_in_the_same_order_and_a_refusal_goes_to_who_asked(found):
    one, other = found["requests"]
    assert one["told"] == other["told"] and one["steps"] == other["steps"]
    assert one["told"][:4] == [["add", f"{rank}-{n}", p, 0.5 * n] for rank, n, p in (
        (0, 1, "good"), (0, 2, "good"), (1, 1, "bad"), (1, 2, "good"),
    )]  # fmt: skip
    assert one["steps"] == [["0-1", "0-2", "1-2"], ["1-2"], ["1-2"], []]
    assert (one["refused"], other["refused"]) == ({}, {"1-1": "no"})


def test_weights_change_when_all_have_new_ones_and_the_end_comes_when_all_are_closed(found):
    one, other = found["agreement"]
    assert one == other == ["WAIT", "STEP", "STEP", "UPDATE", "UPDATE", "CLOSE"]
    assert set(one) <= {agreed.name for agreed in Agreed}


@pytest.mark.parametrize("scenario", ["failure in a step", "failure before"])
def test_a_failure_is_everybodys(found, scenario):
    one, other = found[scenario]
    assert one == "out of memory"
    assert other == "the engine of process 0 of its group failed: ValueError: out of memory"
