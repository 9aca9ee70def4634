"""Which dtype vLLM gets on a CPU."""

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
    monkeypatch.setattr(cpu, "_told", False)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu, "has_bf16", lambda cpuinfo: False)
    with pytest.warns(UserWarning, match="no bfloat16 instructions, so vLLM computes in float32"):
        assert cpu.cpu_dtype() == "float32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cpu.cpu_dtype() == "float32"
        monkeypatch.setattr(cpu, "has_bf16", lambda cpuinfo: True)
        assert cpu.cpu_dtype() is None
