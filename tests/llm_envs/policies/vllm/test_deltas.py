"""Changes of weights as files: exact, small at small learning rates, and never half of one."""

import hashlib

import pytest
import torch

from llm_envs.errors import ModelError
from llm_envs.policies.vllm.deltas import apply_delta, encode_delta, write_delta

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]


def weights(dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (300, 64), "layer.weight": (64, 256), "norm.weight": (64,)}
    return {name: (0.02 * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def copied(tensors):
    return {name: value.clone() for name, value in tensors.items()}


def assert_bits(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        assert value.view(torch.uint8).equal(other[name].view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fifty_updates_are_bit_equal(dtype):
    """Adam's steps of every size, on weights that a server would follow."""
    served = weights(dtype)
    masters = {name: value.float().requires_grad_() for name, value in served.items()}
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-5)
    last = copied(served)
    for step in range(50):
        for value in masters.values():
            value.grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(step))
        optimizer.step()
        new = {name: value.detach().to(dtype) for name, value in masters.items()}
        delta = encode_delta(last, new)
        apply_delta(served, delta)
        assert_bits(served, new)
        last = new


def test_a_step_at_a_small_learning_rate_is_under_three_hundredths_of_the_whole():
    """float32 weights in training, bfloat16 on the server, learning rate 1e-6, a million weights."""
    master = {"w": (0.02 * torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))).requires_grad_()}
    optimizer = torch.optim.AdamW(master.values(), lr=1e-6)
    last, shares = {"w": master["w"].detach().to(torch.bfloat16)}, []
    for step in range(5):
        master["w"].grad = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(step))
        optimizer.step()
        new = {"w": master["w"].detach().to(torch.bfloat16)}
        shares.append(len(encode_delta(last, new)) / (2 * 1000 * 1000))
        last = new
    assert 0 < max(shares) < 0.03


def test_what_comparing_numbers_would_miss():
    """Minus zero and another NaN are other bits."""
    old = {"w": torch.tensor([0.0, float("nan"), 1.0])}
    new = {"w": torch.tensor([-0.0, 0.0, 1.0])}
    new["w"].view(torch.int32)[1] = old["w"].view(torch.int32)[1] + 1
    found = copied(old)
    apply_delta(found, encode_delta(old, new))
    assert_bits(found, new)
    assert len(encode_delta(old, old)) < 100
    one = {"w": torch.tensor([0.0, 0.0, 2.0])}  # a single place
    apply_delta(one, encode_delta(one, {"w": torch.tensor([0.0, 0.0, 3.0])}))
    assert one["w"].tolist() == [0.0, 0.0, 3.0]


def test_other_tensors_have_no_delta_and_take_none():
    old, new = weights(), weights(seed=1)
    assert encode_delta(old, {name: new[name] for name in ("embed.weight", "norm.weight")}) is None
    assert encode_delta(old, new | {"norm.weight": torch.zeros(65, dtype=torch.bfloat16)}) is None
    assert encode_delta(old, {name: value.float() for name, value in new.items()}) is None
    delta = encode_delta(old, new)
    assert encode_delta(old, new, max_bytes=len(delta)) == delta
    assert encode_delta(old, new, max_bytes=len(delta) // 3) is None
    for wrong in (
        {name: value for name, value in old.items() if name != "norm.weight"},
        old | {"norm.weight": torch.zeros(9, dtype=torch.bfloat16)},
        old | {"norm.weight": torch.zeros(64)},
    ):
        before = copied(wrong)
        with pytest.raises(ModelError, match="delta"):
            apply_delta(wrong, delta)
        assert_bits(wrong, before)


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    data = encode_delta(weights(), weights(seed=1))
    delta = write_delta(data, tmp_path / "deltas" / "1", "tag")
    assert delta.path.read_bytes() == data and delta.n_bytes == len(data)
    assert delta.sha256 == hashlib.sha256(data).hexdigest()
    with pytest.raises(OSError, match="no space"), monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.rename", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        write_delta(data, tmp_path / "deltas" / "2", "tag")
    assert not (tmp_path / "deltas" / "2").exists()
