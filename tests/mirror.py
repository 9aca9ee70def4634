"""Holds the tests to their sources: each test file has a module or folder of its name in the mirrored folder.

    python tests/mirror.py

`tests/llm_envs/rollout/test_collector_groups.py` tests `llm_envs/rollout/collector.py`: behind the name of the source
may follow a subject. A folder as a whole has the name of the folder (`tests/llm_envs/chat/test_chat_families.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_A_SOURCE = {
    "tests/browser/": "the report's page in a real browser",
    "tests/docs/": "the documents: their code runs, their links and names exist",
    "tests/examples/": "the examples run and reach their numbers",
    "tests/processes/": "trainings and collections on several processes, killed and restarted",
    "tests/real/": "a pretrained model on both engines, and published chat templates",
    "tests/llm_envs/cli/test_kubernetes.py": "the manifest in examples/kubernetes",
    "tests/test_architecture.py": "the floors of the packages",
    "tests/test_packaging.py": "the wheel in a fresh environment",
    "tests/test_private_names.py": "names of other packages in tests/support/private_names.yaml",
    "tests/test_preloaded.py": "tests/support/preloaded.py",
    "tests/test_primitives.py": "docs/reference/primitives.md",
    "tests/test_without_posix.py": "the core on a system without fork, SIGKILL and Unix sockets",
    "tests/test_publish.py": "docs/guides/task.md, followed word for word",
}
"""Tests of no single source, by folder or file, and what they are about."""


def source_of(test: Path) -> Path | None:
    """Return the module or folder that a test file tests, by its name, or None."""
    folder = ROOT / test.parent.relative_to(ROOT / "tests")
    name = test.stem.removeprefix("test_")
    entries = folder.iterdir() if folder.is_dir() else ()
    sources = {path.stem: path for path in entries if path.suffix == ".py" or path.is_dir()}
    sources |= {folder.name: folder} if folder != ROOT else {}
    fitting = [source for source in sources if source and (name == source or name.startswith(f"{source}_"))]
    return sources[max(fitting, key=len)] if fitting else None


def main() -> int:
    """Print the tests without a source, and the exceptions that are none; return 1 if there are any."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    wrong = []
    used = set()
    for test in tests:
        name = str(test.relative_to(ROOT))
        reasons = [key for key in WITHOUT_A_SOURCE if name.startswith(key)]
        used.update(reasons)
        if not reasons and source_of(test) is None:
            wrong.append(f"{name}: no source of this name in {test.parent.relative_to(ROOT / 'tests')}/")
    wrong += [f"{key}: no such test; leave it out of WITHOUT_A_SOURCE" for key in WITHOUT_A_SOURCE if key not in used]
    print("\n".join(wrong) or "every test has its source.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
