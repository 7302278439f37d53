"""Which file of the package imports which: every import counts, wherever it stands.

Run: python -m tests.architecture.imports prints the packages below `coop_jax/_src`, their lines,
the arrows between them, their levels, and circles of files.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping

SOURCES = pathlib.Path(__file__).parents[2] / "coop_jax" / "_src"
_PREFIX = "coop_jax._src"


@dataclasses.dataclass(frozen=True)
class Import:
    """A file that imports another; modules are named from `coop_jax._src` on."""

    importer: str
    line: int
    imported: str


def modules(sources: pathlib.Path = SOURCES) -> dict[str, pathlib.Path]:
    """The files below `coop_jax/_src` by module."""
    found = {}
    for path in sorted(sources.rglob("*.py")):
        parts = path.relative_to(sources).with_suffix("").parts
        found[".".join(parts)] = path
    return found


def imports_of(name: str, path: pathlib.Path, known: Iterable[str]) -> list[Import]:
    """What a file imports of the package: under TYPE_CHECKING and in functions, too."""
    known = set(known)
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named: list[str] = []
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level or module == "coop_jax":
                named = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
            elif module == _PREFIX or module.startswith(_PREFIX + "."):
                named = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        for full in named:
            if not full.startswith(_PREFIX + "."):
                continue
            target = full.removeprefix(_PREFIX + ".")
            while target and target not in known:  # a name out of a module
                target = target.rpartition(".")[0]
            if target:
                found.append(Import(name, node.lineno, target))
    return found


def all_imports(sources: pathlib.Path = SOURCES) -> list[Import]:
    """All imports within the package."""
    files = modules(sources)
    return [i for name, path in files.items() for i in imports_of(name, path, files)]


def package_of(module: str) -> str:
    """The package below `coop_jax/_src` that a module lies in."""
    return module.partition(".")[0]


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups in which each member reaches each other: Tarjan components of two or more."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def arrows_between(imports: Iterable[Import], *, packages: bool) -> dict[str, set[str]]:
    """Who imports whom, by file or by package; nobody imports itself."""
    arrows: dict[str, set[str]] = {}
    for i in imports:
        a, b = (package_of(x) if packages else x for x in (i.importer, i.imported))
        arrows.setdefault(a, set())
        arrows.setdefault(b, set())
        if a != b:
            arrows[a].add(b)
    return arrows


def levels(arrows: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """The longest way down from each; there must be no circle."""
    known: dict[str, int] = {}

    def level(node: str) -> int:
        if node not in known:
            known[node] = 1 + max((level(n) for n in arrows.get(node, ())), default=0)
        return known[node]

    for node in arrows:
        level(node)
    return known


def main() -> None:
    """Prints packages, arrows, levels and circles."""
    imports = all_imports()
    files = modules()
    by_package = arrows_between(imports, packages=True)
    groups = circles(by_package)
    level = {} if groups else levels(by_package)
    for package in sorted(by_package, key=lambda p: (level.get(p, 0), p)):
        mine = [path for name, path in files.items() if package_of(name) == package]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in mine)
        below = " ".join(sorted(by_package[package])) or "nothing"
        print(f"{level.get(package, '?')}  {package:12} {lines:6} lines  imports {below}")
    for group in groups:
        print("circle of packages:", " ".join(group))
    for group in circles(arrows_between(imports, packages=False)):
        print("circle of files:", " ".join(group))


if __name__ == "__main__":
    main()
