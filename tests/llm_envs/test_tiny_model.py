"""Tokenizers of tiny models."""

import pytest

pytest.importorskip("transformers")

from llm_envs.tiny_model import tiny_tokenizer

TEXTS = ["Page 1. The bell costs 4.", "The bell costs 4. The lamp costs 5."]


def test_by_words_a_word_has_the_same_tokens_wherever_it_stands():
    by_words, across = (tiny_tokenizer(TEXTS * 20, vocab_size=400, by_words=choice) for choice in (True, False))
    alone = by_words.encode(" bell", add_special_tokens=False)
    for text in TEXTS:
        ids = by_words.encode(text, add_special_tokens=False)
        assert any(ids[i : i + len(alone)] == alone for i in range(len(ids)))
        assert by_words.decode(ids) == text
        assert len(across.encode(text, add_special_tokens=False)) < len(ids)
