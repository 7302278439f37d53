"""The Python of the README and of docs/ runs as it stands, given what pages take for granted.

A page is read from top to bottom: later blocks see the names of earlier ones. Pages do not see each
other's. What a reader has (a train step, its arguments, batches) is new for each block, as blocks
use arguments up.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import coop_jax

ROOT = pathlib.Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`([\w*./]+\.(?:py|cc|h|js|md))`")
_NAME = re.compile(r"`([A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)*)`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def pages() -> list[pathlib.Path]:
    """The README and all pages, without what Sphinx has built."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if "_build" not in page.parts]


def named(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: pathlib.Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, with the number of lines before each."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in _BLOCK.finditer(text)]


PAGES_WITH_BLOCKS = [page for page in pages() if blocks_of(page)]


def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(lambda w: (jnp.tanh(batch @ w) ** 2).mean())(params)
    return params - 0.1 * grads, opt_state + 1, loss


def eval_step(params: Any, batch: Any) -> Any:
    return (batch @ params).mean()


def assumed() -> dict[str, Any]:
    """What a reader has: a train step, its arguments, batches."""
    params = 0.1 * jnp.eye(8)
    batch = jnp.arange(32.0).reshape(4, 8)
    return {
        "__name__": "documentation",
        "train_step": train_step,
        "eval_step": eval_step,
        "loss": eval_step,
        "layer": lambda params, h: jnp.tanh(h @ params),
        "params": params,
        "opt_state": jnp.zeros(()),
        "batch": batch,
        "batches": [batch, batch],
    }


def steps_were_taken(names: dict[str, Any]) -> None:
    assert float(names["opt_state"]) == 2
    assert float(names["loss"]) > 0


def the_eager_step_works(names: dict[str, Any]) -> None:
    value, grads = names["step"](names["params"], names["batch"])
    assert value > 0
    assert grads.shape == (8, 8)


def gradients_agree(names: dict[str, Any]) -> None:
    params, batch = assumed()["params"], assumed()["batch"]
    _, grads = names["loss_and_grad"](params, batch)
    each = names["per_example"](params, batch)
    assert each.shape == (4, 8, 8)
    assert jnp.allclose(each.mean(0), grads)


def a_budget_is_named(names: dict[str, Any]) -> None:
    assert names["needed"] > 256


# By what a block says: what holds after it.
CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "loss = step(params, opt_state, batch)\n": steps_were_taken,
    "while h.std() > 0.1": the_eager_step_works,
    "per_example = ": gradients_agree,
    "needed = error.report": a_budget_is_named,
}


@pytest.mark.parametrize("page", PAGES_WITH_BLOCKS, ids=named)
def test_the_python_of_a_page_runs(
    page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    names: dict[str, Any] = {"jax": jax, "coop_jax": coop_jax}
    for lines_before, block in blocks_of(page):
        names.update(assumed())
        # A traceback shows the line of the page.
        exec(compile("\n" * lines_before + block, named(page), "exec"), names)
        for text, check in CHECKS.items():
            if text in block and (check is not steps_were_taken or "for batch in batches" in block):
                check(names)


def test_every_check_is_used() -> None:
    text = "".join(block for page in PAGES_WITH_BLOCKS for _, block in blocks_of(page))
    assert [t for t in CHECKS if t not in text] == []


def test_the_readme_shows_both_front_ends_on_one_screen() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "coop_jax.run" in text
    assert "coop_jax.remat_eager" in text
    assert len(text.splitlines()) <= 110


@pytest.mark.parametrize("page", pages(), ids=named)
def test_links_lead_to_files(page: pathlib.Path) -> None:
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=named)
def test_paths_in_the_text_exist(page: pathlib.Path) -> None:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    folders = [ROOT / "coop_jax", ROOT / "cc", ROOT / "docs", ROOT / "tests", ROOT / "examples"]
    files = [p for folder in folders for p in folder.rglob("*.*")]
    missing = [path for path in _PATH.findall(text) if not any(p.match(path) for p in files)]
    assert missing == []


@pytest.mark.parametrize("page", [p for p in pages() if p.parent.name == "how"], ids=named)
def test_names_in_pages_about_the_code_exist(page: pathlib.Path) -> None:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    names = {name.split("::")[-1].split(".")[-1] for name in _NAME.findall(text)}
    assert {name for name in names if not re.search(rf"\b{name}\b", _sources())} == set()


@functools.cache
def _sources() -> str:
    files = (p for top in ("coop_jax", "cc", "tests") for p in (ROOT / top).rglob("*.*"))
    kinds = {".py", ".pyi", ".cc", ".h", ".js"}
    return "".join(p.read_text(encoding="utf-8") for p in files if p.suffix in kinds)


@functools.cache
def _reference() -> str:
    return "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "api").glob("*.md"))


@pytest.mark.parametrize("name", [n for n in vars(coop_jax) if not n.startswith("_")])
def test_the_reference_has_every_public_name(name: str) -> None:
    assert re.search(rf"^\.\. auto\w+:: coop_jax\.{name}\b", _reference(), re.MULTILINE)
