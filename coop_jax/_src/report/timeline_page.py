"""The page of a timeline: one file that needs no network, of the parts in `page/`.

Its policy (CSP) allows the script and style that are in it, by their hashes, and nothing else: no
request leaves the page. Timelines are data blocks, base64 of what `encoding` makes.

Thread rule: functions of their arguments.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
from collections.abc import Sequence

from coop_jax._src.report.encoding import encoded
from coop_jax._src.report.timeline_data import TimelineData

# In this order: later ones use earlier ones.
SCRIPTS = (
    "format.js",
    "decode.js",
    "model.js",
    "colors.js",
    "raster.js",
    "view.js",
    "strips.js",
    "panel.js",
    "live.js",
    "tooltip.js",
    "controls.js",
    "main.js",
)


def page_of(timelines: Sequence[TimelineData]) -> str:
    """The page of a timeline, or of several, one above the other, at the same time."""
    parts = importlib.resources.files(__package__) / "page"
    style = (parts / "page.css").read_text(encoding="utf-8")
    bodies = [(parts / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = "(() => {\n'use strict';\n" + "\n".join(bodies) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = "\n".join(
        f'<script type="application/gzip" class="timeline">{base64.b64encode(encoded(t)).decode()}'
        "</script>"
        for t in timelines
    )
    text = (parts / "page.html").read_text(encoding="utf-8")
    title = html.escape(" · ".join(t.title for t in timelines))
    for name, value in (
        ("TITLE", title),
        ("POLICY", policy),
        ("STYLE", style),
        ("DATA", data),
        ("SCRIPT", script),
    ):
        text = text.replace(f"<!--{name}-->", value, 1)
    return text


def save(timelines: Sequence[TimelineData], path: str) -> None:
    """Writes the page of timelines."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(page_of(timelines))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
