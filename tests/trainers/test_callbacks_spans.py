"""Spans of trainings, as a receiver of OTLP over HTTP gets them."""

from collections import Counter

import pytest
from otlp_receiver import receiving

from llm_envs.trainers import EnvGRPOTrainer, EnvSFTConfig, EnvSFTTrainer

pytestmark = pytest.mark.trainings


@pytest.fixture
def receiver(monkeypatch):
    with receiving(monkeypatch) as found:
        yield found


def test_the_episodes_of_a_step_are_below_it(receiver, config, tiny_folder, keep):
    trainer = keep(EnvGRPOTrainer(tiny_folder, "test/Say-v0", config(max_steps=2, steps_per_generation=1, trace=True)))
    trainer.train()
    steps = sorted(
        (span for span in receiver.spans if span.name == "training_step"), key=lambda s: s.start_time_unix_nano
    )
    assert [{a.key: a.value.int_value for a in span.attributes} for span in steps] == [
        {"llm_envs.step": 1, "llm_envs.process": 0},
        {"llm_envs.step": 2, "llm_envs.process": 0},
    ]
    episodes = [span for span in receiver.spans if span.name == "invoke_agent test/Say-v0"]
    assert Counter(span.parent_span_id for span in episodes) == {span.span_id: 16 for span in steps}
    assert {span.trace_id for span in episodes} == {span.trace_id for span in steps}
    chats = [span for span in receiver.spans if span.name == f"chat {tiny_folder}"]
    turns = {span.span_id for span in receiver.spans if span.name == "turn"}
    assert len(chats) == len(turns) == 64 and {span.parent_span_id for span in chats} == turns


def test_a_step_that_fails_is_sent_with_its_error(receiver, config, tiny_folder, keep):
    """The third generation without a score ends the run."""

    def no_reward(trajectory):
        raise ZeroDivisionError

    args = config(trace=True, max_steps=4, steps_per_generation=1)
    trainer = keep(EnvGRPOTrainer(tiny_folder, "test/Say-v0", args, rewards=no_reward))
    with pytest.raises(Exception, match="no_reward"):
        trainer.train()
    steps = {
        attribute.value.int_value: span
        for span in receiver.spans
        if span.name == "training_step"
        for attribute in span.attributes
        if attribute.key == "llm_envs.step"
    }
    failed = [number for number, span in steps.items() if span.status.code == span.status.STATUS_CODE_ERROR]
    assert (len(steps), failed) == (3, [3])
    assert "error.type" in {attribute.key for attribute in steps[3].attributes}


def test_other_trainings_have_steps_and_by_default_nothing_is_sent(receiver, configure, tiny_folder):
    for is_traced, n_spans in ((False, 0), (True, 3)):
        args = configure(EnvSFTConfig, max_steps=3, num_episodes=8, trace=is_traced)
        EnvSFTTrainer(tiny_folder, "llm/Arithmetic-v0", args).train()
        assert [span.name for span in receiver.spans] == ["training_step"] * n_spans
