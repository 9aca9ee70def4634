"""Assistant."""

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.tools.office import DAYS, clock, slot_of, times_in

assert llm_envs  # registers
ID = "llm/Assistant-v0"
OFFICE = {
    "people": ["Robin Vale", "Ada Berg", "Chen Ito", "Dora Hahn"],
    "events": [
        [1, 0, 2, "Planning", [0]],  # Tuesday 9:00-10:00, called off
        [1, 3, 1, "busy", [1]],  # 10:30-11:00
        [1, 2, 1, "busy", [2]],  # 10:00-10:30
        [1, 0, 16, "busy", [3]],  # all day, not invited
        [2, 5, 2, "Taxes", [0]],  # Wednesday 11:30
    ],
    "messages": [
        [3, "Canteen", "news", {}],
        [1, "Logo", "meet", {"with": [2], "slots": 2, "days": [1, 2], "from": 1, "to": 8}],
        [2, "Plans", "cancel", {"event": 0}],
        [3, "Time", "ask", {"event": 4}],
    ],
}
# Tuesday, from 9:30 to 13:00, an hour: Ada and Chen leave 11:00; with Planning gone nothing earlier is an hour long.
SCHEDULE = (
    "schedule",
    {"title": "logo", "day": "tuesday", "start": "11:00", "minutes": 60, "attendees": ["Ada", "Chen Ito"]},
)
CALLS = [
    ("cancel", {"event": "e1"}),
    SCHEDULE,
    ("reply", {"message": "m2", "text": "We meet on Tuesday at 11:00."}),
    ("reply", {"message": "m3", "text": "Done."}),
    ("reply", {"message": "m4", "text": "Wednesday, 11.30"}),
]  # fmt: skip


def play(calls, office=OFFICE, answer="done"):
    env = gym.make(ID, difficulty="hard")
    env.reset(options={"problem": office})
    said = env.step("".join(format_tool_call(name, **arguments) for name, arguments in calls))[0] if calls else ""
    return said, *env.step(format_answer(answer))[1:3]


def test_what_the_tools_show():
    env = gym.make(ID)
    assert env.reset(options={"problem": OFFICE})[0] == "There are 4 messages in Robin's inbox."
    assert env.step(format_tool_call("inbox"))[0].splitlines()[1] == "m2 | from Ada Berg | Logo"
    assert env.step(format_tool_call("read", message="m2"))[0] == (
        "From: Ada Berg\nSubject: Logo\n\nHi Robin, I would like to talk with you about this on Tuesday, for 60 "
        "minutes. If Tuesday is impossible, then on Wednesday. Chen Ito should come too. I cannot begin before "
        "09:30. It must be over by 13:00. The earliest time that suits everybody is best.\nAda"
    )
    assert env.step(format_tool_call("calendar", person="Robin", day="Tuesday"))[0] == (
        "Robin Vale, Tuesday:\n09:00-10:00 e1: Planning (Robin)"
    )
    env.step(format_tool_call(*SCHEDULE[:1], **SCHEDULE[1]))
    said = env.step(format_tool_call("calendar", person="robin vale", day="tuesday"))[0]
    assert said.splitlines()[-1] == "11:00-12:00 e6: logo (Robin, Ada Berg, Chen Ito)"
    env.step(format_tool_call("reply", message="m3", text="Done."))
    assert env.step(format_tool_call("inbox"))[0].splitlines()[2] == "m3 | from Chen Ito | Plans | answered"


def test_the_state_is_compared_exactly():
    assert play(CALLS)[1:] == (1.0, True)
    assert play([])[1:] == (0.0, True)
    for place in range(len(CALLS)):
        assert play(CALLS[:place] + CALLS[place + 1 :])[1] == 0.0
    for call in (("cancel", {"event": "e5"}), SCHEDULE, ("reply", {"message": "m1", "text": "Thanks"})):
        assert play([*CALLS, call])[1] == 0.0
    assert play(CALLS, answer="finished")[1:] == (pytest.approx(-0.1), False)


@pytest.mark.parametrize(
    "change",
    [
        {"start": "10:30"},
        {"start": "12:00"},
        {"day": "Wednesday"},
        {"minutes": 30},
        {"attendees": ["Ada"]},
        {"attendees": ["Ada", "Chen", "Dora"]},
        {"title": "Meeting"},
    ],
)
def test_another_meeting_is_not_the_one(change):
    assert play([CALLS[0], ("schedule", SCHEDULE[1] | change), *CALLS[2:]])[1] == 0.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("On tuesday at 11:00, as you wished.", 1.0),
        ("Tuesday 11:00. See you on Tuesday at 11:00!", 1.0),
        ("At 11:00.", 0.0),
        ("Tuesday at 11:30.", 0.0),
        ("Tuesday at 9:00, 9:30, 10:00, 10:30, 11:00, 11:30 or 12:00.", 0.0),
        ("Tuesday or Wednesday at 11:00.", 0.0),
        ("", 0.0),
    ],
)
def test_an_answer_names_the_day_and_the_time(text, reward):
    calls = [call for call in CALLS if call[1].get("message") != "m2"]
    assert play([*calls, ("reply", {"message": "m2", "text": text})])[1] == reward


def test_mistakes_can_be_undone_but_not_unsaid():
    wrong = ("schedule", SCHEDULE[1] | {"start": "12:00"})
    assert play([wrong, ("cancel", {"event": "e6"}), *CALLS])[1] == 1.0
    said, reward, _ = play([("reply", {"message": "m2", "text": "No."}), *CALLS])
    assert "Error: m2 was answered already" in said
    assert reward == 0.0


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (("read", {"message": "m9"}), "there is no message 'm9'"),
        (("calendar", {"person": "Zoe", "day": "Monday"}), "there is nobody called 'Zoe'"),
        (("calendar", {"person": "Ada", "day": "Sunday"}), "'Sunday' is none of Monday"),
        (("cancel", {"event": "e2"}), "no event 'e2' in Robin's calendar"),
        (("schedule", SCHEDULE[1] | {"start": "11:15"}), "not a full or half hour"),
        (("schedule", SCHEDULE[1] | {"start": "16:30"}), "ends by 17:00"),
        (("schedule", SCHEDULE[1] | {"minutes": 45}), "30, 60, 90 or 120"),
    ],
)
def test_the_tools_say_what_is_wrong(call, complaint):
    said, reward, _ = play([call])
    assert said.startswith("Error: ")
    assert complaint in said
    assert reward == 0.0


def test_times_as_people_write_them():
    assert times_in("Monday 9.30 or 14:00") == (("Monday",), ("09:30", "14:00"))
    assert times_in("version 1.2.30, 25:00, 7:5") == ((), ())
    assert [slot_of(clock(slot)) for slot in range(16)] == list(range(16))
    with pytest.raises(InvalidActionError, match="half hour"):
        slot_of("17:00")


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_time_is_the_first_at_which_all_are_free(level):
    env = gym.make(ID, difficulty=level).unwrapped
    for seed in range(40):
        env.reset(seed=seed)
        events, messages = env.problem["events"], env.problem["messages"]
        gone = [details["event"] for _, _, kind, details in messages if kind == "cancel"]
        ((place, sender, details),) = [(p, m[0], m[3]) for p, m in enumerate(messages) if m[2] == "meet"]
        found = []
        for day in details["days"]:
            for first in range(details["from"], details["to"] - details["slots"] + 1):
                clash = any(
                    at == day
                    and number not in gone
                    and {0, sender, *details["with"]} & set(who)
                    and begin < first + details["slots"]
                    and first < begin + length
                    for number, (at, begin, length, _, who) in enumerate(events)
                )
                if not clash:
                    found.append(((DAYS[day],), (clock(first),)))
        assert env._times[place] == found[0]
        robins = [event for event in events if 0 in event[4]]
        assert len({event[3] for event in robins}) == len(robins)


@pytest.mark.parametrize(
    "change",
    [
        {"people": ["Robin Vale"]},
        {"people": ["Robin Vale", "Ada Berg", "Ada Ito", "Dora Hahn"]},
        {"messages": []},
        {"messages": [[1, "Logo", "meet", {"with": [2], "slots": 4, "days": [1], "from": 1, "to": 4}]]},  # no time
        {"messages": [[1, "Logo", "cancel", {"event": 1}]]},  # not Robin's
        {"messages": [[1, "Logo", "party", {}]]},
        {"messages": [OFFICE["messages"][1]] * 2},
        {"events": [[1, 15, 2, "late", [0]]]},
    ],
)
def test_what_cannot_be_played_is_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ID).unwrapped.reset(options={"problem": {**OFFICE, **change}})
