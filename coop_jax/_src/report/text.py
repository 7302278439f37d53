"""A report as text for a terminal, and as HTML for a notebook.

Thread rule: functions of their arguments. Cost: linear in the rows shown.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence

from coop_jax._src.report.summary import Row
from coop_jax._src.util.options import format_bytes

WIDTH = 100  # columns, where nobody says how many there are
_ROWS = 12
_MODULES = 6
_EARLY_SHARE = 0.25  # of the peak: a hint about as much comes after the first row


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What a report says, in order.

    Attributes:
      headline: what the program needs.
      parts: of what kinds that is, most first.
      total_bytes: the same.
      rows: what it consists of.
      hints: bytes and text, most first.
      peak: where the program needs most; "" if that is not known.
      modules: bytes by module path, most first.
      footer: further lines.
    """

    headline: str
    parts: Sequence[str]
    total_bytes: int
    rows: Sequence[Row]
    hints: Sequence[tuple[int, str]]
    peak: str
    modules: Sequence[tuple[str, int]]
    footer: Sequence[str]


def text_of(page: Page, width: int = WIDTH) -> str:
    """Lines of at most so many columns; the largest things stand in the first ones."""
    early = [t for n, t in page.hints if n >= _EARLY_SHARE * page.total_bytes]
    late = [t for _, t in page.hints if t not in early]
    shown = page.rows[:_ROWS]
    rows = [_line(row, page.total_bytes, width) for row in shown]
    lines = [_headline(page, width), *rows[:1], *(f"  ! {t}" for t in early), *rows[1:]]
    if len(page.rows) > len(shown):
        rest = page.rows[len(shown) :]
        nbytes = sum(r.nbytes for r in rest)
        lines.append(f"{_amount(nbytes, page.total_bytes)}  {len(rest)} more lines")
    lines += [f"  ! {t}" for t in late]
    if page.peak:
        lines.append(page.peak)
    if page.modules:
        lines.append("temporary memory at the peak by module:")
        lines += [f"{_amount(n, page.total_bytes)}  {name}" for name, n in page.modules[:_MODULES]]
    return "\n".join(_cut(line, width) for line in [*lines, *page.footer])


def html_of(page: Page) -> str:
    """A table; all that comes from the program is escaped."""
    cells = "".join(
        "<tr>"
        f"<td style='text-align:right'>{_share(r.nbytes, page.total_bytes)}</td>"
        f"<td style='text-align:right'>{html.escape(format_bytes(r.nbytes))}</td>"
        f"<td style='text-align:left'>{html.escape(r.kind)}</td>"
        f"<td style='text-align:left'><code>{html.escape(r.where)}</code></td>"
        f"<td style='text-align:left'><code>{html.escape(r.what)}</code></td>"
        f"<td style='text-align:left'>{html.escape(r.module)}</td>"
        "</tr>"
        for r in page.rows[:_ROWS]
    )
    hints = "".join(f"<li>{html.escape(text)}</li>" for _, text in page.hints)
    footer = "".join(f"<p>{html.escape(line)}</p>" for line in [page.peak, *page.footer] if line)
    return (
        f"<div><p><b>{html.escape(page.headline)}</b>"
        f" {html.escape(', '.join(page.parts))}</p>"
        f"<table><tbody>{cells}</tbody></table><ul>{hints}</ul>{footer}</div>"
    )


def _headline(page: Page, width: int) -> str:
    """As many parts as there is room for."""
    line = page.headline
    for number, part in enumerate(page.parts):
        longer = f"{line}{', ' if number else ': '}{part}"
        if len(longer) > width:
            break
        line = longer
    return line


def _line(row: Row, total: int, width: int) -> str:
    start = f"{_amount(row.nbytes, total)}  {row.kind:15}"
    line_only = row.where.partition(" (")[0]
    for parts in (
        (row.where, row.module, row.what),
        (row.where, row.what),
        (line_only, row.what),
    ):
        line = "  ".join([start, *(p for p in parts if p)])
        if len(line) <= width:
            break
    return line.rstrip()


def _amount(nbytes: int, total: int) -> str:
    return f"{_share(nbytes, total):>4}  {format_bytes(nbytes):>10}"


def _share(nbytes: int, total: int) -> str:
    return f"{nbytes / max(1, total):.0%}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
