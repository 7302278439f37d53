"""No logic stands twice in the package, and the search for it finds what it should."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.architecture.duplicates import LEAST, ROOT, pairs

_PYTHON = '''
def total(rows, rate):
    """Sums the rows."""
    found = {}
    for row in rows:
        if row.kind == "open":
            found[row.name] = row.amount * rate
        elif row.kind in found:
            del found[row.kind]
        else:
            raise ValueError("no such row")
    smallest = min(found.values())
    return sum(found.values()) - smallest
'''
_CPP = """
int Total(const Rows& rows, int rate) {
  int found = 0;
  for (const Row& row : rows) {
    if (row.open) {
      found += row.amount * rate;
    } else if (row.kind == Kind::kOpen) {
      found -= 1;
    }
    Check(found >= 0, "never negative");
    while (found > rate) found -= rate;
    if (rows.empty()) return -1;
    Print(found);
  }
  return found;
}
"""
_DOCUMENTED = 'def f():\n    """Says.\n\n' + "\n".join(
    f"    Sentence {'abcdefghijkl'[n]}." for n in range(12)
)


def _renamed(text: str) -> str:
    """Other names and values in code of the same shape."""
    text = re.sub(r"\b(found|row|rows|rate|total|Total|Row|Rows|Check)\b", r"other_\1", text)
    return re.sub(r'"(open|no such row|never negative)"', r'"another \1"', text)


def _found(root: pathlib.Path, one: str, other: str, suffix: str) -> list[bool]:
    for name, text in (("one", one), ("other", other)):
        path = root / "coop_jax" / f"{name}{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [pair.identical for pair in pairs(root)]


def test_no_two_places_share_many_lines() -> None:
    assert [str(pair) for pair in pairs(ROOT)] == []


@pytest.mark.parametrize(("text", "suffix"), [(_PYTHON, ".py"), (_CPP, ".cc")])
def test_a_copy_is_found_once_and_a_renamed_one_by_its_shape(
    text: str, suffix: str, tmp_path: pathlib.Path
) -> None:
    assert _found(tmp_path, text, "\n\n# Above\n" + text, suffix) == [True]
    assert _found(tmp_path, text, _renamed(text), suffix) == [False]


def test_a_copy_below_a_copy_in_one_file_is_found(tmp_path: pathlib.Path) -> None:
    assert _found(tmp_path, _PYTHON + "\n\nx = 1\n" + _renamed(_PYTHON), "", ".py") == [False]


def test_docstrings_count_to_the_letter_and_have_no_shape(tmp_path: pathlib.Path) -> None:
    copied = _DOCUMENTED + '\n    """\n'
    assert _found(tmp_path, copied, copied, ".py") == [True]
    assert _found(tmp_path, copied, copied.replace("Sentence", "Phrase"), ".py") == []


def test_fewer_lines_comments_imports_and_tables_are_no_pair(tmp_path: pathlib.Path) -> None:
    short = "\n".join(_PYTHON.splitlines()[:LEAST])  # without the empty one less than that
    assert _found(tmp_path, short, short, ".py") == []
    imports = "".join(f"from a import b{n}\n# About {n}\n\n" for n in range(20))
    assert _found(tmp_path, imports, imports, ".py") == []
    table = "".join(f"x{n} = {n}\n" for n in range(20))
    assert _found(tmp_path, table, table.replace("x", "y"), ".py") == []
