# SPDX-License-Identifier: GPL-2.0-only
"""The page of `explore` in a browser: the same bytes and fields, and all ways through it."""

import base64
import io
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import corpus
import nbformat
import pytest
from browser import CUT_OFF, WIDTHS, views, violations
from damage import Broken
from disks import GALLERY
from hypothesis import given, settings
from hypothesis import strategies as st
from progs import needs_progs

import btrfs_model as bm
from btrfs_model.backref.api import iterate_extent_inodes
from btrfs_model.base.printable import printable
from btrfs_model.cli import run
from btrfs_model.drawings.explore import Page, explore
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.keys import ItemType, item_type_name
from btrfs_model.ondisk.structs import HEADER, ITEM, KEY_PTR
from btrfs_model.questions.dumptree.text import BlockText
from btrfs_model.questions.dumptree.trees import pointed_at, rooted_trees
from btrfs_model.volume.compare import Change, compare_trees
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

LOG = "kernel/log/nd/nd_20_5/5.10/crash2"
NAMES = (
    b"<img src=x onerror=document.title='run'>", b"<script>document.title='run'<!--",
    b"a\nb\x1b[31m", b"\xff\xfe", "\u202egpj.exe".encode(), b"&lt;b&gt;", b"sel\xc3\xa9\xc3",
)  # fmt: skip

ROWS = """(tables => tables.flatMap(one =>
    [...one.querySelectorAll("tbody tr")].map(row =>
        [...row.cells].map(cell => cell.textContent))))(
    [...document.querySelectorAll("#shown table")])"""

BROKEN = """() => [
    ...document.querySelectorAll("#shown th[scope], #shown td:nth-child(n+4)"),
].filter(cell => {
    if (cell.closest("thead")?.clientWidth === 1) return false;
    const range = document.createRange(), first = cell.firstChild;
    const text = first?.tagName === "A" ? first.firstChild : first;
    if (!text || text.nodeType !== Node.TEXT_NODE) return false;
    const words = [...text.data.matchAll(/[^\\s,]+/g)];
    return words.some(word => {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        return range.getClientRects().length > 1;
    });
}).map(cell => cell.textContent)"""
"""Cells in which a word or a number is broken in two, but for a head that is hidden."""


PACKED = """addresses => Promise.all(addresses.map(async at => {
    const block = await blockAt(BigInt(at));
    let text = "";
    for (let from = 0; from < block.length; from += 16384)
        text += String.fromCharCode(...block.subarray(from, from + 16384));
    return btoa(text);
}))"""
"""Bytes of blocks in base 64."""

SHOWN_ITEMS = """async items => {
    const found = [], textOf = id => document.getElementById(id)?.textContent;
    for (const [tree, at, slot] of items) {
        await showItem(treeOf(tree) || shown.trees[0], BigInt(at), slot);
        const last = [...document.querySelectorAll("#shown table")].at(-1);
        const rows = [...last.querySelectorAll("tbody tr")];
        found.push([textOf("text"), textOf("hex"),
                    rows.map(row => [...row.cells].map(cell => cell.textContent))]);
    }
    return found;
}"""
"""The dump of each item, its bytes, and the table of its fields."""


NOTHING_IS_MISSING = (
    "![...document.querySelectorAll('#shown p')].some(one => one.textContent === '…')"
)


class Shown:
    """A page in a browser; the test fails where the page has an error or asks for anything."""

    def __init__(
        self, browser: Any, page: Page, path: Path, width: int = 1280, at: str = ""
    ) -> None:
        page.save(path)
        # for axe, which comes as a script
        context = browser.new_context(
            bypass_csp=True, viewport={"width": width, "height": 900}, timezone_id="UTC"
        )
        self.page, self.said = context.new_page(), list[str]()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.said.append(request.url))
        self.page.goto(path.as_uri() + at)
        self.wait()
        assert self.said.pop(0).partition("#")[0] == path.as_uri()

    def wait(self) -> None:
        self.page.wait_for_selector("body:not([aria-busy])")

    def go(self, route: str) -> None:
        """Follow a link to somewhere in the page."""
        self.page.evaluate("route => go(route)", route)
        self.page.evaluate("document.body.setAttribute('aria-busy', 'true')")
        self.page.evaluate("route => showRoute(route)", route)
        self.wait()

    def look(self, kind: str, text: str, tree: str = "") -> None:
        """Use the form."""
        self.page.select_option("#kind", kind)
        self.page.fill("#wanted", text)
        if tree:
            self.page.select_option("#in", tree)
        self.page.evaluate("document.body.setAttribute('aria-busy', 'true')")
        self.page.click("#search button")
        self.wait()

    def click(self, selector: str) -> None:
        self.page.evaluate("document.body.setAttribute('aria-busy', 'true')")
        self.page.click(selector)
        self.wait()

    @property
    def title(self) -> str:
        return str(self.page.text_content("#title"))

    def close(self) -> None:
        self.page.wait_for_function(NOTHING_IS_MISSING)
        assert self.said == []
        self.page.context.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Shown]]:
    opened = []

    def start(what: bm.Filesystem | Page, *args: Any, **more: Any) -> Shown:
        page = what if isinstance(what, Page) else explore(what, *args)
        opened.append(Shown(browser, page, tmp_path / f"page{len(opened)}.html", **more))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def ten_files() -> bm.WritableFilesystem:
    """The filesystem of the course, and two snapshots."""
    fs = bm.create("256M", seed=1)
    fs.mkdir("docs")
    for number in range(9):
        fs.create(f"docs/note{number}")
        fs.write(f"docs/note{number}", 0, b"hello " * 10 * number)
    fs.create("large")
    fs.write("large", 0, b"x" * 100_000)
    fs.snapshot("", "snap1")
    fs.write("docs/note3", 0, b"changed")
    fs.create("docs/new")
    fs.clone_range("large", "docs/new", 0, 0, 40_960)
    fs.unlink("docs/note4")
    fs.snapshot("", "snap2")
    fs.sync()
    return fs


def blocks_of(image: Image) -> dict[int, Tree]:
    """All tree blocks, with a tree that has them."""
    found: dict[int, Tree] = {}
    for root in [*pointed_at(image), *rooted_trees(image)]:
        for block in root.tree.blocks():
            found.setdefault(block.logical, root.tree)
    return found


def images() -> list[str]:
    """Of each feature, and some with logs."""
    features = [name for name in corpus.images("features") if "two-devices" not in name]
    return [*features, *corpus.images("log")[::40], *corpus.images("send")[::60]]


# ------------------------------------------------------------------------------------- a map --

TAKEN = """[...document.querySelectorAll('#shown h3')].map(one =>
    [one.textContent, one.nextElementSibling.textContent])"""
SQUARES = "[...document.querySelectorAll('.map [data-route]')].map(one => one.dataset.route)"


def taken(fs: bm.Filesystem) -> dict[int, int]:
    """What block groups say, by their address."""
    tree = fs.tree(11 if 11 in fs.trees else 2)
    return {
        item.key.objectid: int.from_bytes(item.data[:8], "little")
        for item in tree.items()
        if item.key.type == ItemType.BLOCK_GROUP_ITEM
    }


@pytest.mark.claim("The map of `explore` has all that block groups say is taken.")
@pytest.mark.one_of(5)
@pytest.mark.parametrize("name", [one for one in images() if not one.startswith("log/")])
def test_map(name: str, show: Any) -> None:
    with bm.open(corpus.image(name)) as fs:
        one = show(fs)
        one.go("map")
        said = [
            [int(re.findall(r"[\d,]+", text)[0 if number else -1].replace(",", ""))
             for number, text in enumerate(row)]
            for row in one.page.evaluate(TAKEN)
        ]  # fmt: skip
        assert dict(said) == taken(fs)
        blocks = blocks_of(fs.image)
        for route in one.page.evaluate(SQUARES):
            kind, _, address = route.partition("/")
            assert kind == ("block" if int(address) in blocks else "address")
        one.click(".map [data-route]")
        assert one.title.startswith(("Leaf", "Node"))


def test_map_of_a_crash(show: Any, tmp_path: Path) -> None:
    with bm.create("256M", seed=1) as fs:
        fs.create("a")
        fs.sync()
        fs.write("a", 0, b"now")
        fs.fsync("a")
        fs.save_crash(tmp_path / "crashed.img")
    with bm.open(tmp_path / "crashed.img") as crashed:
        one = show(crashed)
        one.go("map")
        assert "logs, relocation" in str(one.page.text_content("#shown"))


# ------------------------------------------------------------------------- folders and files --


def all_rows(one: Shown) -> list[list[str]]:
    """The rows of a table that grows."""
    more = one.page.locator("#shown button", has_text="more")
    while more.is_visible():
        more.click()
        one.page.wait_for_function(
            "![...document.querySelectorAll('#shown button')].some(one => one.disabled)"
        )
    return list(one.page.evaluate(ROWS))


@pytest.mark.claim("Folders of `explore` list what the model lists, and files their extents.")
@pytest.mark.one_of(5)
@pytest.mark.parametrize("name", [one for one in images() if not one.startswith("log/")])
def test_files(name: str, show: Any) -> None:
    with bm.open(corpus.image(name)) as fs:
        one = show(fs)
        subvolume = fs.subvolume(fs.subvolume_ids[-1])
        listing = fs.listing(subvolume.id, content=False)
        folders = listing[listing["mode"] & 0o170000 == 0o040000]
        for folder in folders.itertuples():
            if folder.subvolume not in (0, subvolume.id):
                continue
            one.go(f"files/{subvolume.id}/{folder.ino}")
            entries = list(subvolume.readdir(folder.ino))
            rows = all_rows(one)
            assert [row[0] for row in rows] == [printable(entry.name) for entry in entries]
            inodes = [entry.location.objectid for entry in entries if entry.location.type == 1]
            sizes = [f"{subvolume.inode(inode).size:,}" for inode in inodes]
            assert [row[2] for row in rows if row[3].startswith("inode ")] == sizes
        files = listing[listing["mode"] & 0o170000 == 0o100000]["ino"].unique()
        for inode in random.Random(name).sample(list(files), min(len(files), 6)):
            one.go(f"files/{subvolume.id}/{inode}")
            said = [int(row[0].replace(",", "")) for row in all_rows(one)]
            items = subvolume.tree.items((int(inode), ItemType.EXTENT_DATA, 0))
            there = []
            for item in items:
                if item.key[:2] != (inode, ItemType.EXTENT_DATA):
                    break
                there.append(item.key.offset)
            assert said == there


def test_the_way_to_a_file(show: Any) -> None:
    with bm.create("256M", seed=1) as fs:
        fs.create_subvolume("home")
        fs.mkdir("home/docs")
        fs.create("home/docs/letter")
        fs.write("home/docs/letter", 0, b"x" * 9000)
        fs.link("home/docs/letter", "home/copy")
        fs.sync()
        one = show(fs)
        one.go("files")
        for step in ("home", "docs", "letter"):
            one.click(f"#shown tbody a:text-is('{step}')")
        assert one.title == "File"
        text = str(one.page.text_content("#shown"))
        assert "Its names: copy, letter" in text and "9,000 bytes" in text
        one.click("#shown p a:has-text('home')")
        assert one.title == "Folder" and [row[0] for row in all_rows(one)] == ["docs", "copy"]


# ------------------------------------------------------------------------- bytes and fields --


@pytest.mark.claim("A page of `explore` has all bytes of all tree blocks.")
@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", images())
def test_blocks(name: str, show: Any) -> None:
    with bm.open(corpus.image(name)) as fs:
        one = show(fs)
        blocks = blocks_of(fs.image)
        assert set(blocks) == set(
            map(int, one.page.evaluate("[...shown.places.keys()].map(String)"))
        )
        some = list(blocks)
        for at in range(0, len(some), 64):
            packed = one.page.evaluate(PACKED, list(map(str, some[at : at + 64])))
            for address, text in zip(some[at:], packed, strict=False):
                assert base64.b64decode(text) == bytes(fs.image.block(address))


def item_text(image: Image, tree: Tree, address: int, slot: int) -> str:
    """An item as `dump-tree` shows it."""
    texts = []
    for slots in ([slot], []):
        out = io.BytesIO()
        shown = {"csum_headers": True, "csum_items": True, "escape_names": True}
        blocks = BlockText(image, out, **shown)
        blocks.block(tree, address, slots)
        blocks.flush()
        texts.append(out.getvalue().decode())
    return texts[0].removeprefix(texts[1])


def items_of(image: Image) -> list[tuple[Tree, int, int]]:
    found = []
    for address, tree in blocks_of(image).items():
        head = HEADER.unpack(image.block(address))
        if not head.level:
            found += [(tree, address, slot) for slot in range(head.nritems)]
    return found


def check_item(
    fs: bm.Filesystem, place: tuple[Tree, int, int], text: str, hexes: str, rows: list[list[str]]
) -> None:
    tree, address, slot = place
    assert text == item_text(fs.image, tree, address, slot)
    item = Tree.item(fs.image.block(address), slot)
    if item.data:
        dump = "".join(line[5:54] for line in hexes.splitlines())
        assert bytes.fromhex(dump) == bytes(item.data)
    # each field stands beside its bytes, with a value that the dump has too
    for _, value, *_ in rows:
        assert all(word in text for word in value.split())
    copies = fs.image.copies(address)
    for _, _, shown, at, on_device, _ in rows:
        if copies and on_device[0].isdigit() and not shown.endswith("…"):
            number = int(on_device.replace(",", ""))
            wanted = bytes(fs.image.block(address)[int(at) : int(at) + 4])
            assert bytes(fs.image.view[number : number + len(wanted)]) == wanted
    layout = LAYOUTS.get(item.key.type)
    if layout is not None and len(item.data) >= layout.size:
        for name, _, shown, *_ in rows:
            width, at = _place(layout, name)
            if width and not shown.endswith("…"):
                assert bytes.fromhex(shown) == bytes(item.data[at : at + width]), name


LAYOUTS: dict[int, Any] = {
    ItemType.INODE_ITEM: structs.INODE_ITEM, ItemType.ROOT_ITEM: structs.ROOT_ITEM,
    ItemType.DEV_ITEM: structs.DEV_ITEM, ItemType.DEV_EXTENT: structs.DEV_EXTENT,
    ItemType.BLOCK_GROUP_ITEM: structs.BLOCK_GROUP_ITEM,
}  # fmt: skip


def _place(layout: Any, name: str) -> tuple[int, int]:
    kind, at = layout.dtype, 0
    for part in name.split("."):
        if part not in (kind.fields or {}):
            return 0, 0
        kind, more = kind.fields[part][:2]
        at += more
    return kind.itemsize, at


@pytest.mark.more
@pytest.mark.claim(
    "`explore` shows the fields of 1,000 random items as `dump-tree` does, beside their bytes."
)
def test_fields_of_random_items(show: Any) -> None:
    chosen, names = random.Random(1), images()[::3]
    most, seen = 1000 if corpus.MORE else 300, 0
    for name in names:
        with bm.open(corpus.image(name)) as fs:
            one = show(fs)
            items = items_of(fs.image)
            some = chosen.sample(items, min(len(items), most // len(names) + 20))
            seen += len(some)
            places = [[str(tree.objectid), str(at), slot] for tree, at, slot in some]
            for item, shown in zip(some, one.page.evaluate(SHOWN_ITEMS, places), strict=True):
                check_item(fs, item, *shown)
    assert seen >= most


@needs_progs
@pytest.mark.claim("What `explore` shows of a tree is what btrfs-progs shows.", judge="progs")
@pytest.mark.parametrize("name", ["features/quota", "features/zstd", "features/csum-sha256"])
def test_beside_btrfs_progs(name: str, show: Any) -> None:
    path = corpus.image(name)
    with bm.open(path) as fs:
        one = show(fs)
        for tree in (2, 5, 1):
            command = ["btrfs", "inspect-internal", "dump-tree", "--csum-headers", "--csum-items",
                       "-t", str(tree), path]  # fmt: skip
            text = subprocess.run(
                command,
                capture_output=True,
                check=True,
                env={"TZ": "UTC", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            ).stdout
            shown = one.page.evaluate(
                """async id => {
                    let text = "";
                    async function all(address) {
                        const block = await blockAt(address);
                        text += textOf(headPieces(block));
                        for (let slot = 0; slot < countOf(block); slot++) {
                            text += textOf(entryPieces(block, slot));
                            if (!levelOf(block)) text += textOf(payloadPieces(block, slot));
                        }
                        for (let slot = 0; levelOf(block) && slot < countOf(block); slot++)
                            await all(childAt(block, slot));
                    }
                    await all(treeOf(id).root);
                    return text;
                }""",
                str(tree),
            )
            body = text.decode("utf-8", "replace").split("\n", 2)[2]
            assert shown == body.partition("total bytes ")[0]


FIELDS = """async items => {
    const found = [];
    for (const [at, slot] of items) {
        const block = await blockAt(BigInt(at));
        const pieces = [entryPieces(block, slot), payloadPieces(block, slot)];
        found.push(pieces.map(some => some.filter(piece => piece.field && piece.at >= 0)
                         .map(piece => [fieldName(piece), piece.text, piece.how])));
    }
    return found;
}"""
"""The fields of items, of their headers and payloads: name, text, and how it is written."""


def dumped_items(paths: list[Path], leaves: list[int]) -> dict[tuple[int, int], str]:
    """The items of leaves as btrfs-progs writes them, by leaf and slot."""
    blocks = [word for leaf in leaves for word in ("-b", str(leaf))]
    command = ["btrfs", "inspect-internal", "dump-tree", "--csum-items", *blocks, *paths]
    done = subprocess.run(
        command,
        capture_output=True,
        check=True,
        env={"TZ": "UTC", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    found, leaf = dict[tuple[int, int], str](), 0
    for part in re.split(r"^(?=leaf \d+ items|\titem )", os.fsdecode(done.stdout), flags=re.M):
        if head := re.match(r"leaf (\d+) items", part):
            leaf = int(head[1])
        elif item := re.match(r"\titem (\d+) ", part):
            found[leaf, int(item[1])] = part
    return found


NAMES_IN_DUMPS = {"nlink": "links", "block_group": "block group"}
"""What a dump calls some fields."""


@needs_progs
@pytest.mark.claim(
    "Fields of 1,000 random items of the gallery are in `explore` what `dump-tree` of btrfs-progs "
    "writes.",
    judge="progs",
)
def test_fields_of_the_gallery(show: Any, tmp_path: Path) -> None:
    """Of each name as many values as the dump has, in its order, and these."""
    dice, items, compared = random.Random(1), 0, Counter[str]()
    disks = list(GALLERY)
    for number, disk in enumerate(disks):
        folder = tmp_path / disk.name
        folder.mkdir()
        paths = disk.write(folder)
        left = 1000 - items
        with bm.open(paths) as fs:
            there = items_of(fs.image)
            share = -(-left // (len(disks) - number))
            some = dice.sample(there, min(len(there), max(share, 45)))
            one = show(fs)
        places = [[str(at), slot] for _, at, slot in some]
        shown = one.page.evaluate(FIELDS, places)
        dump = dumped_items(paths, sorted({at for _, at, _ in some}))
        for (_, at, slot), (header, payload) in zip(some, shown, strict=True):
            head, _, body = dump[at, slot].partition("\n")
            key, offset, size = (value for _, value, _ in header)
            assert head == f"\titem {slot} {key} itemoff {offset} itemsize {size}"
            said = dict[str, list[str]]()
            for field, value, how in payload:
                # the words beside a number stand behind it, in brackets
                if how not in ("word", "time", "rest", "sums"):
                    said.setdefault(field, []).append(value)
            for field, values in said.items():
                wanted = re.findall(
                    rf"(?<![\w.]){NAMES_IN_DUMPS.get(field, field)}:? (?:0x)?"
                    + (r"(.*)" if field in ("name", "data") else r"(key \([^)]*\)|[^\s(]+)"),
                    body,
                )
                wanted = [printable(os.fsencode(value)) for value in wanted]
                if wanted:
                    compared[field] += 1
                    assert values == wanted, (disk.name, at, slot, field)
            items += 1
    assert items >= 1000
    # not the same few over and over
    assert len([field for field, times in compared.items() if times >= 3]) > 40


@settings(max_examples=300, deadline=None)
@given(name=st.one_of(st.binary(), st.text().map(str.encode), st.sampled_from(NAMES)))
def test_names_are_escaped_as_everywhere(name: bytes, page_of_ten: Shown) -> None:
    """But for characters that are newer than one of the two knows."""
    shown = page_of_ten.page.evaluate("bytes => printable(Uint8Array.from(bytes))", list(name))
    if not re.search(r"\\[uU]", printable(name) + shown):
        assert shown == printable(name)


@pytest.fixture(scope="module")
def page_of_ten(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with ten_files() as fs:
        yield Shown(browser, explore(fs), tmp_path_factory.mktemp("ten") / "page.html")


# -------------------------------------------------------------------------- ways through it --


@pytest.mark.claim("Names with markup, control characters and odd bytes are shown, never run.")
def test_odd_names(show: Any, tmp_path: Path) -> None:
    with bm.create("256M", seed=1) as fs:
        for name in NAMES:
            fs.create(name)
        fs.mkdir("<b>sub")
        fs.snapshot("", "<i>snap")
        fs.sync()
        path = tmp_path / "<b>disk.img"
        fs.save(path)
    with bm.open(path) as fs:
        one = show(fs, "<i>snap")
        title = one.page.title()
        assert "<b>disk.img" in title
        for name in NAMES:
            one.look("path", printable(name), "5")
            inode = fs.subvolume("").resolve(name)
            assert one.title == f"({inode} INODE_ITEM 0)", name
            one.go(f"key/5/{inode}.INODE_REF.0")
            assert f"name: {printable(name)}" in one.page.text_content("#text")
        one.go("stream/0")
        assert one.page.title() == title
        assert (
            one.page.locator("#shown img, #shown b, #shown i, #tree img, script[src]").count() == 0
        )


@pytest.mark.claim("A key is found in `explore` as any of its dumps writes it.")
@pytest.mark.parametrize("name", ["features/quota", "features/zstd", corpus.images("log")[0]])
def test_keys_as_dump_tree_writes_them(name: str, show: Any) -> None:
    with bm.open(corpus.image(name)) as fs:
        one = show(fs)
        wrong = one.page.evaluate("""async () => {
            const wrong = [];
            for (const address of shown.places.keys()) {
                const block = await blockAt(address);
                for (let slot = 0; slot < countOf(block); slot++) {
                    const key = keyAt(block, slot), text = keyText(key);
                    const dumped = `item 3 ${text} itemoff 7`;
                    for (const way of [text, text.slice(4), dumped, key.join(" ")])
                        if (`${keyFrom(way)}` !== `${key}`) wrong.push([way, `${key}`]);
                }
            }
            return wrong;
        }""")
        assert wrong == []


@pytest.mark.claim("What is found in `explore` is in sight in the tree, at 400 pixels and more.")
@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_what_is_found_is_in_sight(width: int, show: Any) -> None:
    with bm.create("256M", seed=1) as fs:
        fs.create_files("", [f"file{number}" for number in range(900)])
        fs.sync()
        one = show(fs, width=width)
        for number in (700, 3, 899, 450):
            one.look("path", f"file{number}", "5")
            row, pane = (
                one.page.locator(of).bounding_box()
                for of in ("[aria-selected=true] > .row", "#left")
            )
            assert pane["y"] <= row["y"] and row["y"] + row["height"] <= pane["y"] + pane["height"]
        # a link to the leaf leaves it unfolded, and a link to its address stays in the tree
        one.page.locator("#shown p a").nth(1).click()
        one.page.wait_for_function(
            "document.querySelector('#title').textContent.startsWith('Leaf')"
        )
        one.wait()
        assert one.page.locator("[aria-selected=true][aria-expanded=true]").count() == 1
        assert "Unused are" in one.page.text_content("#shown")


def test_magic_places_and_words(show: Any) -> None:
    with ten_files() as fs:
        one = show(fs)
        rows = one.page.evaluate(ROWS)
        magic = next(row for row in rows if row[0] == "magic")
        assert magic[1] == "_BHRfS_M" and magic[3:5] == ["64", f"{65_536 + 64:,}"]
        one.look("path", "large", "5")
        rows = {row[0]: row for row in one.page.evaluate(ROWS)}
        assert rows["mode"][1] == "100644" and "octal" in rows["mode"][5]
        # most fields have a word
        assert sum(bool(row[5]) for row in rows.values()) >= 14
        one.go("compare/256/257")
        captions = one.page.evaluate(
            "[...document.querySelectorAll('#shown caption')].map(one => one.textContent)"
        )
        assert captions == [
            "What differs, in the order of keys",
            "What is the same, in the order of keys",
        ]
        changes = one.page.evaluate(ROWS.replace("tables.", "[tables[0]]."))
        assert {row[0] for row in changes} <= {"new", "deleted", "changed"} and changes


def test_unfold_with_the_keyboard(show: Any) -> None:
    with ten_files() as fs:
        one = show(fs)
        press = one.page.keyboard.press
        chosen = partial(one.page.text_content, "[aria-selected=true] > .row")
        one.page.focus("[role=treeitem][tabindex='0']")
        press("Home")
        assert chosen() == "superblock"
        names = [root.key.objectid for root in [*pointed_at(fs.image), *rooted_trees(fs.image)]]
        for _ in range(names.index(5) + 1):
            press("ArrowDown")
        assert chosen() == "fs tree “/”"
        press("ArrowRight")
        one.page.wait_for_selector("[aria-selected=true][aria-expanded=true]")
        press("ArrowRight")
        assert chosen().startswith("(256 INODE_ITEM 0) size ")
        press("ArrowDown")
        assert chosen() == "(256 INODE_REF 256) “..”"
        press("Enter")
        one.page.wait_for_function("document.querySelector('#title').textContent.includes('REF')")
        # the tree keeps the focus
        assert one.page.evaluate("document.activeElement.getAttribute('role')") == "treeitem"
        press("ArrowLeft")
        assert chosen() == "fs tree “/”"
        press("ArrowLeft")
        assert one.page.locator("[aria-selected=true][aria-expanded=false]").count() == 1
        press("End")
        assert chosen() == "data reloc tree"
        assert one.page.locator("[role=treeitem][tabindex='0']").count() == 1


def test_unfold_every_block(show: Any) -> None:
    """With the mouse, a tree of three levels."""
    with bm.create("256M", seed=1, nodesize=4096) as fs:
        fs.create_files("", [f"a rather long name of a file, number {n}" for n in range(3000)])
        fs.sync()
        tree = fs.tree(5)
        assert tree.level == 2
        one = show(fs)
        one.page.evaluate("""async () => {
            const all = [tops.get("5")];
            for (const one of all) for (const child of await unfold(one) || []) all.push(child);
        }""")
        rows = one.page.locator("[role=treeitem]", has_text="fs tree").locator("[role=treeitem]")
        blocks = tree.blocks()
        assert rows.count() == len(blocks) - 1 + sum(b.nritems for b in blocks if not b.level)


def test_search(show: Any) -> None:
    with ten_files() as fs:
        one = show(fs)
        inode = fs.subvolume("snap1").resolve("docs/note4")
        one.look("path", "docs/note4", "256")
        assert one.title == f"({inode} INODE_ITEM 0)"
        one.look("path", "/snap1/docs/note4", "5")
        assert one.title == f"({inode} INODE_ITEM 0)"
        assert "In subvolume 256" in one.page.text_content("#shown")
        one.look("path", "docs/note4", "5")
        assert "no “note4”" in one.page.text_content("#said")
        one.look("inode", str(inode), "256")
        assert one.title == f"({inode} INODE_ITEM 0)"
        one.look("inode", "99999", "5")
        assert "no inode 99999" in one.page.text_content("#said")
        one.look("key", "257 INODE_ITEM 0", "5")
        assert one.title == "(257 INODE_ITEM 0)"
        one.look("key", "(257 2 0)", "5")
        assert one.title.startswith("(257 INODE_REF")
        assert "what comes next" in one.page.text_content("#said")
        one.look("key", "<b>", "5")
        assert "is no number" in one.page.text_content("#said")
        (extent,) = fs.subvolume("").extents("large")
        for address in (extent.disk_bytenr, extent.disk_bytenr + 5000):
            one.look("address", f"{address:,}")
            assert one.title == f"({extent.disk_bytenr} EXTENT_ITEM {extent.disk_num_bytes})"
        one.look("address", hex(fs.tree(5).bytenr))
        assert one.title == f"Leaf {fs.tree(5).bytenr:,} of fs tree “/”"
        one.look("address", "1")
        assert "no extent has the address 1" in one.page.text_content("#said")


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_search_finds_what_the_model_finds(data: st.DataObject, deep: tuple[Any, Shown]) -> None:
    fs, one = deep
    key = data.draw(
        st.tuples(st.integers(250, 1300), st.integers(0, 255), st.integers(0, 2**64 - 1))
    )
    wanted = fs.tree(5).first(key)
    found = one.page.evaluate(
        """async ([o, t, f]) => {
            const item = await found(await search(treeOf("5"), [BigInt(o), t, BigInt(f)]));
            return item && [...item.key, item.address, item.slot].map(String);
        }""",
        [str(key[0]), key[1], str(key[2])],
    )
    assert found == (wanted and list(map(str, [*wanted.key, wanted.block, wanted.slot])))


@pytest.fixture(scope="module")
def deep(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Shown]]:
    """Trees of three levels, two snapshots and clones between files."""
    with bm.create("1G", seed=1, nodesize=4096) as fs:
        fs.create_files("", [f"f{n}" for n in range(1000)])
        for number in range(60):
            fs.write(f"f{number}", 0, bytes([number]) * 20_000)
        fs.snapshot("", "one")
        for number in range(0, 60, 3):
            fs.clone_range(f"f{number}", f"f{number + 500}", 0, 4096, 8192)
            fs.write(f"f{number}", 4096, b"changed" * 600)
        fs.snapshot("", "two")
        fs.unlink("f7")
        fs.sync()
        yield (
            fs,
            Shown(browser, explore(fs, "two", "one"), tmp_path_factory.mktemp("deep") / "p.html"),
        )


@pytest.mark.claim("`explore` finds all file extents that refer to an extent, in every tree.")
def test_who_refers_to_extents(deep: tuple[Any, Shown]) -> None:
    fs, one = deep
    extents = [item.key for item in fs.tree(2).items() if item.key.type == ItemType.EXTENT_ITEM]
    assert len(extents) > 70
    shared = 0
    for key in extents:
        rows = one.page.evaluate(
            "async at => (await fileExtents(BigInt(at))).map(one => "
            "[one.tree.id, one.inode, one.offset, one.leaf, one.slot].map(String))",
            str(key.objectid),
        )
        refs = iterate_extent_inodes(fs, key.objectid, ignore_extent_item_pos=True)
        shared += len(refs) > 3
        assert sorted((int(r[1]), int(r[0])) for r in rows) == sorted(
            (r.inum, r.root) for r in refs
        )
    assert shared


@pytest.mark.claim("`explore` finds who points at a tree block, and all trees that have it.")
def test_who_refers_to_blocks(deep: tuple[Any, Shown]) -> None:
    fs, one = deep
    trees = {str(r.key.objectid): r.tree for r in [*pointed_at(fs.image), *rooted_trees(fs.image)]}
    blocks = {name: tree.blocks() for name, tree in trees.items()}
    for address in random.Random(2).sample(sorted(blocks_of(fs.image)), 60):
        owners = [name for name, some in blocks.items() if any(b.logical == address for b in some)]
        parents = {(b.parent, b.parent_slot) for some in blocks.values() for b in some
                   if b.logical == address and b.parent}  # fmt: skip
        found = one.page.evaluate(
            "async at => [(await treesWith(BigInt(at))).map(tree => tree.id), "
            "((await parents()).get(BigInt(at)) || [])"
            ".map(one => [String(one.address), one.slot])]",
            str(address),
        )
        assert sorted(found[0]) == sorted(owners)
        assert {(int(at), slot) for at, slot in found[1]} == parents


@pytest.mark.claim("`explore` sets trees side by side: what differs is what a send would find.")
@pytest.mark.parametrize("pair", [("one", "two"), ("two", "one"), ("", "one"), ("two", "two")])
def test_compare(pair: tuple[str, str], deep: tuple[Any, Shown]) -> None:
    fs, one = deep
    left, right = (fs.subvolume(name) for name in pair)
    rows = one.page.evaluate(
        """async ids => {
            const sides = ids.map(treeOf), rows = [];
            const blocks = await Promise.all(sides.map(blocksOf));
            for await (const row of compareTrees(...sides, blocks))
                if (row.change) rows.push([row.change, ...(row.left || row.right).key.map(String)]);
            return rows;
        }""",
        [str(left.id), str(right.id)],
    )
    wanted = [
        [change.change.name.lower(), *map(str, change.key)]
        for change in compare_trees(right.tree, left.tree)
        if change.change != Change.SAME
    ]
    assert rows == wanted
    one.go(f"compare/{left.id}/{right.id}")
    blocks = [{block.logical for block in side.tree.blocks()} for side in (left, right)]
    both = len(blocks[0] & blocks[1])
    assert f"They share {both:,} blocks" in one.page.text_content("#shares")


def test_follow_references(show: Any) -> None:
    """From a name to its inode, to its extent, to the files that have it."""
    with ten_files() as fs:
        one = show(fs, "snap2", "snap1")
        item = next(i for i in fs.tree(5).items((256, 84, 0)) if b"large" in bytes(i.data))
        one.go(f"key/5/{item.key.objectid}.{item.key.type}.{item.key.offset}")
        one.click("#shown td a")
        inode = fs.subvolume("").resolve("large")
        assert one.title == f"({inode} INODE_ITEM 0)"
        one.go(f"key/5/{inode}.EXTENT_DATA.0")
        one.page.wait_for_selector("text=in subvolume 256")
        (extent,) = fs.subvolume("").extents("large")
        one.click(f"#shown td a:text-is('{extent.disk_bytenr}')")
        assert "EXTENT_ITEM" in one.title
        # the focus follows, the browser's way back leads back
        assert one.page.evaluate("document.activeElement.id") == "title"
        one.page.go_back()
        one.page.wait_for_function("document.querySelector('#title').textContent.includes('DATA')")
        one.page.wait_for_selector("#shown li a:has-text('inode')")
        one.click("#shown li:has-text('in subvolume 257') a >> nth=0")
        assert "EXTENT_DATA" in one.title


@pytest.mark.claim("`explore` shows each command of a stream with the item that caused it.")
def test_stream(show: Any) -> None:
    with ten_files() as fs:
        sent = bm.send(fs, "snap2", "snap1", explain=True)
        one = show(fs, "snap2", "snap1")
        one.click("text=Send stream")
        rows = one.page.locator("#shown tbody tr")
        assert rows.count() == len(sent.causes)
        for row, cause in zip(rows.all(), sent.causes.itertuples(), strict=True):
            text = row.text_content()
            assert f"{cause.command} {cause.path}" in text and cause.cause in text
            if cause.item_type:
                assert f"({cause.item_objectid} {cause.item_type} {cause.item_offset})" in text
        # to the item, and from it to its commands
        number, cause = next(
            (n, c) for n, c in enumerate(sent.causes.itertuples()) if c.change == "changed"
        )
        one.click(f"#shown tbody tr:nth-child({number + 1}) td a")
        assert one.title.startswith(f"({cause.item_objectid} {cause.item_type}")
        one.page.wait_for_selector(f"#shown a:has-text('{number}: {cause.command}')")
        one.go("stream/0/no such text")
        assert rows.count() == 0
        deleted = next(c for c in sent.causes.itertuples() if c.change == "deleted")
        one.go(f"key/256/{deleted.item_objectid}.{deleted.item_type}.{deleted.item_offset}")
        assert "no (" not in one.page.text_content("#said")


def test_a_log_beside_its_subvolume(show: Any) -> None:
    with bm.open(LOG_IMAGE()) as fs:
        assert fs.log_trees
        one = show(fs)
        for number, tree in fs.log_trees.items():
            one.go(f"tree/log{number}")
            assert f"{tree.bytenr:,} of log of" in one.title
            one.go(f"compare/{number}/log{number}")
            assert one.page.locator("#shown tbody tr").count() > 0


def LOG_IMAGE() -> Path:  # noqa: N802
    names = [name for name in corpus.images("log") if "crash" in name]
    for name in names:
        with bm.open(corpus.image(name)) as fs:
            if fs.log_trees:
                return corpus.image(name)
    raise AssertionError("no image has a log")


@pytest.mark.claim("A tree block that cannot be read is shown in a page as the fault that it has.")
def test_damage(show: Any, tmp_path: Path) -> None:
    with bm.create("256M", seed=1, nodesize=4096) as fs:
        fs.create_files("", [f"file{n}" for n in range(200)])
        fs.save(tmp_path / "disk.img")
    broken = Broken(tmp_path / "disk.img")
    tree = broken.fs().tree(5)
    leaf = next(block for block in tree.blocks() if not block.level and block.parent)
    broken.write(leaf.logical, 200, b"\xff" * 8, seal=False)
    one = show(broken.fs())
    assert "1 tree blocks cannot be read" in one.page.text_content("header")
    one.go(f"address/{leaf.logical}")
    assert str(leaf.logical) in one.page.text_content("#said")
    assert "checksum" in one.page.text_content("#said")
    one.page.evaluate("""async () => {
        const all = [tops.get("5")];
        for (const one of all) for (const child of await unfold(one) || []) all.push(child);
    }""")
    assert one.page.locator(".row", has_text="checksum").count() == 1


def test_a_loop_in_a_tree(show: Any, tmp_path: Path) -> None:
    """A node that points at itself, with a good checksum."""
    with bm.create("256M", seed=1, nodesize=4096) as fs:
        fs.create_files("", [f"file{n}" for n in range(200)])
        fs.save(tmp_path / "disk.img")
    broken = Broken(tmp_path / "disk.img")
    root = broken.fs().tree(5).bytenr
    broken.write(root, HEADER.size + 17, root.to_bytes(8, "little"))
    with broken.fs() as fs:
        one = show(fs)
        for route in ("inode/5/256", "files"):
            one.go(route)
            assert "is of level 1, and not 0" in one.page.text_content("#said"), route
        one.go("map")
        assert one.title == "Map of the device"
        # what is behind it is found
        one.go("inode/5/450")
        assert one.title.endswith("INODE_ITEM 0)")
        one.go(f"address/{root}")
        assert one.title.startswith("Node of level 1")


def test_unused_bytes(show: Any, tmp_path: Path) -> None:
    """They are 0 as kernels write them; what else is there is shown."""
    with bm.create("256M", seed=1, nodesize=4096) as fs:
        fs.create_files("", [f"file{n}" for n in range(200)])
        fs.save(tmp_path / "disk.img")
    broken = Broken(tmp_path / "disk.img")
    tree = broken.fs().tree(5)
    node, leaf = (next(block for block in tree.blocks() if bool(block.level) == is_node)
                  for is_node in (True, False))  # fmt: skip
    for block in (node, leaf):
        size = KEY_PTR.size if block.level else ITEM.size
        broken.write(block.logical, HEADER.size + block.nritems * size, b"remains")
    with broken.fs() as fs:
        one = show(fs)
        for block in tree.blocks():
            one.go(f"address/{block.logical}")
            shown = one.page.text_content("#shown")
            if block.logical in (node.logical, leaf.logical):
                assert "Not all are 0" in shown and "remains" in one.page.text_content("#unused")
            elif "Unused are" in shown:
                assert "All are 0." in shown


# ------------------------------------------------------------------------- links to share --

SEEN = """() => ({
    hash: location.hash, title: document.querySelector("#title").textContent,
    shown: document.querySelector("#shown").textContent,
    field: document.querySelector("#shown tr[aria-current] a")?.textContent,
    focus: document.querySelectorAll(".map .here").length,
    rows: [...document.querySelectorAll("[role=treeitem]")].map(one =>
        [one.firstChild.textContent, one.getAttribute("aria-expanded")]),
    search: ["kind", "wanted", "in"].map(id => document.getElementById(id).value),
})"""


def all_there(one: Shown) -> Any:
    """What is seen when nothing is missing any more."""
    one.wait()
    one.page.wait_for_function(NOTHING_IS_MISSING)
    return one.page.evaluate(SEEN)


@pytest.mark.claim("A link to what `explore` shows opens the same again: item, field, search, map.")
def test_links(show: Any, tmp_path: Path) -> None:
    with ten_files() as fs:
        one, page = show(fs), explore(fs)
        (extent,) = fs.subvolume("").extents("large")
        leaf = fs.tree(5).bytenr
        seen = []
        one.click("nav a:text-is('Files')")
        seen.append(all_there(one))
        for text in ("docs/note3", "nothing"):
            one.look("path", text, "256")
        # a search that finds nothing leaves what was there
        assert one.title.endswith("INODE_ITEM 0)")
        one.page.go_back()
        one.wait()
        seen.append(all_there(one))
        one.click("#shown tr[data-name=mode] a")
        assert "?field=mode" in one.page.url
        assert one.page.evaluate("document.activeElement.textContent") == "mode"
        seen.append(all_there(one))
        # with the keyboard: two more trees are unfolded
        one.page.focus("[role=treeitem][tabindex='0']")
        for step, keys in enumerate((["Home", "ArrowDown"], ["End"])):
            for key in (*keys, "ArrowRight"):
                one.page.keyboard.press(key)
            one.page.wait_for_function(f"unfoldedByHand().length > {step}")
        assert "open=1," in one.page.url
        seen.append(all_there(one))
        for route in ("compare/256/257", f"map/{extent.disk_bytenr}", f"map/{leaf}"):
            one.page.evaluate("route => go(route)", route)
            one.page.wait_for_function("route => here.route === route", arg=route)
            seen.append(all_there(one))
        squares = -(-extent.disk_num_bytes // fs.image.nodesize)
        assert [state["focus"] for state in seen[-3:]] == [0, squares, 1]
        # each in a new window
        for state in seen:
            other = show(page, at=state["hash"])
            there = all_there(other)
            if not state["hash"].startswith("#path"):
                there["search"] = state["search"]
            assert there == state
        # and all the way back and forward
        ways = [state["hash"] for state in seen[-3:]]
        for move, hashes in ((one.page.go_back, ways[-2::-1]), (one.page.go_forward, ways[1:])):
            for wanted in hashes:
                move()
                one.page.wait_for_function("at => location.hash === at", arg=wanted)
                one.page.wait_for_function("here.route === location.hash.slice(1).split('?')[0]")
                state = next(state for state in seen if state["hash"] == wanted)
                assert all_there(one)["shown"] == state["shown"]


def test_a_link_is_copied(show: Any) -> None:
    with ten_files() as fs:
        one = show(fs, at="#path/5/large?field=nlink")
        button = one.page.get_by_role("button", name="Copy link to this view")
        one.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        button.focus()
        one.page.keyboard.press("Enter")
        one.page.wait_for_function("document.querySelector('#said').textContent.includes('copied')")
        copied = one.page.evaluate("navigator.clipboard.readText()")
        assert copied == one.page.url and copied.endswith("#path/5/large?field=nlink")
        one.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(1); }")
        button.click()
        one.page.wait_for_function(
            "document.querySelector('#said').textContent.endsWith(location.href)"
        )


NONSENSE = (
    "x", "%zz", "in", "in/5", "in/5/1", "in/5/abc/0", "in/9999/4096", "tree", "tree/none",
    "block/1", "block/", "block/-1/7", "address/1", "address/" + "9" * 300, "inode/5", "inode/5/1",
    "key/5/<b>", "key", "path/5/none", "path/none/a", "path", "compare/5/99", "map/1", "map/x",
    "files/5/1", "files/2", "files/none", "stream", "stream/x", "super?field=none", "super?x=1",
    "super?open=none", "super?open=5:1", "super?open=5:x", "super?field=%zz", "__proto__",
    "constructor/1", "toString", "in/5/0x10/0x", "files/5/1e3",
)  # fmt: skip


@pytest.mark.claim(
    "An address with nonsense opens the start of a page, with a sentence that says so."
)
def test_nonsense_in_an_address(show: Any) -> None:
    with ten_files() as fs:
        leaf = fs.tree(5).bytenr
        one = show(fs, at="#nonsense")
        start = one.page.text_content("#shown")
        dice = random.Random(1)
        odd = ["".join(dice.choices("in/5tree?=&%,:~@#b<0\u00e9 ", k=9)) for _ in range(60)]
        for hash_ in (*NONSENSE, f"in/5/{leaf}/999", f"in/5/{leaf}/1.5", f"in/2/{leaf}", *odd):
            one.page.evaluate(
                """hash => {
                    document.body.setAttribute("aria-busy", "true");
                    showRoute(hash);
                }""",
                hash_,
            )
            one.wait()
            said = str(one.page.text_content("#said"))
            if hash_ in odd and not said.endswith("begins"):
                continue
            assert said.endswith(": this is where the page begins"), (hash_, said)
            assert "undefined" not in said and "Cannot" not in said, (hash_, said)
            assert (one.title, one.page.text_content("#shown")) == ("Superblock", start)


# ------------------------------------------------------------------------------ older roots --


@pytest.fixture
def commits() -> Iterator[tuple[bm.WritableFilesystem, dict[int, list[str]]]]:
    """A filesystem, and which files each of its commits had."""
    with bm.create("256M", seed=1) as fs:
        files, names = dict[int, list[str]](), list[str]()
        for number in range(5):
            fs.create_subvolume(f"sub{number}")
            fs.create(f"file{number}")
            fs.write(f"file{number}", 0, b"x" * 5000)
            names += [f"sub{number}", f"file{number}"]
            fs.sync()
            files[fs.image.superblock.generation] = list(names)
        yield fs, files


@pytest.mark.claim("`explore` shows the trees of older roots, as far as they were not overwritten.")
def test_older_roots(commits: tuple[Any, dict[int, list[str]]], show: Any) -> None:
    fs, files = commits
    one = show(fs)
    newest = max(files)
    titles = one.page.locator("#state option").all_text_contents()
    assert titles == [f"<memory>, generation {newest - back}" for back in range(4)]
    one.go("super")
    rows = one.page.evaluate(ROWS)[:4]
    assert [row[0].split(",")[0] for row in rows] == [str(newest - back) for back in range(4)]
    assert {row[3] for row in rows} == {"all tree blocks"}
    one.go("files")
    for back in (2, 1, 3):
        one.page.select_option("#state", f"@{newest - back}")
        one.click("#states button")
        # the same folder at another time
        assert one.title == "Folder" and f"?of=@{newest - back}" in one.page.url
        assert [row[0] for row in all_rows(one)] == files[newest - back]
        assert f"generation {newest - back}" in one.page.title()
    one.look("path", f"sub0/../file{5 - 4}", "5")
    one.look("path", "file4", "5")
    assert "no “file4”" in one.page.text_content("#said")
    one.click("nav a:text-is('Map of the device')")
    assert "Chunk of data" in one.page.text_content("#shown") and "of=@" in one.page.url
    # a tree of now beside the same of then
    one.go(f"compare/5/5~?of=@{newest - 1}")
    changes = one.page.evaluate(ROWS)
    assert any("file4" in row[2] and row[0] == "new" for row in changes)
    assert not any("file3" in row[2] and row[0] == "new" for row in changes)
    # to an item of the other state
    one.click("#shown td:nth-child(3) a:has-text('“file4”') >> nth=0")
    assert "file4" in one.page.text_content("#shown") and "of=" not in one.page.url
    other = show(fs, at=f"#files/5?of=@{newest - 3}")
    assert [row[0] for row in all_rows(other)] == files[newest - 3]


@pytest.mark.claim("What `explore` says is lost of older roots is what `rescue --roots` says.")
@pytest.mark.one_of(4)
@pytest.mark.parametrize("name", images())
def test_lost_of_older_roots(name: str, show: Any) -> None:
    path = corpus.image(name)
    table = bm.rescue_roots(path)
    said = {row.generation: row.state for row in table.itertuples() if "scan" not in row.source}
    with bm.open(path) as fs:
        one = show(fs)
        newest = fs.image.superblock.generation
        found = one.page.evaluate("""() => about.disks[0].states.map(({faults, trees}, number) =>
            [about.disks[0].roots[number].generation, Object.values(faults), trees.length])""")
        assert found[0][0] == newest
        assert {row[0] for row in found} == {one for one in said if one <= newest}
        for generation, faults, count in found:
            assert count
            if said[generation] == "whole":
                kept = re.compile(r"tree (1|5|7|25\d|2[6-9]\d|[3-9]\d\d)[,:]")
                assert not [text for text in faults if kept.search(text)]
            else:
                assert faults
                one.go(f"super?of=@{generation}")
                assert f"{len(faults)} tree block" in one.page.text_content("#lost")


# ------------------------------------------------------------------------------ two images --

BESIDE = """async id => {
    const sides = [treeOf(`${id}~`), treeOf(`${id}~second`)], rows = [];
    const blocks = await Promise.all(sides.map(blocksOf));
    for await (const row of compareTrees(...sides, blocks))
        if (row.change) rows.push([row.change, ...(row.left || row.right).key.map(String)]);
    return rows;
}"""


def apart(fs: bm.Filesystem, other: bm.Filesystem, tree: int) -> list[list[str]]:
    """How the items of a tree differ in two filesystems."""
    ours, theirs = ({item.key: bytes(item.data) for item in one.tree(tree).items()}
                    for one in (fs, other))  # fmt: skip
    rows = []
    for key in sorted(ours.keys() | theirs.keys()):
        change = "new" if key not in ours else "deleted" if key not in theirs else "changed"
        if ours.get(key) != theirs.get(key):
            rows.append([change, *map(str, key)])
    return rows


@pytest.mark.claim("`explore --beside` shows which items and fields of two images differ.")
def test_two_images(show: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = tmp_path / "one.img", tmp_path / "two.img"
    for number, path in enumerate(images):
        # another node size, another checksum
        with bm.create("256M", seed=1, nodesize=(16384, 4096)[number]) as fs:
            fs.create("same")
            fs.create("other")
            fs.write("other", 0, b"x" * (100 + number))
            fs.create(("ours", "theirs")[number])
            fs.save(path)
    page = tmp_path / "page.html"
    command = ["explore", str(images[0]), "--beside", str(images[1]), "-o", str(page)]
    assert run(command) == 0
    capsys.readouterr()
    with bm.open(images[0]) as fs, bm.open(images[1]) as other:
        one = show(explore(fs, beside=other))
        assert explore(fs, beside=other).html == page.read_text()
        for tree in (1, 2, 3, 4, 5, 7, 10):
            assert one.page.evaluate(BESIDE, tree) == apart(fs, other, tree)
        one.click("nav a:text-is('Both images')")
        rows = {row[0]: row[1:] for row in all_rows(one)}
        wanted = apart(fs, other, 5)
        there = len(list(fs.tree(5).items()))
        kinds = [sum(row[0] == kind for row in wanted) for kind in ("changed", "deleted", "new")]
        assert rows["fs tree “/”"] == ["differs", *map(str, [there - sum(kinds[:2]), *kinds])]
        one.click("#shown tbody a:text-is('fs tree “/”')")
        rows = one.page.evaluate(ROWS.replace("tables.", "[tables[0]]."))
        inode = fs.subvolume("").resolve("other")
        fields = next(row[3] for row in rows if row[1].startswith(f"({inode} INODE_ITEM"))
        assert "size 100 → 101" in fields and "nbytes 100 → 101" in fields
        # to an item of the second, which has blocks of another size
        one.click("#shown td:nth-child(3) a:has-text('“theirs”') >> nth=0")
        assert "?of=second" in one.page.url and "name: theirs" in one.page.text_content("#text")
        assert "second: two.img" in one.page.title()
        one.go("files/5?of=second")
        assert [row[0] for row in all_rows(one)] == ["same", "other", "theirs"]
        one.go("tree/5?of=second")
        block = other.image.block(other.tree(5).bytenr)
        assert HEADER.unpack(block).csum[:4].hex() in one.page.text_content("#text")
    none = tmp_path / "none.html"
    assert run([*command[:3], str(tmp_path / "no.img"), "-o", str(none)]) == 1
    assert "no.img" in capsys.readouterr().err and not none.exists()


def test_two_checksums(show: Any) -> None:
    names = [corpus.image(f"features/csum-{kind}") for kind in ("sha256", "blake2")]
    with bm.open(names[0]) as fs, bm.open(names[1]) as other:
        one = show(explore(fs, beside=other))
        for tree in (1, 5, 7):
            assert one.page.evaluate(BESIDE, tree) == apart(fs, other, tree)
        one.go("tree/5?of=second")
        block = other.image.block(other.tree(5).bytenr)
        assert HEADER.unpack(block).csum.hex() in one.page.text_content("#text")
        one.go("beside/none")
        assert "no image “none”" in one.page.text_content("#said")


# --------------------------------------------------------------------- an image in the page --

STATES = """key => [...states.values()].filter(state => state.disk.key === key).map(state => ({
    title: state.title.replace("dropped: ", ""),
    trees: state.trees.map(({id, name, root, level, files}) => [id, name, `${root}`, level, files]),
    places: [...state.places.keys()].map(String).sort(),
    faults: Object.keys(state.faults).sort(),
    chunks: state.disk.chunks,
}))"""
DUMPS = """async key => {
    const texts = [];
    for (const state of [...states.values()].filter(state => state.disk.key === key))
        for (const address of [...state.places.keys()].sort((one, other) => one < other ? -1 : 1)) {
            const block = await blockAt(address, state);
            let text = textOf(headPieces(block));
            for (let slot = 0; slot < countOf(block); slot++) {
                text += textOf(entryPieces(block, slot));
                try { if (!levelOf(block)) text += textOf(payloadPieces(block, slot)); }
                catch (error) { text += error.message; }
            }
            texts.push(text);
        }
    return texts;
}"""


def drop(one: Shown, path: Path) -> str:
    """Give a file to the page; return what it says."""
    one.page.evaluate("document.body.setAttribute('aria-busy', 'true')")
    one.page.set_input_files("#image", path)
    one.wait()
    return str(one.page.text_content("#said"))


MOST_BYTES = 256 << 20
"""Of a file that a page reads."""


def of_crc32c() -> list[str]:
    """Images of one device that a page can read by itself."""
    others = ("csum-", "two-devices")
    return [name for name in images() if not any(other in name for other in others)]


@pytest.mark.claim(
    "`explore` reads an image that is dropped on its page: trees, blocks and text as of Python."
)
@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", of_crc32c())
def test_a_dropped_image(name: str, show: Any) -> None:
    path = corpus.image(name)
    with bm.open(path) as fs:
        one = show(fs)
    said = drop(one, path)
    if path.stat().st_size > MOST_BYTES:
        assert said.endswith(f"and this page reads {MOST_BYTES:,} at most.")
        return
    assert "Superblock" in said
    packed, dropped = (one.page.evaluate(STATES, key) for key in ("", "dropped"))
    assert dropped == packed and len(packed) > 1
    texts = [one.page.evaluate(DUMPS, key) for key in ("", "dropped")]
    assert texts[0] == texts[1] and texts[0]
    assert "?of=dropped" in one.page.url and "dropped: " in one.page.title()
    # it stands beside that of the page
    one.go("beside/dropped")
    assert {row[1] for row in all_rows(one)} == {"the same"}
    one.go("files/5?of=dropped")
    assert one.title == "Folder"


def test_a_dropped_image_with_the_keyboard(show: Any, tmp_path: Path) -> None:
    with ten_files() as fs, bm.create("128M", seed=3) as other:
        other.create("dropped file")
        other.save(tmp_path / "other.img")
        one = show(fs)
        field = one.page.get_by_label("Read an image in this page, or drop it here:")
        field.focus()
        # the key opens the browser's own dialog, unless somebody prevents it
        field.evaluate("""one => one.addEventListener("click", event => {
            event.preventDefault();
            one.dataset.opened = "yes";
        })""")
        one.page.keyboard.press("Space")
        one.page.wait_for_selector("#image[data-opened]")
        drop(one, tmp_path / "other.img")
        one.look("path", "dropped file", "5")
        assert "INODE_ITEM 0)" in one.title
        # by the mouse: what a drop has
        data = base64.b64encode((tmp_path / "other.img").read_bytes()[: 1 << 20]).decode()
        one.page.evaluate(
            """text => {
                document.body.setAttribute("aria-busy", "true");
                const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
                const dataTransfer = new DataTransfer();
                dataTransfer.items.add(new File([bytes], "<b>short.img"));
                dispatchEvent(new DragEvent("drop", {dataTransfer, cancelable: true}));
            }""",
            data,
        )
        one.wait()
        said = str(one.page.text_content("#said"))
        assert said.startswith("<b>short.img is not read: its chunk tree cannot be read: ")
        assert "the file has 1,048,576 bytes" in said
        # what was shown is unharmed
        assert "INODE_ITEM 0)" in one.title and "of=dropped" in one.page.url


SB = 65536
BROKEN_SUPER: dict[str, tuple[Callable[[bytearray], Any], str]] = {
    "magic": (lambda sb: sb.__setitem__(slice(64, 72), b"_BHRfS_N"), "has no “_BHRfS_M”"),
    "address": (lambda sb: sb.__setitem__(slice(48, 56), bytes(8)), "says that it is at 0"),
    "checksum type": (lambda sb: sb.__setitem__(196, 1), "its checksums are xxhash64"),
    "checksum": (lambda sb: sb.__setitem__(0, sb[0] ^ 1), "the checksum of its superblock"),
    "devices": (lambda sb: sb.__setitem__(136, 2), "it is one of 2 devices"),
    "node size": (lambda sb: sb.__setitem__(slice(148, 152), b"\1\0\0\0"), "nodesize of its super"),
    "feature": (lambda sb: sb.__setitem__(slice(188, 196), (1 << 12).to_bytes(8, "little")),
                "not supported: ZONED"),
    "chunks": (lambda sb: sb.__setitem__(811 + 8, 7), "chunk 0 of its superblock is no CHUNK_ITEM"),
    "profile": (lambda sb: sb.__setitem__(slice(811 + 17 + 24, 811 + 17 + 32),
                                          (2 | 1 << 3).to_bytes(8, "little")), "which is RAID0"),
}  # fmt: skip


@pytest.mark.claim("A dropped file that is damaged ends in a sentence; the page is unharmed.")
def test_damaged_files_are_refused(show: Any, tmp_path: Path) -> None:
    path = tmp_path / "disk.img"
    with ten_files() as fs:
        one = show(fs)
        with bm.create("128M", seed=1) as small:
            small.create("file")
            small.save(path)
    whole = path.read_bytes()
    shown = one.page.text_content("#shown")
    mirror = 64 << 20
    for name, (change, wanted) in BROKEN_SUPER.items():
        data = bytearray(whole)
        sb = data[SB : SB + 4096]
        change(sb)
        if name not in ("magic", "checksum"):
            sb[:4] = csum(0, bytes(sb[32:]))
        data[SB : SB + 4096] = sb
        data[mirror : mirror + 4096] = bytes(4096)
        path.write_bytes(data)
        said = drop(one, path)
        assert said.startswith("disk.img is not read: ") and said.endswith("."), (name, said)
        assert wanted in said, (name, said)
    path.write_bytes(whole[: SB + 100])
    assert "its superblock would end at byte 69,632: the file has 65,636 bytes" in drop(one, path)
    path.write_bytes(b"")
    assert "the file has 0 bytes" in drop(one, path)
    with path.open("wb") as file:
        file.truncate((256 << 20) + 1)
    assert "reads 268,435,456 at most" in drop(one, path)
    assert one.page.text_content("#shown") == shown and "of=" not in one.page.url
    # the copy of the superblock is as good
    path.write_bytes(whole[:SB] + bytes(4096) + whole[SB + 4096 :])
    assert drop(one, path) == "Superblock"


@pytest.mark.claim("No damaged image makes an error in the script of a page of `explore`.")
def test_mutated_images(show: Any, tmp_path: Path) -> None:
    """Half of the blocks have a good checksum; some trees have loops."""
    dice, path = random.Random(7), tmp_path / "disk.img"
    with ten_files() as fs:
        one = show(fs)
    with bm.create("128M", seed=1, nodesize=4096) as fs:
        fs.create_files("", [f"file{number}" for number in range(60)])
        fs.snapshot("", "snap")
        fs.save(path)
    with bm.open(path) as fs:
        blocks = [(place, 4096) for at in blocks_of(fs.image) for place in fs.image.copies(at)]
        nodes = [(place, fs.image.copies(tree.bytenr)[0]) for tree in blocks_of(fs.image).values()
                 if tree.level for place in fs.image.copies(tree.bytenr)]  # fmt: skip
    read, sentences = 0, set[str]()
    for number in range(100):
        undo = []
        with path.open("r+b") as file:
            for _ in range(dice.choice((1, 3, 20))):
                at, size = (SB, 4096) if dice.random() < 0.2 else dice.choice(blocks)
                file.seek(at)
                old = file.read(size)
                undo.append((at, old))
                data = bytearray(old)
                head = 101 + (25 * 12 if number % 3 else 0)
                for _ in range(dice.choice((1, 2, 8))):
                    place = dice.randrange(32, head if dice.random() < 0.7 else size)
                    data[place] = dice.choice((0, 255, data[place] ^ 1 << dice.randrange(8)))
                if number % 4 == 0 and nodes and at != SB:
                    # a node that points at itself
                    at = dice.choice(nodes)[0]
                    file.seek(at)
                    old = file.read(size)
                    undo.append((at, old))
                    data = bytearray(old)
                    data[101 + 17 : 101 + 25] = data[48:56]
                if dice.random() < 0.8:
                    data[:4] = csum(0, bytes(data[32:]))
                file.seek(at)
                file.write(data)
        said = drop(one, path)
        if "is not read: " in said:
            sentences.add(re.sub(r"[\d,]+", "N", said))
            assert "undefined" not in said and "Cannot" not in said and said.endswith(".")
        else:
            read += 1
            for route in ("files", "map", "compare/5/256", "tree/5", "tree/2", "inode/5/260"):
                one.page.evaluate("route => go(route)", route)
                one.wait()
            one.page.evaluate("""async () => {
                for (const top of [...tops.values()]) {
                    const all = [top];
                    for (const one of all)
                        for (const child of await unfold(one) || []) all.push(child);
                }
            }""")
        with path.open("r+b") as file:
            for at, old in reversed(undo):
                file.seek(at)
                file.write(old)
    assert read > 20 and len(sentences) > 5
    assert one.said == []


# ------------------------------------------------------------------------------- the page --


@pytest.mark.more
@pytest.mark.claim(
    "The page of `explore` is readable at 400, 1280 and 1920 pixels by everybody, in the light, in "
    "the dark and on paper: nothing is cut off, and axe finds nothing.",
    "Chromium",
)
def test_readable(show: Any) -> None:
    with ten_files() as fs, bm.create("256M", seed=2) as other:
        other.create("large")
        other.sync()
        one = show(explore(fs, "snap2", "snap1", beside=other))
        (extent,) = fs.subvolume("").extents("large")
        older, wrong = one.page.evaluate("[...states.keys()][1]"), []
        assert older.startswith("@")
        routes = ("super", "tree/5", "path/5/docs/note3", "compare/256/257", "stream", "map",
                  "files", f"address/{extent.disk_bytenr}", "beside", "compare/5/5~second",
                  f"super?of={older}", "path/5/docs/note3?field=size")  # fmt: skip
        for number, route in enumerate(routes):
            one.go(route)
            one.page.wait_for_function(NOTHING_IS_MISSING)
            for width in WIDTHS:
                one.page.set_viewport_size({"width": width, "height": 900})
                wide = one.page.evaluate("document.documentElement.scrollWidth")
                cut = [*one.page.evaluate(CUT_OFF), *one.page.evaluate(BROKEN)]
                wrong += [(route, width, line) for line in [wide, *cut] if line != width]
                for scheme in views(number)[width]:
                    one.page.emulate_media(color_scheme=scheme)
                    wrong += [(route, width, scheme, *line) for line in violations(one.page)]
            one.page.emulate_media(media="print", color_scheme="dark")
            wrong += [(route, "print", *line) for line in violations(one.page)]
            one.page.emulate_media(media="screen")
        assert wrong == []


@pytest.mark.claim("The page of the course's filesystem is smaller than a megabyte.")
def test_size_of_a_page() -> None:
    with ten_files() as fs:
        page = explore(fs, "snap2", "snap1")
        assert len(page.html.encode()) < 1_000_000
        assert explore(fs, "snap2", "snap1").html == page.html


@pytest.mark.claim("A page takes less than 10 bytes for a file, and unpacks what it shows.")
def test_many_files(show: Any) -> None:
    with bm.create("2G", seed=1) as fs:
        for number in range(20):
            fs.mkdir(f"d{number}")
            fs.create_files(f"d{number}", [f"file_{n}" for n in range(2000)])
        fs.sync()
        empty = bm.create("2G", seed=1)
        size = len(explore(fs).html) - len(explore(empty).html)
        assert size < 10 * 40_000
        one = show(fs)
        assert one.page.evaluate("about.disks[0].counts.length") > 12
        one.look("path", "d17/file_1234", "5")
        assert one.title.startswith(f"({fs.subvolume('').resolve('d17/file_1234')} ")
        assert one.page.evaluate("packs.size") <= 6


def test_in_a_notebook(browser: Any) -> None:
    """The page is in a frame, where links lead on inside."""
    with ten_files() as fs:
        page = browser.new_page()
        page.set_content(explore(fs)._repr_html_())
        frame = page.frame_locator("iframe")
        frame.locator("text=Compare two trees").first.click()
        frame.locator("#title", has_text="Compare two trees").wait_for()
        frame.locator("#shown button", has_text="Compare").click()
        frame.locator("#title", has_text="beside").wait_for()
        page.close()


@pytest.mark.claim(
    "`explore` shows its page in a saved notebook too, for mouse and keyboard; names do not run, "
    "the page cannot reach the notebook, and axe finds nothing.",
    "nbconvert, Chromium",
)
def test_in_a_saved_notebook(browser: Any, tmp_path: Path) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    with ten_files() as fs:
        for name in NAMES:
            fs.create(b"docs/" + name)
        fs.sync()
        shown = explore(fs)
        found = {name: fs.subvolume("").resolve(b"docs/" + name) for name in NAMES}
    new = nbformat.v4
    output = new.new_output("display_data", {"text/html": shown._repr_html_()})
    notebook = new.new_notebook(cells=[new.new_code_cell("explore(fs)", outputs=[output])])
    path = tmp_path / "notebook.html"
    path.write_text(nbconvert.HTMLExporter().from_notebook_node(notebook)[0])
    context = browser.new_context(bypass_csp=True)  # for axe, which comes as a script
    page = context.new_page()
    # what nbconvert asks for elsewhere
    page.route(lambda url: url.startswith("http"), lambda route: route.abort())
    page.goto(path.as_uri())
    (frame,) = page.main_frame.child_frames
    title = page.title()
    done = "body:not([aria-busy])"
    frame.wait_for_selector(done)
    # it leaves the focus where it is
    assert page.evaluate("document.activeElement === document.body")
    for name, inode in found.items():
        frame.fill("#wanted", "")
        frame.focus("#wanted")
        page.keyboard.insert_text(f"docs/{printable(name)}")
        page.keyboard.press("Enter")
        frame.wait_for_function(
            "title => document.querySelector('#title').textContent === title",
            arg=f"({inode} INODE_ITEM 0)",
        )
        frame.wait_for_selector(done)
    assert violations(frame) == []
    # to the item before it, in the tree
    frame.focus("[role=treeitem][tabindex='0']")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    before = frame.text_content("[aria-selected=true] > .row")
    assert not before.startswith(f"({inode} ")
    frame.wait_for_function(
        "row => row.startsWith(document.querySelector('#title').textContent)", arg=before
    )
    assert (page.title(), frame.title()) == (title, shown.title)
    assert not frame.evaluate("() => { try { return !!parent.document; } catch { return false; } }")
    context.close()


def test_a_large_page_is_not_shown_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    with ten_files() as fs:
        page = explore(fs)
    monkeypatch.setattr("btrfs_model.drawings.explore.page._SHOWN", len(page.html) - 1)
    assert "<iframe" not in page._repr_html_()
    assert f"{len(page.html):,} bytes" in page._repr_html_()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ten_files() as fs:
        fs.save(tmp_path / "disk.img")
    image, page = str(tmp_path / "disk.img"), tmp_path / "page.html"
    assert run(["explore", image, "--send", "snap2", "-p", "snap1", "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}: {page.stat().st_size:,} bytes\n"
    assert "Send stream" in page.read_text()
    assert run(["explore", image, "-p", "snap1", "-o", str(page)]) == 2
    assert run(["explore", image, "--send", "nothing", "-o", str(tmp_path / "none.html")]) == 1
    assert not (tmp_path / "none.html").exists()


def test_types_have_names(page_of_ten: Shown) -> None:
    names = page_of_ten.page.evaluate("typeNames")
    assert names == {str(int(kind)): item_type_name(kind) for kind in ItemType}
