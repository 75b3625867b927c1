"""The site, and the page of a report, in a browser: complete, offline, readable on any screen."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from distcache.ledger.report import make_report
from distcache.ledger.report_page import page_of
from distcache.ledger.trace import trace
from tests.orders.orders import build_numbered

DOCS: Final = Path(__file__).parents[2] / "docs"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# Elements that are wider than they are shown, but for tables and what is hidden or in them.
CUT: Final = """() => [...document.querySelectorAll("body *")].filter(e =>
    e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
    && ["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(e).overflowX)
    && !e.closest(".table-wrapper, table, .sidebar-drawer, .toc-drawer, .visually-hidden, [hidden]")
    && getComputedStyle(e).visibility != "hidden"
).map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 80)}`)"""
CODE: Final = """() => [...document.querySelectorAll("pre")].filter(e =>
    e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.trim().slice(0, 120))"""
# Words in the first column of a table that go on in another line.
BROKEN: Final = r"""() => [...document.querySelectorAll("td:first-child code .pre")].flatMap(e =>
    [...e.childNodes].filter(n => n.nodeType == Node.TEXT_NODE).flatMap(n =>
        [...n.textContent.matchAll(/[^-_\/.,:=|()\[\]{} ]+/g)].filter(word => {
            const range = document.createRange();
            range.setStart(n, word.index);
            range.setEnd(n, word.index + word[0].length);
            return new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1;
        }).map(word => `${word[0]} of ${e.textContent}`)))"""
pytestmark = [pytest.mark.slow, pytest.mark.more]  # a browser, and the whole site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    target = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS)]
    done = subprocess.run([*words, str(target)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where it is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Write nothing."""

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, which asks for nothing by itself."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "install Debian's package chromium"
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=quiet)
        yield started
        started.close()


def pages(site: Path) -> list[str]:
    """Return the names of all pages."""
    found = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    assert len(found) > 20
    return found


def test_every_page(site: Path, address: str, browser: Any) -> None:
    """No error, nothing from elsewhere; no code is cut, and a phone scrolls tables only."""
    page = browser.new_page(viewport=DESK)
    wrong: list[str] = []
    page.on("console", lambda said: said.type == "error" and wrong.append(f"console: {said.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on(
        "response",
        lambda got: got.ok or got.status == 304 or wrong.append(f"{got.status}: {got.url}"),
    )
    page.on(
        "request",
        lambda asked: (
            asked.url.startswith((address, "data:")) or wrong.append(f"elsewhere: {asked.url}")
        ),
    )
    for name in pages(site):
        before = len(wrong)
        page.set_viewport_size(DESK)
        page.goto(address + name)
        wrong += [f"cut at 1280: {text}" for text in page.evaluate(CODE)]
        page.set_viewport_size(PHONE)
        if page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
            wrong.append("the page scrolls sideways at 390")
        wrong += [f"scrolls at 390: {text}" for text in page.evaluate(CUT)]
        wrong += [f"broken at 390: {text}" for text in page.evaluate(BROKEN)]
        wrong[before:] = [f"{name}: {fault}" for fault in wrong[before:]]
    assert not wrong, "\n".join(wrong)


def test_a_page_is_found_before_a_method(address: str, browser: Any) -> None:
    """A reader who looks for a word wants the page that explains it."""
    page = browser.new_page(viewport=DESK)
    for word in ("resume", "localize", "report"):
        page.goto(f"{address}search.html?q={word}")
        page.wait_for_function("document.querySelectorAll('ul.search li').length > 5")
        first = page.locator("ul.search li a").first.text_content()
        assert not (first or "distcache.").startswith("distcache.")


def test_the_landing_page(address: str, browser: Any) -> None:
    """Has the picture, how to install it, an example, and what is first for users of Megatron."""
    page = browser.new_page(viewport=DESK)
    page.goto(address)
    assert page.locator("article img").first.evaluate("e => e.naturalWidth > 0")
    text = page.locator("article").inner_text()
    assert "pip install" in text
    assert "distcache.open(" in text
    assert page.locator("article button.copybtn").count() == page.locator("article pre").count()
    first = page.locator(".sidebar-tree .caption:has-text('How to') + ul > li").first
    assert "Megatron-LM" in (first.text_content() or "")


def test_the_reference_has_every_command(site: Path) -> None:
    """Also those of groups, with their arguments as `--help` shows them."""
    page = (site / "reference.html").read_text(encoding="utf-8")
    for name in ("distcache build", "distcache ingest text", "distcache local ls"):
        assert f">{name}<a" in page
    assert "CONFIG | @FILE | -- COMMAND" in page
    assert "<td><p>Configuration file; or the training command" in page  # in its own cell
    assert "former" not in page


def test_diagrams_are_drawn(site: Path) -> None:
    """Diagrams are drawn as SVG, when the site is built."""
    page = (site / "concepts.html").read_text(encoding="utf-8")
    drawn = [name for name in (site / "_images").glob("graphviz-*.svg") if name.name in page]
    assert len(drawn) == 3
    assert "mermaid" not in page


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
    assert shown.evaluate("document.querySelectorAll('.figure svg').length") == 6
    assert page.stat().st_size < 1_500_000
    assert wrong == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= size["width"]
    text, back = (
        shown.evaluate(f"getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    light, dark = sorted([sum(eval_colour(text)), sum(eval_colour(back))])
    assert dark - light > 500
    ticks = shown.evaluate("getComputedStyle(document.querySelector('[id*=xtick] text')).fill")
    assert abs(sum(eval_colour(ticks)) - sum(eval_colour(back))) > 400
    context.close()


def eval_colour(text: str) -> list[int]:
    """Return red, green and blue of a colour as browsers write it."""
    return [int(word) for word in text[text.index("(") + 1 : -1].split(",")[:3]]
