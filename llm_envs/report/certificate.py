"""The files of a certificate: a page that needs nothing else, a badge, and all findings as JSON.

The page has no script, and its Content-Security-Policy allows none; every text is escaped.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

from llm_envs.checker.certification import Certificate
from llm_envs.data.files import replacing
from llm_envs.errors import StoreError
from llm_envs.report.site import content_hash
from llm_envs.tracking.loggers import visible_text

__all__ = ["FILES", "badge", "certificate_page", "write_certificate"]

FILES = ("certificate.html", "certificate.json", "badge.json")

_KINDS = {"passed": "success", "failed": "failure", "not applicable": ""}
"""Status -> class of the page's badge."""


def badge(certificate: Certificate) -> dict[str, Any]:
    """Return the badge as shields.io's endpoint schema, version 1 (https://shields.io/badges/endpoint-badge)."""
    n = Counter(certificate.status(name) for name in certificate.checks)
    n_applied = n["passed"] + n["failed"]
    return {
        "schemaVersion": 1,
        "label": "llm-envs certify",
        "message": f"{n['passed']} of {n_applied} checks",
        "color": "brightgreen" if certificate.passed else "red",
        "isError": not certificate.passed,
    }


def certificate_page(certificate: Certificate) -> str:
    """Return the page: a line for each check with its reason and bound, and its findings below."""
    title = f"Certificate: {certificate.env}"
    style = "\n" + resources.files("llm_envs.report").joinpath("page", "page.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src '{content_hash(style)}'; base-uri 'none'; form-action 'none'"
    about = certificate.to_json()["checks"]
    lines = "".join(
        f'<tr><th scope="row"><a href="#{_anchor(check["name"])}">{_text(check["name"])}</a></th>'
        f"<td>{_mark(check['status'])}</td><td>{_text(check['bound'])}</td></tr>"
        for check in about
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{style}</style></head><body>"
        f'<header class="top"><h1>{_text(title)}</h1>{_mark("passed" if certificate.passed else "failed")}</header>'
        "<main>"
        f"<p>{_text(badge(certificate)['message'])} passed; checks that do not apply are not counted.</p>"
        f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in certificate.about())}</ul>"
        '<table><thead><tr><th scope="col">check</th><th scope="col">result</th><th scope="col">bound</th></tr></thead>'
        f"<tbody>{lines}</tbody></table>{''.join(map(_section, about))}</main></body></html>\n"
    )


def _section(check: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_text(found["clause"])}</th><td>{_mark(found["status"])}</td>'
        f'<td>{_text(found["detail"])}</td><td class="right">{found["seconds"]:.2f} s</td></tr>'
        for found in check["findings"]
    )
    return (
        f'<section id="{_anchor(check["name"])}"><h2>{_text(check["name"])} {_mark(check["status"])}</h2>'
        f'<p class="soft">{_text(check["reason"])}</p><table><tbody>{rows}</tbody></table></section>'
    )


def _mark(status: str) -> str:
    return f'<span class="badge {_KINDS[status]}">{status}</span>'


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _text(text: str) -> str:
    return html.escape(visible_text(text).encode("utf-8", "backslashreplace").decode())


def write_certificate(certificate: Certificate, folder: str | Path) -> list[Path]:
    """Write certificate.html, certificate.json and badge.json; files of the same names are replaced.

    Returns:
        The three files.

    Raises:
        StoreError: If a file cannot be written.
    """
    as_json = json.dumps(certificate.to_json(), indent=2) + "\n"
    contents = dict(
        zip(FILES, (certificate_page(certificate), as_json, json.dumps(badge(certificate)) + "\n"), strict=True)
    )
    root = Path(folder)
    try:
        root.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with open(root / name, "w", encoding="utf-8", opener=replacing) as file:
                file.write(content)
    except OSError as error:
        raise StoreError(f"{root} cannot be written ({error.strerror}): give --out another folder.") from error
    return [root / name for name in contents]
