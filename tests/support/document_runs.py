"""Running the blocks of a document (`documents.py` says which there are)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from documents import EDITS, ROOT, Block, Page, commands_of, is_said
from preloaded import variables

LIMIT_S = 600
"""Of a block, on a machine that does much else."""
ENV = "llm/Calculator-v0"
MAKE_MODEL = f"""\
import sys
sys.path.insert(0, "examples")
from warm_model import warm_model
warm_model({ENV!r}, name="made", steps=100)
"""


def run_page(page: Page, folder: Path, made: Made, *, named: str | None = None) -> None:
    """Run the blocks of a page, in order.

    Args:
        page: The page.
        folder: An empty one.
        made: What blocks may need.
        named: Run those that say to be run by this test; None: those that say nothing.
    """
    replaced = ""
    for block in page.blocks:
        here = folder if page.shares_a_folder else folder / str(block.line)
        here.mkdir(exist_ok=True)
        by = block.said.get("run by")
        if (block.is_run and named is None) or (by is not None and named is not None and named in by.split(", ")):
            provide(block, here, made)
            run_block(block, here)
        elif not block.said.keys() & {"run by", "not run"} and block.said.keys() & set(EDITS):
            replaced = write_block(block, here, replaced)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command; its output and errors come together, as a terminal shows them."""
    return subprocess.run(
        command, cwd=folder, env=variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


class Made:
    """What blocks may need, each made once.

    Args:
        folder: Where; empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")

    def get(self, what: str) -> Path:
        """Return a "model", a "run" or a "training"."""
        target = self.folder / ("runs/examples/warm-made" if what == "model" else what)
        if target.exists():
            return target
        if what == "model":
            done = run(["python", "-c", MAKE_MODEL], self.folder)
        elif what == "run":
            given = ["--tokenizer", str(self.get("model")), "-n", "8", "--group-size", "4", "--out", what]
            done = run(["llm-envs", "collect", ENV, "--policy", "oracle", *given], self.folder)
        else:
            given = ["--model_name_or_path", str(self.get("model")), "--max_steps", "2", "--output_dir", what]
            done = run(["llm-envs", "train", "grpo", "--env", ENV, *given], self.folder)
        assert done.returncode == 0, done.stdout[-4000:]
        return target


def provide(block: Block, folder: Path, made: Made) -> None:
    """Put what a block needs into its folder, where it is not there yet."""
    for need in filter(None, block.said.get("needs", "").split("; ")):
        if need == "the checkout":
            for name, target in {
                "examples": ROOT / "examples",
                "tests": ROOT / "tests",
                ".venv": Path(sys.prefix),
            }.items():
                if not (folder / name).exists():
                    (folder / name).symlink_to(target)
            continue
        wanted = re.fullmatch(r"a (model|run|training) in (\S+)", need)
        assert wanted, f"{block.where} needs {need!r}; there are: the checkout, a model|run|training in DIR"
        if not (folder / wanted[2]).exists():
            shutil.copytree(made.get(wanted[1]), folder / wanted[2])


def write_block(block: Block, folder: Path, replaced: str) -> str:
    """Write what a block says to write; return what the next block of this kind replaces."""
    keys = block.said.keys() & set(EDITS)
    path = folder / block.said[keys.pop()] if keys else folder
    if "file" in block.said:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.code, encoding="utf-8")
    elif "replace" in block.said:
        assert path.read_text(encoding="utf-8").count(block.code) == 1, (
            f"{block.where}: this is not once in {path.name}"
        )
    elif "with" in block.said:
        path.write_text(path.read_text(encoding="utf-8").replace(replaced, block.code), encoding="utf-8")
    return block.code if "replace" in block.said else ""


def run_block(block: Block, folder: Path) -> None:
    """Run a block, and fail where it does."""
    expected = int(block.said.get("exits", 0))
    if block.language != "console":
        program = ["python", "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
        if "sys.modules" in block.code:  # about what is imported: not for a process that has imported everything
            program = [sys.executable, "-c"]
        done = run([*program, block.code], folder)
        assert done.returncode == expected, f"{block.where}: exit code {done.returncode}\n{done.stdout[-6000:]}"
        return
    commands = commands_of(block)
    for n, (command, printed) in enumerate(commands):
        if command.startswith("cd "):
            folder = folder / command.removeprefix("cd ")
            continue
        done = run(["bash", "-euo", "pipefail", "-c", command], folder)
        said = f"{block.where}: $ {command}\n{done.stdout[-6000:]}"
        assert done.returncode == (expected if n == len(commands) - 1 else 0), f"{said}\nexit code {done.returncode}"
        assert [line for line in printed if not is_said(line, done.stdout)] == [], said
