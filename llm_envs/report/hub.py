"""A run as a data set on the hub, with a card: environments, settings, versions, counts and success.

Nothing is uploaded but by `push_to_hub`. `write_hub_folder` writes the same files for a look at them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from llm_envs.data.files import replacing
from llm_envs.data.folder import read_manifest
from llm_envs.data.parquet import write_shard
from llm_envs.data.storage import as_path
from llm_envs.data.writer import iter_trajectories, n_records
from llm_envs.errors import InvalidConfigError, StoreError, counted, extra_needed
from llm_envs.evaluation.results import installed_versions
from llm_envs.report.episodes import Names, is_sampled, table_line
from llm_envs.report.summary import TaskSummary, by_task, settings_text
from llm_envs.types import Trajectory

__all__ = ["push_to_hub", "write_hub_folder"]

_FILE_EPISODES = 20_000
"""Episodes of one Parquet file."""
_COUNTED = 50_000
"""With more episodes than about this, success and rewards are from a sample of the problems."""


def push_to_hub(
    run: str | Path,
    repo_id: str,
    *,
    private: bool = True,
    license: str | None = None,
    keep: Callable[[Trajectory], bool] = lambda trajectory: True,
    token: str | None = None,
) -> str:
    """Upload a run as a data set, in one commit, and return its address.

    The repository is created if it is missing. Data files of an earlier upload are replaced. `from_dataset` gives the
    trajectories back. Everything in the run is uploaded, prompts and settings too.

    Args:
        run: The folder of a run, also on object storage, or a file of trajectories.
        repo_id: Its name: "owner/name".
        private: Whether a new repository is private.
        license: The hub's name of a license, such as "cc-by-4.0"; None leaves the choice open on the card.
        keep: Which to upload.
        token: A token with the right to write; None takes the token of `hf auth login`.

    Raises:
        InvalidConfigError: If nothing is left to upload, or `repo_id` is not a name.
        StoreError: If the run cannot be read, or the upload fails.
        MissingExtraError: If huggingface_hub or pyarrow is not installed.
    """
    with extra_needed("the hub needs huggingface_hub: pip install 'llm-envs[train]'."):
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
        from huggingface_hub.errors import HFValidationError
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory(prefix="llm-envs-hub-") as temporary:
        folder = Path(temporary)
        n = write_hub_folder(run, folder, repo_id=repo_id, license=license, keep=keep)
        new = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        try:
            api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
            there = api.list_repo_files(repo_id, repo_type="dataset")
            operations: list[Any] = [CommitOperationAdd(name, str(path)) for name, path in new.items()]
            operations += [CommitOperationDelete(n) for n in there if n.startswith("data/") and n not in new]
            message = f"{counted(n, 'episode')}, uploaded by llm-envs"
            api.create_commit(repo_id, operations, commit_message=message, repo_type="dataset")
        except HFValidationError as error:
            raise InvalidConfigError(f"{repo_id!r} is not the name of a repository (OWNER/NAME): {error}") from error
        except Exception as error:  # the client's, and of the libraries below it
            reason = " ".join(str(error).split())[:300]
            raise StoreError(
                f"{run} could not be uploaded to {repo_id} ({type(error).__name__}: {reason}). Log in with "
                "`hf auth login`, or set HF_TOKEN to a token that may write there."
            ) from error
    return f"{api.endpoint}/datasets/{repo_id}"


def write_hub_folder(
    run: str | Path,
    folder: str | Path,
    *,
    repo_id: str,
    license: str | None = None,
    keep: Callable[[Trajectory], bool] = lambda trajectory: True,
) -> int:
    """Write the files that `push_to_hub` uploads, `README.md` and `data/*.parquet`, and return the number of episodes.

    Args:
        run: See `push_to_hub`.
        folder: An empty folder.
        repo_id: The name of the repository, for the card.
        license: See `push_to_hub`.
        keep: Which to write.

    Raises:
        InvalidConfigError: If nothing is left, or the folder has a data set already.
        StoreError: If the run cannot be read.
    """
    data = Path(folder) / "data"
    if data.exists():
        raise InvalidConfigError(f"{data} exists already: give an empty folder for the data set.")
    data.mkdir(parents=True)
    counts = _Counts(share=_COUNTED / max(n_records(run), 1))
    episodes = counts.watch(filter(keep, iter_trajectories(run)))
    files: list[Path] = []
    while (first := next(episodes, None)) is not None:
        files.append(data / f"part-{len(files):05d}.parquet")
        write_shard(chain([first], islice(episodes, _FILE_EPISODES - 1)), files[-1])
    if not files:
        raise InvalidConfigError(f"{run}: no episode is left to upload.")
    for number, file in enumerate(files):
        file.rename(data / f"train-{number:05d}-of-{len(files):05d}.parquet")
    settings: Mapping[str, Any] = {}
    with suppress(StoreError):  # a single file has none
        settings = read_manifest(as_path(run)).settings
    card = _card(repo_id, license, settings, counts)
    with open(Path(folder) / "README.md", "w", encoding="utf-8", errors="replace", opener=replacing) as readme:
        readme.write(card)
    return counts.n


class _Counts:
    """The numbers of a card, taken while the episodes pass by.

    Args:
        share: Share of the problems whose success and rewards are counted.
    """

    def __init__(self, share: float) -> None:
        self.n, self.is_sample = 0, share < 1
        self._share, self._names = share, Names()
        self._parts: dict[tuple[int, int, int], TaskSummary] = {}
        self.seeds: list[int] = []

    def watch(self, episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for episode in episodes:
            self.n += 1
            self.seeds = [min([*self.seeds, episode.seed]), max([*self.seeds, episode.seed])]
            if is_sampled(episode, self._share):
                _, env, _, _, _, problem, setting, *_ = table_line(episode, 0, 0, self._names)
                self._parts.setdefault((0, env, setting), TaskSummary()).add(episode, problem)
            yield episode

    def lines(self) -> list[str]:
        """Return a line of a table for each task."""
        kinds = self._names.of
        tasks, names = by_task(self._parts, list(kinds.get("env", ())), list(kinds.get("settings", ())))
        kwargs = {env: settings for _, env, settings in self._parts}
        found = []
        for (_, task), summary in sorted(tasks.items()):
            numbers = summary.numbers()
            name, *rest = names[task].split(" ", 1)
            shared = settings_text(json.loads(list(kinds["settings"])[kwargs[list(kinds["env"]).index(name)]]))
            cells = [f"`{name}`", rest[0] if rest else shared, numbers["problems"], numbers["episodes"]]
            cells.append(numbers["episodes"] - numbers["scored"])
            if "success" in numbers:
                cells.append(f"{numbers['success']:.1%} ({numbers['low']:.1%} to {numbers['high']:.1%})")
                cells.append(f"{numbers['reward']:.4g}")
            else:
                cells += ["", ""]
            found.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
        return found


def _card(repo_id: str, license: str | None, settings: Mapping[str, Any], counts: _Counts) -> str:
    """Return the text of the card, whose first lines tell the hub where the data are."""
    sampled = " They are those of a random sample of the problems." if counts.is_sample else ""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    played = " ".join(f"{name}: `{settings[name]}`." for name in ("policy", "model", "seed") if name in settings)
    chosen = f"`{license}`." if license else "Not chosen yet: replace `license: unknown` at the top of this file."
    return f"""---
license: {license or "unknown"}
tags:
- llm-envs
- reinforcement-learning
- trajectories
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
---

# {repo_id.rpartition("/")[2]}

{counts.n:,} {"episode" if counts.n == 1 else "episodes"} of language-model environments, played by llm-envs. {played}

| environment | arguments | problems | episodes | without a score | success (95% interval by problem) | mean reward |
|---|---|---|---|---|---|---|
{chr(10).join(counts.lines())}

An episode without a score failed, or its judge did; it is not counted as 0.{sampled} The seeds of the problems are
between {counts.seeds[0]} and {counts.seeds[1]}; each line of the data has its own.

## Settings

```json
{json.dumps(dict(settings), indent=1, ensure_ascii=False)}
```

Written with {versions}.

## Use

```python
import datasets
from llm_envs.data import from_dataset

table = datasets.load_dataset("{repo_id}", split="train")
trajectories = from_dataset(table)
```

`messages` has the form that chat templates take, `rows` the tokens with masks and log-probabilities if the policy
sampled tokens, `turns` the rewards, and `reward` their sum.

## License

{chosen}
"""
