# SPDX-License-Identifier: GPL-2.0-only
"""Debian's Chromium, and what is looked for in its pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
WIDTHS = (1280, 400)

CUT_OFF = """() => {
    const found = [], width = document.documentElement.clientWidth;
    for (const one of document.querySelectorAll("body *")) {
        const box = one.getBoundingClientRect();
        const hidden = one.closest("figure, thead, .wide, pre") || !box.width;
        if (!hidden && (box.right > width + 1 || box.left < -1 || one.scrollWidth > width))
            found.push(one.tagName + ": " + one.textContent.trim().slice(0, 60));
    }
    return found;
}"""
"""Elements that leave the page at a side, but for those that scroll by themselves."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no browser: there is no {CHROMIUM}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def violations(page: Any) -> list[Any]:
    """What axe finds wrong with a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    problems = axe.Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["target"]) for one in problems]
