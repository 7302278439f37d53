"""The examples (`>>>`) in docstrings of what the API reference shows print what they say.

They run as users have it, with operations fused. Each object is a case of its own, methods
separately, in a namespace of its own.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import pathlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import coop_jax

_ROOT = pathlib.Path(coop_jax.__file__).parent
_REFERENCE = pathlib.Path(__file__).parents[2] / "docs" / "api"
_OBJECT = re.compile(r"^\.\. auto\w+:: ([\w.]+)", re.MULTILINE)


def _names() -> Iterator[str]:
    """What the reference shows: every public name (see `test_documentation`), and their results."""
    for page in sorted(_REFERENCE.glob("*.md")):
        yield from _OBJECT.findall(page.read_text(encoding="utf-8"))


def _examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    found = {}
    for name in _names():
        shown = pkgutil.resolve_name(name)
        short = name.removeprefix("coop_jax.").rpartition(".")[2]
        # Names of the module are not given: an example imports what it uses, as a reader would.
        for test in finder.find(shown, short, inspect.getmodule(shown), globs={}):
            found[test.name] = test
    return [test for test in found.values() if test.examples]


EXAMPLES = _examples()


@pytest.mark.unless_forced("a plan may be asked what it recomputes")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_what_it_says(
    example: doctest.DocTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COOP_JAX_FUSION", raising=False)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    failed, _ = runner.run(example, out=report.append)
    assert not failed, "".join(report)


def test_no_example_is_left_out() -> None:
    written = 0
    for file in _ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                written += ">>> " in (ast.get_docstring(node) or "")
    assert written == len(EXAMPLES)
