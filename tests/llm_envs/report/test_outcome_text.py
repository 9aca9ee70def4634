"""Why an episode earned nothing, in words."""

from report_runs import make_episode

from llm_envs.report.outcome_text import expected_answer, why_nothing
from llm_envs.types import FinishReason, Message, StopReason, Turn

LOST = {"is_success": False, "turns": (Turn(0.0, {"correct": 0.0}),), "rows": ()}


def test_why_an_episode_earned_nothing() -> None:
    assert why_nothing(make_episode(1)) is None
    said = {"messages": (Message("user", "Capital?"), Message("assistant", "Paris"))}
    told = {"metadata": {"final_observation": "Reward: 0.\nmore", "expected": "Moscow"}}
    assert why_nothing(make_episode(1, **LOST, **said, **told)) == "no <answer> tags; expected Moscow"
    wrong = {"messages": (Message("user", "Capital?"), Message("assistant", "<answer>Paris</answer>"))}
    assert why_nothing(make_episode(1, **LOST, **wrong, **told)) == "Reward: 0; expected Moscow"
    assert why_nothing(make_episode(1, **LOST, metadata={})) is None
    limit = why_nothing(make_episode(1, **LOST, metadata={}, stop_reason=StopReason.MAX_TURNS, terminated=False))
    assert limit == "ended by max_turns"
    cut = (Turn(0.0, {}, row=0, span=0, finish_reason=FinishReason.LENGTH),)
    assert (
        why_nothing(make_episode(1, is_success=False, turns=cut, metadata={})) == "cut at the turn's limit of 2 tokens"
    )
    unscored = make_episode(1, status="unscored", is_success=None, metadata={"unscored_because": "no judge"})
    assert why_nothing(unscored) == "no judge"


def test_the_expected_answer_of_a_given_problem() -> None:
    given = make_episode(1, metadata={"options": {"problem": {"prompt": "?", "answers": ["a", "b"]}}})
    assert expected_answer(given) == '["a", "b"]'
    assert expected_answer(make_episode(1)) is None
