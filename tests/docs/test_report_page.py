"""The page of a report in a browser: light and dark, wide and narrow, without network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distcache.ledger.report import make_report
from distcache.ledger.report_page import page_of
from distcache.ledger.trace import trace
from tests.docs.test_site import DESK, PHONE, browser
from tests.ledger.runs import build_numbered

__all__ = ["browser"]

pytestmark = [pytest.mark.more, pytest.mark.slow]  # which has Chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a blend."""
    directory = tmp_path_factory.mktemp("report")
    found = trace(build_numbered(directory))
    text = page_of(make_report(found, batch=10))
    path = directory / "report.html"
    path.write_text(text)
    return path


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["1280", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_drawn(page: Path, scheme: str, size: Any, browser: Any) -> None:
    """All figures are drawn, in colours that are seen; only tables scroll; nothing is loaded."""
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
    shown = context.new_page()
    wrong: list[str] = []
    shown.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on("request", lambda asked: asked.url.startswith("file:") or wrong.append(asked.url))
    shown.goto(page.as_uri())
    shown.wait_for_function("document.querySelectorAll('.figure .main-svg').length >= 6")
    assert wrong == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= size["width"]
    text, back = (
        shown.evaluate(f"getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    light, dark = sorted([sum(eval_colour(text)), sum(eval_colour(back))])
    assert dark - light > 500
    ticks = shown.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert abs(sum(eval_colour(ticks)) - sum(eval_colour(back))) > 400
    context.close()


def eval_colour(text: str) -> list[int]:
    """Return red, green and blue of a colour as browsers write it."""
    return [int(word) for word in text[text.index("(") + 1 : -1].split(",")[:3]]
