# SPDX-License-Identifier: GPL-2.0-only
"""The site: it is made without a warning, its links lead somewhere, all names are in it."""

import doctest
import functools
import importlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import click
import corpus
import pytest
from browser import CUT_LABELS, WIDTHS, views, violations
from disks import GALLERY
from stepper import TOLD

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.patches import Patch

ROOT = corpus.PROJECT
KINDS = (
    "docs/index", "notebooks/course/00-ten-files", "notebooks/fiemap-shared",
    "notebooks/trade-offs", "docs/how-to/explain", "docs/reference/machines",
    "docs/gallery", "docs/gallery/after-snapshot", "docs/gallery/after-snapshot-disk",
    "docs/gallery/fsync-steps",
)  # fmt: skip
"""A page of each kind."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with the notebooks as they are saved; `make docs` runs them too."""
    for module in ("sphinx", "myst_nb", "numpydoc", "pydata_sphinx_theme", "sphinx_click"):
        pytest.importorskip(module)
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site"]
    done = subprocess.run(
        [*command, "-b", "html", "-D", "nb_execution_mode=off", "-d", f"{out}/.pages", ".", out],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr[-4000:]
    return out


class Links(HTMLParser):
    """What a page leads to, and where in it others may lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {""}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.links += [known[name] or "" for name in ("href", "src") if name in known]
        self.places |= {known[name] or "" for name in ("id", "name") if name in known}


@pytest.mark.claim("The site is made without a warning, and every link inside it leads somewhere.")
def test_links_inside_the_site(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if "_static" not in page.parts}
    assert len(pages) > 50
    wrong = []
    for page, found in pages.items():
        for link in found.links:
            # what a live page of a disk shows is made by its script
            if re.match(r"[a-z]+:", link) or (page.stem.endswith("-disk") and link[:1] == "#"):
                continue
            name, place = urldefrag(link.split("?")[0] if "#" not in link else link)
            target = (page.parent / unquote(name)).resolve() if name else page
            if not target.exists() or (target in pages and place not in pages[target].places):
                wrong.append(f"{page.relative_to(site)}: {link}")
    assert wrong == []


@pytest.mark.claim("Each public name, command, toggle, device and machine is in the site.")
def test_everything_is_in_the_site(site: Path) -> None:
    reference = site / "docs/reference"
    python = Links(reference / "python.html").places
    assert {f"btrfs_model.{name}" for name in dir(bm)} <= python | {"btrfs_model.errors"}
    commands = (reference / "command-line.html").read_text()
    for name in cli.list_commands(click.Context(cli)):
        assert f'id="btrfs-model-{name}"' in commands
    toggles = (reference / "toggles.html").read_text()
    for patch in Patch:
        assert f">{patch}<" in toggles
        assert not patch.commit or f"https://git.kernel.org/torvalds/c/{patch.commit}" in toggles
    places = Links(reference / "machines.html").places
    for file in [*ROOT.glob("data/devices/*.toml"), *ROOT.glob("data/machines/*.toml")]:
        assert file.stem.replace(".", "-") in places


@pytest.mark.claim(
    "From the front page a click leads to pictures of disks, one more into any of them."
)
def test_disks_are_a_click_away(site: Path) -> None:
    docs = site / "docs"
    assert "gallery.html" in Links(docs / "index.html").links
    gallery = Links(docs / "gallery.html").links
    for name in [disk.name for disk in GALLERY] + [f"{story.name}-steps" for story in TOLD]:
        assert f"gallery/{name}.html" in gallery
    for disk in GALLERY:
        assert f"{disk.name}-disk.html" in Links(docs / f"gallery/{disk.name}.html").links
    for notebook in (ROOT / "notebooks/course").glob("*.ipynb"):
        page = site / "notebooks/course" / f"{notebook.stem}.html"
        assert any(link.endswith("-disk.html") for link in Links(page).links), page


@pytest.mark.claim("Kernel functions that pages name lead to their line in the kernel's git.")
def test_kernel_functions_are_links(site: Path) -> None:
    versions = json.loads((ROOT / "docs/site/kernel.json").read_text())
    known = {
        name for files in versions.values() for functions in files.values() for name in functions
    }
    page = (site / "docs/a-send.html").read_text()
    for name in ("btrfs_compare_trees", "changed_cb", "process_recorded_refs", "cache_dir_utimes"):
        assert name in known
        link = (
            rf'linux\.git/tree/fs/btrfs/send\.c\?h=v[\d.]+#n\d+"[^>]*><code[^>]*><span[^>]*>{name}'
        )
        assert re.search(link, page), name
    code = r'(<a [^>]*>)?<code class="docutils literal notranslate"><span class="pre">(\w+)'
    assert all(link for link, name in re.findall(code, page) if name in known)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


CUT = """() => {
    const column = document.querySelector("article");
    if (!column) return [];
    const right = column.getBoundingClientRect().right + 1;
    const shown = "svg, img, pre, code, table, td, th, figcaption, h1, h2, h3, dt";
    return [...column.querySelectorAll(shown)].filter(one => one.checkVisibility() &&
        !one.closest("thead") && !one.parentElement.closest("svg") &&
        (one.getBoundingClientRect().right > right || one.scrollWidth > one.clientWidth + 2 &&
         getComputedStyle(one).display !== "inline"))
        .map(one => `${one.tagName}: ${one.textContent.trim().slice(0, 60)}`);
}"""
"""What leaves the column of a page, or can be seen in parts only."""


@pytest.mark.more
@pytest.mark.claim(
    "Every page of the site is readable at 400, 1280 and 1920 pixels, in the light and in the "
    "dark, by everybody: no drawing, label, cell or line of code is cut, and axe finds nothing.",
    "Chromium",
)
def test_pages_in_a_browser(browser: Any, site: Path, address: str) -> None:
    names = sorted(str(file.relative_to(site).with_suffix("")) for file in site.rglob("*.html")
                   if "_static" not in file.parts and file.parent != site)  # fmt: skip
    assert set(KINDS) < set(names)
    page = browser.new_page(viewport={"width": max(WIDTHS), "height": 900})
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    # nothing is from elsewhere
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())
    wrong = []
    # a page of each kind; all of them take minutes
    for number, name in enumerate(names if corpus.LONG else KINDS):
        page.goto(f"{address}/{name}.html")
        page.add_style_tag(content="* { transition: none !important }")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found = [*page.evaluate(CUT), *page.evaluate(CUT_LABELS)]
            if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                found.append(f"{wide} pixels wide")
            wrong += [(name, width, one) for one in found]
            for scheme in views(number)[width]:
                page.evaluate(THEME, scheme)
                wrong += [(name, width, scheme, *one) for one in violations(page)]
    page.close()
    assert [*wrong, *said] == []


THEME = """theme => {
    document.documentElement.dataset.mode = document.documentElement.dataset.theme = theme;
}"""
"""What the button of a page does."""


@pytest.mark.claim("Sliders of the site's pages move with nothing from elsewhere.", "Chromium")
def test_sliders_need_nothing_from_elsewhere(browser: Any, address: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/notebooks/trade-offs.html")
    assert page.locator(".sliders").count() == 5
    for box in page.locator(".sliders").all():
        shown = box.locator("[data-at]:visible")
        for slider in box.locator("input").all():
            before, (place,) = slider.input_value(), (one.get_attribute("data-at")
                                                      for one in shown.all())  # fmt: skip
            slider.focus()
            page.keyboard.press("ArrowRight" if before == "0" else "ArrowLeft")
            (now,) = (one.get_attribute("data-at") for one in shown.all())
            assert now != place and slider.get_attribute("aria-valuetext")
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    page.close()


@pytest.mark.claim("The examples of docstrings give what they say.")
def test_examples_of_docstrings() -> None:
    examples = {}
    for file in sorted((ROOT / "btrfs_model").rglob("*.py")):
        if ">>> " in file.read_text():
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            examples[name] = doctest.testmod(importlib.import_module(name))
    assert len(examples) >= 3
    assert all(one.attempted and not one.failed for one in examples.values()), examples


def test_the_site_begins_at_its_top(site: Path) -> None:
    assert "url=docs/index.html" in (site / "index.html").read_text()
