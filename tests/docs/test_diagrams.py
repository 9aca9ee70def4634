"""The diagrams: each page of concepts has one, each is on one page, is described, and fetches nothing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONCEPTS = sorted((DOCS / "concepts").glob("*.md"))
DIAGRAMS = sorted((DOCS / "diagrams").glob("*.svg"))
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"
WIDEST = 760
MAY_NOT_BE_THERE = {"script", "foreignObject", "image", "use", "iframe", "animate", "set"}


def images(page: Path) -> list[tuple[str, str]]:
    """Return (description, target) of each image of a page, those in code left out."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [(match["alt"], match["target"]) for match in IMAGE.finditer(text)]


def faults(svg: str) -> list[str]:
    """Return what is wrong with a diagram."""
    root = ElementTree.fromstring(svg)
    found = [
        f"<{name}> is missing or empty" for name in ("title", "desc") if not root.findtext(f"{SVG}{name}", "").strip()
    ]
    if root.tag != f"{SVG}svg" or root.get("role") != "img":
        found.append('it is no <svg role="img">')
    width, box = float(root.get("width", "nan")), root.get("viewBox", "").split()
    if not (width <= WIDEST and len(box) == 4 and float(box[2]) == width and box[3] == root.get("height")):
        found.append(f"its width is {width} with the viewBox {box}: at most {WIDEST}, and as the picture")
    for element in root.iter():
        name = str(element.tag).removeprefix(SVG)
        if name in MAY_NOT_BE_THERE:
            found.append(f"<{name}>")
        if re.search(r"@|url\((?!#)", element.text or "") and name == "style":
            found.append("a style that fetches something")
        for key, value in element.attrib.items():
            is_reference = re.sub(r"\{.*\}", "", key) in ("href", "src") or "url(" in value
            if key.startswith("on") or (is_reference and not re.fullmatch(r"#[\w-]+|url\(#[\w-]+\)", value)):
                found.append(f"{key}={value!r}")
    ids = {element.get("id") for element in root.iter()}
    missing = {name for name in re.findall(r"url\(#([\w-]+)\)", svg) if name not in ids}
    return [*found, *(f"there is no #{name}" for name in sorted(missing))]


def test_there_are_pages_and_diagrams() -> None:
    assert len(CONCEPTS) >= 5
    assert len(DIAGRAMS) >= 11


@pytest.mark.parametrize("page", CONCEPTS, ids=lambda path: path.stem)
def test_a_page_of_concepts_has_one_diagram_of_its_own(page: Path) -> None:
    ((description, target),) = images(page)
    assert (page.parent / target).resolve() == DOCS / "diagrams" / f"concept-{page.stem}.svg"
    assert (page.parent / target).is_file()
    assert len(description) > 30, "what it shows, in a sentence"


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda path: path.stem)
def test_a_diagram_is_sound_and_used(diagram: Path) -> None:
    assert faults(diagram.read_text(encoding="utf-8")) == []
    pages = [
        page for page in DOCS.rglob("*.md") if any(Path(target).name == diagram.name for _, target in images(page))
    ]
    assert len(pages) == 1, "one page shows it"


@pytest.mark.parametrize(
    ("spoilt", "complaint"),
    [
        ("<script/>", "<script>"),
        ('<rect onclick="x()"/>', "onclick='x()'"),
        ('<a href="https://example.org"/>', "href='https://example.org'"),
        ('<path fill="url(https://example.org/x)"/>', "fill='url(https://example.org/x)'"),
        ("<style>@import 'https://example.org/x.css'</style>", "a style that fetches something"),
        ('<path marker-end="url(#nowhere)"/>', "there is no #nowhere"),
    ],
)
def test_what_is_wrong_is_seen(spoilt: str, complaint: str) -> None:
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" viewBox="0 0 9 9" role="img">'
    told = "<title>A</title><desc>B</desc>"
    assert faults(f"{head}{told}</svg>") == []
    assert faults(f"{head}{told}{spoilt}</svg>") == [complaint]
    assert faults(f"{head}<title>A</title></svg>") == ["<desc> is missing or empty"]
    assert "at most 760" in faults(f"{head.replace('9', '999')}{told}</svg>")[0]
