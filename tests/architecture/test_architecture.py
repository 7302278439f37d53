"""Rules of the house: each a function of a tree of sources, shown to notice what breaks it."""

from __future__ import annotations

import ast
import collections
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterator

import pytest

from tests.architecture import imports
from tests.architecture.imports import all_imports, arrows_between, circles, modules, package_of

ROOT = pathlib.Path(__file__).parents[2]

# What each package may import. One way down: `levels` finds no circle in it.
ALLOWED = {
    "compat": "",
    "util": "compat",
    "ir": "compat util",
    "transforms": "compat util",
    "lowering": "compat util ir",
    "planning": "compat util ir",
    "execution": "compat util ir planning",
    "segments": "compat util ir execution",
    "simulate": "compat util ir lowering planning execution",
    "eager": "compat util ir transforms lowering planning execution",
    "jit": "compat util ir lowering planning",
    "run": "compat util ir transforms lowering planning execution segments simulate eager jit",
    "report": "compat util ir transforms lowering planning execution segments simulate eager jit"
    " run",
    "command_line": "compat util ir transforms lowering planning execution segments simulate eager"
    " jit run report",
}

# JAX's private parts change from version to version.
MAY_TOUCH_JAX = ("compat.", "eager.trace.")

MOST_LINES = {".py": 350, ".h": 400, ".cc": 400}
MOST_LINES_OF_A_FUNCTION = 60

_CPP_NO_CODE = re.compile(
    r"//[^\n]*|^#[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'",
    re.DOTALL | re.MULTILINE,
)
_OURS = re.compile(r'#include "(.*)"')
_ANY_INCLUDE = re.compile(r"#include [<\"](.*)[>\"]")


def forbidden_imports(sources: pathlib.Path) -> Iterator[str]:
    """Imports that go up or sideways."""
    for i in all_imports(sources):
        a, b = package_of(i.importer), package_of(i.imported)
        if a != b and b not in ALLOWED[a].split():
            yield f"{i.importer}:{i.line} imports {i.imported}"


def circles_of_files(sources: pathlib.Path) -> Iterator[str]:
    """Files that need each other."""
    for circle in circles(arrows_between(all_imports(sources), packages=False)):
        yield " ".join(circle)


def private_parts_of_jax(sources: pathlib.Path) -> Iterator[str]:
    """Files that touch them and may not."""
    for name, path in modules(sources).items():
        if name.startswith(MAY_TOUCH_JAX):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named: list[str] = []
            if isinstance(node, ast.ImportFrom):
                named = [f"{node.module or ''}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            if any(re.match(r"jax(lib)?\._", n) for n in named):
                yield f"{name}:{node.lineno}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined_in(tree: ast.Module) -> set[str]:
    """Names of a module, of its classes' members and of their instances' attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) in ("self", "cls")
        ):
            found.add(node.attr)
    return found


def private_members_of_others(sources: pathlib.Path) -> Iterator[str]:
    """Reads of what belongs to another module; of JAX's there is a rule of its own."""
    for name, path in modules(sources).items():
        if name.startswith(MAY_TOUCH_JAX):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = _defined_in(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                # `sys._getframe` is documented, and there is no other way to a caller's frame.
                mine = ast.unparse(node.value) in ("self", "cls", "super()", "sys")
                if not mine and node.attr not in own:
                    yield f"{name}:{node.lineno}: {ast.unparse(node)}"
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                asked = node.args[1]
                text = asked.value if isinstance(asked, ast.Constant) else ""
                if _is_private(str(text)) and text not in own:
                    yield f"{name}:{node.lineno}: {ast.unparse(node)}"
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coop_jax."):
                yield from (
                    f"{name}:{node.lineno}: import of {alias.name}"
                    for alias in node.names
                    if _is_private(alias.name)
                )


def includes_of_the_engine(root: pathlib.Path) -> Iterator[str]:
    """What the engine includes beside itself and the standard library."""
    for path in sorted([*root.glob("cc/core/**/*"), *root.glob("cc/baselines/**/*")]):
        if path.suffix not in (".h", ".cc"):
            continue
        within = ("cc/core/",) if "core" in path.parts else ("cc/core/", "cc/baselines/")
        for line in path.read_text(encoding="utf-8").splitlines():
            # The standard library's headers have no ending; the C library's are not used.
            if (ours := _OURS.match(line)) is not None:
                allowed = ours[1].startswith(within)
            else:
                found = _ANY_INCLUDE.match(line)
                allowed = found is None or "." not in found[1]
            if not allowed:
                yield f"{path.name}: {line}"


def long_files(root: pathlib.Path) -> Iterator[str]:
    """Files that are too long to see as a whole."""
    for path in sorted([*root.glob("coop_jax/**/*.py"), *root.glob("cc/**/*")]):
        if path.suffix in MOST_LINES:
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MOST_LINES[path.suffix]:
                yield f"{path.relative_to(root)}: {lines} lines"


def long_functions(root: pathlib.Path) -> Iterator[str]:
    """Python functions that are too long to follow, without their docstrings."""
    for path in sorted(root.glob("coop_jax/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            lines = _lines_of(node)
            if ast.get_docstring(node) is not None:
                lines -= _lines_of(node.body[0])
            if lines > MOST_LINES_OF_A_FUNCTION:
                yield f"{path.relative_to(root)}:{node.lineno}: {node.name}, {lines} lines"


def long_functions_in_cpp(root: pathlib.Path) -> Iterator[str]:
    """The same in C++, by counting braces; but for tables of bindings, `Bind...`."""
    for path in sorted(root.glob("cc/**/*")):
        if path.suffix not in (".h", ".cc"):
            continue
        text = _CPP_NO_CODE.sub(
            lambda found: "\n" * found[0].count("\n"), path.read_text(encoding="utf-8")
        )
        line, head = 1, ""  # what was read since the last statement or brace
        begun: list[tuple[int, str]] = []
        for part in re.split(r"([{};\n])", text):
            if part == "\n":
                line += 1
            elif part == "{":
                begun.append((line, head))
            elif part == "}" and begun:
                first, heading = begun.pop()
                named = re.search(r"(\w+)\(", heading)
                lines = line - first + 1
                if named is None or any("(" in outer for _, outer in begun):
                    continue  # a namespace, type or table, or a part of a function
                if lines > MOST_LINES_OF_A_FUNCTION and not named[1].startswith("Bind"):
                    yield f"{path.relative_to(root)}:{first}: {named[1]}, {lines} lines"
            head = "" if part in ("{", "}", ";") else head + part


def private_imports_of_behaviour_tests(root: pathlib.Path) -> Iterator[str]:
    """Tests of the public API that import something else of the package."""
    for path in sorted(root.glob("tests/behaviour/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named: list[str] = []
            if isinstance(node, ast.ImportFrom):
                named = [f"{node.module or ''}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            if any(re.match(r"coop_jax\._(?!_)", name) for name in named):  # `__main__` is public
                yield f"{path.name}:{node.lineno}"


def names_of_tests_that_stand_twice(root: pathlib.Path) -> Iterator[str]:
    """Two test modules of one name cannot be imported together."""
    paths = (path for folder in ("unit", "behaviour") for path in root.glob(f"tests/{folder}/**/*"))
    counts = collections.Counter(path.name for path in paths if path.name.startswith("test_"))
    yield from (name for name, count in counts.items() if count > 1)


def _lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


RULES: list[tuple[Callable[[pathlib.Path], Iterator[str]], str, str, str]] = [
    # A rule, the root that it takes, and a file that breaks it.
    (
        forbidden_imports,
        "coop_jax/_src",
        "planning/planner.py",
        "def f():\n    from coop_jax._src.run import api\n",
    ),
    (
        circles_of_files,
        "coop_jax/_src",
        "ir/program.py",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from coop_jax._src.ir import kernels\n",
    ),
    (private_parts_of_jax, "coop_jax/_src", "run/api.py", "from jax._src import core\n"),
    (
        private_members_of_others,
        "coop_jax/_src",
        "run/api.py",
        "class A:\n    def f(self, other):\n        self._a, self.b = 1, self._a\n"
        "        return other._a, other._b\n",
    ),
    (
        private_members_of_others,
        "coop_jax/_src",
        "run/api.py",
        "def f(other):\n    return hasattr(other, '_a')\n",
    ),
    (
        private_members_of_others,
        "coop_jax/_src",
        "run/api.py",
        "from coop_jax._src.ir.kernels import _f\n",
    ),
    (includes_of_the_engine, "", "cc/core/engine/a.h", '#include "cc/python/value.h"\n'),
    (includes_of_the_engine, "", "cc/core/engine/a.cc", "#include <Python.h>\n"),
    (
        private_imports_of_behaviour_tests,
        "",
        "tests/behaviour/test_a.py",
        "import coop_jax\nfrom coop_jax import _core\nfrom jax import lax\n",
    ),
    (names_of_tests_that_stand_twice, "", "tests/unit/ir/test_twice.py", ""),
    (long_files, "", "coop_jax/a.py", "x = 1\n" * 1000),
    (long_functions, "", "coop_jax/a.py", "def f():\n" + "    x = 1\n" * 60),
    (
        long_functions_in_cpp,
        "",
        "cc/a.cc",
        "namespace a {\nint F(int x) {\n" + "  if (x > 1) {\n  }\n" * 30 + "}\n}  // namespace a\n",
    ),
]
OTHERS = {
    "run/api.py": "",
    "ir/kernels.py": "from coop_jax._src.ir.program import Program\n",
    "tests/behaviour/test_twice.py": "import coop_jax\nfrom tests.testing import models\n",
}


@pytest.mark.parametrize(("rule", "under"), dict.fromkeys((r[0], r[1]) for r in RULES))
def test_the_rules_hold(rule: Callable[[pathlib.Path], Iterator[str]], under: str) -> None:
    assert list(rule(ROOT / under)) == []


@pytest.mark.parametrize(("rule", "under", "file", "text"), RULES)
def test_each_rule_notices_what_breaks_it(
    rule: Callable[[pathlib.Path], Iterator[str]],
    under: str,
    file: str,
    text: str,
    tmp_path: pathlib.Path,
) -> None:
    for name, contents in {**OTHERS, file: text}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents, encoding="utf-8")
    assert len(list(rule(tmp_path))) == 1


def test_packages_are_few_and_on_few_levels() -> None:
    found = arrows_between(all_imports(), packages=True)
    assert set(found) == set(ALLOWED)
    assert len(found) <= 14
    assert max(imports.levels(found).values()) <= 9


def test_unit_tests_mirror_the_packages() -> None:
    folders = {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= {*ALLOWED, "extension"}  # the C++ extension, `cc/python`


def test_every_package_says_what_it_is_for() -> None:
    for package in imports.SOURCES.rglob("__init__.py"):
        if package.parent != imports.SOURCES:
            text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8")))
            assert text, package


def test_no_pattern_leaves_files_of_the_package_out_of_a_wheel() -> None:
    """One without a slash in front counts in each folder."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    excluded = settings["tool"]["scikit-build"]["sdist"]["exclude"]
    assert all(pattern.startswith("/") and "coop_jax" not in pattern for pattern in excluded)


def test_a_circle_is_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [["a", "b", "c"]]
    assert circles({"a": ["b"], "b": []}) == []
