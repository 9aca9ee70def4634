"""Evaluations during a training: equal to blocking ones, under their step, and a failure costs no training.

The servers have a real tiny model (`tests/support/served_model.py`).
"""

import json
import logging
import threading

import gymnasium as gym
import pytest
from fake_server import Answer
from peft import LoraConfig
from served_model import model_server
from trainings import assert_same
from transformers import TrainerCallback

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import read_trajectories
from llm_envs.spaces import TextSpace
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.callbacks import LoggerCallback

pytestmark = [pytest.mark.transformers, pytest.mark.trainings]
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "num_eval_seeds": 3, "per_device_eval_batch_size": 8}
TAKEN = ("runtime", "per_second")
LEFT_OUT = ("eval_loss", "eval_entropy", "eval_policy/", "eval_clip_ratio/")
"""Further names of a blocking evaluation, which need the model with the weights of the step."""


class WaitingEnv(gym.Env):
    """Say b. An episode of the test split ends only when `may_end` is set."""

    observation_space = action_space = TextSpace()
    may_end = threading.Event()
    is_waiting = threading.Event()

    def __init__(self, split="train"):
        self.split = split

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"Say b {seed % 100}", {}

    def step(self, action):
        if self.split == "test":
            self.is_waiting.set()
            assert self.may_end.wait(300), "no later step of the training came"
        return "", action.count("b") / 8, True, False, {"is_success": "b" in action}


gym.register("test/Waiting-v0", WaitingEnv)


class AtStep(TrainerCallback):
    """Calls a function at the end of a step."""

    def __init__(self, step, function):
        self.step, self.function = step, function

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.function()


@pytest.fixture(autouse=True)
def may_end():
    """Let evaluations end, unless a test clears it."""
    WaitingEnv.may_end.set()
    WaitingEnv.is_waiting.clear()
    return WaitingEnv.may_end


@pytest.fixture
def server(tiny_folder):
    with model_server(tiny_folder) as server:
        yield server


@pytest.fixture
def make(tiny_folder, config, keep):
    def build(callbacks=(), env="test/Waiting-v0", kwargs=None, **changes):
        settings = EVALUATED | {"max_steps": 5, **changes}
        return keep(EnvGRPOTrainer(tiny_folder, env, config(**settings), callbacks=[*callbacks], **kwargs or {}))

    return build


def evaluations(trainer):
    """Return what evaluations logged, by step, without the time."""
    entries = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
    return {
        entry["step"]: {name: value for name, value in entry.items() if not any(part in name for part in TAKEN)}
        for entry in entries
    }


def played_in(trainer):
    """Return the stored episodes of evaluations: what identifies them, their tokens and rewards."""
    stored = read_trajectories(trainer._player.writer.path)
    return [
        (t.group_id, t.seed, t.member, t.rows[0].ids.tolist(), t.reward)
        for t in stored
        if t.env_kwargs["split"] == "test"
    ]


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.smoke), 0.01])
def test_its_episodes_and_numbers_are_the_blocking_ones(make, server, temperature, tmp_path):
    """With a reward function of the user's too. The trained weights are the same to the last bit."""
    settings = {"temperature": temperature, "kwargs": {"rewards": {"length": lambda t: -0.01 * t.n_sampled_tokens}}}
    blocking = make(env="test/Say-v0", output_dir=str(tmp_path / "blocking"), **settings)
    blocking.train()
    background = make(
        env="test/Say-v0", output_dir=str(tmp_path / "background"), eval_server_urls=[f"{server.url}/v1/"], **settings
    )
    background.train()
    assert len(played_in(blocking)) == 3 * 12 and played_in(background) == played_in(blocking)
    here, there = evaluations(background), evaluations(blocking)
    assert here.keys() == there.keys() == {2, 4, 5}  # the last step's always
    for step, numbers in there.items():
        of_episodes = {name: value for name, value in numbers.items() if not name.startswith(LEFT_OUT)}
        assert here[step] == pytest.approx(of_episodes, nan_ok=True)
    assert_same(background.model.state_dict(), blocking.model.state_dict(), atol=0)


def test_the_training_goes_on_while_it_is_played_and_its_number_is_under_its_step(make, server, may_end, tmp_path):
    """The episodes of step 2's evaluation end only after step 4, whose own evaluation waits for it."""
    may_end.clear()
    logged, evaluated = [], []

    class Evaluated(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **_):
            evaluated.append((state.global_step, metrics["eval_reward"]))

    logger = LoggerCallback(lambda step, metrics: logged.append((step, "eval_reward" in metrics)))
    callbacks = [AtStep(4, may_end.set), logger, Evaluated()]
    trainer = make(callbacks, eval_server_urls=[server.url], logging_steps=2, log_completions=True, max_steps=6)
    trainer.train()
    # Each step that is due is logged although an evaluation ends there.
    assert logged[:3] == [(2, False), (4, False), (2, True)]
    assert sorted(logged[3:6]) == [(4, True), (6, False), (6, True)]
    numbers = evaluations(trainer)
    assert {step: entry["epoch"] for step, entry in numbers.items()} == pytest.approx(
        {n: n * 4 / 64 for n in (2, 4, 6)}
    )
    assert evaluated == [(step, entry["eval_reward"]) for step, entry in numbers.items()]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval_reward" in line] == [2, 4, 6]
    assert trainer.state.global_step == 6 and trainer.model.training


def test_an_evaluation_that_waits_is_named(make, server, may_end, caplog):
    class End(logging.Handler):
        def emit(self, record):
            if "waits" in record.getMessage():
                may_end.set()

    may_end.clear()
    logger = logging.getLogger("llm_envs.trainers.grpo.background_evaluation")
    logger.addHandler(end := End())
    try:
        with caplog.at_level(logging.WARNING):
            make(eval_server_urls=[server.url]).train()
    finally:
        logger.removeHandler(end)
    assert "The evaluation of step 4 waits for the earlier one." in [record.message for record in caplog.records]


def test_the_last_is_waited_for_when_a_callback_ends_the_training(make, server, may_end):
    """Its number is logged before the end's."""
    may_end.clear()

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 3

    trainer = make([AtStep(3, may_end.set), Stop()], eval_server_urls=[server.url])
    trainer.train()
    entries = [(entry["step"], "eval_reward" in entry) for entry in trainer.state.log_history]
    assert entries == [(1, False), (2, False), (2, True), (3, False), (3, False)]


def test_without_servers_one_line_tells_that_an_evaluation_pauses_the_training(make, caplog):
    with caplog.at_level(logging.WARNING):
        make().train()
    said = [record.message for record in caplog.records if "pauses the training" in record.message]
    assert len(said) == 1 and "eval_server_urls" in said[0]


def test_an_evaluation_outside_a_training_is_a_blocking_one(make, server):
    trainer = make(eval_server_urls=[server.url])
    assert trainer.evaluate().keys() >= {"eval_loss", "eval_reward"}
    assert not server.paths("/v1/completions")


@pytest.mark.parametrize("breaks_at", ["sending", "playing", "all episodes"])
def test_a_failure_costs_the_number_only(make, server, breaks_at, caplog):
    """The next evaluation, with the server well again, has its number."""
    well, changes = server.respond, {"eval_steps": 1, "max_steps": 3}

    def broken(asked, n_before):
        if asked.path == "/collective_rpc" and n_before == 1:  # the next evaluation's weights
            server.respond = well
        elif asked.path == ("/collective_rpc" if breaks_at == "sending" else "/v1/completions"):
            return Answer(500, {"error": "out of order"})
        return well(asked, n_before)

    trainer = make(eval_server_urls=[server.url], **changes)
    trainer._eval_engine.policy.max_retries = 0  # else a dead server is waited for, for ten minutes
    server.respond = broken
    if breaks_at == "playing":  # the collector itself
        collector = trainer._start_collector(trainer._eval_engine.policy)
        play, trainer._eval_collector = collector.aplay, collector

        async def fail(groups):
            collector.aplay = play
            raise RuntimeError("out of order")

        collector.aplay = fail
        server.respond = well
    with caplog.at_level(logging.WARNING):
        trainer.train()
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and "step 1 " in errors[0] and "out of order" in errors[0]
    assert list(evaluations(trainer)) == [2, 3] and trainer.state.global_step == 3


@pytest.mark.parametrize("when", [2, 3])
def test_a_run_that_was_killed_plays_the_evaluation_of_its_checkpoint(make, server, may_end, when, tmp_path):
    """Killed in step 3 or 4: the checkpoint of step 2 owes the evaluation of step 2, which is then played again."""
    saves = {"save_strategy": "steps", "save_steps": 2, "output_dir": str(tmp_path / "killed")}
    full = make(eval_server_urls=[server.url], output_dir=str(tmp_path / "full"))
    full.train()
    may_end.clear()

    def kill():
        if when == 3:
            assert WaitingEnv.is_waiting.wait(300)
        raise KeyboardInterrupt

    killed = make([AtStep(3, kill)], eval_server_urls=[server.url], **saves)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    may_end.set()
    assert not evaluations(killed)
    resumed = make(eval_server_urls=[server.url], **saves)
    resumed.train(resume_from_checkpoint=str(tmp_path / "killed" / "checkpoint-2"))
    assert played_in(resumed) == played_in(full)
    assert evaluations(resumed) == evaluations(full)


def test_a_checkpoint_waits_for_the_evaluation_of_an_earlier_step(make, server, may_end, tmp_path):
    may_end.clear()
    saves = {"save_strategy": "steps", "save_steps": 3}
    make([AtStep(3, may_end.set)], eval_server_urls=[server.url], **saves).train()
    state = json.loads((tmp_path / "out" / "checkpoint-3" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"] if "eval_reward" in entry] == [2]


def test_ppo_does_so_too(tiny_folder, configure, server, keep):
    settings = {"max_completion_length": 80, "max_turn_tokens": 8, "max_steps": 4, "num_train_seeds": 64}
    args = configure(EnvPPOConfig, eval_server_urls=[server.url], **EVALUATED | settings)
    trainer = keep(EnvPPOTrainer(tiny_folder, "test/Say-v0", args))
    trainer.train()
    assert list(evaluations(trainer)) == [2, 4]


class TestOnTheTrainingsServers:
    """Evaluations are played with the adapter of their step on the servers that sample for training."""

    @pytest.fixture
    def make(self, make, tiny_folder):
        with model_server(tiny_folder, max_lora_rank=16) as server:

            def build(callbacks=(), **changes):
                vllm = {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": [server.url]}
                kwargs = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}
                settings = vllm | {"lora_sync": "adapter", "learning_rate": 1e-1} | changes
                return server, make(callbacks, kwargs=kwargs, **settings)

            yield build

    @staticmethod
    def named(asked, path):
        return [one.body["lora_name"] for one in asked if one.path == path]

    def test_each_has_the_adapter_of_its_step_which_is_unloaded_afterwards(self, make, may_end, tmp_path):
        blocking = make(metric_for_best_model="eval_reward", output_dir=str(tmp_path / "blocking"))[1]
        blocking.train()
        may_end.clear()
        server, background = make([AtStep(4, may_end.set)])
        n_before = len(server.asked)
        background.train()
        assert len(played_in(background)) == 3 * 12 and played_in(background) == played_in(blocking)
        versions = [
            {span.version for turn in t.turns for span in turn.weight_versions}
            for t in read_trajectories(background._player.writer.path)
            if t.env_kwargs["split"] == "test"
        ]
        assert versions == 12 * [{2}] + 12 * [{4}] + 12 * [{5}]
        for step, numbers in evaluations(blocking).items():
            here = evaluations(background)[step]
            assert here == pytest.approx({name: numbers[name] for name in here}, nan_ok=True)
        assert_same(background.model.state_dict(), blocking.model.state_dict())
        loaded, unloaded = (
            self.named(server.asked[n_before:], f"/v1/{word}_lora_adapter") for word in ("load", "unload")
        )
        of_2 = [name for name in loaded if name.startswith("llm-envs 2 ")]
        assert len(of_2) == 1 and of_2[0] in unloaded
        # It is unloaded after the adapter of step 3, with which the training has played meanwhile.
        (of_3,) = (name for name in loaded if name.startswith("llm-envs 3 "))
        assert of_3 not in unloaded or unloaded.index(of_3) < unloaded.index(of_2[0])

    def test_one_whose_number_is_needed_pauses_the_training(self, make, caplog):
        with caplog.at_level(logging.WARNING):
            make(metric_for_best_model="eval_reward")[1].train()
        assert [record.message for record in caplog.records if "pauses the training" in record.message] == [
            "Each evaluation pauses the training: metric_for_best_model='eval_reward' needs each number immediately."
        ]

    def test_merged_weights_cannot_be_shared(self, make, caplog):
        with caplog.at_level(logging.WARNING):
            make(lora_sync="merged")[1].train()
        assert any("pauses the training: with eval_server_urls" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"eval_server_urls": []}, r"eval_server_urls=\[\]"),
        ({"eval_server_urls": ["nowhere"]}, "eval_server_urls is 'nowhere'"),
        ({"eval_strategy": "no"}, r"eval_server_urls=\['http://a:1'\].*eval_strategy"),
        ({"metric_for_best_model": "eval_reward"}, "metric_for_best_model='eval_reward'"),
        ({"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2}, "metric_for_best_model='loss'"),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": ["http://b:1", "http://a:1/v1"]},
            r"eval_server_urls=\['http://a:1'\].*vllm_server_urls",
        ),
        ({"use_vllm": True, "vllm_mode": "server", "ray": "auto"}, "ray='auto'"),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_transport": "gloo", "vllm_transfer_address": "h:1"},
            "vllm_transfer_address='h:1'",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(config, changes, match):
    with pytest.raises(InvalidConfigError, match=match):
        config(**EVALUATED | {"eval_server_urls": ["http://a:1"]} | changes)


def test_the_transport_of_weights_has_an_effect_without_a_training_on_servers(config, make, server, tmp_path):
    exchange = tmp_path / "exchange"
    trainer = make(eval_server_urls=[server.url], vllm_exchange_dir=str(exchange))
    trainer.train()
    sent = [asked.body["kwargs"]["weights_path"] for asked in server.paths("/collective_rpc")]
    assert len(sent) == 3 and all(path.startswith(str(exchange)) for path in sent)
    with pytest.raises(InvalidConfigError, match="vllm_exchange_dir"):
        config(**EVALUATED, vllm_exchange_dir=str(exchange))
