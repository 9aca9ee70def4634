"""The shell in memory, and FileSystem."""

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.tools.shell import MAX_ENTRIES, Shell

assert llm_envs  # registers
ID = "llm/FileSystem-v0"
FILES = {
    "/docs/plan.txt": "number: 11\nowner: ada\nstatus: open\nkeep: no",
    "/docs/old/memo.log": "number: 12\nowner: ben\nstatus: closed\nkeep: no",
    "/docs/old/guide.txt": "number: 13\nowner: ada\nstatus: closed\nkeep: yes",
    "/work/index.log": "number: 14\nowner: ben\nstatus: draft\nkeep: no",
    "/work/errors.csv": "number: 15\nowner: ada\nstatus: draft\nkeep: no",
}


def shell():
    return Shell(FILES, ["/work/empty"])


def problem(kind, *values):
    return {"problem": {"files": FILES, "folders": ["/work/empty"], "kind": kind, "values": list(values)}}


def play(given, *commands, answer="done", level="medium"):
    """Run the commands and answer; return the last step's reward."""
    env = gym.make(ID, difficulty=level)
    env.reset(options=given)
    if commands:
        env.step("\n".join(format_tool_call("shell", command=command) for command in commands))
    return env.step(format_answer(answer))[1]


# The shell.


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("pwd", "/"),
        ("ls", "docs/\nwork/"),
        ("ls /docs", "old/\nplan.txt"),
        ("ls -la docs work/empty", "/docs:\nold/\nplan.txt\n/work/empty:\n(empty)"),
        ("ls -R work", "/work/empty/\n/work/errors.csv\n/work/index.log"),
        ("cd docs/old/..", "/docs"),
        ("cat docs/plan.txt", "number: 11\nowner: ada\nstatus: open\nkeep: no"),
        ("grep status docs/plan.txt", "/docs/plan.txt:status: open"),
        ("grep -rl 'owner: ada' /", "/docs/old/guide.txt\n/docs/plan.txt\n/work/errors.csv"),
        ("grep -rin 'OWNER: BEN' /docs", "/docs/old/memo.log:2:owner: ben"),
        ("grep -c number /work/*", "/work/errors.csv:1\n/work/index.log:1"),
        ("grep -r '.*' /", "(no match)"),
        ("find / -name '*.log'", "/docs/old/memo.log\n/work/index.log"),
        ("find work -type d", "/work\n/work/empty"),
        ("find docs -type f -name 'p*'", "/docs/plan.txt"),
        ("find / -name x", "(nothing found)"),
    ],
)
def test_what_reads(line, output):
    machine = shell()
    if line.startswith("grep -c"):
        with pytest.raises(InvalidActionError, match="/work/empty: Is a directory"):
            machine.run(line)
        machine.run("rmdir /work/empty")
    assert machine.run(line) == output
    assert machine.files == FILES


def test_what_writes():
    machine = shell()
    machine.run("mkdir -p /a/b/c")
    machine.run("mv docs/plan.txt a/b")
    machine.run("mv a/b/plan.txt a/b/other.txt")
    assert machine.run("ls -R a") == "/a/b/\n/a/b/c/\n/a/b/other.txt"
    machine.run("cp -r docs/old a")
    machine.run("cd a/old")
    machine.run("rm *.log")
    assert machine.run("ls") == "guide.txt"
    machine.run("mv /work /a/work")
    assert "/a/work/empty" in machine.folders
    assert "/work" not in machine.folders
    machine.run("rm -r /a/old")
    assert machine.run("pwd") == "/"  # where it stood is gone
    machine.run("mv a/work/index.log a/work/errors.csv")  # as a shell does, over the other
    assert machine.files["/a/work/errors.csv"] == FILES["/work/index.log"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "empty"),
        ("cat 'x", "cannot be read"),
        ("ls | wc", "not supported"),
        ("echo x > /docs/plan.txt", "not supported"),
        ("ls;pwd", "not supported"),
        ("python -c 1", "no command here"),
        ("cat /docs", "Is a directory"),
        ("cat /none", "No such file"),
        ("cat", "missing operand"),
        ("ls -z", "-z is not supported"),
        ("grep x /docs", "use -r"),
        ("find / -exec rm", "not supported"),
        ("cd /docs/plan.txt", "No such directory"),
        ("mkdir /docs", "File exists"),
        ("mkdir /x/y", "No such file"),
        ("mkdir -p /docs/plan.txt/x", "Not a directory"),
        ("mkdir " + "x" * 101, "100 printable"),
        ("mv /docs /docs/old", "into itself"),
        ("mv / /docs", "into itself"),
        ("mv /docs/plan.txt /none/x", "No such file"),
        ("mv /docs/plan.txt /docs/old/memo.log /none", "No such directory"),
        ("mv /docs/plan.txt /docs/plan.txt", "the same file"),
        ("cp /docs /x", "use -r"),
        ("rm /docs", "use -r"),
        ("rm -r /", "refuses"),
        ("rmdir /docs", "not an empty"),
        ("x" * 2_001, "at most 2000"),
    ],
)
def test_what_fails_says_why_and_changes_nothing(line, complaint):
    machine = shell()
    with pytest.raises(InvalidActionError, match=complaint):
        machine.run(line)
    assert (machine.files, machine.folders) == (shell().files, shell().folders)


def test_a_tree_cannot_grow_without_end():
    machine = shell()
    with pytest.raises(InvalidActionError, match="no space left"):
        for number in range(20):
            machine.run(f"cp -r /docs /copy{number}")
            machine.run(f"mv /copy{number} /docs/copy{number}")
    assert len(machine.files) + len(machine.folders) <= MAX_ENTRIES


# The task.


@pytest.mark.parametrize(
    ("given", "commands"),
    [
        (
            problem("collect", ".log", "/archive/a"),
            ["mkdir -p /archive/a", "mv /docs/old/memo.log /work/index.log /archive/a"],
        ),
        (
            problem("rename", ".log", ".bak"),
            ["mv /docs/old/memo.log /docs/old/memo.bak", "mv /work/index.log /work/index.bak"],
        ),
        (
            problem("clean", ".csv", "/docs", "/backup11"),
            ["rm /work/errors.csv", "mkdir /backup11", "cp /docs/*.txt /backup11"],
        ),
        (
            problem("by_owner", "closed", "/archive"),
            [
                "mkdir -p /archive/ada /archive/ben",
                "mv /docs/old/memo.log /archive/ben",
                "mv /docs/old/guide.txt /archive/ada",
            ],
        ),
        (problem("purge", "closed"), ["rm /docs/old/memo.log"]),
        (
            problem("hand_over", "ada", "closed", "/handover11"),
            ["mkdir /handover11", "rm /docs/old/guide.txt", "mv /docs/plan.txt /work/errors.csv /handover11"],
        ),
    ],
)
def test_the_tree_is_compared_exactly(given, commands):
    assert play(given, *commands) == 1.0
    assert play(given, *commands, answer=" DONE. ") == 1.0
    assert play(given) == 0.0  # nothing was done
    assert play(given, *commands[:-1]) == 0.0
    assert play(given, *commands, "rm -r /work/empty") == 0.0
    assert play(given, *commands, "mkdir /extra") == 0.0
    assert play(given, *commands, "cp /work/empty /x", "rm -r /docs /work") == 0.0
    assert play(given, *commands, answer="I am not done") == pytest.approx(-0.1)


def test_what_is_asked_is_answered():
    assert play(problem("locate", "number: 13"), answer="/docs/old/guide.txt", level="easy") == 1.0
    assert play(problem("locate", "number: 13"), answer="`/docs/old/guide.txt`", level="easy") == 1.0
    assert play(problem("locate", "number: 13"), answer="guide.txt", level="easy") == 0.0
    assert play(problem("locate", "number: 13"), answer=" ".join(FILES), level="easy") == 0.0
    assert play(problem("read", "index.log"), answer="14", level="easy") == 1.0
    assert play(problem("read", "index.log"), answer="done", level="easy") == pytest.approx(-0.1)


def test_a_tree_in_order_counts_only_when_it_is_said():
    env = gym.make(ID, difficulty="hard", max_turns=2)
    env.reset(options=problem("purge", "closed"))
    env.step(format_tool_call("shell", command="rm /docs/old/memo.log"))
    _, reward, terminated, truncated, info = env.step(format_tool_call("shell", command="ls"))
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, False, True, False)


@pytest.mark.parametrize("level", ["medium", "hard", "expert"])
def test_the_oracle_repairs_what_can_be_repaired(level):
    env = gym.make(ID, difficulty=level).unwrapped
    for seed in range(20):
        env.reset(seed=seed)
        first = sorted(env.terminal.machine.files)[0]
        env.step(
            format_tool_call("shell", command=f"mv {first} /lost.x") + format_tool_call("shell", command="mkdir /y")
        )
        total, over = 0.0, False
        while not over:
            _, reward, over, truncated, _ = env.step(env.oracle())
            total += reward
            assert not truncated
        assert total == 1.0


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_no_single_command_and_no_destruction_wins(level):
    commands = ("rm -r /docs /home /work /data /team /projects", "mkdir -p /archive", "rm -r /*", "mv /* /archive")
    for seed in range(30):
        for command in commands:
            env = gym.make(ID, difficulty=level)
            env.reset(seed=seed)
            env.step(format_tool_call("shell", command=command))
            assert env.step(format_answer("done"))[1] <= 0.0


def test_what_cannot_be_done_is_refused():
    bad = [
        problem("nothing"),
        problem("rename", ".md", ".x"),  # there are none
        problem("purge", "open"),  # nothing to spare
        problem("collect", ".log"),
        problem("locate", "keep: no"),  # several
        {"problem": {"files": {"a.txt": ""}, "folders": [], "kind": "purge", "values": ["open"]}},
        {"problem": {"files": {"/a/../b": ""}, "folders": [], "kind": "purge", "values": ["open"]}},
        {"problem": {"files": {"/a": "", "/a/b": ""}, "folders": [], "kind": "purge", "values": ["open"]}},
        {"problem": {"files": {"/a": 1}, "folders": [], "kind": "purge", "values": ["open"]}},
        {"problem": {"files": {"//a": ""}, "folders": [], "kind": "purge", "values": ["open"]}},
        problem("rename", ".md", "/../.."),
    ]
    for given in bad:
        with pytest.raises(InvalidConfigError, match="cannot be played"):
            gym.make(ID).unwrapped.reset(options=given)


def test_the_tool_says_that_grep_takes_its_text_as_it_stands():
    env = gym.make(ID)
    env.reset(seed=0)
    assert "no regular expressions" in env.unwrapped.tools[0]["function"]["description"]
