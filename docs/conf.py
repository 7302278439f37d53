"""Sphinx configuration: MyST pages, an API reference from docstrings, the furo theme.

Build: python -m sphinx -W -b html docs docs/_build, in an environment that has coop_jax and the
`docs` extra.
"""

import re
from typing import Any

import coop_jax

project = "coop_jax"
copyright = "2026, the coop_jax authors"
release = coop_jax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

smartquotes_action = "D"  # dashes alone: what is quoted is mostly a Python string
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 60
napoleon_use_ivar = True

html_theme = "furo"
html_title = "coop_jax"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sphinx = False


def _as_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings have code in single backticks, and plurals right behind them."""
    for number, line in enumerate(lines):
        lines[number] = re.sub(
            r"(?<!`)`([^`]+)`(?!`)(\w?)",
            lambda m: f"``{m[1]}``" + (f"\\ {m[2]}" if m[2] else ""),
            line,
        )


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _as_rst)
