# SPDX-License-Identifier: GPL-2.0-only
"""The stories of the site: what a page says was written is so, and it needs nothing else.

What their words say is in ``test_stories.py``.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from browser import CUT_OFF, SCHEMES, WIDTHS, violations
from stepper import SIZES, TOLD, Step, Story, page, steps_of, variants

SEVERAL = "fsync"
"""A story whose kernels differ."""
LARGEST = 1 << 20
"""Bytes of a page at most."""
STORIES = {story.name: story for story in TOLD}
NAMES = list(STORIES)


@cache
def html(name: str) -> str:
    return page(STORIES[name])


@cache
def steps(name: str, kernel: str = "v7.2", nodesize: int = 4096) -> list[Step]:
    return steps_of(STORIES[name], kernel, nodesize)


def written(step: Step) -> dict[str, str]:
    """How much was written, by what it is."""
    return {one.what: one.how_much for one in step.written}


@pytest.mark.claim(
    "The page of a story has all its steps for each place of its sliders, and needs nothing else."
)
@pytest.mark.parametrize("name", NAMES)
def test_a_page(name: str) -> None:
    story, text = STORIES[name], html(name)
    assert len(text.encode()) <= LARGEST
    assert set(re.findall(r'(?:src|href)="([^"#]+)', text)) == {"../gallery.html"}
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    found = [
        [tuple(map(int, at.split(","))) for at in places.split()]
        for places in re.findall(r'data-at="([^"]*)"', text)
    ]
    wanted = [(k, s) for k in range(len(story.kernels)) for s in range(len(SIZES))]
    assert sorted(at for places in found for at in places) == wanted
    assert text.count('class="step"') == len(found) * len(story.paragraphs)
    assert len(story.paragraphs) >= 3


def test_each_file_is_a_story() -> None:
    folder = Path(__file__).parents[2] / "docs" / "site" / "stories"
    assert {file.name for file in folder.iterdir()} == {story.file for story in TOLD}
    assert len(TOLD) >= 12


def test_what_waits_in_memory_is_not_on_the_disk() -> None:
    _, small, large, commit, last = steps("write")
    assert small.written == large.written == []
    assert small.crash == '"small" would be lost.'
    assert written(commit)["data of large"] == "65,536 bytes"
    assert commit.crash == last.crash == "nothing would be lost."
    assert len(last.written) < len(commit.written)


def test_an_overwrite_goes_elsewhere() -> None:
    assert written(steps("overwrite")[2])["data of file"] == "4,096 bytes"


def test_a_snapshot_copies_a_block() -> None:
    assert [written(step)[f"subvolume {number}"] for step, number in
            zip(steps("snapshot")[1:], (256, 257), strict=True)] == ["1 node"] * 2  # fmt: skip
    _, waiting, copied, _ = steps("rewrite-after-snapshot")
    assert waiting.written == [] and written(copied)["fs tree"] == "1 node, 1 leaf"
    assert "subvolume 256" not in written(copied)


def test_what_a_log_of_a_directory_has() -> None:
    _, waiting, synced, again, committed = steps("fsync")
    assert waiting.written == []
    assert set(written(synced)) == set(written(again)) == {"tree log", "superblock"}
    assert "tree log" not in written(committed)


def test_what_a_replay_writes() -> None:
    assert steps("crash")[2].written == steps("send")[2].written == []
    _, _, synced, replayed = steps("replay")
    assert "tree log" in written(synced) and "fs tree" in written(replayed)


def test_a_write_that_does_not_fit() -> None:
    _, large, more, deleted, fits = steps("out-of-space")
    assert "No space left" in more.output and written(more)["data of more"]
    assert large.output == deleted.output == fits.output == ""
    assert written(fits)["data of fits"]


def test_kernels_that_do_the_same_stand_once() -> None:
    told = variants(Story("crash.sh", "", "", ("v6.12", "v7.2")))
    assert [one.at for one in told] == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]


# ------------------------------------------------------------------------------- in a browser --


SHOWN = """() => [...document.querySelectorAll(".step.now")]
    .filter(one => one.querySelector(".text").checkVisibility())
    .map(one => one.querySelector("h2").textContent)"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("stories") / f"{SEVERAL}-steps.html"
    file.write_text(html(SEVERAL))
    return file.as_uri()


@pytest.mark.claim(
    "A story is stepped through by keys alone, its sliders change the kernel and the size of "
    "blocks, and a screen reader is told each step.",
    "Chromium",
)
def test_a_story_by_keyboard(browser: Any, address: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: asked.append(str(error)))
    page.goto(address)
    words = [f"{number}. {words}"
             for number, (words, _) in enumerate(STORIES[SEVERAL].paragraphs, 1)]  # fmt: skip
    said = page.locator("[role=status]")
    assert page.evaluate(SHOWN) == words[:1]
    for number in (1, 2):
        page.keyboard.press("ArrowRight")
        assert page.evaluate(SHOWN) == [words[number]]
        assert said.text_content().startswith(f"Step {number + 1} of {len(words)}. ")
        assert page.locator("figure:visible figcaption").count() == 2
    # the log of the kernel before the commit has an item that later ones do not have
    item = page.locator(".step.now text", has_text="DIR_ITEM")
    kernel, size = page.get_by_label("Kernel"), page.get_by_label("Tree blocks")
    later = item.count()
    kernel.focus()
    for label in ("Linux 5.17", "Linux 5.16"):
        page.keyboard.press("ArrowLeft")
        assert kernel.get_attribute("aria-valuetext") == label
        assert page.evaluate(SHOWN) == [words[2]]
    assert item.count() > later
    size.focus()
    page.keyboard.press("ArrowRight")
    assert "16 KiB" in page.locator("#same").text_content()
    page.get_by_role("button", name="Previous").focus()
    for _ in range(len(words)):
        page.keyboard.press("Enter")
    assert page.evaluate(SHOWN) == words[:1]
    assert page.get_by_role("button", name="Previous").get_attribute("aria-disabled") == "true"
    assert asked == [address]
    page.close()


@pytest.mark.claim("A story fits at each width, in the light and in the dark.", "Chromium")
def test_a_story_at_each_width(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    wrong = []
    for number, _ in enumerate(STORIES[SEVERAL].paragraphs):
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            wrong += [(number, width, one) for one in page.evaluate(CUT_OFF)]
            if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                wrong.append((number, width, f"{wide} pixels wide"))
        page.keyboard.press("ArrowRight")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        wrong += [(scheme, *one) for one in violations(page)]
        page.evaluate("scheme => { document.documentElement.dataset.theme = scheme }", scheme)
        page.emulate_media(color_scheme=SCHEMES[scheme == SCHEMES[0]])
        wrong += [(scheme, *one) for one in violations(page)]
        page.evaluate("() => { delete document.documentElement.dataset.theme }")
    assert wrong == []
    page.close()


def test_a_story_has_the_theme_of_the_site(browser: Any, address: str) -> None:
    page = browser.new_page(color_scheme="light")
    for theme in ("dark", "light"):
        page.goto(address)
        page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
        page.reload()
        assert page.evaluate("getComputedStyle(document.body).colorScheme") == theme
        assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.close()


def test_a_story_without_scripts(browser: Any, address: str) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(address)
    assert page.get_by_role("button").count() == 0
    count = len(STORIES[SEVERAL].paragraphs)
    assert page.locator(".variant[open] h2:visible").count() == count
    assert page.locator(".variant[open] figure:visible").count() == count
    page.close()
