# SPDX-License-Identifier: GPL-2.0-only
"""Debian's Chromium, and what is looked for in its pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import corpus
import pytest

CHROMIUM = "/usr/bin/chromium"
WIDTHS = (1920, 1280, 400)
SCHEMES = ("light", "dark")


def views(number: int = 0) -> dict[int, tuple[str, ...]]:
    """Themes in which axe looks at a page, by width: one of each; all in a long run.

    Without the larger corpus at one of the widths alone: tests that use this are marked `more`.

    `number`: of the page. With it the widths change their themes.
    """
    if corpus.LONG:
        return dict.fromkeys(WIDTHS, SCHEMES)
    return {width: (SCHEMES[(number + at) % 2],) if corpus.MORE or at == number % 3 else ()
            for at, width in enumerate(WIDTHS)}  # fmt: skip


CUT_OFF = """() => {
    const found = [], width = document.documentElement.clientWidth;
    for (const one of document.querySelectorAll("body *")) {
        const box = one.getBoundingClientRect();
        const hidden = one.closest("figure, thead") || !box.width;
        const sideways = one.clientWidth && one.scrollWidth > one.clientWidth + 1;
        if (!hidden && (box.right > width + 1 || box.left < -1 || sideways))
            found.push(one.tagName + ": " + one.textContent.trim().slice(0, 60));
    }
    return found;
}"""
"""Elements that leave the page at a side, or that one has to scroll sideways."""

CUT_LABELS = """() => {
    const found = [];
    for (const drawing of document.querySelectorAll("svg")) {
        // what is not cut off by its drawing has the page
        const own = drawing.getBoundingClientRect(), wide = document.documentElement.clientWidth;
        const free = getComputedStyle(drawing).overflow === "visible";
        const all = free ? {left: 0, right: wide, top: own.top - 16, bottom: own.bottom + 16,
                            width: own.width} : own;
        if (!all.width || drawing.closest("[hidden]")) continue;
        for (const one of drawing.querySelectorAll("text")) {
            const box = one.getBoundingClientRect();
            const out = Math.max(all.left - box.left, box.right - all.right,
                                 all.top - box.top, box.bottom - all.bottom);
            if (box.width && out > 2) found.push(one.textContent.trim() + ": " + Math.round(out));
        }
    }
    for (const one of document.querySelectorAll("td, th"))
        if (one.getClientRects().length && one.scrollWidth > one.clientWidth + 1
            && getComputedStyle(one).overflowX !== "auto" && !one.closest("thead, pre"))
            found.push("cell: " + one.textContent.trim().slice(0, 60));
    return found;
}"""
"""Labels that leave their drawing, and cells that do not hold what is in them."""


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
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    if page.evaluate("'axe' in window"):
        axe.axe_script = "0"  # it is there already
    problems = axe.run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["target"]) for one in problems]
