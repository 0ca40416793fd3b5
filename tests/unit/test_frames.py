# SPDX-License-Identifier: GPL-2.0-only
"""Steps of a picture: each is there, what is new in it is filled, and a keyboard goes through."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import WIDTHS, violations
from hypothesis import given, settings
from hypothesis import strategies as st
from test_drawings import SVG, address, build, check_picture

import btrfs_model as bm
from btrfs_model.drawings.frames import Frames
from btrfs_model.drawings.picture import Drawing

SEEN = """() => [...document.querySelectorAll(".btrfs-frames")].map(form =>
    [...form.querySelectorAll("svg")].map(svg => svg.checkVisibility()))"""
"""Of each form, which of its pictures are seen."""


class Parts(HTMLParser):
    """The captions and tags of steps."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "label":
            self.labels.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["input"]:
            self.labels[-1] += data


def drawn() -> dict[str, Drawing]:
    """A leaf that is split, and a snapshot."""
    with bm.create("256M", nodesize=4096, seed=1) as fs:
        fs.sync()
        pictures = {"a new filesystem": bm.draw(fs.subvolume(""))}
        fs.create_files("", [f"file{number}" for number in range(20)])
        fs.sync()
        pictures["20 files"] = bm.draw(fs.subvolume(""))
        fs.snapshot("", "snap")
        fs.sync()
        pictures["a snapshot"] = bm.draw([fs.subvolume(""), fs.subvolume("snap")])
    return pictures


def filled(drawing: Drawing) -> list[str]:
    """The titles of boxes that are filled, as they are drawn."""
    found = []
    for group in ElementTree.fromstring(drawing.svg).iter(f"{SVG}g"):
        shape, *texts = group
        if shape.tag == f"{SVG}rect" and shape.attrib["fill"] != "white":
            found.append(texts[0].text)
    return found


def test_each_step_is_there() -> None:
    pictures = drawn()
    steps = bm.draw(pictures)
    assert isinstance(steps, Frames)
    assert list(steps.drawings) == list(pictures)
    for drawing in steps.drawings.values():
        check_picture(drawing)
        assert drawing.step in steps._repr_html_()
        assert re.sub("<style>.*?</style>\n", "", drawing.svg, flags=re.S) in drawing.step
    # the first step, and all that was drawn before, is as it was
    assert steps.drawings["a new filesystem"] == pictures["a new filesystem"]
    assert not any(filled(one) for one in pictures.values())
    parts = Parts(steps._repr_html_())
    assert [label.strip() for label in parts.labels] == [
        "1. a new filesystem", "2. 20 files", "3. a snapshot",
    ]  # fmt: skip
    assert parts.tags.count("svg") == 3
    assert "script" not in parts.tags


@pytest.mark.claim("Steps of a picture are the same bytes each time, in a notebook and as a page.")
def test_same_bytes(tmp_path: Path) -> None:
    steps = [bm.draw(drawn()) for _ in range(2)]
    assert steps[0]._repr_html_() == steps[1]._repr_html_()
    for number, one in enumerate(steps):
        one.save(tmp_path / f"{number}.html")
    pages = [(tmp_path / f"{number}.html").read_text() for number in range(2)]
    assert pages[0] == pages[1]
    assert steps[0]._repr_html_() in pages[0]


@pytest.mark.claim("Tree blocks that are filled in a step are those that the step before lacks.")
@settings(max_examples=15, deadline=None)
@given(files=st.integers(1, 120), changed=st.lists(st.integers(0, 119), min_size=1, max_size=3))
def test_what_is_new_is_filled(files: int, changed: list[int]) -> None:
    with build(files, []) as fs:
        blocks, pictures = [], {}
        for number in [None, *changed]:
            if number is not None:
                fs.chmod(f"d/file{number % files}", 0o700 + len(blocks))
                fs.sync()
            blocks.append({block.logical for block in fs.tree(5).blocks()})
            pictures[f"step {len(blocks)}"] = bm.draw(fs.tree(5), blocks=1000)
        steps = bm.draw(pictures)
    _, *later = steps.drawings.values()
    for (before, after), drawing in zip(pairwise(blocks), later, strict=True):
        check_picture(drawing)
        assert {address(title) for title in filled(drawing)} == after - before
        # who cannot see it is told
        assert f"filled: {filled(drawing)[0]}" in drawing.description


def test_a_block_that_becomes_shared_is_not_new() -> None:
    snapshot = list(bm.draw(drawn()).drawings.values())[-1]
    shared = [box.title for box in snapshot.boxes if box.title.endswith("in 2 trees")]
    assert shared and not set(shared) & set(filled(snapshot))
    assert "snap" in " ".join(filled(snapshot))


def test_the_same_twice_has_nothing_new() -> None:
    (picture,) = list(drawn().values())[:1]
    steps = bm.draw({"one": picture, "other": picture})
    assert steps.drawings["other"] == picture


def test_captions_are_text(tmp_path: Path) -> None:
    caption = '<script>&"\x1b[31m\udcff'
    with bm.create("256M", seed=1) as fs:
        fs.create_subvolume("<b>sub")
        fs.sync()
        steps = bm.draw({caption: bm.draw(fs.subvolume("<b>sub"))})
    steps.save(tmp_path / "page.html")
    for text in (steps._repr_html_(), (tmp_path / "page.html").read_text()):
        parts = Parts(text)
        assert parts.labels == [' 1. <script>&"\\x1b[31m\\xff\n']
        assert not {"script", "b"} & set(parts.tags)
    assert repr(steps) == "Frames('\"<b>sub\" (subvolume 256), in 1 step')"


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ({}, ValueError, "an empty dict"),
        ({"step": 5}, TypeError, "mapping of str to Drawing"),
        ({5: drawn()["20 files"]}, TypeError, "mapping of str to Drawing"),
    ],
)
def test_what_are_no_steps(what: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        bm.draw(what)


@pytest.mark.claim(
    "A keyboard goes through the steps of a picture; one is seen at a time, at 1280 and at 400 "
    "pixels, and axe finds nothing.",
    "Chromium",
)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_keyboard_goes_through_the_steps(width: int, browser: Any, tmp_path: Path) -> None:
    pictures = drawn()
    path = tmp_path / "steps.html"
    bm.draw(pictures).save(path)
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: said.append(request.url))
    page.goto(path.as_uri())
    press = page.keyboard.press
    press("Tab")
    for key, seen in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("Enter", 1)):
        press(key)
        assert page.evaluate(SEEN) == [[number == seen for number in range(3)]], key
        label = page.evaluate("document.activeElement.parentElement.textContent").strip()
        assert label == f"{seen + 1}. {list(pictures)[seen]}"
        assert page.evaluate("document.documentElement.scrollWidth") == width
    press("Tab")
    # the picture itself, to be moved where it is wider than the page
    assert page.evaluate("document.activeElement.querySelectorAll('svg').length") == 1
    assert said == [path.as_uri()]
    for number in range(3):
        page.locator("label").nth(number).click()
        assert page.evaluate(SEEN)[0][number]
        assert violations(page) == []
    page.close()


def test_two_of_the_same_are_apart_and_without_style_all_is_seen(browser: Any) -> None:
    shown = bm.draw(drawn())._repr_html_()
    page = browser.new_page()
    page.set_content(shown + shown)
    assert page.evaluate(SEEN) == [[True, False, False]] * 2
    page.locator("label").nth(4).click()
    assert page.evaluate(SEEN) == [[True, False, False], [False, True, False]]
    page.set_content(re.sub("<style>.*?</style>", "", shown, flags=re.DOTALL))
    assert page.evaluate(SEEN) == [[True, True, True]]
    page.close()
