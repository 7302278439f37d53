"""Places of the package that share many lines: the same ones, or ones of the same shape.

Model: a file is a sequence of lines, each with its text and its shape, in which a placeholder
stands for each name, string and number. Two places are a pair if a run of lines is equal in both:
- to the letter, docstrings included; or
- by shape. Docstrings have none: they count by their text. Neighbours of one shape count as one
  line, since the rows of a table, or the fields of a class, have one shape in every table.
Blank lines, comments, imports and lone punctuation count for nothing. Signatures are lines like
others: parameters that many functions take belong in one object before they are ten.

Source: fingerprints of windows of lines, extended to maximal runs, as clone detectors do that work
on tokens (CCFinder, CPD). Cost: linear in the lines, but for windows that stand in many places.

Run: python -m tests.architecture.duplicates prints the pairs of ten or more lines.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import keyword
import pathlib
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[2]
LEAST = 10

_CPP_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)
_CPP_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<number>\d[\w.']*)"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<sign>::|->|[-+*/%&|^=!<>]=|&&|\|\||<<|>>|\+\+|--|\S)"""
)
_CPP_KEYWORDS = frozenset(
    "auto bool break case catch char class const constexpr continue default delete do double else"
    " enum explicit false float for if inline int namespace new noexcept nullptr operator override"
    " private public return sizeof static struct switch template this throw true try typename using"
    " virtual void while".split()
)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line that counts.

    Attributes:
      path: its file.
      number: where, from 1 on.
      text: what it says, without space around.
      shape: its tokens, with placeholders for names, strings and numbers; a docstring's text.
    """

    path: pathlib.Path
    number: int
    text: str
    shape: str


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Two places that share lines: the first and last line of each."""

    one: tuple[Line, Line]
    other: tuple[Line, Line]
    lines: int
    identical: bool

    def __str__(self) -> str:
        one, other = (f"{a.path}:{a.number}-{b.number}" for a, b in (self.one, self.other))
        how = "the same" if self.identical else "of the same shape"
        return f"{one} ~ {other}: {self.lines} lines {how}"


def _python_shapes(source: str) -> dict[int, str]:
    """Shapes by line number; a docstring's lines are their text."""
    rows = source.splitlines()
    parts: dict[int, list[str]] = {}
    starts = True  # whether the next token begins a statement
    imports = False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, (first, _), (last, _) = tokenize.tok_name[token.type], token.start, token.end
        if kind in ("COMMENT", "NL", "INDENT", "DEDENT"):
            continue
        if kind == "NEWLINE":
            starts, imports = True, False
            continue
        if starts:
            imports = token.string in ("import", "from")
        if starts and kind == "STRING":
            for number in range(first, last + 1):
                parts[number] = [rows[number - 1].strip()]
        elif kind in ("NUMBER", "STRING") or kind.startswith("FSTRING"):
            parts.setdefault(first, []).append("0" if kind == "NUMBER" else "''")
        elif not imports:
            name = kind == "NAME" and not keyword.iskeyword(token.string)
            parts.setdefault(first, []).append("x" if name else token.string)
        starts = False
    return {number: " ".join(tokens) for number, tokens in parts.items()}


def _cpp_shapes(source: str) -> dict[int, str]:
    """Shapes by line number."""
    source = _CPP_COMMENT.sub(lambda m: m[1] or "\n" * m[0].count("\n"), source)
    shapes = {}
    for number, row in enumerate(source.splitlines(), 1):
        if row.startswith("#include"):
            continue
        tokens = []
        for token in _CPP_TOKEN.finditer(row):
            kind = str(token.lastgroup)
            plain = kind == "sign" or token[0] in _CPP_KEYWORDS
            tokens.append(token[0] if plain else {"text": "''", "number": "0", "name": "x"}[kind])
        shapes[number] = " ".join(tokens)
    return shapes


def lines_of(path: pathlib.Path) -> list[Line]:
    """The lines of a file that count."""
    source = path.read_text(encoding="utf-8")
    shapes = (_python_shapes if path.suffix == ".py" else _cpp_shapes)(source)
    rows = source.splitlines()
    return [
        Line(path, number, " ".join(rows[number - 1].split()), shape)
        for number, shape in sorted(shapes.items())
        if re.search(r"\w", shape)
    ]


def _collapsed(lines: Iterable[Line]) -> list[Line]:
    """Of neighbours of one shape the first."""
    return [next(group) for _, group in itertools.groupby(lines, lambda line: line.shape)]


def _runs(keys: Sequence[object], least: int) -> Iterator[tuple[int, int, int]]:
    """Two places and a length, for each run of keys that stands twice and cannot be extended."""
    places: dict[tuple[object, ...], list[int]] = {}
    for i in range(len(keys) - least + 1):
        places.setdefault(tuple(keys[i : i + least]), []).append(i)
    for found in places.values():
        for i, j in itertools.combinations(found, 2):
            extends = i > 0 and keys[i - 1] == keys[j - 1]
            if extends or j - i < least:  # part of another run, or of itself
                continue
            length = least
            while (
                j + length < len(keys) and length < j - i and keys[i + length] == keys[j + length]
            ):
                length += 1
            yield i, j, length


def _pairs(
    files: Iterable[Sequence[Line]], key: Callable[[Line], str], least: int, *, identical: bool
) -> Iterator[Pair]:
    lines: list[Line | None] = []
    for file in files:
        lines += [*file, None]
    # Every end of a file is a key of its own: no run goes past it.
    keys = [object() if line is None else key(line) for line in lines]
    for i, j, length in _runs(keys, least):
        one, other = (
            [line for line in lines[at : at + length] if line is not None] for at in (i, j)
        )
        yield Pair((one[0], one[-1]), (other[0], other[-1]), length, identical)


def pairs(root: pathlib.Path, least: int = LEAST) -> list[Pair]:
    """Pairs of places in the package below a folder, those that are the same to the letter first.

    A run that is the same to the letter is not listed again as part of one of the same shape.
    """
    paths = [p for pattern in ("coop_jax/**/*", "cc/**/*") for p in sorted(root.glob(pattern))]
    files = [
        [dataclasses.replace(line, path=path.relative_to(root)) for line in lines_of(path)]
        for path in paths
        if path.suffix in (".py", ".h", ".cc")
    ]
    same = list(_pairs(files, lambda line: line.text, least, identical=True))
    known = {(p.one[0], p.other[0]) for p in same}
    alike = _pairs(map(_collapsed, files), lambda line: line.shape, least, identical=False)
    return same + [p for p in alike if (p.one[0], p.other[0]) not in known]


def main() -> None:
    """Prints the pairs; `python -m tests.architecture.duplicates [LEAST]`."""
    for pair in pairs(ROOT, int(sys.argv[1]) if len(sys.argv) > 1 else LEAST):
        print(pair)


if __name__ == "__main__":
    main()
