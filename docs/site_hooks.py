"""Pages of the site for files of the repository that the documents link to.

The documents link to sources, tests and examples as files, so that the links also work in a checkout. On the site each
such file becomes a page of its own, outside the navigation and the search.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<head>\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>[^)\s]+)(?P<tail>\))")
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".js": "js",
    ".css": "css",
}
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"

_repository_pages: dict[str, str] = {}
"""Path of a file in the repository -> path of its page in the site."""


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor that a heading gets in a checkout's viewers too."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a document links to, and for those that these link to."""
    from mkdocs.structure.files import File, InclusionLevel

    _repository_pages.clear()
    texts = [(f"{DOCS}/{page.src_uri}", page.content_string) for page in files.documentation_pages()]
    while texts:
        origin, text = texts.pop()
        for target in _outside(origin, text):
            if target in _repository_pages:
                continue
            _repository_pages[target] = f"repository/{target.lower().removesuffix('.md')}.md"
            content = _page_of(ROOT / target)
            files.append(
                File.generated(config, _repository_pages[target], content=content, inclusion=InclusionLevel.NOT_IN_NAV)
            )
            if target.endswith(".md"):
                texts.append((target, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to the pages of this site."""
    here = page.file.src_uri
    origin = next((path for path, uri in _repository_pages.items() if uri == here), f"{DOCS}/{here}")
    if here.startswith("repository/") and not origin.endswith(".md"):
        return markdown

    def lead(match: re.Match[str]) -> str:
        name, hash_, anchor = match["target"].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), name))
        uri = _repository_pages.get(target, target.removeprefix(f"{DOCS}/"))
        there = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        return f"{match['head']}{there}{hash_}{anchor}{match['tail']}"

    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in FENCE.split(markdown))


def _outside(origin: str, text: str) -> Iterator[str]:
    """Return the files of the repository, not of the documents, to which a document links."""
    for match in LINK.finditer(FENCE.sub("", text)):
        name = match["target"].partition("#")[0]
        if not name or re.match(r"[a-z]+:", name):
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), name))
        is_page = target.startswith(f"{DOCS}/") and not target.endswith(".py")
        if not is_page and not target.startswith("..") and (ROOT / target).exists():
            yield target


def _page_of(path: Path) -> str:
    """Return the text of the page that shows a file or a folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inside = sorted(child.name for child in path.iterdir() if not child.name.startswith((".", "__")))
        return f"{HIDDEN}# {name}\n\n" + "".join(f"- `{child}`\n" for child in inside)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    fence = "`" * 8
    return f"{HIDDEN}# {name}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"
