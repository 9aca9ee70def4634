"""`llm/FileSystem-v0`: find something in a tree of files, or bring the tree into order, with a shell."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import read_integer, split_words
from llm_envs.tasks.replies import is_done
from llm_envs.tasks.tools.shell import MAX_ENTRIES, Shell
from llm_envs.tools.toolset import Toolset, tool

__all__ = ["GOALS", "FileSystemEnv"]

Files = dict[str, str]


class Terminal(Toolset):
    """A shell on the problem's tree."""

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Lay out the tree."""
        self.machine = Shell(problem["files"], problem["folders"])
        self.done: set[str] = set()
        """Commands that were run without an error."""

    @tool
    def shell(self, command: str) -> str:
        """Run one of ls, cd, pwd, cat, grep (plain text, no regular expressions), find, mkdir, mv, cp, rm, rmdir.

        Args:
            command: One command, without pipes and redirections, such as: grep -r "status: open" /docs
        """
        output = self.machine.run(command)
        self.done.add(command)
        return output or "(done)"


class FileSystemEnv(ToolEnv):
    """Find something in a tree of files, or bring the tree into a given order.

    ## Description
    Each episode has its own tree of folders and small text files, and the tool `shell(command)`, a subset of a
    Unix shell. Either something is asked about one file, or the tree is to be changed: files moved, renamed, copied or
    deleted by their names or by their contents. The tree at the end counts, compared exactly: all that was
    asked for and nothing else. Teaches to look before acting, to act on exactly the right files, and to notice when a
    command failed.

    ## Observation
    First the task. After a call the output of the command, "(done)", or "Error: ..." as a shell prints it. After
    a malformed reply a readable error.

    ## Action
    A call of the tool `shell`, or the final answer: the path or the number that the question wants,
    `<answer>/a/b.txt</answer>` or `<answer>417</answer>`; `<answer>done</answer>` when the tree is as it should be.

    ## Reward
    `correct` (weight 1): 1 for the right answer; for "done" if the tree is exactly as asked. `malformed` (weight -0.1):
    1 for a reply that is neither a call nor an answer, is broken, or whose answer is not "done" where only the tree
    counts, or not a path, or not a number, where the question wants one.

    ## Episode End
    Terminates with the first answer. Truncated after `max_turns` replies; then the tree does not count.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): find a file or what is in it; "medium": change the tree by the files' names;
      "hard": by what the files contain; "expert": by three of their lines, with exceptions.
    - `max_turns`: 12, 16, 24 and 32 by default: enough for one call in each reply.
    - `reset(options={"problem": {"files": {"/a/b.txt": "text"}, "folders": ["/c"], "kind": "rename", "values": [".txt",
      ".md"]}})`: the tree, and what is to be done with it (`GOALS` in the module).

    ## Version History
    - v0: first version.
    """

    # Easy: who lists the tree and names one of its files (at least 12) is right in 1/12; codes are harder to guess.
    # Otherwise a tree is not put into order by chance: a policy that runs `rm`, `mv` and `mkdir` at random never won.
    difficulties = {
        "easy": Difficulty("find a file, or what is in it", chance_rate=1 / 12, settings={"n_files": 12, "turns": 12}),
        "medium": Difficulty(
            "change the tree by the names of files", chance_rate=0.01, settings={"n_files": 14, "turns": 16}
        ),
        "hard": Difficulty(
            "change the tree by what files contain", chance_rate=0.01, settings={"n_files": 14, "turns": 24}
        ),
        "expert": Difficulty(
            "by three conditions, with exceptions, in a tree of 20",
            chance_rate=0.01,
            settings={"n_files": 16, "turns": 32},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 12
    problem_fields = {"files": dict, "folders": list, "kind": str, "values": list}
    instructions = (
        "Do the user's task with the shell. You begin in the folder /. Change only the files and folders that the user "
        "wants changed; all others stay as they are, and folders that become empty stay too. If the user asks a "
        "question, answer with the path or the number, and nothing else. If the user wants the files changed, answer "
        "<answer>done</answer> when they are as they should be."
    )
    answer_example = "/photos/2019/beach.jpg"
    has_natural_form = False

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["turns"]

    def make_tools(self) -> Toolset:
        """Return the shell."""
        self.terminal = Terminal()
        return self.terminal

    def generate(self) -> dict[str, Any]:
        """Draw a tree and something to do with it that changes it, or asks about one file."""
        rng = self.np_random
        names = _LEVELS[self.difficulty]
        while True:
            files, folders = _draw_tree(rng, self.settings["n_files"] + int(rng.random() * 4))
            name = names[int(rng.random() * len(names))]
            values = GOALS[name].draw(files, folders, rng.random)
            if _is_playable(files, folders, name, values):
                return {"files": files, "folders": folders, "kind": name, "values": values}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an impossible tree, an unknown goal, and a goal that is reached already."""
        files, folders = problem["files"], problem["folders"]
        paths = [*files, *folders]
        if not all(map(_is_path, paths)):
            raise InvalidActionError("its paths must be absolute, such as /a/b.txt")
        if not all(isinstance(text, str) for text in files.values()):
            raise InvalidActionError("the contents of its files must be texts")
        shell = Shell(files, folders)
        if len(shell.files) + len(shell.folders) > MAX_ENTRIES // 2 or shell.folders & set(files):
            raise InvalidActionError(f"its tree must have {MAX_ENTRIES // 2} entries at most, each a file or a folder")
        if problem["kind"] not in GOALS:
            raise InvalidActionError(f"its kind is none of {', '.join(GOALS)}")
        try:
            is_playable = _is_playable(files, folders, problem["kind"], problem["values"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InvalidActionError(f"its values do not fit its kind: {error!r}") from error
        if not is_playable:
            raise InvalidActionError("there is nothing to do, or no single answer, or a file would be overwritten")

    def begin(self) -> None:
        """Work out the tree or the answer that is wanted."""
        problem = self.problem
        self._wanted: str | Files = GOALS[problem["kind"]].result(problem["files"], *problem["values"])
        if isinstance(self._wanted, dict):
            made = Shell(problem["files"], problem["folders"]).folders
            self._folders = made | Shell(self._wanted).folders

    def prompt(self) -> str:
        """Return what is to be done."""
        return GOALS[self.problem["kind"]].text(*self.problem["values"])

    def is_correct(self, answer: str) -> bool:
        """Compare the answer, or the tree, with what is wanted."""
        if isinstance(self._wanted, str):
            return self._is_wanted(answer, self._wanted)
        if not is_done(answer):
            raise InvalidActionError("the answer must be <answer>done</answer>, when the tree is as it should be")
        machine = self.terminal.machine
        return machine.files == self._wanted and machine.folders == self._folders

    def _is_wanted(self, answer: str, wanted: str) -> bool:
        """Compare a path or a number."""
        text = answer.strip("'\"`* \n")
        if text == wanted:
            return True
        if wanted.startswith("/"):
            if not all(word.startswith("/") for word in text.split()[1:]):
                raise InvalidActionError("the answer is not one path")
            return False
        if not wanted.isdigit():
            return False
        return str(read_integer(text.removeprefix("number:").strip(), units=split_words(self.prompt()))) == wanted

    def next_action(self) -> str:
        """Look, then do what is missing, then answer."""
        for look in GOALS[self.problem["kind"]].looks(*self.problem["values"]):
            if look not in self.terminal.done:
                return format_tool_call("shell", command=look)
        if isinstance(self._wanted, str):
            return self.write_answer(self._wanted)
        commands = _repair(self.terminal.machine, self._wanted, self._folders)
        if not commands:
            return self.write_answer("done")
        return "\n".join(format_tool_call("shell", command=line) for line in commands[: self.max_calls_per_turn])


def _is_playable(files: Files, folders: list[str], kind: str, values: list[Any]) -> bool:
    """Return whether there is a single answer, or a tree that differs, from which no file got lost by the way."""
    result = GOALS[kind].result(files, *values)
    if isinstance(result, str):
        return bool(result)
    return result != files and len(result) >= 3 and all(map(_is_path, result))


def _is_path(path: object) -> bool:
    """Return whether this is an absolute path, written in the one way."""
    return isinstance(path, str) and path == posixpath.normpath(path) and path[:1] == "/" != path[1:2]


def _repair(machine: Shell, wanted: Files, folders: set[str]) -> list[str]:
    """Return commands that bring the tree into order, as far as its files' contents are still there."""
    missing = {path: text for path, text in wanted.items() if machine.files.get(path) != text}
    extra = {path: text for path, text in machine.files.items() if wanted.get(path) != text}
    new = sorted(folders - machine.folders)
    commands = [f"mkdir -p {path}" for path in new if not any(other.startswith(f"{path}/") for other in new)]
    for path, text in sorted(missing.items()):
        sources = [old for old, had in sorted(extra.items()) if had == text]
        source = next((old for old in sources if _stem(old) == _stem(path)), sources[0] if sources else None)
        if source is not None:
            extra.pop(source)
            commands.append(f"mv {source} {path}")
        elif (kept := next((old for old, had in sorted(machine.files.items()) if had == text), None)) is not None:
            commands.append(f"cp {kept} {path}")
    if gone := sorted(set(extra) - set(missing)):
        commands.append(f"rm {' '.join(gone)}")
    commands += [f"rm -r {path}" for path in sorted(machine.folders - folders, reverse=True)]
    return commands


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


# Trees.

_TOPS = ("docs", "projects", "home", "work", "data", "team")
_SUBS = ("alpha", "beta", "reports", "drafts", "shared", "old", "2024", "2025", "notes", "inbox")
_STEMS = ("agenda", "budget", "contract", "design", "errors", "figures", "guide", "history", "index", "journal",
          "kickoff", "letter", "memo", "outline", "plan", "quotes", "review", "summary", "tasks", "update")  # fmt: skip
_ENDINGS = (".txt", ".md", ".log", ".csv", ".tmp")
_OWNERS = ("ada", "ben", "clara", "david", "elena", "felix")
_STATES = ("open", "closed", "draft")


def _draw_tree(rng: np.random.Generator, n_files: int) -> tuple[Files, list[str]]:
    draws: Callable[[], float] = iter(rng.random(8 * n_files + 24).tolist()).__next__

    def choose(choices: Any) -> Any:
        return choices[int(draws() * len(choices))]

    tops = [f"/{_TOPS[place]}" for place in np.argsort(rng.random(len(_TOPS)))[:3].tolist()]
    folders = list(dict.fromkeys([*tops, *(f"{choose(tops)}/{choose(_SUBS)}" for _ in range(5))]))
    files: Files = {}
    stems = list(_STEMS)
    for number in range(n_files):
        # Stems that differ, so that no two files ever meet under one name.
        stem = stems.pop(int(draws() * len(stems)))
        keep = "yes" if draws() < 0.3 else "no"
        files[f"{choose(folders)}/{stem}{choose(_ENDINGS)}"] = (
            f"number: {number}{int(draws() * 1000):03d}\nowner: {choose(_OWNERS)}\nstatus: {choose(_STATES)}\n"
            f"keep: {keep}"
        )
    return files, sorted(folders)


def _fields(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def _has(text: str, line: str) -> bool:
    return line in text.splitlines()


def _moved(files: Files, target: Callable[[str, str], str | None]) -> Files:
    """Return the files where `target(path, content)` puts them, None leaves one where it is; {} if two would meet."""
    new = {target(path, text) or path: text for path, text in files.items()}
    return new if len(new) == len(files) else {}


def _into(folder: str, path: str) -> str:
    return f"{folder}/{posixpath.basename(path)}"


# Goals. Each draws its values, works out the answer (a text) or the tree that is wanted, and says what is to be done
# and how one would look.


class Goal(NamedTuple):
    """Something to do with a tree."""

    draw: Callable[[Files, list[str], Callable[[], float]], list[Any]]
    result: Callable[..., str | Files]
    text: Callable[..., str]
    looks: Callable[..., list[str]]
    """Commands that show all that is needed to know what to do."""


def _draw_path(files: Files, folders: list[str], random: Callable[[], float]) -> str:
    return list(files)[int(random() * len(files))]


def _draw_ending(random: Callable[[], float]) -> str:
    return _ENDINGS[int(random() * len(_ENDINGS))]


def _two_owners(random: Callable[[], float]) -> list[str]:
    first = int(random() * len(_OWNERS))
    return [_OWNERS[first], _OWNERS[(first + 1 + int(random() * (len(_OWNERS) - 1))) % len(_OWNERS)]]


def _path_with(files: Files, line: str) -> str:
    found = [path for path, text in files.items() if _has(text, line)]
    return found[0] if len(found) == 1 else ""


def _number_in(files: Files, name: str) -> str:
    found = [text for path, text in files.items() if posixpath.basename(path) == name]
    return _fields(found[0])["number"] if len(found) == 1 else ""


def _collect(files: Files, ending: str, folder: str) -> Files:
    return _moved(files, lambda path, text: _into(folder, path) if path.endswith(ending) else None)


def _rename(files: Files, ending: str, new: str) -> Files:
    return _moved(files, lambda path, text: path.removesuffix(ending) + new if path.endswith(ending) else None)


def _clean(files: Files, ending: str, place: str, folder: str) -> Files:
    """Delete the files of an ending, and copy what then stands in one folder to another."""
    kept = {path: text for path, text in files.items() if not path.endswith(ending)}
    copies = {_into(folder, path): text for path, text in kept.items() if posixpath.dirname(path) == place}
    return kept | copies if copies and len(kept) < len(files) and not set(copies) & set(kept) else {}


def _by_owner(files: Files, state: str, folder: str) -> Files:
    """Move the files of a state to folders of their owners."""
    return _moved(
        files,
        lambda path, text: (
            _into(f"{folder}/{_fields(text)['owner']}", path) if _has(text, f"status: {state}") else None
        ),
    )


def _purge(files: Files, state: str) -> Files:
    meant = {path: text for path, text in files.items() if _has(text, f"status: {state}")}
    spared = {path for path, text in meant.items() if _has(text, "keep: yes")}
    return {path: text for path, text in files.items() if path not in meant or path in spared} if spared else {}


def _settle(files: Files, state: str, owner: str, folder: str) -> Files:
    """Move the files of a state to folders of their owners; of one owner only what is kept, the rest is deleted."""
    meant = {path: text for path, text in files.items() if _has(text, f"status: {state}")}
    gone = {path for path, text in meant.items() if _has(text, f"owner: {owner}") and not _has(text, "keep: yes")}
    kept = {path: text for path, text in files.items() if path not in gone}
    if not gone or len(meant) < 4:
        return {}
    return _moved(kept, lambda path, text: _into(f"{folder}/{_fields(text)['owner']}", path) if path in meant else None)


def _sweep(files: Files, first: str, second: str, folder: str) -> Files:
    """Swap two owners' drafts and open files: of each the files of one state are moved, what is closed is deleted."""
    places = {}
    gone = set()
    for path, text in files.items():
        fields = _fields(text)
        if fields["owner"] in (first, second) and fields["status"] == "closed" and fields["keep"] == "no":
            gone.add(path)
        elif fields["owner"] == first and fields["status"] == "open":
            places[path] = f"{folder}/{second}"
        elif fields["owner"] == second and fields["status"] == "draft":
            places[path] = f"{folder}/{first}"
    kept = {path: text for path, text in files.items() if path not in gone}
    if not gone or len(set(places.values())) < 2:
        return {}
    return _moved(kept, lambda path, text: _into(places[path], path) if path in places else None)


def _hand_over(files: Files, owner: str, state: str, folder: str) -> Files:
    """Move an owner's files, but for those of a state, which are deleted; {} if there are not both."""
    own = {path: text for path, text in files.items() if _has(text, f"owner: {owner}")}
    gone = {path for path, text in own.items() if _has(text, f"status: {state}")}
    kept = {path: text for path, text in files.items() if path not in gone}
    if not gone or len(gone) == len(own):
        return {}
    return _moved(kept, lambda path, text: _into(folder, path) if path in own else None)


GOALS: dict[str, Goal] = {
    "locate": Goal(
        lambda files, folders, random: [files[_draw_path(files, folders, random)].splitlines()[0]],
        _path_with,
        lambda line: f'One file has the line "{line}". What is its absolute path?',
        lambda line: [f'grep -r "{line}" /'],
    ),
    "read": Goal(
        lambda files, folders, random: [posixpath.basename(_draw_path(files, folders, random))],
        _number_in,
        lambda name: f'Somewhere there is a file {name}. Which number stands in its line "number: ..."?',
        lambda name: ["grep -r number: /"],
    ),
    "collect": Goal(
        lambda files, folders, random: [_draw_ending(random), f"/archive/{_SUBS[int(random() * len(_SUBS))]}"],
        _collect,
        lambda ending, folder: (
            f"Move every file whose name ends in {ending}, wherever it is, into the folder {folder}, which you have to "
            f"make."
        ),
        lambda ending, folder: [f'find / -name "*{ending}"'],
    ),
    "rename": Goal(
        lambda files, folders, random: [_draw_ending(random), (".bak", ".org", ".old", ".text")[int(random() * 4)]],
        _rename,
        lambda ending, new: (
            f"Rename every file whose name ends in {ending}, wherever it is: {new} takes the place of {ending}, as in "
            f"NAME{ending} to NAME{new}."
        ),
        lambda ending, new: [f'find / -name "*{ending}"'],
    ),
    "clean": Goal(
        lambda files, folders, random: [
            _draw_ending(random),
            posixpath.dirname(_draw_path(files, folders, random)),
            f"/backup{int(random() * 90) + 10}",
        ],
        _clean,
        lambda ending, place, folder: (
            f"First delete every file whose name ends in {ending}, wherever it is. Then make the folder {folder} and "
            f"copy into it all files that stand directly in {place}; those in folders below it are not meant."
        ),
        lambda ending, place, folder: ["ls -R /"],
    ),
    "by_owner": Goal(
        lambda files, folders, random: [_STATES[int(random() * 3)], "/archive"],
        _by_owner,
        lambda state, folder: (
            f'Move every file that has the line "status: {state}" into a folder of its owner under {folder}: a file '
            f'with "owner: ada" goes to {folder}/ada, and so on. Make the folders that are needed, and no others.'
        ),
        lambda state, folder: [f'grep -r "status: {state}" /', "grep -r owner: /"],
    ),
    "purge": Goal(
        lambda files, folders, random: [_STATES[int(random() * 3)]],
        _purge,
        lambda state: f'Delete every file that has the line "status: {state}", unless it has the line "keep: yes" too.',
        lambda state: [f'grep -r "status: {state}" /', 'grep -r "keep: yes" /'],
    ),
    "hand_over": Goal(
        lambda files, folders, random: [
            _OWNERS[int(random() * len(_OWNERS))], _STATES[int(random() * 3)], f"/handover{int(random() * 90) + 10}"
        ],
        _hand_over,
        lambda owner, state, folder: (
            f'Of the files with the line "owner: {owner}", delete those that have the line "status: {state}", and '
            f"move the others into the folder {folder}, which you have to make. Leave the files of other owners alone."
        ),
        lambda owner, state, folder: [f'grep -r "owner: {owner}" /', f'grep -r "status: {state}" /'],
    ),
    "settle": Goal(
        lambda files, folders, random: [
            _STATES[int(random() * 3)], _OWNERS[int(random() * len(_OWNERS))], f"/settled{int(random() * 90) + 10}"
        ],
        _settle,
        lambda state, owner, folder: (
            f'Take the files with the line "status: {state}". Of those with "owner: {owner}", delete the ones that do '
            f'not have the line "keep: yes". Move all others into a folder of their owner under {folder}: a file with '
            f'"owner: ada" goes to {folder}/ada, and so on. Make the folders that are needed, and no others.'
        ),
        lambda state, owner, folder: [
            f'grep -r "status: {state}" /', "grep -r owner: /", 'grep -r "keep: yes" /'
        ],
    ),
    "sweep": Goal(
        lambda files, folders, random: [
            *_two_owners(random), f"/swapped{int(random() * 90) + 10}"
        ],
        _sweep,
        lambda first, second, folder: (
            f'The files of "owner: {first}" with "status: open" go into the folder {folder}/{second}, and those of '
            f'"owner: {second}" with "status: draft" into {folder}/{first}; make both. Files of these two owners that '
            'have "status: closed" are deleted, unless they have the line "keep: yes". Leave all else as it is.'
        ),
        lambda first, second, folder: ["grep -r owner: /", "grep -r status: /", 'grep -r "keep: yes" /'],
    ),
}  # fmt: skip
_LEVELS = {
    "easy": ("locate", "read"),
    "medium": ("collect", "rename", "clean"),
    "hard": ("by_owner", "purge", "hand_over"),
    "expert": ("settle", "sweep"),
}
