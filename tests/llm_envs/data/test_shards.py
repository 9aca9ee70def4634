"""Shards of a run, played apart and merged, against the run of one machine."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_envs.data.folder import read_manifest
from llm_envs.data.shards import Shard, find_shards, merge_runs
from llm_envs.data.writer import TrajectoryWriter, finished
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.evaluation import Suite, SuiteEntry, evaluate_suite, replay
from llm_envs.policies import OraclePolicy
from llm_envs.policies.scripted import before_turn
from llm_envs.rollout import collect_run, read_trajectories
from llm_envs.testing import ByteCodec, HashingTokenPolicy

ENVS = ["llm/Calculator-v0", "llm/GuessNumber-v0"]
REPLIES = ["<answer>3</answer>", "<answer>5</answer>", "?"]


def collect(out: Path, n: int = 11, shard: Shard | None = None, policy: Any = None, **changes: Any) -> Any:
    codec = ByteCodec()
    settings: dict[str, Any] = {"n_groups": n, "group_size": 2, "codec": codec, "max_concurrency": 3} | changes
    return collect_run(ENVS, policy or HashingTokenPolicy(codec, REPLIES), out=out, shard=shard, **settings)


def played(folder: Path) -> list[Any]:
    return sorted(read_trajectories(folder), key=lambda t: (t.group_id, t.member))


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for index in range(3):
        shard = Shard(index, 3)
        collect(shard.folder(tmp_path / "parts"), shard=shard)
    return tmp_path / "parts"


class TestShard:
    def test_all_shards_have_each_group_once(self) -> None:
        for n_groups in (0, 1, 7, 12):
            indices = [i for index in range(4) for i in Shard(index, 4).groups(n_groups)]
            assert sorted(indices) == list(range(n_groups))

    def test_as_text(self) -> None:
        assert str(Shard.parse("2/4")) == "2/4" and Shard.parse("2/4") == Shard(2, 4)

    @pytest.mark.parametrize("text", ["4/4", "-1/4", "1", "1/", "a/b", "0/0", "1/2/3", "0.5/2", ""])
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(InvalidConfigError, match="shard"):
            Shard.parse(text)


class TestMerge:
    @pytest.mark.parametrize("max_log_bytes", [2**20, 20_000])
    def test_the_whole_is_the_run_of_one_machine(self, tmp_path: Path, max_log_bytes: int) -> None:
        for index in (2, 0, 1):  # in any order
            shard = Shard(index, 3)
            collect(shard.folder(tmp_path / "parts"), shard=shard, max_log_bytes=max_log_bytes)
        collect(tmp_path / "whole")
        assert merge_runs([tmp_path / "parts"], tmp_path / "merged") == 22
        assert played(tmp_path / "merged") == played(tmp_path / "whole")
        assert read_manifest(tmp_path / "merged").settings == read_manifest(tmp_path / "whole").settings

    def test_it_goes_on_as_the_run_of_one_machine_does(self, parts: Path, tmp_path: Path) -> None:
        merge_runs([parts], tmp_path / "merged")
        done = collect(tmp_path / "merged", n=15, resume=True)
        assert (done.n_before, done.n_finished) == (22, 30)
        collect(tmp_path / "whole", n=15)
        assert played(tmp_path / "merged") == played(tmp_path / "whole")

    def test_folders_by_name(self, parts: Path, tmp_path: Path) -> None:
        folders = find_shards([parts])
        assert [folder.name for folder in folders] == [f"shard-{i}-of-3" for i in range(3)]
        assert merge_runs(folders[::-1], tmp_path / "merged") == 22

    def test_more_shards_than_groups(self, tmp_path: Path) -> None:
        for index in range(3):
            shard = Shard(index, 3)
            collect(shard.folder(tmp_path), n=2, shard=shard)
        assert merge_runs([tmp_path], tmp_path / "merged") == 4

    def test_episodes_that_failed_and_were_played_again_count_once(self, tmp_path: Path) -> None:
        fails = True

        async def fail(random: Any) -> None:
            if fails and random.random() < 0.2:
                raise RuntimeError("no")

        policy = before_turn(HashingTokenPolicy(ByteCodec(), REPLIES), fail)
        shards = [Shard(index, 2) for index in range(2)]
        n_failed = [collect(s.folder(tmp_path / "p"), shard=s, policy=policy).n_failed for s in shards]
        assert min(n_failed) > 0
        with pytest.raises(StoreError, match=" of 12 episodes"):
            merge_runs([tmp_path / "p"], tmp_path / "merged")
        fails = False
        for shard in shards:
            collect(shard.folder(tmp_path / "p"), shard=shard, policy=policy, resume=True)
        assert merge_runs([tmp_path / "p"], tmp_path / "merged") == 22
        collect(tmp_path / "whole", policy=policy)
        assert played(tmp_path / "merged") == played(tmp_path / "whole")


class TestRefused:
    def test_a_missing_shard(self, parts: Path, tmp_path: Path) -> None:
        shutil.rmtree(parts / "shard-1-of-3")
        with pytest.raises(StoreError, match=r"1 of 3 .*\(1/3\): .* --shard 1/3"):
            merge_runs([parts], tmp_path / "merged")
        assert not (tmp_path / "merged").exists()

    def test_a_shard_without_its_manifest_is_not_called_missing(self, parts: Path, tmp_path: Path) -> None:
        (parts / "shard-1-of-3" / "manifest.json").unlink()
        with pytest.raises(StoreError, match=r"shard-1-of-3 .*manifest\.json"):
            merge_runs([parts], tmp_path / "merged")

    def test_one_twice(self, parts: Path, tmp_path: Path) -> None:
        for again in (parts / "shard-1-of-3", shutil.copytree(parts / "shard-1-of-3", tmp_path / "copy")):
            with pytest.raises(StoreError, match=r"shard 1/3 .*twice"):
                merge_runs([parts, again], tmp_path / "merged")

    @pytest.mark.parametrize(
        ("changes", "said"), [({"seed": 1}, "seed: 0 there, 1 here"), ({"n": 12}, "shard_groups: 11 there, 12 here")]
    )
    def test_shards_of_two_runs(self, parts: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
        """Done as the message says, the merge then succeeds."""
        shutil.rmtree(parts / "shard-2-of-3")
        collect(parts / "shard-2-of-3", shard=Shard(2, 3), **changes)
        mend = (
            r".*: play it again with that one's command, --shard 2/3 and a new --out, and merge the new folder in its"
        )
        with pytest.raises(StoreError, match=re.escape(said) + mend):
            merge_runs([parts], tmp_path / "merged")
        collect(Shard(2, 3).folder(tmp_path / "again"), shard=Shard(2, 3))
        shards = [parts / "shard-0-of-3", parts / "shard-1-of-3", tmp_path / "again"]
        assert merge_runs(shards, tmp_path / "merged") == 22

    def test_another_number_of_shards(self, parts: Path, tmp_path: Path) -> None:
        collect(tmp_path / "other", shard=Shard(0, 2))
        with pytest.raises(StoreError, match="shard: 3 there, 2 here"):
            merge_runs([parts, tmp_path / "other"], tmp_path / "merged")

    def test_an_unfinished_one(self, parts: Path, tmp_path: Path) -> None:
        folder = parts / "shard-0-of-3"
        shutil.rmtree(folder)
        with pytest.raises(KeyboardInterrupt):
            collect(folder, shard=Shard(0, 3), on_trajectory=interrupt_after(3))
        n = len(finished(folder))
        assert 3 <= n < 8
        with pytest.raises(StoreError, match=f" {n} of 8 .* --shard 0/3 and --resume"):
            merge_runs([parts], tmp_path / "merged")
        collect(folder, shard=Shard(0, 3), resume=True)
        assert merge_runs([parts], tmp_path / "merged") == 22

    def test_one_that_is_being_written(self, parts: Path, tmp_path: Path) -> None:
        folder = parts / "shard-0-of-3"
        writer = TrajectoryWriter(folder, settings=read_manifest(folder).settings, resume=True)
        with writer, pytest.raises(StoreError, match="is being written"):
            merge_runs([parts], tmp_path / "merged")
        assert not list(tmp_path.glob("merged*"))

    def test_what_is_no_shard(self, parts: Path, tmp_path: Path) -> None:
        collect(tmp_path / "whole")
        with pytest.raises(StoreError, match="is a complete run"):
            merge_runs([tmp_path / "whole"], tmp_path / "merged")
        (tmp_path / "empty").mkdir()
        with pytest.raises(StoreError, match="has no shard"):
            merge_runs([tmp_path / "empty"], tmp_path / "merged")
        with pytest.raises(StoreError, match="nothing to merge"):
            merge_runs([], tmp_path / "merged")

    def test_a_folder_with_something(self, parts: Path, tmp_path: Path) -> None:
        collect(tmp_path / "whole")
        with pytest.raises(StoreError, match=r"whole .*--out\."):
            merge_runs([parts], tmp_path / "whole")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "notes.txt").write_text("keep")
        with pytest.raises(StoreError, match="is not empty"):
            merge_runs([parts], tmp_path / "full")
        assert (tmp_path / "full" / "notes.txt").read_text() == "keep"

    def test_more_groups_than_at_the_start(self, parts: Path) -> None:
        with pytest.raises(StoreError, match="shard_groups: 11 there, 20 here"):
            collect(parts / "shard-0-of-3", n=20, shard=Shard(0, 3), resume=True)


def test_a_killed_merge_is_repeated(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("llm_envs.data.shards.write_manifest", fail)
        with pytest.raises(KeyboardInterrupt):
            merge_runs([parts], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]
    (tmp_path / "merged.tmp").mkdir()  # somebody's
    (tmp_path / "merged.tmp" / "notes.txt").write_text("keep")
    (tmp_path / "merged").mkdir()
    assert merge_runs([parts], tmp_path / "merged") == 22
    assert (tmp_path / "merged.tmp" / "notes.txt").read_text() == "keep"


def test_an_evaluation(tmp_path: Path) -> None:
    suite = Suite((SuiteEntry(ENVS[0], {"split": "test"}, n=7), SuiteEntry(ENVS[1], {"split": "test"}, n=4, k=2)), 2)
    for index in range(2):
        shard = Shard(index, 2)
        part = evaluate_suite(suite, OraclePolicy(), out=shard.folder(tmp_path / "parts"), shard=shard)
        assert sum(task.n_episodes for task in part) == len(shard.groups(11)) * 2
        assert not (shard.folder(tmp_path / "parts") / "results.json").exists()
    whole = evaluate_suite(suite, OraclePolicy(), out=tmp_path / "whole")
    merge_runs([tmp_path / "parts"], tmp_path / "merged")
    merged = replay(tmp_path / "merged")
    shown = [json.loads(json.dumps(results.to_dict()["tasks"])) for results in (merged, whole)]
    assert [task | {"seconds": 0} for task in shown[0]] == [task | {"seconds": 0} for task in shown[1]]
    with pytest.raises(InvalidConfigError, match="needs a folder"):
        evaluate_suite(suite, OraclePolicy(), shard=Shard(0, 2))


def interrupt_after(n: int) -> Any:
    seen = []

    def count(trajectory: Any) -> None:
        seen.append(trajectory)
        if len(seen) == n:
            raise KeyboardInterrupt

    return count
