"""Settings of Sphinx. `make docs` builds the site into docs/_build/html; warnings are errors."""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for generate.py
sys.path.insert(0, str(HERE.parent))

import generate  # noqa: E402

import gpaco  # noqa: E402

project = "gpaco"
version = release = gpaco.__version__
copyright = "the gpaco developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "recipes.head.md"]
html_theme = "furo"
html_title = f"gpaco {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
templates_path: list[str] = []

myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files beside docs/, such as ../examples; tests/test_docs.py checks

default_role = "literal"  # docstrings write names in single backticks
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": False}
napoleon_use_rtype = False

generate.write_all(HERE)


def mark_code(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Mark indented lines of a docstring as code: in reStructuredText they would be a quotation."""
    for i in reversed(range(2, len(lines))):
        begins = lines[i].startswith("    ") and not lines[i - 1] and lines[i - 2] and not lines[i - 2].startswith(" ")
        if begins and not lines[i - 2].endswith("::"):
            lines[i:i] = ["::", ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
