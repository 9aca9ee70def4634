"""Trains a tiny wrapped model for two steps on a vLLM engine or server, with the guard on, and prints what it found.

    python train_wrapped.py KIND colocate|server FOLDER [lora]

This runs in a separate process: vLLM's classes of these models import torchvision, for images that no test has. Where
it is not installed, the parent puts a package of this name on the path (`torchvision_stand_in`), before transformers is
imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def torchvision_stand_in(folder: Path) -> None:
    """Write a package whose names can be imported and do nothing."""
    anything = (
        "import enum\n\n\nclass InterpolationMode(enum.Enum):\n"
        + "".join(f"    {n} = {n.lower()!r}\n" for n in ("NEAREST", "BOX", "BILINEAR", "HAMMING", "BICUBIC", "LANCZOS"))
        + "    NEAREST_EXACT = 'nearest-exact'\n\n\ndef __getattr__(name):\n"
        "    if name.startswith('__'):\n        raise AttributeError(name)\n    return type(name, (), {})\n"
    )
    package = folder / "torchvision"
    (package / "transforms" / "v2").mkdir(parents=True)
    (folder / "torchvision-0.28.0.dist-info").mkdir()
    (folder / "torchvision-0.28.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
    )
    (package / "__init__.py").write_text("__version__ = '0.28.0'\n\nfrom . import io, transforms\n")
    for path in ("io.py", "transforms/functional.py", "transforms/v2/functional.py"):
        (package / path).write_text(anything)
    for path in ("transforms", "transforms/v2"):
        (package / path / "__init__.py").write_text(f"from . import functional\n{anything}")


def main(kind: str, mode: str, folder: str, adapter: str = "") -> None:
    """Train, and print the log of each step."""
    import peft
    import torch
    import transformers
    from dense_env import DenseEnv
    from wrapped import TEXT_LAYERS, WRAPPED

    from llm_envs.rollout import EnvChoice
    from llm_envs.tiny_model import tiny_tokenizer
    from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

    # vLLM's kernel of linear attention has no float32 on a CPU.
    dtype = torch.bfloat16 if kind == "qwen3_5" else torch.float32
    model = getattr(transformers, WRAPPED[kind]).from_pretrained(folder, dtype=dtype)
    args = EnvGRPOConfig(
        output_dir=f"{folder}/out",
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=80,
        max_turn_tokens=6,
        learning_rate=2e-2,
        gradient_checkpointing=False,
        bf16=dtype == torch.bfloat16,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        num_train_seeds=16,
        disable_tqdm=True,
        use_vllm=True,
        vllm_mode=mode,
        vllm_max_model_length=192,
        vllm_gpu_memory_utilization=0.3,
        server_args="--max-num-seqs 16" if mode == "server" else "",
    )
    more: dict[str, Any] = {}
    if adapter:
        more["peft_config"] = peft.LoraConfig(r=4, target_modules=TEXT_LAYERS, task_type="CAUSAL_LM")
    trainer = EnvGRPOTrainer(
        model, EnvChoice("dense", factory=DenseEnv), args, processing_class=tiny_tokenizer(), **more
    )
    trainer.train()
    trainer.close()
    print("LOG", json.dumps([entry for entry in trainer.state.log_history if "reward" in entry]))


if __name__ == "__main__":
    main(*sys.argv[1:])
