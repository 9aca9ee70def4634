"""Runs on object storage: the same run as here, whatever is killed, refused or unreachable.

fsspec's in-memory and local file systems stand for the storage; S3, Google Cloud Storage and the hub are not asked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from llm_envs.cli.main import main
from llm_envs.data.folder import read_manifest
from llm_envs.data.remote_writer import RemoteWriter
from llm_envs.data.shards import Shard, merge_runs
from llm_envs.data.storage import as_path, put
from llm_envs.data.writer import FinishedKeys, check_folder, finished_keys, open_writer
from llm_envs.errors import InvalidConfigError, MissingExtraError, StoreError
from llm_envs.evaluation import replay
from llm_envs.policies import OraclePolicy
from llm_envs.report.site import write_report
from llm_envs.rollout import (
    Collector,
    TrajectoryWriter,
    collect_run,
    finished,
    iter_trajectories,
    read_run,
    read_trajectories,
)
from llm_envs.testing import ByteCodec, NumbersEnv, with_failures
from llm_envs.types import Trajectory

pytest.importorskip("upath")
needs_posix = pytest.mark.skipif(os.name != "posix", reason="SIGKILL")


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLM_ENVS_SPOOL", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture(params=["memory", "file"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4()}/run" if request.param == "memory" else f"file://{tmp_path}/remote/run"


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    collector = Collector(NumbersEnv, OraclePolicy(), codec=ByteCodec(), env_kwargs={"n_turns": 2})
    return [t for group in collector.collect(4) for t in group]


def names(address: str) -> set[str]:
    return {path.name for path in as_path(address).iterdir()}


def collect(out: str | Path, n_groups: int = 12, **settings: object) -> None:
    policy = with_failures(OraclePolicy(), 0.2)
    collect_run(NumbersEnv, policy, out=out, n_groups=n_groups, group_size=2, max_retries=0, **settings)  # type: ignore[arg-type]


def by_key(path: str | Path) -> dict[tuple[str, int], Trajectory]:
    read = read_trajectories(path)
    found = {(t.group_id, t.member): t for t in read}
    assert len(found) == len(read)
    return found


def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(StoreError, match=r"^sftp://host/runs: .*password") as refusal:
        as_path("sftp://me:hunter2@host/runs")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.smoke
def test_a_run_there_has_the_content_of_a_run_here(address: str, spool: Path, tmp_path: Path) -> None:
    for out in (address, tmp_path / "here"):
        collect(out, codec=ByteCodec())
        collect(out, 20, codec=ByteCodec(), resume=True)  # failed ones again, and more groups
    assert by_key(address) == by_key(tmp_path / "here") and len(by_key(address)) == 40
    assert finished(address) == finished(tmp_path / "here")
    assert read_run(address).settings == read_run(tmp_path / "here").settings
    assert names(address) == {"manifest.json", "shard-00000.parquet", "shard-00001.parquet"}
    assert list(spool.iterdir()) == []  # everything is uploaded
    assert [task.success for task in replay(address, allow_partial=True).tasks] == [
        task.success for task in replay(tmp_path / "here", allow_partial=True).tasks
    ]


def test_uploads_come_from_time_to_time_and_each_is_readable(address: str, trajectories: list[Trajectory]) -> None:
    with RemoteWriter(address, upload_every_s=0.05) as writer:
        for number, trajectory in enumerate(trajectories, start=1):
            writer.write(trajectory)
            until = time.monotonic() + 60
            while len(read_trajectories(address)) < number:
                assert time.monotonic() < until
                time.sleep(0.01)
    assert read_trajectories(address) == trajectories
    assert len(read_manifest(as_path(address)).shards) == len(trajectories)


def test_a_full_log_does_not_wait_for_the_time(address: str, trajectories: list[Trajectory]) -> None:
    with RemoteWriter(address, max_log_bytes=1, upload_every_s=1000) as writer:
        writer.write(trajectories[0])
        until = time.monotonic() + 60
        while not read_trajectories(address):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_compact_uploads_at_once(address: str, trajectories: list[Trajectory]) -> None:
    with RemoteWriter(address, upload_every_s=1000) as writer:
        writer.write(trajectories[0])
        assert read_trajectories(address) == []
        writer.compact()
        assert read_trajectories(address) == trajectories[:1]
    with pytest.raises(StoreError, match="closed"):
        writer.write(trajectories[1])
    with pytest.raises(StoreError, match="closed"):
        writer.compact()
    writer.close()


def test_another_run_and_other_contents_are_refused(address: str, trajectories: list[Trajectory]) -> None:
    with RemoteWriter(address, settings={"seed": 1}) as writer:
        writer.write(trajectories[0])
    for check in (lambda **s: check_folder(address, **s), lambda **s: open_writer(address, **s)):
        with pytest.raises(StoreError, match="holds a run already"):
            check(settings={"seed": 1})  # type: ignore[no-untyped-call]
        with pytest.raises(StoreError, match="seed: 1 there, 2 here"):
            check(settings={"seed": 2}, resume=True)  # type: ignore[no-untyped-call]
    put(as_path(address).parent / "other" / "notes.txt", b"something")
    with pytest.raises(StoreError, match=r"/other .*not empty"):
        RemoteWriter(str(as_path(address).parent / "other"))
    with pytest.raises(StoreError, match="to a local folder"):
        TrajectoryWriter(address)
    with pytest.raises(InvalidConfigError, match="upload_every_s=0"):
        RemoteWriter(address, upload_every_s=0)


def test_a_shard_that_the_manifest_does_not_list_does_not_count(address: str, trajectories: list[Trajectory]) -> None:
    """As after a kill between the two puts: readers skip it, the next writer removes it and does not use its number."""
    with RemoteWriter(address) as writer:
        writer.write(trajectories[0])
    folder = as_path(address)
    put(folder / "shard-00001.parquet", (folder / "shard-00000.parquet").read_bytes())
    assert read_trajectories(address) == trajectories[:1]
    with RemoteWriter(address, resume=True) as writer:
        writer.write(trajectories[1])
    assert names(address) == {"manifest.json", "shard-00000.parquet", "shard-00002.parquet"}
    assert read_trajectories(address) == trajectories[:2]


KILLED = """
import asyncio, sys
from itertools import count
from llm_envs.policies.scripted import OraclePolicy, before_turn
from llm_envs.rollout import collect_run
from llm_envs.testing import ByteCodec, NumbersEnv

turns = count()

async def play(random):
    await asyncio.sleep(3600 if next(turns) >= int(sys.argv[2]) else random.uniform(0.01, 0.03))

collect_run(NumbersEnv, before_turn(OraclePolicy(), play), out=sys.argv[1], n_groups=75, group_size=2,
            resume=True, codec=ByteCodec(), max_concurrency=4, upload_every_s=0.1)
"""
"""Plays so many of the 150 turns, and then waits: it can be killed however late that is."""


@pytest.mark.slow
@needs_posix
@pytest.mark.parametrize("moves", [False, True], ids=["same machine", "another machine"])
def test_a_killed_collection_resumes_with_every_episode_once(tmp_path: Path, moves: bool) -> None:
    """Killed by SIGKILL three times. What was uploaded stays; on the same machine, everything that was finished.

    Their JSON has wall times, so episodes that were played again would differ.
    """
    address, random, stays = f"file://{tmp_path}/remote/run", Random(7), {}
    for attempt in range(4):
        before = len(stays)
        spool = tmp_path / f"spool-{attempt if moves else 0}"
        with start(KILLED, address, spool, "40" if attempt < 3 else "150") as process:
            if attempt < 3:
                wait_for(lambda before=before: n_uploaded(tmp_path) > before, process)  # type: ignore[misc]
                time.sleep(random.uniform(0, 0.2))
                process.send_signal(signal.SIGKILL)
        assert process.returncode == (-signal.SIGKILL if attempt < 3 else 0)
        stays |= {key: t.to_json() for key, t in by_key(address).items()}
        for log in [] if moves else spool.glob("*/log-*.jsonl"):
            found = [Trajectory.from_json(line) for line in log.read_text().split("\n")[:-1]]
            stays |= {(t.group_id, t.member): t.to_json() for t in found}
    collect_run(NumbersEnv, OraclePolicy(), out=tmp_path / "here", n_groups=75, group_size=2, codec=ByteCodec())
    there = by_key(address)
    assert there == by_key(tmp_path / "here")
    assert {key: t.to_json() for key, t in there.items()} == stays
    assert not list(spool.glob("*")) and "writer.lock" not in names(address)


def start(code: str, address: str, spool: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a process as if on the machine that has this spool."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), address, *arguments]
    environment = {**os.environ, "LLM_ENVS_SPOOL": str(spool)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def n_uploaded(tmp_path: Path) -> int:
    """Return how many episodes the manifest lists."""
    manifest = tmp_path / "remote" / "run" / "manifest.json"
    shards = json.loads(manifest.read_text())["shards"] if manifest.exists() else {}
    return sum(shard["trajectories"] for shard in shards.values())


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until and (process is None or process.poll() is None)
        time.sleep(0.01)


LEFT = """
import os, sys
from llm_envs.data.remote_writer import RemoteWriter
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.testing import ByteCodec, NumbersEnv
(group,) = Collector(NumbersEnv, OraclePolicy(), codec=ByteCodec()).collect(1, group_size=4)
writer = RemoteWriter(sys.argv[1], upload_every_s=1000)
writer.write(group.trajectories[0])
writer.compact()
for trajectory in group:  # the first once more, as if the kill had come between the manifest and the log's removal
    writer.write(trajectory)
os.truncate(writer._spool.log.path, writer._spool.log.size - 20)
os.kill(os.getpid(), 9)
"""


@needs_posix
def test_what_a_killed_process_left_here_is_uploaded_once(tmp_path: Path, spool: Path) -> None:
    address = f"file://{tmp_path}/remote/run"
    with start(LEFT, address, spool):
        pass
    assert [t.member for t in read_trajectories(address)] == [0]
    with RemoteWriter(address, resume=True) as writer:
        assert writer.removed is not None and writer.removed.startswith("{")
    assert [t.member for t in read_trajectories(address)] == [0, 1, 2]


@needs_posix
def test_a_new_run_does_not_take_what_an_earlier_one_left(tmp_path: Path, spool: Path) -> None:
    address = f"file://{tmp_path}/remote/run"
    with start(LEFT, address, spool):
        pass
    shutil.rmtree(tmp_path / "remote")
    with pytest.raises(StoreError, match=r"\(resume=True, --resume\)"):
        RemoteWriter(address)
    with RemoteWriter(address, resume=True):
        pass
    assert [t.member for t in read_trajectories(address)] == [0, 1, 2]


@pytest.mark.smoke
def test_a_second_writer_of_this_machine_is_refused(address: str) -> None:
    with RemoteWriter(address), pytest.raises(StoreError, match="this process"):
        RemoteWriter(address, resume=True)
    RemoteWriter(address, resume=True).close()


WRITING = """
import sys, time
from llm_envs.data import remote_writer
remote_writer._LEASES = float(sys.argv[2])
with remote_writer.RemoteWriter(sys.argv[1], resume=True, upload_every_s=0.2):
    print("writing", flush=True)
    time.sleep(600)
"""
"""Shows five times a second that it is alive; its lock counts for so many of these times."""


@needs_posix
def test_a_second_writer_of_another_machine_is_refused_until_the_first_has_ended(tmp_path: Path, spool: Path) -> None:
    address, lock = f"file://{tmp_path}/remote/run", tmp_path / "remote/run/writer.lock"
    with start(WRITING, address, tmp_path / "other", "100") as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        with pytest.warns(UserWarning, match="Waiting 20 s"), pytest.raises(StoreError, match="written by"):
            RemoteWriter(address, resume=True)
        process.send_signal(signal.SIGKILL)
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"lease_s": 0.5}))
    started = time.monotonic()
    with pytest.warns(UserWarning, match=r"writer\.lock"), RemoteWriter(address, resume=True):
        assert 0.4 < time.monotonic() - started < 60  # the lease of the lock; this writer's own is 150 s
    assert "writer.lock" not in names(address)


@needs_posix
def test_a_writer_that_was_suspended_stops_when_another_has_taken_over(
    tmp_path: Path, spool: Path, trajectories: list[Trajectory]
) -> None:
    """It says where its episodes are, its successor's run is whole, and so is the run after both."""
    address = f"file://{tmp_path}/remote/run"
    first = RemoteWriter(address, upload_every_s=1000)
    first.write(trajectories[0])
    lock = json.loads((tmp_path / "remote/run/writer.lock").read_text())
    (tmp_path / "remote/run/writer.lock").write_text(json.dumps(lock | {"lease_s": 0.1}))
    with start(WRITING, address, tmp_path / "other", "2.5") as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        with pytest.raises(StoreError, match="taken over by"):
            first.compact()
        with pytest.raises(StoreError, match=f"{spool}.*resume the run"):
            first.close()
        process.send_signal(signal.SIGKILL)
    assert read_trajectories(address) == []
    with pytest.warns(UserWarning, match=r"writer\.lock"), RemoteWriter(address, resume=True):
        pass
    assert read_trajectories(address) == trajectories[:1]


def test_a_writer_without_its_lock_says_so_at_the_next_episode(address: str, trajectories: list[Trajectory]) -> None:
    writer = RemoteWriter(address, upload_every_s=0.05)

    def stops() -> bool:
        put(as_path(address) / "writer.lock", b'{"owner": "someone else"}')  # again: it may just have put its own
        try:
            writer.write(trajectories[0])
        except StoreError as error:
            return "taken over by someone else: this writer stops" in str(error)
        return False

    wait_for(stops)
    with pytest.raises(StoreError, match="resume the run"):
        writer.close()


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A storage whose connection can be cut."""

    protocol = ("flaky",)
    is_cut = False

    def _raise(self) -> None:
        if FlakyFileSystem.is_cut:
            raise RuntimeError("connection reset by peer")

    def info(self, path: str, **kwargs: object) -> object:
        self._raise()
        return super().info(path, **kwargs)

    def pipe_file(self, path: str, value: bytes, **kwargs: object) -> object:
        self._raise()
        return super().pipe_file(path, value, **kwargs)

    def _open(self, path: str, *arguments: object, **kwargs: object) -> object:
        self._raise()
        return super()._open(path, *arguments, **kwargs)


class ListingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A storage that, like s3fs, keeps listings, and reads only the version of an object that is in them."""

    protocol = ("listing",)
    listed: dict[str, bytes] = {}

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> object:
        found = super().ls(path, detail=True)
        self.listed.update({entry["name"]: self.store[entry["name"]].getvalue() for entry in found if entry["size"]})
        return found if detail else [entry["name"] for entry in found]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listed.clear()

    def pipe_file(self, path: str, value: bytes, **kwargs: object) -> object:
        self.invalidate_cache()
        return super().pipe_file(path, value, **kwargs)

    def _open(self, path: str, mode: str = "rb", **kwargs: object) -> object:
        name = self._strip_protocol(path)
        if mode == "rb" and name in self.listed and self.listed[name] != self.store[name].getvalue():
            raise OSError("PreconditionFailed")
        return super()._open(path, mode, **kwargs)


def test_a_lock_that_another_writer_took_is_read_in_spite_of_an_earlier_listing() -> None:
    fsspec.register_implementation("listing", ListingFileSystem, clobber=True)
    address = f"listing://{uuid.uuid4()}/run"
    writer = RemoteWriter(address, upload_every_s=1000)
    finished(writer.path)  # lists the folder, as `collect_run` does
    lock = next(name for name in ListingFileSystem.listed if name.endswith("writer.lock"))
    ListingFileSystem.store[lock].seek(0)
    ListingFileSystem.store[lock].truncate()
    ListingFileSystem.store[lock].write(b'{"owner": "someone else"}')  # by another process, whose put is not seen here
    with pytest.raises(StoreError, match="someone else"):
        writer.compact()
    with pytest.raises(StoreError, match="someone else"):
        writer.close()


def test_a_kill_before_the_first_lock_was_in_place_does_not_block_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/writer.lock.tmp").write_text("{}")
    RemoteWriter(f"file://{tmp_path}/run").close()


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    yield f"flaky://{uuid.uuid4()}/run"
    FlakyFileSystem.is_cut = False


@pytest.mark.filterwarnings("ignore:UPath 'flaky'")
def test_uploads_that_fail_are_repeated(flaky: str, trajectories: list[Trajectory]) -> None:
    writer = RemoteWriter(flaky, upload_every_s=1000)
    writer.write(trajectories[0])
    FlakyFileSystem.is_cut = True
    with pytest.raises(StoreError, match="RuntimeError: connection reset by peer"):
        writer.compact()
    writer.write(trajectories[1])
    FlakyFileSystem.is_cut = False
    writer.write(trajectories[2])
    writer.close()
    assert read_trajectories(flaky) == trajectories[:3]


@pytest.mark.filterwarnings("ignore:UPath 'flaky'")
def test_an_interrupted_close_lets_this_process_resume(address: str, trajectories: list[Trajectory]) -> None:
    writer = RemoteWriter(address)
    writer.write(trajectories[0])
    thread = writer._thread

    class Interrupted:
        is_alive = thread.is_alive

        def join(self) -> None:
            raise KeyboardInterrupt

    writer._thread = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    thread.join(60)
    with RemoteWriter(address, resume=True) as resumed:
        resumed.write(trajectories[1])
    assert set(by_key(address)) == {(t.group_id, t.member) for t in trajectories[:2]}


def test_what_cannot_be_uploaded_at_the_end_stays_here(flaky: str, spool: Path, trajectories: list[Trajectory]) -> None:
    writer = RemoteWriter(flaky, upload_every_s=1000)
    writer.write(trajectories[0])
    FlakyFileSystem.is_cut = True
    with pytest.raises(StoreError, match=str(spool)):
        writer.close()
    for refused in (lambda: read_trajectories(flaky), lambda: RemoteWriter(flaky, resume=True)):
        with pytest.raises(StoreError, match="cannot be reached"):  # and is not taken for an empty folder
            refused()  # type: ignore[no-untyped-call]
    FlakyFileSystem.is_cut = False
    with RemoteWriter(flaky, resume=True) as again:
        again.write(trajectories[1])
    assert read_trajectories(flaky) == trajectories[:2]


@pytest.mark.parametrize(
    "address, error, message",
    [
        ("nowhere://bucket/run", StoreError, "this kind of storage is unknown.*Examples are s3://"),
        ("s3://bucket/run", MissingExtraError, "driver of this storage is not installed.*s3fs"),
        ("ftp://127.0.0.1:1/run", StoreError, r"cannot be reached \(ConnectionRefusedError.*Check the address"),
    ],
)
def test_a_storage_that_cannot_be_used_is_named(address: str, error: type[Exception], message: str) -> None:
    if address.startswith("s3") and importlib.util.find_spec("s3fs") is not None:
        pytest.skip("s3fs is installed")
    uses: list[Callable[[], object]] = [
        lambda: read_trajectories(address),
        lambda: finished(address),
        lambda: replay(address),
        lambda: RemoteWriter(address),
        lambda: collect_run(NumbersEnv, OraclePolicy(), out=address, n_groups=1),
        lambda: main(["report", address]),
        lambda: main(["export", address, "out.jsonl", "--to", "messages"]),
    ]
    for use in uses[:5]:
        with pytest.raises(error, match=message):
            use()


def test_without_universal_pathlib_the_extra_is_named(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["upath"] = None
        from llm_envs.rollout import read_trajectories
        read_trajectories(sys.argv[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(code), "memory://run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "MissingExtraError: memory://run: object storage needs universal_pathlib" in done.stderr
    assert "pip install 'llm-envs[cluster]'" in done.stderr


def test_a_report_of_a_run_there_is_that_of_a_run_here(address: str, tmp_path: Path) -> None:
    pages = []
    for number, out in enumerate((address, str(tmp_path / "run"))):
        collect(out, codec=ByteCodec())
        notes = write_report([out], tmp_path / f"{number}.html")
        assert [note for note in notes if not note.startswith("Tokens are shown as ids")] == []
        pages.append((tmp_path / f"{number}.html").read_text())
    there, here = (json.loads(re.findall(r'id="index">(.*?)</script>', page)[0]) for page in pages)
    assert there["summary"] == here["summary"] and there["runs"][0]["path"] == address
    assert sorted(there["columns"]["seed"]) == sorted(here["columns"]["seed"])


@pytest.mark.parametrize("max_log_bytes", [2**20, 1000])
def test_shards_there_are_merged_there_and_here(address: str, tmp_path: Path, max_log_bytes: int) -> None:
    """Shards here and there become a run there or here, which equals that of one machine and can be resumed."""
    places: dict[int, str | Path] = {0: address, 1: tmp_path / "here", 2: address}
    for index, place in places.items():
        shard = Shard(index, 3)
        settings = {"shard": shard, "max_log_bytes": max_log_bytes, "codec": ByteCodec()}
        collect_run(NumbersEnv, OraclePolicy(), out=shard.folder(place), n_groups=7, **settings)
    collect_run(NumbersEnv, OraclePolicy(), out=tmp_path / "whole", n_groups=9, codec=ByteCodec())
    whole = by_key(tmp_path / "whole")
    for target in (f"{address}-merged", tmp_path / "merged"):
        assert merge_runs([address, tmp_path / "here"], target) == 7
        assert len(by_key(target)) == 7 and by_key(target).items() <= whole.items()
        done = collect_run(NumbersEnv, OraclePolicy(), out=target, n_groups=9, codec=ByteCodec(), resume=True)
        assert (done.n_before, done.n_finished) == (7, 9) and by_key(target) == whole
        with pytest.raises(StoreError, match="holds a run already"):
            merge_runs([address, tmp_path / "here"], target)


def test_a_log_that_was_never_compacted_is_merged_as_a_table(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine without pyarrow leaves it."""
    with monkeypatch.context() as patch:
        patch.setattr("llm_envs.data.writer.can_compact", lambda: False)
        collect_run(NumbersEnv, OraclePolicy(), out=tmp_path / "part", n_groups=3, shard=Shard(0, 1), codec=ByteCodec())
    assert list((tmp_path / "part").glob("log-*.jsonl")) and not list((tmp_path / "part").glob("shard-*.parquet"))
    assert merge_runs([tmp_path / "part"], address) == 3
    assert by_key(address) == by_key(tmp_path / "part") and names(address) == {"manifest.json", "shard-00000.parquet"}


def test_a_shard_there_that_is_being_written_is_not_merged(address: str, tmp_path: Path) -> None:
    part = Shard(0, 1).folder(address)
    collect_run(NumbersEnv, OraclePolicy(), out=part, n_groups=2, shard=Shard(0, 1))
    with RemoteWriter(part, settings=read_manifest(part).settings, resume=True):
        for target in (f"{address}-merged", tmp_path / "merged"):
            with pytest.raises(StoreError, match="being written"):
                merge_runs([address], target)
    assert merge_runs([address], tmp_path / "merged") == 2
    with pytest.raises(StoreError, match="has no shard"):
        merge_runs([f"{address}-nothing"], tmp_path / "other")


def test_the_command_line(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    collect = ["collect", "llm/GuessNumber-v0", "--policy", "oracle", "--out", address, "--upload-every-s", "1", "-n"]
    assert main([*collect, "6"]) == 0
    assert f"6 of 6 episodes are in {address}" in capsys.readouterr().out
    assert main([*collect, "6"]) == 1 and "holds a run already" in capsys.readouterr().err
    assert main([*collect, "9", "--resume"]) == 0
    assert "9 of 9 episodes" in (said := capsys.readouterr().out) and "6 of them from before" in said
    assert main(["report", address]) == 0 and Path("report.html").is_file()
    assert main(["export", address, "out.jsonl", "--to", "messages"]) == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 9
    for output in (
        ["export", address, "s3://bucket/out.jsonl", "--to", "messages"],
        ["report", address, "--out", "s3://b/c"],
    ):
        assert main(output) == 1 and "can only be written to a local folder" in capsys.readouterr().err
    assert not Path("s3:").exists()
    assert main(["eval", "--replay", address]) == 0 and "100.0%" in capsys.readouterr().out
    assert main(["eval", "llm/GuessNumber-v0", "--policy", "oracle", "-n", "2", "--out", address + "2"]) == 1
    assert "can only be written to a local folder" in capsys.readouterr().err
    assert main([*collect, "9", "--report-to", "csv"]) == 2 and "a local one" in capsys.readouterr().err
    parts = [*collect[:-4], address + "-parts", "-n", "5", "--shard"]
    assert [main([*parts, shard]) for shard in ("0/2", "1/2")] == [0, 0]
    assert main(["merge", address + "-parts", "--out", address + "-whole"]) == 0
    assert f"{address}-whole has 5 episodes" in capsys.readouterr().out
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("memory", "file"))]


def test_finished_keys_answers_as_finished_does(address: str) -> None:
    collect(address, codec=ByteCodec())
    keys, found = finished_keys(address), finished(address)
    assert 0 < len(found) < 24 and len(keys) == len(found)
    for trajectory in iter_trajectories(address):
        key = trajectory.group_id, trajectory.member
        assert (key in keys) == (key in found) == (trajectory.status == "ok")
    assert ("no such group", 0) not in keys


GROUPS = [
    "",
    "7",
    "12",
    "123",
    "0123",
    "0-000123",
    "0-001123",
    "1-000123",
    "x-",
    "x-999",
    "999",
    "12x",
    "x",
    "٣٤٥",
    "²²²",
    "\ud800",
]


def test_keys_of_any_names_are_told_apart() -> None:
    """Each half of the keys against the other: numbers of a group stand for the group with no other name."""
    keys = [(group, member) for group in GROUPS for member in (0, 1)]
    for there in (keys[::2], keys[1::2], keys[::3], keys[: len(GROUPS)]):
        found = FinishedKeys([*there, *there])
        assert len(found) == len(there) and [key for key in keys if key in found] == there


def test_the_keys_of_many_episodes_take_little_memory() -> None:
    """At 16 bytes each they would take 3.2 MB."""
    keys = ((f"0-{index:06d}", member) for index in range(100_000) for member in (0, 1))
    tracemalloc.start()
    found = FinishedKeys(keys)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 200_000 and size < 200_000
    assert ("0-099999", 1) in found and ("0-100000", 1) not in found and ("0-099999", 2) not in found
