# SPDX-License-Identifier: GPL-2.0-only
"""Drawings: what is in them is what is in the trees, once; boxes do not overlap; same bytes."""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.charts import narrow_charts
from btrfs_model.cli import run
from btrfs_model.drawings.picture import CHAR, Drawing
from btrfs_model.ondisk.keys import ItemType

SVG = "{http://www.w3.org/2000/svg}"
CONTRASTS = """() => {
    const light = colour => {
        const parts = colour.match(/[\\d.]+/g).map(part => part / 255).map(part =>
            part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const found = [];
    for (const svg of document.querySelectorAll("svg")) {
        if (!svg.checkVisibility()) continue;
        const paper = svg.querySelector("rect");
        for (const text of svg.querySelectorAll("text")) {
            const box = text.parentElement.querySelector(":scope > rect") || paper;
            const behind = getComputedStyle(box);
            const [low, high] = [light(behind.fill), light(getComputedStyle(text).fill)].sort(
                (one, other) => one - other);
            found.push([(high + 0.05) / (low + 0.05), behind.fill, text.textContent]);
        }
    }
    return found;
}"""
LIGHT = {"rgb(255, 255, 255)", "rgb(232, 235, 240)"}
DARK = {"rgb(20, 24, 31)", "rgb(42, 48, 59)"}
LOG = "kernel/log/nd/nd_20_5/5.10/crash2"


def address(title: str) -> int | None:
    found = re.match(r"(?:leaf|node) ([\d,]+), generation", title)
    return int(found[1].replace(",", "")) if found else None


def check_picture(drawing: Drawing) -> None:
    """What holds for each of them."""
    for one, other in combinations(drawing.boxes, 2):
        apart = (
            one.x + one.width <= other.x
            or other.x + other.width <= one.x
            or one.y + one.height <= other.y
            or other.y + other.height <= one.y
        )
        assert apart, (one, other)
    tree = ElementTree.fromstring(drawing.svg)
    assert tree.attrib["role"] == "img"
    assert [one.text for one in tree[:2]] == [drawing.title, drawing.description]
    _, _, width, height = map(float, tree.attrib["viewBox"].split())
    for box in drawing.boxes:
        assert box.x >= 0 and box.x + box.width <= width
        assert box.y >= 0 and box.y + box.height <= height
        assert all(len(text) * CHAR <= box.width for text in box.rows)
    for link in drawing.links:
        assert link.source in drawing.boxes
        assert link.target in drawing.boxes
        assert link.row is None or link.row < len(link.source.rows)


def build(files: int, changed: list[int], nodesize: int = 4096) -> bm.WritableFilesystem:
    fs = bm.create(256 << 20, seed=1, nodesize=nodesize)
    fs.mkdir("d")
    fs.create_files("d", [f"file{number}" for number in range(files)])
    fs.snapshot("", "one")
    for number in changed:
        fs.chmod(f"d/file{number % files}", 0o600)
    fs.snapshot("", "two")
    fs.sync()
    return fs


@pytest.mark.claim("Drawn trees have each of their blocks once, and an arrow for each pointer.")
@settings(max_examples=15, deadline=None)
@given(files=st.integers(1, 250), changed=st.lists(st.integers(0, 249), max_size=4))
def test_blocks_that_are_shared_stand_once(files: int, changed: list[int]) -> None:
    with build(files, changed) as fs:
        trees = [fs.subvolume(name).tree for name in ("", "one", "two")]
        drawing = bm.draw(trees, blocks=1000)
        check_picture(drawing)
        drawn = [place for box in drawing.boxes if (place := address(box.title))]
        blocks = [{block.logical for block in tree.blocks()} for tree in trees]
        assert sorted(drawn) == sorted(set.union(*blocks))
        for box in drawing.boxes:
            owners = sum(address(box.title) in some for some in blocks)
            assert (f"in {owners} trees" in box.title) == (owners > 1)
        pointers = {
            (block.parent, block.logical)
            for tree in trees
            for block in tree.blocks()
            if block.parent
        }
        arrows = [
            (address(link.source.title), address(link.target.title))
            for link in drawing.links
            if address(link.source.title)
        ]
        assert sorted(arrows) == sorted(pointers)
        assert bm.draw(trees, blocks=1000).svg == drawing.svg


@settings(max_examples=15, deadline=None)
@given(most=st.integers(1, 60), changed=st.lists(st.integers(0, 999), max_size=3))
def test_what_is_folded_is_counted(most: int, changed: list[int]) -> None:
    with build(1000, changed) as fs:
        trees = [fs.subvolume(name).tree for name in ("one", "two")]
        drawing = bm.draw(trees, blocks=most)
        check_picture(drawing)
        shown = {address(box.title) for box in drawing.boxes} - {None}
        folded = sum(
            int(re.search(r"([\d,]+) more (?:leaves|nodes)", box.title)[1].replace(",", ""))
            for box in drawing.boxes
            if box.is_fold
        )
        every = {block.logical for tree in trees for block in tree.blocks()}
        assert shown <= every
        if all(tree.level == 1 for tree in trees):
            assert len(shown) + folded == len(every)


def test_a_filesystem_of_ten_files() -> None:
    with build(10, [3], 16384) as fs:
        drawing = bm.draw(fs)
        check_picture(drawing)
        drawn = [place for box in drawing.boxes if (place := address(box.title))]
        every = {block.logical for tree in fs.trees.values() for block in tree.blocks()}
        assert sorted(drawn) == sorted(every)
        # the superblock points at two trees, items of the root tree at all others
        to_names = [link for link in drawing.links if address(link.target.title) is None]
        assert len(to_names) == len(fs.trees)
        for link in to_names[2:]:
            assert "ROOT_ITEM" in link.source.rows[link.row]


def test_a_log_beside_its_subvolume() -> None:
    with bm.open(bm.sample(LOG)) as fs:
        ((number, log),) = fs.log_trees.items()
        drawing = bm.draw([fs.subvolume(number), log])
        check_picture(drawing)
        assert any("DIR_LOG_INDEX" in row for box in drawing.boxes for row in box.rows)
        check_picture(bm.draw(fs))


def leaves(fs: bm.Filesystem) -> Iterator[memoryview]:
    for tree in fs.trees.values():
        for block in tree.blocks():
            yield fs.image.block(block.logical)


@pytest.mark.parametrize("sample", ["kernel/features/nodesize-65536", LOG])
def test_a_block_is_drawn_to_scale(sample: str) -> None:
    with bm.open(bm.sample(sample)) as fs:
        for block in leaves(fs):
            drawing = bm.draw(block)
            check_picture(drawing)
            height = max(bar.y + bar.height for bar in drawing.bars)
            if block[100] == 0:
                # without a gap from the first byte to the last
                at = 0.0
                for bar in sorted(drawing.bars, key=lambda bar: bar.y):
                    assert bar.y == pytest.approx(at, abs=1e-6)
                    at = bar.y + bar.height
                assert at == pytest.approx(height)
                used = sum(bar.height for bar in drawing.bars if "free" not in bar.title)
                free = int(
                    re.search(r"free: ([\d,]+)", drawing.boxes[-1].title)[1].replace(",", "")
                )
                assert used / height * len(block) == pytest.approx(len(block) - free, abs=1)


def test_commands_stand_beside_their_items() -> None:
    with build(30, [3, 17]) as fs:
        drawing = bm.draw(bm.send(fs, "two", parent="one", explain=True))
        check_picture(drawing)
        inode = fs.subvolume("two").resolve(b"d/file3")
        (link,) = [one for one in drawing.links if one.source.title == f"({inode} INODE_ITEM 0)"]
        assert link.source.rows == ["changed"]
        assert link.target.rows[0] == "chmod d/file3"
        check_picture(bm.draw(bm.send(fs, "two", explain=True)))


@pytest.mark.claim(
    "Drawings fit into pages of 400 pixels and more, and are dark where the page is or its reader "
    "wants it; all text has a contrast of 4.5 to 1, and no line to an item's data crosses another.",
    "Chromium",
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_drawings_on_a_page(browser: Any, width: int, scheme: str) -> None:
    with build(30, [3, 17], 16384) as fs:
        block = fs.image.block(fs.subvolume("one").tree.bytenr)
        sent = bm.send(fs, "two", parent="one", explain=True)
        drawings = [bm.draw(fs), bm.draw(block), bm.draw(sent)]
        steps = bm.draw({"a": bm.draw(fs.subvolume("one")), "b": bm.draw(fs.subvolume("two"))})
    for theme in ("", ' data-theme="light"', ' data-theme="dark"'):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        body = "".join(one._repr_html_() for one in (*drawings, steps))
        page.set_content(f"<!DOCTYPE html><html lang=en{theme}><title>x</title>{body}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        seen = page.evaluate(CONTRASTS)
        assert len(seen) > 50
        assert [one for one in seen if one[0] < 4.5] == []
        is_dark = theme.endswith('dark"') or (not theme and scheme == "dark")
        assert {one[1] for one in seen} <= (DARK if is_dark else LIGHT)
        page.close()


def test_no_line_of_a_leaf_crosses_another() -> None:
    with build(30, []) as fs:
        for block in leaves(fs):
            lines = sorted(bm.draw(block).lines, key=lambda line: line.y1)
            ends = [line.y2 for line in lines]
            assert ends == sorted(ends)


def test_hostile_names_are_text() -> None:
    with bm.create(128 << 20, seed=1) as fs:
        fs.create(b"<script>&\x1b[31m\xff")
        fs.snapshot("", "s")
        fs.sync()
        drawing = bm.draw(fs.subvolume("s"))
        check_picture(drawing)
        texts = "".join(ElementTree.fromstring(drawing.svg).itertext())
        assert r"<script>&\x1b[31m\xff" in texts
        check_picture(bm.draw(bm.send(fs, "s", explain=True)))


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        (b"short", bm.BtrfsModelError, "5 bytes are no tree block"),
        (bytes(100) + b"\0" * 4, bm.BtrfsModelError, None),
        (b"\xff" * 4096, bm.BtrfsModelError, "4096 bytes are no tree block of"),
        ([], ValueError, "an empty list"),
        ([b"x"], TypeError, "sequence of Subvolume or Tree"),
        (5, TypeError, "not int"),
    ],
)
def test_what_cannot_be_drawn(what: object, error: type[Exception], says: str | None) -> None:
    if says is None:
        bm.draw(what)  # an empty leaf of a few bytes
        return
    with pytest.raises(error, match=re.escape(says)):
        bm.draw(what)


def test_a_send_without_causes() -> None:
    with build(3, []) as fs, pytest.raises(bm.BtrfsModelError, match="explain=True"):
        bm.draw(bm.send(fs, "one"))


def test_items_of_all_samples_have_a_line() -> None:
    """Also items of types that say nothing of themselves, and those that are damaged."""
    from btrfs_model.drawings.labels import item
    from btrfs_model.ondisk.keys import Key

    for kind in range(256):
        assert item(Key(1, kind, 2), b"").startswith("(")
    assert item(Key(256, ItemType.DIR_INDEX, 2), b"\xff" * 40) == "(256 DIR_INDEX 2)"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "disk.img"
    with build(20, [1]) as fs:
        fs.save(path)
        block = fs.subvolume("one").tree.bytenr
    for arguments in ([], ["one", "two"], ["--block", str(block)], ["one", "--blocks", "3"]):
        picture = tmp_path / "picture.svg"
        assert run(["draw", str(path), *arguments, "-o", str(picture)]) == 0
        assert run(["draw", str(path), *arguments]) == 0
        assert capsys.readouterr().out == picture.read_text()
        ElementTree.parse(picture)
    for arguments, says in (
        (["one", "--block", "1"], "do not go together"),
        (["--log", "one"], "has no log"),
        (["--block", "1"], "disk.img"),
        (["--blocks", "0"], "--blocks"),
    ):
        assert run(["draw", str(path), *arguments])
        assert says in capsys.readouterr().err


def test_roots_in_a_fold_have_a_place() -> None:
    """The relocation trees of a balance under way are so many that their roots are folded."""
    with bm.open(bm.sample("kernel/balance/relocation")) as fs:
        drawing = bm.draw(fs)
    check_picture(drawing)
    folds = [box for box in drawing.boxes if box.is_fold]
    assert any(link.target in folds and link.row is None for link in drawing.links)


@pytest.mark.claim("Keys in drawings are named as `dump-tree` and btrfs-progs name them.")
def test_keys_are_named_as_by_dump_tree(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with bm.create(256 << 20, seed=1) as fs:
        fs.sync()
        fs.save(tmp_path / "image")
    run(["dump-tree", str(tmp_path / "image")])
    dumped = set(re.findall(r"key \((.*?)\) item", capfd.readouterr().out))
    with bm.open(tmp_path / "image") as fs:
        boxes = bm.draw(fs).boxes
    drawn = {key for box in boxes for row in box.rows for key in re.findall(r"^\((.*?)\)", row)}
    assert {"DEV_ITEMS DEV_ITEM 1", "1 DEV_EXTENT 13631488"} < drawn
    assert drawn <= dumped


@pytest.mark.claim("The drawing in README is what `btrfs-model draw --sample` draws.")
def test_the_drawing_of_readme(tmp_path: Path) -> None:
    assert run(["draw", "--sample", "-o", str(tmp_path / "sample.svg")]) == 0
    shown = corpus.PROJECT / "docs" / "sample.svg"
    assert shown.read_bytes() == (tmp_path / "sample.svg").read_bytes()
    # and on a telephone: as large as it is, one block below the other
    with bm.open(corpus.image("send/send-utimes/n200")) as fs, narrow_charts():
        drawing = bm.draw([fs.subvolume(name) for name in ("snap1", "snap2")])
        check_picture(drawing)
        assert (corpus.PROJECT / "docs/sample-narrow.svg").read_text() == drawing.svg
    assert max(box.x + box.width for box in drawing.boxes) < 368
    for link in drawing.links:
        assert link.source.y + link.source.height < link.target.y
        assert link.source.x < link.target.x
