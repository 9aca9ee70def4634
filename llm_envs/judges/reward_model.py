"""A sequence classifier as a reward function, in batches. If it fails, the result is *unscored*, never 0."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError, JudgeError, MissingExtraError, ModelError, extra_needed
from llm_envs.rewards.words import own_messages
from llm_envs.types import IdArray, Message, Trajectory

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["RewardModel", "Scorer", "conversation_of", "torch_scorer"]

logger = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
Scorer = Callable[[Sequence[IdArray]], npt.ArrayLike]
"""B sequences of token ids -> B scores."""


class RewardModel:
    """A sequence classifier as a reward function: it scores the conversation, rendered by its own chat template.

    Args:
        tokenizer: The model's own. Its chat template renders the conversation; special tokens in a text are encoded as
            plain text.
        scorer: B sequences of ids -> B scores: `torch_scorer(model)`, or any other.
        batch_size: Sequences scored together; they are sorted by length.
        max_length: Longest sequence in tokens. A longer one is unscored, because scoring only a part of it would be
            wrong. None means no limit.
        messages_fn: Selects the messages of an episode to judge; None: everything up to the agent's last message.
        cache_size: Number of cached scores, by the ids.
        name: Name of the part.

    Raises:
        InvalidConfigError: If a setting is wrong.
        ModelError: If the tokenizer has no usable chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        scorer: Scorer,
        *,
        batch_size: int = 16,
        max_length: int | None = None,
        messages_fn: Callable[[Trajectory], Sequence[Message]] | None = None,
        cache_size: int = 10_000,
        name: str = "reward_model",
    ) -> None:
        from llm_envs.chat.template import ChatTemplate
        from llm_envs.chat.tokenization import SafeTokenizer

        if batch_size < 1 or (max_length is not None and max_length < 1):
            raise InvalidConfigError(f"RewardModel: {batch_size=}, {max_length=}; expected at least 1.")
        self._template = ChatTemplate(tokenizer)
        self._text = SafeTokenizer(tokenizer, lambda: self._template.render(_SAMPLE, generation_prompt=False))
        self._scorer, self._messages_fn = scorer, messages_fn or conversation_of
        self.batch_size, self.max_length, self.cache_size, self.__name__ = batch_size, max_length, cache_size, name
        self._cache: dict[bytes, float] = {}

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        *,
        label: int | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        loader: Callable[..., PreTrainedModel] | None = None,
        tokenizer_loader: Callable[..., PreTrainedTokenizerBase] | None = None,
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> RewardModel:
        """Load a sequence classifier and its tokenizer.

        Args:
            name_or_path: A folder, or a name on a model hub.
            label: For a classifier with several labels, the one whose probability is the score; None: it has only one.
            dtype: Data type of the weights.
            device: Device; None takes a GPU if there is one.
            loader: Replaces `transformers.AutoModelForSequenceClassification.from_pretrained`.
            tokenizer_loader: Replaces `transformers.AutoTokenizer.from_pretrained`.
            trust_remote_code: Whether code from the model's repository may run.
            **settings: Further arguments of `RewardModel`.

        Raises:
            MissingExtraError: If torch or transformers is not installed.
            ModelError: If the model cannot be loaded, or the head does not fit `label`.
        """
        with extra_needed("RewardModel.load needs transformers: pip install 'llm-envs[train]'."):
            from transformers import AutoModelForSequenceClassification
        from llm_envs.policies.inference.loading import load_model, load_tokenizer

        load = loader or AutoModelForSequenceClassification.from_pretrained
        tokenizer = load_tokenizer(name_or_path, loader=tokenizer_loader, trust_remote_code=trust_remote_code)
        model = load_model(name_or_path, dtype=dtype, device=device, loader=load, trust_remote_code=trust_remote_code)
        scorer = torch_scorer(model, pad_id=tokenizer.pad_token_id, label=label)
        return cls(tokenizer, scorer, **settings)

    def __call__(self, trajectory: Trajectory) -> float:
        """Return the score of one trajectory.

        Raises:
            JudgeError: If it cannot be scored.
        """
        score = self._scores([trajectory])[0]
        if isinstance(score, JudgeError):
            raise score
        return score

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        """Return the score of each trajectory; None means unscored."""
        scores = self._scores(trajectories)
        if failures := [score for score in scores if isinstance(score, JudgeError)]:
            logger.warning("%s: %d of %d unscored: %s", self.__name__, len(failures), len(scores), failures[0])
        return [None if isinstance(score, JudgeError) else score for score in scores]

    def encode(self, messages: Sequence[Message]) -> IdArray:
        """Return the ids of a conversation by the model's chat template, without a generation prompt."""
        from llm_envs.chat.tokenization import Masked

        masked = Masked()
        shown = [Message.from_dict(self._text.hide_spellings(message.to_dict(), masked)) for message in messages]
        return self._text.encode_masked(self._template.render(shown, generation_prompt=False), masked)

    def _scores(self, trajectories: Sequence[Trajectory]) -> list[float | JudgeError]:
        encoded = [self._encoded(trajectory) for trajectory in trajectories]
        found: dict[bytes, float | JudgeError] = {}
        missing: dict[bytes, IdArray] = {}
        for ids in encoded:
            if not isinstance(ids, JudgeError):
                key = ids.tobytes()
                if key in self._cache:
                    found[key] = self._cache[key]
                else:
                    missing[key] = ids
        ordered = sorted(missing, key=lambda key: len(missing[key]))
        for start in range(0, len(ordered), self.batch_size):
            keys = ordered[start : start + self.batch_size]
            found |= dict(zip(keys, self._score([missing[key] for key in keys]), strict=True))
        self._remember(found)
        return [ids if isinstance(ids, JudgeError) else found[ids.tobytes()] for ids in encoded]

    def _encoded(self, trajectory: Trajectory) -> IdArray | JudgeError:
        try:
            ids = self.encode(self._messages_fn(trajectory))
        except (JudgeError, ModelError) as error:  # the template refuses this conversation, or it is empty
            return JudgeError(f"the conversation cannot be shown to the reward model: {error}")
        if self.max_length is not None and len(ids) > self.max_length:
            return JudgeError(f"the conversation has {len(ids)} tokens, max_length is {self.max_length}.")
        return ids

    def _score(self, ids: Sequence[IdArray]) -> list[float | JudgeError]:
        try:
            scores = np.asarray(self._scorer(ids), dtype=np.float64)
        except (InvalidConfigError, MissingExtraError, ModelError):
            raise
        except Exception as error:
            return [JudgeError(f"the reward model failed: {type(error).__name__}: {error}")] * len(ids)
        if scores.shape != (len(ids),):
            raise InvalidConfigError(f"the scorer returned shape {scores.shape} for {len(ids)} sequences.")
        return [s if math.isfinite(s) else JudgeError(f"the reward model gave {s}.") for s in scores.tolist()]

    def _remember(self, found: Mapping[bytes, float | JudgeError]) -> None:
        for key, score in found.items():
            if not isinstance(score, JudgeError):
                self._cache[key] = score
        while len(self._cache) > self.cache_size:
            del self._cache[next(iter(self._cache))]


_SAMPLE = (Message("user", "a"), Message("assistant", "b"))


def conversation_of(trajectory: Trajectory) -> tuple[Message, ...]:
    """Return the messages of an episode up to the agent's last one, because the agent did not cause later ones."""
    own = own_messages(trajectory)
    if not own:
        raise JudgeError("the agent wrote nothing.")
    return trajectory.messages[: own[-1] + 1]


def torch_scorer(model: PreTrainedModel, *, pad_id: int | None = None, label: int | None = None) -> Scorer:
    """Return a function that scores sequences with a sequence classifier.

    Args:
        model: Ends in logits (B, n_labels), taken at each sequence's last token.
        pad_id: Pads the shorter sequences on the right. It is set in the model's settings if they have none: the model
            finds the last token by the pad token.
        label: None: the model has one output, which is the score itself. Otherwise the probability of this label.

    Raises:
        ModelError: If the head does not fit `label`, or no pad token is known.
    """
    with extra_needed("a reward model needs torch: pip install 'llm-envs[train]'."):
        import torch
    n_labels = int(model.config.num_labels or 0)
    if label is None and n_labels != 1:
        raise ModelError(f"the reward model has {n_labels} outputs: give label=... to take one's probability.")
    if label is not None and not (n_labels > 1 and 0 <= label < n_labels):
        raise ModelError(f"label={label}, but the reward model has {n_labels} outputs.")
    config = model.config.get_text_config()
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = pad_id
    pad = config.pad_token_id
    if pad is None:
        raise ModelError("neither the reward model nor its tokenizer has a pad token.")

    def score(sequences: Sequence[IdArray]) -> FloatArray:
        longest = max(len(ids) for ids in sequences)
        batch = np.full((len(sequences), longest), pad, dtype=np.int64)
        mask = np.zeros((len(sequences), longest), dtype=np.int64)
        for row, ids in enumerate(sequences):
            batch[row, : len(ids)], mask[row, : len(ids)] = ids, 1
        device = next(model.parameters()).device
        with torch.inference_mode():
            logits = model(
                input_ids=torch.from_numpy(batch).to(device), attention_mask=torch.from_numpy(mask).to(device)
            ).logits.float()
            scores = logits[:, 0] if label is None else logits.softmax(dim=-1)[:, label]
        result: FloatArray = scores.cpu().numpy().astype(np.float64)
        return result

    return score
