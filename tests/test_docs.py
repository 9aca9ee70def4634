"""The documents: every link leads somewhere, and every block is run, or says what else is done with it.

What the comments above a block mean, and how each kind of block is run, is in `support/documents.py`.
"""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml
from document_runs import Made, run, run_page
from documents import DATA, Block, commands_of, is_guide, is_said, misspelt, problems, read_page, read_pages

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

NOT_RUN = {
    "README.md": ["pip install -e ."],
    "docs/guides/repositories.md": ["llm-envs repository prepare toolz"],
}
"""What nothing here can run: by page, the first command of each block that says so. Keep it short.

`pip install`, and a project of the registry: they fetch packages (the fresh clones of `.ci/run` do the first)."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PAGES = read_pages()
BLOCKS = [block for page in PAGES.values() for block in page.blocks]
RUN = [name for name, page in PAGES.items() if any(block.is_run for block in page.blocks) and not is_guide(name)]
"""The others are run by docs/test_guides.py, by another process where there are two."""


def slug(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(document: Path) -> list[str]:
    """Return the links to files and headings of ours that lead nowhere. Links to other sites are not followed."""
    text = document.read_text(encoding="utf-8")
    broken = []
    for link in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document if not name else document.parent / name
        if not target.exists():
            broken.append(link)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            if anchor not in map(slug, headings):
                broken.append(link)
    return broken


@pytest.mark.smoke
@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken_links(document) == []


@pytest.mark.smoke
def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# Here, now\n[a](b.md) [b](#here-now) [c](#there) [d](a.md#here-now) [e](mailto:x)\n```\n[f](g)\n```\n"
    )
    assert broken_links(document) == ["b.md", "#there"]


# What each block is.


@pytest.mark.smoke
def test_every_block_says_what_it_is() -> None:
    assert {block.where: found for block in BLOCKS if (found := problems(block))} == {}


@pytest.mark.smoke
@pytest.mark.parametrize("name", PAGES)
def test_every_comment_is_understood(name: str) -> None:
    assert misspelt((ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.smoke
def test_few_blocks_are_not_run_and_all_of_them_are_known() -> None:
    found = Counter((block.page, block.code.strip().splitlines()[0]) for block in BLOCKS if "not run" in block.said)
    known = Counter((page, first) for page, blocks in NOT_RUN.items() for first in blocks)
    unknown = [
        f"{page}: {first}" for page, first in found if not any(first.startswith(k) for p, k in known if p == page)
    ]
    assert unknown == []
    assert found.total() == known.total(), "NOT_RUN lists what is not there any more"


def referred() -> list[tuple[str, str]]:
    return sorted(
        {(block.page, one) for block in BLOCKS if "run by" in block.said for one in block.said["run by"].split(", ")}
    )


@pytest.mark.smoke
@pytest.mark.parametrize(("page", "test"), referred())
def test_what_is_said_to_run_a_block_exists(page: str, test: str) -> None:
    path, _, name = test.partition("::")
    assert (ROOT / path).is_file(), f"{page} names {test}"
    if name or path.endswith(".py"):
        text = (ROOT / path).read_text(encoding="utf-8")
        *classes, function = name.split("::")
        wanted = [*(rf"^class {one}\b" for one in classes), rf"^{'    ' * len(classes)}(async )?def {function}\("]
        assert all(re.search(one, text, flags=re.MULTILINE) for one in wanted), f"{page} names {test}"


@pytest.mark.smoke
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in DATA], ids=lambda block: block.where)
def test_data_is_what_its_language_says(block: Block) -> None:
    {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}[block.language](block.code)


@pytest.mark.examples
@pytest.mark.parametrize("block", [b for b in BLOCKS if "checked by" in b.said], ids=lambda block: block.where)
def test_a_configuration_is_read_by_what_reads_it(block: Block, tmp_path: Path) -> None:
    module, _, function = block.said["checked by"].partition(":")
    path = tmp_path / f"it.{block.language}"
    path.write_text(block.code, encoding="utf-8")
    getattr(importlib.import_module(module), function)(path)


def test_files_are_used() -> None:
    for page in PAGES.values():
        for n, block in enumerate(page.blocks):
            name = block.said.get("file")
            if name is None or "run by" in block.said:
                continue
            assert page.shares_a_folder, f"{block.where}: say <!-- blocks share a folder --> above everything else"
            assert any(Path(name).stem in later.code for later in page.blocks[n + 1 :]), (
                f"{block.where}: nothing uses {name}"
            )


@pytest.mark.smoke
def test_extras_and_targets_of_make_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert len(extras) <= 14, "a package joins an extra that exists"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for block in BLOCKS:
        for names in re.findall(r"(?:llm-envs|\.)\[([\w,-]+)\]", block.code):
            assert set(names.split(",")) <= extras.keys(), block.where
        if block.language in ("bash", "console"):
            assert set(re.findall(r"^(?:\$ )?make (\w[\w-]*)", block.code, flags=re.MULTILINE)) <= set(targets), (
                block.where
            )


# What is written wrongly is seen.

MINIATURE = """\
<!-- blocks share a folder -->
<!-- needs: the checkout -->

# A page

<!-- file: a.yaml -->

```yaml
a: 1
```

<!-- needs: a model in m -->
<!-- exits: 3 -->

```bash
cat a.yaml  # reads it
exit \\
  3
```

- In a list:

  ```console
  $ cd x
  $ echo a  b
  a ...
  ```

<!-- not run: needs a GPU -->
Some words.

```
x
```
"""


@pytest.mark.smoke
def test_a_page_is_taken_apart() -> None:
    page = read_page(MINIATURE, "a.md")
    assert page.shares_a_folder
    assert [(block.line, block.language, block.is_run) for block in page.blocks] == [
        (8, "yaml", False), (15, "bash", True), (23, "console", True), (32, "", False),
    ]  # fmt: skip
    data, bash, console, untagged = page.blocks
    assert data.said == {"needs": "the checkout", "file": "a.yaml"} and data.code == "a: 1\n"
    assert bash.said == {"needs": "the checkout; a model in m", "exits": "3"}
    assert commands_of(bash) == [("cat a.yaml  # reads it", []), ("exit 3", [])]
    assert commands_of(console) == [("cd x", []), ("echo a  b", ["a ..."])]
    assert untagged.said == {"needs": "the checkout"}, "what is said stands directly above the block"
    assert [len(problems(block)) for block in page.blocks] == [0, 0, 0, 1]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh\nls\n```\n", "the language is 'sh'"),
        ("```yaml\na: 1\n```\n", "nothing reads it"),
        ("```bash\npip install -e .\n```\n", "would change the environment"),
        ("```console\nls\n```\n", "begins with a command after '$ '"),
        ("<!-- not run: x -->\n<!-- run by: y -->\n```bash\nls\n```\n", "run and not to be run"),
        ("<!-- not run: x -->\n<!-- exits: 1 -->\n```bash\nls\n```\n", "has no exit code"),
    ],
)
def test_what_is_written_wrongly_is_told(text: str, message: str) -> None:
    (block,) = read_page(text, "a.md").blocks
    assert any(message in problem for problem in problems(block))


@pytest.mark.smoke
def test_a_misspelt_comment_is_told() -> None:
    text = (
        "<!-- run by tests/x.py -->\n<!-- needs: a model in m -->\n<!-- runs: begin -->\n<!-- blocks share folder -->"
    )
    assert misspelt(text) == ["<!-- run by tests/x.py -->", "<!-- blocks share folder -->"]


@pytest.mark.smoke
def test_dots_stand_for_anything() -> None:
    assert is_said("a ... c", "x\na b  c\n") and is_said("a b", "a    b") and not is_said("a ... c", "a\nc")


# Running them.


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.mark.examples
@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_every_block_runs(name: str, tmp_path: Path, made: Made) -> None:
    run_page(PAGES[name], tmp_path, made)


def options_of(command: str) -> tuple[tuple[str, ...], list[str]] | None:
    """Return the program behind a command, as words that `--help` may follow, and the options that are passed to it."""
    words = command.split(" # ")[0].split()
    if "llm-envs" in words:
        words = words[words.index("llm-envs") :]
        n = next((n for n, word in enumerate(words) if n and not re.fullmatch("[a-z-]+", word)), len(words))
        program = tuple(words[: min(n, 3 if words[1:2] == ["train"] else 2)])
    elif scripts := [word for word in words if re.fullmatch(r"examples/\w+\.py", word)]:
        words = words[words.index(scripts[0]) :]
        program = ("python", str(ROOT / scripts[0]))
    else:
        return None
    return program, [word.partition("=")[0] for word in words if re.match("--[a-z]", word)]


def dashed(text: str) -> str:
    return text.replace("_", "-")


@cache
def help_of(program: tuple[str, ...]) -> str:
    """Return what a program says for --help."""
    done = run([*program, "--help"], ROOT)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.mark.examples
def test_options_that_are_not_tried_exist() -> None:
    for block in BLOCKS:
        if block.language not in ("bash", "console") or block.is_run:
            continue
        for command, _ in commands_of(block):
            program, options = options_of(command) or ((), [])
            # A help shows options with dashes; a document may write them with underscores.
            unknown = [name for name in options if not re.search(rf"{dashed(name)}\b", dashed(help_of(program)))]
            assert unknown == [], f"{block.where}: {command}"
