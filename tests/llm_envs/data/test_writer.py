"""Trajectories on disk: what is written is read, a folder holds one run, and whatever is wrong is named.

Kills and failing writes are in `test_writer_kills.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llm_envs.data.folder import MANIFEST_NAME, OLD_LOG_NAME, log_name, shard_name
from llm_envs.data.lock import LOCK_NAME, FolderLock
from llm_envs.data.writer import check_folder
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import (
    Collector,
    EpisodeSpec,
    TrajectoryWriter,
    finished,
    group_specs,
    iter_trajectories,
    read_run,
    read_trajectories,
    remaining,
)
from llm_envs.testing import ByteCodec, NumbersEnv
from llm_envs.types import Message, RolloutError, StopReason, ToolCall, ToolResult, Trajectory

LOG = log_name(0)
SHARD = shard_name(0)


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    collector = Collector(NumbersEnv, OraclePolicy(), codec=ByteCodec(), env_kwargs={"n_turns": 2})
    return [t for group in collector.collect(4) for t in group]


def write(path: Path, trajectories: list[Trajectory], **settings: object) -> None:
    with TrajectoryWriter(path, settings={"seed": 1}, **settings) as writer:  # type: ignore[arg-type]
        for trajectory in trajectories:
            writer.write(trajectory)


def leave(path: Path, trajectories: list[Trajectory], **settings: object) -> None:
    """Write as a process does that ends without closing: the log stays."""
    writer = TrajectoryWriter(path, settings={"seed": 1}, **settings)  # type: ignore[arg-type]
    for trajectory in trajectories:
        writer.write(trajectory)
    del writer


def errored(trajectory: Trajectory) -> Trajectory:
    return replace(
        trajectory, status="errored", stop_reason=StopReason.ERROR, error=RolloutError("E", "m", "env.step"), turns=()
    )


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()} - {LOCK_NAME, MANIFEST_NAME}


@pytest.mark.parametrize("store", [write, leave])
def test_round_trip(tmp_path: Path, trajectories: list[Trajectory], store: object) -> None:
    store(tmp_path / "a" / "run", trajectories)  # type: ignore[operator]
    run = read_run(tmp_path / "a" / "run")
    assert list(run.trajectories) == trajectories
    assert [t.to_json() for t in run.trajectories] == [t.to_json() for t in trajectories]  # wall times too
    assert run.settings == {"seed": 1} and run.torn is None
    assert names(tmp_path / "a" / "run") == ({SHARD} if store is write else {LOG})


def test_a_single_file_of_a_run_is_read_alone(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    write(tmp_path / "run", trajectories[:3])
    leave(tmp_path / "run", trajectories[3:], resume=True)
    assert read_trajectories(tmp_path / "run") == trajectories
    assert read_trajectories(tmp_path / "run" / SHARD) == trajectories[:3]
    assert read_trajectories(tmp_path / "run" / log_name(1)) == trajectories[3:]


def test_every_trajectory_is_on_disk_when_write_returns(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    writer = TrajectoryWriter(tmp_path / "run")
    for count, trajectory in enumerate(trajectories, start=1):
        writer.write(trajectory)
        assert len(read_trajectories(tmp_path / "run")) == count
    writer.close()
    writer.close()
    for call in (lambda: writer.write(trajectories[0]), writer.compact):
        with pytest.raises(StoreError, match="closed"):
            call()


@pytest.mark.parametrize("store", [write, leave])
@pytest.mark.parametrize("text", ["\u2028 \x85 \r\n", "half a pair \ud83d", '"quotes"\\', "é😀", ""])
def test_any_text_survives(tmp_path: Path, trajectories: list[Trajectory], text: str, store: object) -> None:
    call, result = ToolCall("f", {text: [text, None]}, text), ToolResult("f", {"x": text}, text, True, text)
    odd = replace(
        trajectories[0],
        messages=(Message("user", text), Message("assistant", text, (call,), metadata={"name": text})),
        turns=(replace(trajectories[0].turns[0], tool_results=(result,)), *trajectories[0].turns[1:]),
        metadata={"deep": {"er": [1, 2.5, True, None, {text: text}]}},
        env_kwargs={"levels": [1, 2]},
        seed=2**53 - 1,
    )
    store(tmp_path / "run", [odd, odd, odd])  # type: ignore[operator]
    read = read_trajectories(tmp_path / "run")
    assert [t.to_json() for t in read] == [odd.to_json()] * 3
    assert [row.logps.tobytes() for row in read[0].rows] == [row.logps.tobytes() for row in odd.rows]  # NaN among them


def test_a_shard_is_a_table_for_everyone(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    import datasets

    from llm_envs.data import from_dataset, to_dataset

    write(tmp_path / "run", trajectories)
    table = datasets.Dataset.from_parquet(str(tmp_path / "run" / SHARD), cache_dir=str(tmp_path / "cache"))
    assert table.features == to_dataset(trajectories).features
    assert table["reward"] == [t.reward for t in trajectories]
    assert from_dataset(table) == trajectories


def test_nothing_is_written_for_nothing(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    write(tmp_path / "run", [])
    assert read_trajectories(tmp_path / "run") == [] and names(tmp_path / "run") == set()
    write(tmp_path / "run", trajectories, resume=True)
    assert read_trajectories(tmp_path / "run") == trajectories


class TestCompaction:
    def test_a_log_that_has_grown_becomes_a_shard_while_the_run_goes_on(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        many = [replace(trajectories[0], member=member) for member in range(100)]
        size = len(many[0].to_json().encode())
        writer = TrajectoryWriter(tmp_path / "run", max_log_bytes=25 * size)
        for trajectory in many[:90]:
            writer.write(trajectory)
        deadline = time.monotonic() + 60
        while {shard_name(0), shard_name(1), shard_name(2)} - names(tmp_path / "run"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert [t.member for t in read_trajectories(tmp_path / "run")] == list(range(90))
        for trajectory in many[90:]:
            writer.write(trajectory)
        writer.close()
        assert names(tmp_path / "run") == {shard_name(number) for number in range(4)}
        assert read_trajectories(tmp_path / "run") == many

    def test_compacting_in_between(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        with TrajectoryWriter(tmp_path / "run") as writer:
            for trajectory in trajectories:
                writer.write(trajectory)
                writer.compact()
            assert names(tmp_path / "run") == {shard_name(number) for number in range(4)} | {log_name(4)}
        assert read_trajectories(tmp_path / "run") == trajectories

    def test_what_columns_cannot_hold_stays_in_the_log(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        odd = [trajectories[0], replace(trajectories[1], seed=2**70)]
        with pytest.warns(UserWarning, match=LOG):
            write(tmp_path / "run", odd)
        assert names(tmp_path / "run") == {LOG}
        assert read_trajectories(tmp_path / "run") == odd

    @pytest.mark.smoke
    def test_no_text_keeps_a_shard_from_being_made(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        odd = replace(trajectories[0], messages=(Message("user", "\ud83d" + "\ude00"),), metadata={"x": "\ud83d\ude00"})
        write(tmp_path / "run", [odd, *trajectories[1:]])
        assert names(tmp_path / "run") == {SHARD}
        assert read_trajectories(tmp_path / "run")[0].messages == (Message("user", "😀"),)

    def test_a_name_that_no_column_can_hold_is_refused(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        with TrajectoryWriter(tmp_path / "run") as writer, pytest.raises(StoreError, match=r"group_id .*'a\\ud83d'"):
            writer.write(replace(trajectories[0], group_id="a\ud83d"))

    def test_without_pyarrow_the_log_stays_and_a_shard_names_the_extra(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        write(tmp_path / "shards", trajectories)
        leave(tmp_path / "logs", trajectories)
        script = """
            import sys
            sys.modules["pyarrow"] = None
            from llm_envs.errors import MissingExtraError
            from llm_envs.rollout import TrajectoryWriter, read_trajectories
            with TrajectoryWriter(sys.argv[1] + "/logs", settings={"seed": 1}, resume=True, max_log_bytes=10) as writer:
                for trajectory in read_trajectories(sys.argv[1] + "/logs"):
                    writer.write(trajectory)
            assert len(read_trajectories(sys.argv[1] + "/logs")) == 8
            try:
                read_trajectories(sys.argv[1] + "/shards")
            except MissingExtraError as error:
                print(error)
        """
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "llm-envs[train]" in done.stdout, done.stderr
        assert names(tmp_path / "logs") == {LOG}

    def test_a_size_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfigError, match=r"max_log_bytes .*0"):
            TrajectoryWriter(tmp_path / "run", max_log_bytes=0)


class TestResume:
    SPECS = tuple(group_specs(EpisodeSpec("llm/X-v0", group_id=str(index)), 2) for index in range(3))

    def test_what_is_left_to_play(self) -> None:
        done = {("0", 0), ("0", 1), ("1", 1), ("9", 0)}
        assert remaining(self.SPECS, done) == [self.SPECS[1][:1], self.SPECS[2]]
        assert remaining(self.SPECS, set()) == list(self.SPECS)
        assert remaining([], done) == []

    @pytest.mark.parametrize("store", [write, leave])
    def test_what_is_finished(self, tmp_path: Path, trajectories: list[Trajectory], store: object) -> None:
        unscored = replace(trajectories[2], status="unscored", is_success=None)
        store(tmp_path / "run", [trajectories[0], errored(trajectories[1]), unscored])  # type: ignore[operator]
        ids = [t.group_id for t in trajectories]
        assert finished(tmp_path / "run") == {(ids[0], 0), (ids[2], 0)}

    @pytest.mark.parametrize("store", [write, leave])
    def test_an_errored_episode_that_was_played_anew_counts_once(
        self, tmp_path: Path, trajectories: list[Trajectory], store: object
    ) -> None:
        a, b, c, _ = trajectories
        write(tmp_path / "run", [errored(a), errored(b), errored(c)])
        store(tmp_path / "run", [replace(errored(c), metadata={"again": 1}), a], resume=True)  # type: ignore[operator]
        assert read_trajectories(tmp_path / "run") == [errored(b), replace(errored(c), metadata={"again": 1}), a]
        assert finished(tmp_path / "run") == {(a.group_id, 0)}
        assert len(read_trajectories(tmp_path / "run" / SHARD)) == 3  # nothing is thrown away

    def test_an_episode_that_did_not_err_is_never_left_out(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        a, b, *_ = trajectories
        both = [a, errored(b), a, b, a]
        write(tmp_path / "run", both)
        assert read_trajectories(tmp_path / "run") == [a, a, b, a]

    def test_a_new_folder_may_be_resumed(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        for part in (trajectories[:1], trajectories[1:]):
            write(tmp_path / "run", part, resume=True)
        assert read_trajectories(tmp_path / "run") == trajectories

    @pytest.mark.parametrize("kept", [1, 40, -1])
    def test_a_torn_last_line_is_reported_and_removed(
        self, tmp_path: Path, trajectories: list[Trajectory], kept: int
    ) -> None:
        leave(tmp_path / "run", trajectories)
        log = tmp_path / "run" / LOG
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:3]) + lines[3][:kept])
        with pytest.warns(UserWarning, match="torn"):
            assert read_trajectories(tmp_path / "run") == trajectories[:3]
        run = read_run(tmp_path / "run")
        assert run.torn is not None and run.torn.encode() == lines[3][:kept]
        assert list(run.trajectories) == trajectories[:3]
        assert len(finished(tmp_path / "run")) == 3
        with TrajectoryWriter(tmp_path / "run", settings={"seed": 1}, resume=True) as writer:
            assert writer.removed is not None
            writer.write(trajectories[3])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert read_trajectories(tmp_path / "run") == trajectories

    def test_a_log_that_is_one_torn_line(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        leave(tmp_path / "run", [])
        (tmp_path / "run" / LOG).write_bytes(b"x" * 200_000)
        assert read_run(tmp_path / "run").torn == "x" * 200_000
        write(tmp_path / "run", trajectories, resume=True)
        assert read_trajectories(tmp_path / "run") == trajectories

    def test_a_run_of_version_1_is_read_and_gone_on_with(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        (tmp_path / MANIFEST_NAME).write_text('{"format": 1, "settings": {"seed": 1}}')
        (tmp_path / OLD_LOG_NAME).write_text("".join(t.to_json() + "\n" for t in trajectories[:2]) + '{"torn')
        with pytest.warns(UserWarning, match="torn"):
            assert read_trajectories(tmp_path) == trajectories[:2]
        assert len(finished(tmp_path)) == 2
        write(tmp_path, trajectories[2:], resume=True)
        assert read_trajectories(tmp_path) == trajectories
        assert names(tmp_path) == {SHARD}


class TestOneRunAFolder:
    def test_another_run_is_never_overwritten(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        write(tmp_path / "run", trajectories)
        with pytest.raises(StoreError, match=r"run .*--resume"):
            TrajectoryWriter(tmp_path / "run", settings={"seed": 1})
        with pytest.raises(StoreError, match="n: not set there, 3 here, seed: 1 there, 2 here"):
            TrajectoryWriter(tmp_path / "run", settings={"seed": 2, "n": 3}, resume=True)
        assert read_trajectories(tmp_path / "run") == trajectories

    def test_a_folder_of_something_else_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("x")
        for resume in (False, True):
            with pytest.raises(StoreError, match="not empty"):
                TrajectoryWriter(tmp_path, resume=resume)
        with pytest.raises(StoreError, match="holds no run"):
            read_trajectories(tmp_path)
        with pytest.raises(StoreError, match="does not exist"):
            read_trajectories(tmp_path / "nothing.jsonl")
        assert names(tmp_path) == {"thesis.tex"} and not (tmp_path / LOCK_NAME).exists()

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "file" / "run"):
            with pytest.raises(StoreError, match="choose another"):
                TrajectoryWriter(path)

    @pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no folders there")
    def test_a_place_that_takes_no_folder(self) -> None:
        with pytest.raises(StoreError, match="/proc/run "):
            TrajectoryWriter("/proc/run")

    def test_a_name_that_no_folder_may_have(self) -> None:
        for make in (lambda path: check_folder(path, {}), lambda path: TrajectoryWriter(path)):
            with pytest.raises(StoreError, match="choose another folder"):
                make("x" * 300)

    def test_settings_are_json(self, tmp_path: Path) -> None:
        for _ in range(2):  # the second goes on with the first
            with TrajectoryWriter(tmp_path / "run", settings={"seed": np.int64(1), "ids": (1, 2)}, resume=True):
                pass
        assert read_run(tmp_path / "run").settings == {"seed": 1, "ids": [1, 2]}
        with pytest.raises(InvalidConfigError, match=r"settings .*object"):
            TrajectoryWriter(tmp_path / "other", settings={"model": object()})
        assert not (tmp_path / "other").exists()

    def test_two_writers_of_one_process(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        first = TrajectoryWriter(tmp_path / "run")
        (tmp_path / "link").symlink_to(tmp_path / "run")
        for path in (tmp_path / "run", tmp_path / "link"):
            with pytest.raises(StoreError, match="this process"):
                TrajectoryWriter(path, resume=True)
        first.write(trajectories[0])
        first.close()
        with TrajectoryWriter(tmp_path / "run", resume=True) as second:
            second.write(trajectories[1])
        assert read_trajectories(tmp_path / "run") == trajectories[:2]

    def test_a_copy_of_the_folder_does_not_release_it(self, tmp_path: Path) -> None:
        with TrajectoryWriter(tmp_path / "run"):
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            self.check_held(tmp_path / "run")
            with TrajectoryWriter(tmp_path / "copy", resume=True):
                pass

    def test_a_fork_that_outlives_the_writer_does_not_keep_it(self, tmp_path: Path) -> None:
        end, kept = os.pipe()
        first = TrajectoryWriter(tmp_path / "run")
        child = os.fork()
        if not child:
            os.close(kept)
            os.read(end, 1)
            os._exit(0)
        try:
            first.close()
            TrajectoryWriter(tmp_path / "run", resume=True).close()
        finally:
            os.close(kept)
            os.close(end)
            os.waitpid(child, 0)

    def test_a_fork_that_has_yet_to_forget_the_lock_does_not_keep_it(self, tmp_path: Path) -> None:
        lock = FolderLock(tmp_path)
        assert lock._descriptor is not None
        of_the_fork = os.dup(lock._descriptor)
        lock.release()
        FolderLock(tmp_path).release()
        os.close(of_the_fork)

    def test_a_lock_that_cannot_be_opened_is_not_to_be_removed(self, tmp_path: Path) -> None:
        (tmp_path / "run" / LOCK_NAME).mkdir(parents=True)
        (tmp_path / "run" / MANIFEST_NAME).write_text('{"format": 2, "settings": {}, "shards": {}}')
        with pytest.raises(StoreError, match=LOCK_NAME) as refusal:
            TrajectoryWriter(tmp_path / "run", resume=True)
        assert "emove" not in str(refusal.value)

    def test_a_folder_whose_name_is_not_text_is_read(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        folder = tmp_path / os.fsdecode(b"run-\xff")
        write(folder, trajectories)
        assert names(folder) == {SHARD} and read_trajectories(folder) == trajectories

    def test_a_shard_that_cannot_be_opened_is_not_called_damaged(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        write(tmp_path / "run", trajectories)
        (tmp_path / "run" / SHARD).rename(tmp_path / "kept")
        (tmp_path / "run" / SHARD).symlink_to(SHARD)  # to itself: the system refuses to open it
        with pytest.raises(StoreError, match=rf"{SHARD} cannot be read") as refusal:
            read_trajectories(tmp_path / "run")
        assert "emove" not in str(refusal.value)

    def check_held(self, folder: Path) -> None:
        script = (
            "import sys\nfrom llm_envs.errors import StoreError\nfrom llm_envs.rollout import TrajectoryWriter\n"
            "try:\n    TrajectoryWriter(sys.argv[1], resume=True)\nexcept StoreError as error:\n    print(error)"
        )
        command = [sys.executable, "-c", script, str(folder)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"is being written by process {(folder / LOCK_NAME).read_text().strip()}" in said

    @pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
    def test_two_processes(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        with TrajectoryWriter(tmp_path / "run") as writer:
            self.check_held(tmp_path / "run")
            writer.write(trajectories[0])
        assert read_trajectories(tmp_path / "run") == trajectories[:1]


class TestDamage:
    def test_a_damaged_line_in_the_middle_is_an_error_that_says_where(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        leave(tmp_path / "run", trajectories)
        log = tmp_path / "run" / LOG
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(lines[0] + b'{"env_id": 3}\n' + lines[1])
        for read in (read_trajectories, finished, read_run):
            with pytest.raises(StoreError, match=f"{LOG}, line 2"):
                read(tmp_path / "run")  # type: ignore[operator]
        with pytest.warns(UserWarning, match="line 2"):
            write(tmp_path / "run", [], resume=True)
        assert names(tmp_path / "run") == {LOG}  # still there, to be mended

    @pytest.mark.parametrize("line", ['{"messages": [5]}', "5", "[]", "[" * 99_999, "{}", '{"messages": 5}'])
    def test_a_line_that_is_no_trajectory(self, tmp_path: Path, line: str) -> None:
        for name, what_to_do in (("log-00006.jsonl", "Remove the line"), ("a.jsonl", "Give the folder")):
            (tmp_path / name).write_text(line + "\n")
            with pytest.raises(StoreError, match=f"line 1: not a trajectory.* {what_to_do}"):
                read_trajectories(tmp_path / name)

    @pytest.mark.parametrize(
        "manifest",
        [
            b"[]",
            b"\xff\xfe\x00",
            b"{",
            b'{"format": 2}',
            b'{"format": 2, "settings": []}',
            b'{"format": 2, "settings": {}, "shards": []}',
            b'{"format": 2, "settings": {}, "shards": {"../../x": {"trajectories": 1, "errored": 0}}}',
            b'{"format": 2, "settings": {}, "shards": {"shard-00000.parquet": 3}}',
        ],
    )
    def test_a_damaged_manifest(self, tmp_path: Path, trajectories: list[Trajectory], manifest: bytes) -> None:
        write(tmp_path / "run", trajectories)
        (tmp_path / "run" / MANIFEST_NAME).write_bytes(manifest)
        with pytest.raises(StoreError, match=r"damaged.* single"):
            read_run(tmp_path / "run")
        with pytest.raises(StoreError, match="is damaged"):
            TrajectoryWriter(tmp_path / "run", resume=True)
        assert read_trajectories(tmp_path / "run" / SHARD) == trajectories

    def test_another_format_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path / "run", [])
        manifest = json.loads((tmp_path / "run" / MANIFEST_NAME).read_text())
        (tmp_path / "run" / MANIFEST_NAME).write_text(json.dumps(manifest | {"format": 99}))
        with pytest.raises(StoreError, match="format 99"):
            read_run(tmp_path / "run")
        with pytest.raises(StoreError, match="format 99"):
            TrajectoryWriter(tmp_path / "run", resume=True)

    def test_a_damaged_shard_is_named_and_never_read_as_something_else(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        write(tmp_path / "run", trajectories)
        shard = tmp_path / "run" / SHARD
        whole = shard.read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], whole[:-1]):
            shard.write_bytes(damaged)
            with pytest.raises(StoreError, match=rf"{SHARD} is damaged"):
                read_trajectories(tmp_path / "run")
        named, places = 0, range(0, len(whole) - 3, 211)
        for place in places:
            flipped = bytes(byte ^ 0x5A for byte in whole[place : place + 3])
            shard.write_bytes(whole[:place] + flipped + whole[place + 3 :])
            try:
                assert read_trajectories(tmp_path / "run") == trajectories  # it hit what only speeds reading up
            except StoreError as error:
                assert str(shard) in str(error)
                named += 1
        assert named > len(places) / 2
        shard.unlink()
        with pytest.raises(StoreError, match=rf"{SHARD} is missing"):
            read_trajectories(tmp_path / "run")

    def test_a_shard_of_another_version_or_of_none_is_named(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        from pyarrow import parquet

        write(tmp_path / "run", trajectories)
        shard = tmp_path / "run" / SHARD
        table = parquet.read_table(shard)
        version = {b"llm_envs_format": b"9"}
        for metadata, said in ((version, "shard format '9'"), ({}, "shard format none")):
            parquet.write_table(table.replace_schema_metadata(metadata), shard)
            with pytest.raises(StoreError, match=f"{SHARD} .*{said}.*'2'"):
                read_trajectories(tmp_path / "run")
        ours = {b"llm_envs_format": b"2"}
        parquet.write_table(table.drop_columns(["rows"]).replace_schema_metadata(ours), shard)
        with pytest.raises(StoreError, match=f"{SHARD} .*: rows"):
            read_trajectories(tmp_path / "run")
        parquet.write_table(table.slice(0, 3).replace_schema_metadata(ours), shard)
        with pytest.raises(StoreError, match=f"{SHARD} has 3 .*manifest has 4"):
            finished(tmp_path / "run")

    def test_a_lost_shard_leaves_a_run_that_can_be_resumed(
        self, tmp_path: Path, trajectories: list[Trajectory]
    ) -> None:
        """By what the error says to do."""
        run = tmp_path / "run"
        write(run, trajectories)
        for damage in (lambda path: path.write_bytes(b"no"), Path.unlink):
            damage(run / SHARD)
            with pytest.raises(StoreError, match=rf'{SHARD} .*"{SHARD}" from "shards" .*manifest\.json'):
                finished(run)
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest["shards"][SHARD]
        (run / "manifest.json").write_text(json.dumps(manifest))
        assert finished(run) == frozenset()
        write(run, trajectories, resume=True)
        assert read_trajectories(run) == trajectories

    def test_a_run_without_its_manifest_is_named(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        write(tmp_path / "run", trajectories)
        manifest = tmp_path / "run" / "manifest.json"
        manifest.rename(tmp_path / "kept")
        for link in (False, True):
            if link:
                manifest.symlink_to("nowhere")
            with pytest.raises(StoreError, match=str(manifest)):
                write(tmp_path / "run", [], resume=True)

    def test_a_shard_of_another_run_is_not_mixed_in(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        for name in ("one", "other"):
            write(tmp_path / name, trajectories)
        stray = tmp_path / "one" / shard_name(7)
        stray.write_bytes((tmp_path / "other" / SHARD).read_bytes())
        for read in (read_trajectories, lambda path: TrajectoryWriter(path, settings={"seed": 1}, resume=True)):
            with pytest.raises(StoreError, match=shard_name(7)):
                read(tmp_path / "one")
        assert read_trajectories(stray) == trajectories

    def test_runs_below_a_folder_are_named(self, tmp_path: Path, trajectories: list[Trajectory]) -> None:
        write(tmp_path / "trajectories" / "process-0", trajectories)
        with pytest.raises(StoreError, match=r"process-0\."):
            read_run(tmp_path)


def test_reading_one_by_one_holds_no_more_than_a_row_group(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    many = [replace(trajectories[0], member=member) for member in range(600)]
    write(tmp_path / "run", many)
    from pyarrow import parquet

    assert parquet.ParquetFile(tmp_path / "run" / SHARD).num_row_groups == 3
    stream = iter_trajectories(tmp_path / "run")
    assert next(stream).member == 0
    assert sum(1 for _ in stream) == 599


def test_a_trainers_folder_is_read_process_by_process(tmp_path: Path, trajectories: list[Trajectory]) -> None:
    for number in (10, 2):
        with TrajectoryWriter(tmp_path / "out" / "trajectories" / f"process-{number}") as writer:
            writer.write(replace(trajectories[0], seed=number))
    assert [trajectory.seed for trajectory in read_trajectories(tmp_path / "out")] == [2, 10]
    with pytest.raises(StoreError, match=MANIFEST_NAME):
        read_trajectories(tmp_path)
