"""Preferences that every small model can learn from, in the form of TRL's data sets."""

from datasets import Dataset


def message_pairs(n: int = 16) -> Dataset:
    """Return `n` pairs of messages of one turn: a right sum is chosen, a wrong one rejected."""
    says = [
        {name: [{"role": "assistant", "content": text}] for name, text in (("chosen", str(k + 1)), ("rejected", "no"))}
        for k in range(n)
    ]
    asks = [{"prompt": [{"role": "user", "content": f"{k} + 1?"}]} for k in range(n)]
    return Dataset.from_list([ask | both for ask, both in zip(asks, says, strict=True)])
