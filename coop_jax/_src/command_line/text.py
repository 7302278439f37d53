"""Tables and paragraphs for a terminal.

Thread rule: functions of their arguments. Cost: linear in the text.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

_NARROW, _WIDE = 60, 100


def width() -> int:
    """Columns to write to: those of the terminal, at most 100, which a pipe has."""
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size((_WIDE, 24)).columns))


def table(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Aligned columns, two spaces apart; the first `left` ones to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(space) if number < left else cell.rjust(space)
            for number, (cell, space) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def paragraph(first: str, text: str, columns: int) -> str:
    """Text behind a first word, broken into lines that begin below it."""
    return textwrap.fill(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
