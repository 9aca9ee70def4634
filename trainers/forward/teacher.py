"""A teacher: another model that scores the policy's tokens, in this process or on a vLLM server, as the reference.

A teacher must read the same ids as the same words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoTokenizer

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.loading import load_model
from llm_envs.policies.vllm.scoring import TokenScorer
from llm_envs.trainers.functional.references import RefModelFn, freeze

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["NO_TEACHER", "ServedTeacher", "check_vocabulary", "load_teacher", "vocabulary_difference"]


NO_TEACHER = (
    "{name!r} learns only from a teacher, and the reference would be the policy's own first weights: give "
    "ref_model_fn=load_teacher(FOLDER, NAME or URL), on a command line --teacher."
)
"""The error of an algorithm with `needs_teacher` and no teacher."""


def load_teacher(name: str | Path, *, api_key: str | None = None) -> RefModelFn:
    """Return a `ref_model_fn` that makes a teacher: a frozen model of any size with the policy's tokens.

    Args:
        name: A folder or a name on a hub, for a model in this process, in the policy's dtype and on its device; or the
            URL of a vLLM server, for a `ServedTeacher`.
        api_key: The server's.

    Raises:
        InvalidConfigError: When called: if the teacher's vocabulary is another than the policy's.
        ModelError: When called: if it cannot be loaded, or its server's tokenizer is another.
        BridgeError: When called: if the server does not answer.
    """

    def make(policy: torch.nn.Module) -> torch.nn.Module:
        student: Any = policy
        if str(name).startswith(("http://", "https://")):
            teacher = ServedTeacher(TokenScorer(str(name), api_key=api_key))
            if (tokenizer := _tokenizer(getattr(student, "name_or_path", ""))) is not None:
                teacher.scorer.check_tokenizer(tokenizer)
            return teacher
        model: Any = load_model(name, dtype=student.dtype, device=student.device)
        check_vocabulary(model, student, _tokenizer(getattr(student, "name_or_path", "")))
        return freeze(model)

    return make


class ServedTeacher(torch.nn.Module):
    """A reference on a vLLM server. It has no weights here; the drivers call `logps` in place of a forward pass.

    Args:
        scorer: The server.
    """

    def __init__(self, scorer: TokenScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def check(self, tokenizer: PreTrainedTokenizerBase, *, temperature: float, keeps_mask: bool) -> None:
        """Reject settings of sampling that a server cannot score by, and another tokenizer.

        Raises:
            InvalidConfigError: If the temperature is not 1, or log-probabilities are only over the kept tokens.
            ModelError: If the tokenizers differ.
        """
        _check_sampling(temperature, keeps_mask)
        self.scorer.check_tokenizer(tokenizer)

    @torch.no_grad()
    def logps(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        n_tokens: int,
        *,
        temperature: float = 1.0,
        keeps_mask: bool = False,
    ) -> torch.Tensor:
        """Return the teacher's log-probabilities of the last columns, shape (B, n_tokens), float32; 0 at padding.

        Args:
            input_ids: Shape (B, S), int64, padded on either side.
            attention_mask: Shape (B, S): 1 at tokens.
            n_tokens: Columns of the completion, at most S - 1.
            temperature: Of sampling; only 1 is possible.
            keeps_mask: Whether the policy's log-probabilities are over the tokens that sampling filters kept.

        Raises:
            InvalidConfigError: As for `check`, or if a row does not fit the server.
        """
        _check_sampling(temperature, keeps_mask)
        is_token = attention_mask.bool().cpu()
        rows = [ids[kept].numpy() for ids, kept in zip(input_ids.cpu(), is_token, strict=True)]
        out = torch.zeros(input_ids.shape)
        # A row without tokens only fills up the batch.
        some = [number for number, row in enumerate(rows) if len(row)]
        for number, logps in zip(some, self.scorer.score_tokens([rows[number] for number in some]), strict=True):
            out[number, is_token[number]] = torch.from_numpy(logps)
        return out[:, -n_tokens:].nan_to_num(nan=0.0).to(input_ids.device)


def _check_sampling(temperature: float, keeps_mask: bool) -> None:
    if temperature != 1.0:
        raise InvalidConfigError(
            f"temperature={temperature:g}: a server scores tokens at temperature 1. Sample at 1, or give the teacher "
            "as a folder or a name, which is loaded into this process."
        )
    if keeps_mask:
        raise InvalidConfigError(
            "keep_sampling_mask: a server scores tokens over its full vocabulary. Leave it out, or give the teacher "
            "as a folder or a name, which is loaded into this process."
        )


def check_vocabulary(reference: Any, policy: Any, tokenizer: Any) -> None:
    """Reject a reference whose token ids mean other tokens than the policy's.

    If the reference's folder or name has a tokenizer, each of the policy's tokens must have the same id in it.
    Otherwise, both models must have the same number of output ids.

    Args:
        reference: The reference.
        policy: The policy.
        tokenizer: The policy's; None: unknown, only the numbers of ids are compared.

    Raises:
        InvalidConfigError: If the vocabularies differ.
    """
    size, expected = reference.get_output_embeddings().weight.shape[0], policy.get_output_embeddings().weight.shape[0]
    where = getattr(reference, "name_or_path", "")
    # The common case, a copy of the policy: no second tokenizer has to be loaded.
    if size == expected and where == getattr(policy, "name_or_path", ""):
        return
    what = vocabulary_difference(where, tokenizer, scores=size, expected=expected)
    if what is None:
        return
    raise InvalidConfigError(
        f"the reference {where or type(reference).__name__} {what}, so it would score other words than were sampled: "
        "take a model of the same family (a teacher must share the student's tokenizer), or learn from what it writes "
        "by supervised fine-tuning."
    )


def vocabulary_difference(name: str, tokenizer: Any, *, scores: int, expected: int) -> str | None:
    """Return how another model's vocabulary differs from the policy's; None if it knows each of the policy's tokens.

    If the other model's folder or name has a tokenizer, each of the policy's tokens must have the same id in it.
    Otherwise, both models must know the same number of ids.

    Args:
        name: Folder or name of the other model; may be empty.
        tokenizer: The policy's; None: unknown.
        scores: Number of ids that the other model knows.
        expected: Number of ids that the policy knows.
    """
    other = None if tokenizer is None else _tokenizer(name)
    if other is None:
        return None if scores == expected else f"knows {scores} ids, the policy {expected}"
    words, theirs = tokenizer.get_vocab(), other.get_vocab()
    if differing := [word for word, number in words.items() if theirs.get(word) != number]:
        return f"has another tokenizer ({len(differing)} of the policy's {len(words)} tokens are not the same there)"
    largest = max(words.values())
    return f"knows {scores} ids, and the tokenizer's go up to {largest}" if scores <= largest else None


def _tokenizer(name: str) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a model's folder or name; None if it has none."""
    folder = Path(name)
    if not name or (folder.is_dir() and not any([*folder.glob("*token*"), *folder.glob("vocab*")])):
        return None  # for some types transformers would create an empty tokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError):
        return None
    return tokenizer
