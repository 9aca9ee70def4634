"""TRL's attention over trees gets our trees: each token sees what our masks say."""

from types import SimpleNamespace

import pytest
import torch
from architectures import llama_like, model_of
from torch.nn.functional import scaled_dot_product_attention

from llm_envs.trainers.forward import tree_attention
from llm_envs.trainers.forward.prefix_tree import build_tree
from llm_envs.trainers.forward.tree_attention import flash_inputs, tree_masks

packing = pytest.importorskip("trl.experimental.async_grpo.packing")
pytestmark = pytest.mark.transformers

ROWS = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 12], [5, 6, 13, 14, 15, 16], [20, 21, 22], [5, 6, 7]]


def varlen(query, key, value, ends_q, ends_k, max_q, max_k, *, softmax_scale, causal, window_size):
    """FlashAttention's `flash_attn_varlen_func` in PyTorch: a sequence's last query sees all of its keys."""
    assert causal and (max_q, max_k) == (int(ends_q.diff().max()), int(ends_k.diff().max()))
    outputs = []
    for q, k, v in zip(
        *(x.tensor_split(e[1:-1].tolist()) for x, e in zip((query, key, value), (ends_q, ends_k, ends_k), strict=True)),
        strict=True,
    ):
        place, seen = torch.arange(len(k) - len(q), len(k))[:, None], torch.arange(len(k))
        mask = (seen <= place) & ((window_size[0] < 0) | (seen >= place - window_size[0]))
        heads = (x.transpose(0, 1) for x in (q, k, v))
        outputs.append(scaled_dot_product_attention(*heads, mask, scale=softmax_scale, enable_gqa=True).transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [None, 3])
def test_trls_attention_sees_what_our_masks_say(monkeypatch, window):
    """The kernel, which needs a card, is written out in PyTorch; TRL's function and our inputs are the real ones."""
    assert torch.cuda.is_available() or tree_attention._trls_attention.__wrapped__() is None
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=varlen))
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ROWS], batch_first=True)
    tree = build_tree(ids, ids != 0)
    kind = "full_attention" if window is None else "sliding_attention"
    model = model_of(llama_like(sliding_window=window, use_sliding_window=window is not None, layer_types=[kind] * 2))
    mask = tree_masks(tree, model.config, torch.float32)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, n, len(tree), 8, generator=generator) for n in (4, 2, 2))
    trls, states = tree_attention._trls_attention.__wrapped__(), (query, key, value)
    assert trls is packing.tree_attention
    found, _ = trls(
        model.model.layers[0].self_attn, *states, None, scaling=0.3, sliding_window=window, **flash_inputs(tree)
    )
    expected = scaled_dot_product_attention(*states, mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
