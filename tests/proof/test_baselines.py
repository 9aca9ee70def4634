"""`proof/baselines.py` with a scripted policy, and its table worked out by hand."""

import json
from pathlib import Path

import pytest

from llm_envs.parsers import format_answer
from llm_envs.testing import ByteCodec, HashingTokenPolicy

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def options(tmp_path):
    from proof.baselines import parse_options

    document = tmp_path / "page.md"
    document.write_text("Before.\n<!-- proof baselines -->\n\n(not run)\n\n<!-- end baselines -->\nAfter.\n")
    return parse_options(
        [
            "Arithmetic",
            "llm/GuessNumber-v0",
            "--n",
            "4",
            "--max-turns",
            "2",
            "--samplings",
            "sampled",
            "greedy",
            "--out",
            str(tmp_path),
            "--docs",
            str(document),
        ]
    )


def scripted():
    codec = ByteCodec()
    policy = HashingTokenPolicy(codec, [format_answer(5), "I do not know."])
    policy.codec = codec
    return policy


def test_every_form_is_played_stored_and_shown(options):
    from proof import baselines

    n_loaded = []

    def load(given):
        n_loaded.append(given)
        return scripted()

    assert options.env_ids == ["llm/Arithmetic-v0", "llm/GuessNumber-v0"]
    assert baselines.play_all(options.env_ids, options, load) == 0
    files = sorted(path.stem for path in options.out.glob("*.json"))
    wanted = [f"{form}-{how}" for form in ("few-shot", "natural", "plain") for how in ("greedy", "sampled")]
    assert files == [f"{task}-v0-{name}" for task in ("Arithmetic", "GuessNumber") for name in wanted]
    stored = json.loads((options.out / "GuessNumber-v0-few-shot-sampled.json").read_text())
    assert stored["settings"]["level"] == "easy"
    assert len(stored["outcomes"]["seeds"]) == 4
    assert max(stored["outcomes"]["turns"]) <= 2
    replies = stored["outcomes"]["replies"]
    assert len(replies) == 3
    assert all(reply["asked"][0].startswith("I am thinking of") for reply in replies)

    (options.out / "GuessNumber-v0-plain-greedy.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in options.out.glob("*.json")}
    assert baselines.play_all(options.env_ids, options, load) == 0  # only what is missing
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(n_loaded) == 2
    assert baselines.play_all(options.env_ids, options, load) == 0
    assert len(n_loaded) == 2

    baselines.put_into(options.docs, options.out)
    page = options.docs.read_text()
    assert page.startswith("Before.\n") and page.endswith("<!-- end baselines -->\nAfter.\n")
    assert page.count("| llm/GuessNumber-v0 | easy |") == 6
    assert "Made with `make baselines` in 0.0 hours on:" in page
    assert (options.out / "replies.md").read_text().count("Asked:") == 36


def test_the_plain_form_is_sampled_too_and_a_turn_among_others_is_shorter(options):
    from proof import baselines

    options.samplings = None
    assert baselines.play_all(options.env_ids, options, lambda given: scripted()) == 0
    wanted = ["few-shot-greedy", "natural-greedy", "plain-greedy", "plain-sampled"]
    files = [options.out / f"{task}-v0-{name}.json" for task in ("Arithmetic", "GuessNumber") for name in wanted]
    assert sorted(options.out.glob("*.json")) == files
    settings = [json.loads(path.read_text())["settings"] for path in files]
    assert [setting["turn_tokens"] for setting in settings] == [128] * 4 + [64] * 4


def test_a_row_by_hand():
    """Wilson's interval of 1 in 4 at 95% is 4.6% to 69.9%."""
    from proof.baselines import describe

    outcomes = {"seeds": [0, 1, 2, 3], "successes": [1, 0, 0, 0], "rewards": [1.0, -0.1, 0.0, -0.1], "not_played": 2}
    outcomes |= {"malformed": [0, 1, 0, 2], "turns": [1, 1, 1, 3], "cut": [0, 1, 0, 0], "tokens": [4, 8, 6, 10]}
    settings = {"env": "llm/Arithmetic-v0", "level": "easy", "form": "plain", "sampling": "greedy"}
    row = describe({"settings": settings, "outcomes": outcomes})
    assert row["success"] == "25% (5% to 70%)"
    assert row["reward"] == pytest.approx(0.2)
    assert (row["malformed"], row["cut"], row["tokens"], row["not_played"]) == (0.5, 0.25, 7, 2)


def test_an_unknown_task_is_named(capsys):
    from proof.baselines import parse_options

    with pytest.raises(SystemExit):
        parse_options(["Arithmetics"])
    assert "unknown tasks: Arithmetics" in capsys.readouterr().err
