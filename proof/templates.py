"""Chat templates of many model families, as other projects publish them. None is copied into this repository.

    python -m proof.templates [--out build/templates]

The archive of llama-cpp-python (MIT, 77 MB) holds the templates that llama.cpp tests, most of them as the models'
authors wrote them; the wheel of axolotl (Apache-2.0) has its own. Both are downloaded without their dependencies, and
never installed.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proof.real_model import download

FOLDER = Path("build/templates")


class Archive(NamedTuple):
    """A published archive with templates."""

    name: str
    """Name of the folder of its templates here."""
    requirement: str
    sha256: str
    kind: str
    """pip's option that chooses the archive: "--only-binary" a wheel, "--no-binary" the source."""
    part: str
    """The folder of its templates ends so."""


ARCHIVES = (
    Archive(
        "llama.cpp",
        "llama-cpp-python==0.3.36",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "--no-binary",
        "models/templates/",
    ),
    Archive(
        "axolotl",
        "axolotl==0.19.0",
        "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
        "--only-binary",
        "chat_templates/templates/",
    ),
)


def fetch_templates(out: Path) -> Path:
    """Leave the templates in a folder for each archive, if they are not there yet.

    Args:
        out: The folder. It appears only once it is complete.

    Returns:
        The folder.

    Raises:
        RuntimeError: If an archive cannot be downloaded, or is not the one that is expected.
    """
    if out.is_dir():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        work = Path(folder)
        for archive in ARCHIVES:
            target = work / "templates" / archive.name
            target.mkdir(parents=True)
            packed = download(archive.requirement, archive.sha256, work / archive.name, archive.kind)
            for name, content in _templates(packed, archive.part):
                (target / name).write_bytes(content)
        (work / "templates").rename(out)
    return out


def _templates(archive: Path, part: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each template in an archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            files = {name: wheel.read(name) for name in wheel.namelist() if name.endswith(".jinja")}
    else:
        with tarfile.open(archive) as source:
            members = [member for member in source if member.isfile() and member.name.endswith(".jinja")]
            files = {member.name: source.extractfile(member).read() for member in members}  # type: ignore[union-attr] # a file
    yield from ((Path(name).name, content) for name, content in files.items() if part in name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder; default: build/templates")
    print(fetch_templates(parser.parse_args().out))
