"""The blocks of the documents that need vLLM, with its CPU build and a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from document_runs import Made, run_page
from documents import ROOT, read_page

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

HERE = "tests/docs/test_vllm_pages.py::test_blocks_that_need_vllm_run"
PAGES = [
    "docs/guides/distillation.md",
    "docs/guides/gpu_node.md",
    "docs/guides/servers.md",
    "docs/guides/train_your_agent.md",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize("name", PAGES)
def test_blocks_that_need_vllm_run(name: str, tmp_path: Path, made: Made) -> None:
    page = read_page((ROOT / name).read_text(encoding="utf-8"), name)
    assert any(HERE in block.said.get("run by", "") for block in page.blocks)
    run_page(page, tmp_path, made, named=HERE)
