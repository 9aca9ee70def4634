"""The texts of tokens: for each tokenizer of a report's runs, the texts of the ids on the page."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from llm_envs.errors import extra_needed
from llm_envs.report.runs import ReportRun
from llm_envs.tracking.loggers import visible_text

__all__ = ["token_decoder", "token_texts"]

Texts = dict[str, str]
"""Token id -> text."""


def token_texts(
    ids: Mapping[int, Collection[int]], tokenizer: str | Path | None, runs: Sequence[ReportRun], notes: list[str]
) -> tuple[list[Texts], list[int | None]]:
    """Return the texts of the page's tokens, and for each run which of them are its own.

    Args:
        ids: Run -> the token ids of it that the page has.
        tokenizer: A folder for all runs; None takes each run's own.
        runs: In the page's order.
        notes: Why tokens of a run are shown as ids is added here.

    Raises:
        ModelError: If `tokenizer` holds no tokenizer.
        MissingExtraError: If it is asked for and transformers is not installed.
    """
    tables: list[Texts] = []
    numbers: dict[bytes, int] = {}
    places: dict[bytes, Path] = {}
    of_runs: list[int | None] = [None] * len(runs)
    shared: dict[bytes, set[int]] = {}
    for number, run in enumerate(runs):
        own = Path(tokenizer) if tokenizer is not None else run.tokenizer
        if not ids.get(number):
            continue
        if own is None:
            begin = f"{run.name}: t" if len(runs) > 1 else "T"
            why = "there is no tokenizer in the run; --tokenizer DIR gives them texts"
            notes.append(f"{begin}okens are shown as ids: {why}.")
            continue
        key = _content(own)
        places.setdefault(key, own)
        shared.setdefault(key, set()).update(ids[number])
        of_runs[number] = numbers.setdefault(key, len(numbers))
    for key, place in places.items():
        try:
            decode = token_decoder(place)
        except Exception as error:
            if tokenizer is not None:
                raise
            notes.append(f"Tokens are shown as ids: the tokenizer in {place} cannot be loaded ({error}).")
            tables.append({})
            continue
        tables.append({str(token): visible_text(decode(token)) for token in sorted(shared[key])})
    return tables, of_runs


def _content(folder: Path) -> bytes:
    """Return a key that is equal for folders with the same tokenizer: all checkpoints of a training have the same."""
    file = folder / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).digest() if file.is_file() else str(folder.resolve()).encode()


def token_decoder(source: str | Path) -> Callable[[int], str]:
    """Return a function that gives the text of a token's id.

    Args:
        source: Folder of the tokenizer.

    Raises:
        ModelError: If the folder has no tokenizer.
        MissingExtraError: If transformers is not installed.
    """
    with extra_needed("token texts need transformers: pip install 'llm-envs[train]'."):
        from llm_envs.policies.inference.loading import load_tokenizer

        tokenizer = load_tokenizer(source)
    size = len(tokenizer)

    def decode(token: int) -> str:
        return str(tokenizer.decode([token])) if 0 <= token < size else f"[{token}]"

    return decode
