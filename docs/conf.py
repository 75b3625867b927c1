"""The documentation site: `make docs` builds it from these pages, and fails on any warning."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from command_reference import configuration, reference
from sphinx.ext.autodoc.mock import _MockObject

import distcache
from distcache.cli.options import fields_of

project = "distcache"
copyright = "the distcache authors"  # noqa: A001  Sphinx's name
release = version = distcache.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.graphviz",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"distcache {release}"
myst_enable_extensions = ["deflist", "attrs_inline"]
myst_heading_anchors = 3
napoleon_google_docstring = False
napoleon_use_rtype = False
# The site is built without what training needs, too; a registry of torch gets an entry of ours.
autodoc_mock_imports = [name for name in ("torch", "megatron") if find_spec(name) is None]
_MockObject.__setitem__ = lambda *_: None
autodoc_typehints = "none"  # the docstrings say types and shapes
autodoc_member_order = "bysource"
graphviz_output_format = "svg"  # drawn when the site is built: it works without a network
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_favicon = "_static/favicon.svg"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
suppress_warnings = ["ref.python"]  # a name in a docstring may be several attributes

GENERATED = {"<!-- commands -->": reference, "<!-- configuration -->": configuration}


FIRST_CELL = re.compile(r"<tr[^>]*><td>.*?</td>", re.DOTALL)
NAME = re.compile(r"(?<=<span class=\"pre\">)[^<]+")


def put_reference(app: Any, name: str, source: list[str]) -> None:
    """Put what the program says of itself in the places of its marks."""
    del app, name
    for mark, lines in GENERATED.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, "\n".join(lines()))


def list_fields(
    app: Any, what: str, name: str, described: Any, options: Any, lines: list[str]
) -> None:
    """Add the fields of a struct that have options, by their help, to its attributes."""
    del app, name, options
    if what != "class" or not issubclass(described, msgspec.Struct):
        return
    found = list(fields_of(described))
    if found and "Attributes" not in lines:
        lines += ["Attributes", "----------"]
    while lines[-1] == "":
        lines.pop()
    for field in found:
        lines += [f"{field.name}", f"    {field.option.help}"]
    lines.append("")


def break_names(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let long names in the first column of a table break at their underscores only."""
    del app, name, template, doctree
    if "body" in context:
        context["body"] = FIRST_CELL.sub(
            lambda cell: NAME.sub(lambda found: found[0].replace("_", "_<wbr>"), cell[0]),
            context["body"],
        )


def setup(app: Any) -> None:
    """Register what is above with Sphinx."""
    app.connect("html-page-context", break_names)
    app.connect("source-read", put_reference)
    app.connect("autodoc-process-docstring", list_fields, priority=400)  # before napoleon
