"""The choices on a CPU: float32 without bfloat16 instructions, and no compilation."""

import warnings

import pytest

from llm_envs.policies.inference import cpu

SKYLAKE = "processor : 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n\nprocessor : 1\nflags\t\t: fpu avx2 avx512f\n"
SAPPHIRE = "processor : 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16 amx_tile\n"
GRAVITON_2 = "processor\t: 0\nFeatures\t: fp asimd aes atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp\n"
GRAVITON_3 = "processor\t: 0\nFeatures\t: fp asimd sve svei8mm svebf16 i8mm bf16 dgh rng\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (SKYLAKE, False),
        (SAPPHIRE, True),
        (GRAVITON_2, False),
        (GRAVITON_3, True),
        (SAPPHIRE + SKYLAKE, False),
        ("", False),
    ],
)
def test_instructions_for_bf16_are_found_on_every_core(cpuinfo, expected):
    assert cpu.has_bf16(cpuinfo) is expected


def test_float32_is_chosen_where_there_are_none_and_said_once(monkeypatch):
    monkeypatch.setattr(cpu, "_told", set())
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu, "has_bf16", lambda cpuinfo: False)
    with pytest.warns(UserWarning, match="dtype='bfloat16'"):
        assert cpu.cpu_dtype() == "float32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cpu.cpu_dtype() == "float32"
        monkeypatch.setattr(cpu, "has_bf16", lambda cpuinfo: True)
        assert cpu.cpu_dtype() is None


def test_a_bf16_checkpoint_is_loaded_in_float32_where_the_processor_has_no_instructions(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    import torch

    from llm_envs.policies.inference import load_model, loading
    from llm_envs.tiny_model import tiny_model, tiny_tokenizer

    if torch.cuda.is_available():
        pytest.skip("models are loaded onto the GPU here")
    weights = tiny_model(tiny_tokenizer(), hidden_size=32).to(torch.bfloat16)
    weights.save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "cpu_dtype", lambda: None)
    assert load_model(tmp_path).dtype == torch.bfloat16
    monkeypatch.setattr(loading, "cpu_dtype", lambda: "float32")
    model = load_model(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(
        torch.equal(one, other.float()) for one, other in zip(model.parameters(), weights.parameters(), strict=True)
    )
    assert load_model(tmp_path, dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["dtype", "max_model_len"], True),
        (["enforce_eager"], False),
        (["compilation_config"], False),
        (["--max-model-len", "256"], True),
        (["--no-enforce-eager"], False),
        (["--enforce-eager"], False),
        (["--compilation-config={}"], False),
        (["-O3"], False),
        (["-cc.mode=none"], False),
    ],
)
def test_vllm_does_not_compile_on_a_cpu_unless_told_and_says_so_once(monkeypatch, settings, expected):
    monkeypatch.setattr(cpu, "_told", set())
    if expected:
        with pytest.warns(UserWarning, match="enforce_eager=False"):
            assert cpu.skips_compilation(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cpu.skips_compilation(settings) is expected
