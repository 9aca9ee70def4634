"""Damaged runs: whatever a file of a run has become, the commands that read runs say which file, and what is wrong.

A real run of `collect`, an evaluation and a trainer's output folder, each file of which is damaged in every way of
`DAMAGES`, one at a time. `report`, `export` and `collect --resume` either do their work or end with one of our own
errors, in one line that names a file of the run; never with an exception that is Python's.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from report_runs import episodes_after, episodes_before, write_evaluation, write_run

from llm_envs.cli.main import main
from llm_envs.tracking import jsonl_logger

pytest.importorskip("pyarrow")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("else")


def _write(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def _cut(share: float) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return cut


def _flip(seed: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data, rng = bytearray(path.read_bytes()), random.Random(seed)
        for _ in range(3):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

    return flip


def _change_values(replacement: object) -> Callable[[Path], None]:
    """Replace every value of JSON objects, of the first line at least, that is no object itself."""

    def replaced(value: object) -> object:
        return {key: replaced(item) for key, item in value.items()} if isinstance(value, dict) else replacement

    def change(path: Path) -> None:
        text = path.read_bytes().decode(errors="replace")
        try:
            lines = [json.dumps(replaced(json.loads(text)))]
        except ValueError:
            lines = text.splitlines()
            try:
                lines[0] = json.dumps(replaced(json.loads(lines[0])))
            except (ValueError, IndexError):
                lines = [json.dumps(replacement)]
        path.write_text("\n".join(lines) + "\n")

    return change


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "a folder": _folder,
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path))[0],
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("nowhere"))[0],
    "empty": _write(b""),
    "rubbish": _write(bytes(random.Random(0).randrange(256) for _ in range(5_000))),
    "zeros": _write(bytes(4096)),
    "deep lists": _write(b"[" * 100_000),
    "deep lists that end": _write(b"[" * 100_000 + b"]" * 100_000 + b"\n"),
    "deep objects": _write(b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n"),
    "a huge number": _write(b"9" * 100_000 + b"\n"),
    **{
        f"just {text}": _write(text.encode() + b"\n") for text in ("null", "1", '"a"', "[]", "{}", "[1, 2]", '{"a": 1}')
    },
    **{f"cut at {share}": _cut(share) for share in (0.02, 0.5, 0.98)},
    **{f"flipped bits, seed {seed}": _flip(seed) for seed in range(6)},
    **{f"every value {value!r}": _change_values(value) for value in (None, 10**400, -1, "x", [], {}, float("nan"))},
}


PIPE = {"a pipe": lambda path: (path.unlink(), os.mkfifo(path))[0]}
DAMAGES |= PIPE if hasattr(os, "mkfifo") else {}


def make_evaluation(folder: Path) -> None:
    write_evaluation(folder, episodes_after(), k=1)


def make_collection(folder: Path) -> None:
    assert main(["collect", "llm/Arithmetic-v0", "-n", "3", "--out", str(folder)]) == 0


def make_log(folder: Path) -> None:
    """A run whose log is no shard yet, as after a kill."""
    from llm_envs.rollout import TrajectoryWriter

    writer = TrajectoryWriter(folder)
    for episode in episodes_before()[:4]:
        writer.write(episode)
    shutil.copytree(folder, folder.with_name("copy"))
    writer.close()
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


def make_training(folder: Path) -> None:
    write_run(folder / "trajectories" / "process-0", episodes_before())
    log = jsonl_logger(folder / "metrics.jsonl")
    for step in range(3):
        log(step, {"loss": 1.0 / (step + 1)})
    (folder / "sft_metrics.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 0.5}]}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


MAKERS = {"evaluation": make_evaluation, "collection": make_collection, "log": make_log, "training": make_training}


def commands(run: Path, target: Path) -> list[list[str]]:
    """Return what is asked of a run; a training is only reported, and a collection of a script has no tokens."""
    out = [["report", str(run), "--out", str(target / "page.html")]]
    forms = {"training": [], "collection": ["messages", "dataset"]}.get(run.name, ["messages", "sft", "dataset"])
    out += [["export", str(run), str(target / form), "--to", form] for form in forms]
    if run.name == "collection":
        out.append(["collect", "llm/Arithmetic-v0", "-n", "3", "--out", str(run), "--resume"])
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, make in MAKERS.items():
        make(folder / name)
    return folder


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """Whoever opens a pipe that nobody writes to waits for ever: end such a test."""

    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def files_of(run: Path) -> list[Path]:
    return sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", MAKERS)
def test_every_damage_of_every_file_is_said_or_harmless(name, damage, runs, tmp_path, capsys, recwarn):
    """One command for each file, by turns."""
    files = files_of(runs / name)
    assert len(files) >= 3
    for place, file in enumerate(files):
        run, target = tmp_path / str(place) / name, tmp_path / f"{place}-out"
        shutil.copytree(runs / name, run)
        target.mkdir()
        DAMAGES[damage](run / file)
        some = commands(run, target)
        command = some[(place + list(DAMAGES).index(damage)) % len(some)]
        capsys.readouterr()
        code = main(command)
        said = capsys.readouterr().err
        where = f"{' '.join(command)}, {file} {damage}: {said}"
        assert code in (0, 1, 2), where
        assert "--debug" not in said, where  # how the command line shows an exception that is not ours
        if code:
            assert said.startswith("llm-envs: error: ") and str(run) in said, where
            assert not any(target.iterdir()), where


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda path, victim: path.symlink_to(victim),
    "a hard link": lambda path, victim: path.hardlink_to(victim),
}
LEFT = ["writer.lock", "manifest.json.tmp", "log-00000.jsonl", "log-00001.jsonl", "shard-00001.parquet.tmp"]
"""Further files that a run's folder may have, in addition to those of `make_collection` or in their place."""


def link_and_run(run: Path, name: str, link: Callable[[Path, Path], None], commands: list[list[str]]) -> None:
    """Put a link to a file of the user in a run's folder, and run commands, which must leave that file alone."""
    victim, content = run.parent / "precious", "" if name.startswith("log-") else "important"  # what a log may hold
    victim.write_text(content)
    (run / name).unlink(missing_ok=True)
    link(run / name, victim)
    for command in commands:
        assert main(command) in (0, 1, 2)
    assert victim.read_text() == content


@pytest.mark.smoke
@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("name", LEFT)
def test_nothing_is_written_through_a_link_in_a_collection(name, kind, runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "collection", run)
    if name == "log-00000.jsonl":  # as if the run had no shard yet
        (run / "shard-00000.parquet").unlink()
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps(manifest | {"shards": {}}))
    resume = ["collect", "llm/Arithmetic-v0", "-n", "5", "--out", str(run), "--resume"]
    link_and_run(run, name, LINKS[kind], [resume])


@pytest.mark.parametrize("kind", LINKS)
def test_nothing_is_written_through_a_link_elsewhere(kind, runs, tmp_path):
    """Merge a shard, continue an evaluation, and write reports into a folder."""
    shard = tmp_path / "shard" / "shard-0-of-1"
    played = ["collect", "llm/Arithmetic-v0", "-n", "2", "--out", str(shard.parent), "--shard", "0/1"]
    assert main(played) == 0
    link_and_run(shard, "writer.lock", LINKS[kind], [["merge", str(shard.parent), "--out", str(tmp_path / "whole")]])
    evaluation = tmp_path / "evaluation"
    evaluated = ["eval", "llm/Arithmetic-v0", "--policy", "oracle", "-n", "2", "--out", str(evaluation)]
    assert main(evaluated) == 0
    link_and_run(evaluation, "results.json.tmp", LINKS[kind], [[*evaluated, "--resume"]])
    page = ["report", str(evaluation), "--out", str(evaluation / "page.html")]
    for name in ("page.html", "page.html.tmp"):
        link_and_run(evaluation, name, LINKS[kind], [page])
    exported = ["export", str(evaluation), str(tmp_path / "messages.jsonl"), "--to", "messages"]
    link_and_run(tmp_path, "messages.jsonl.tmp", LINKS[kind], [exported])
