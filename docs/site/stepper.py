# SPDX-License-Identifier: GPL-2.0-only
"""Stories on a disk, step by step: what is called, what is written where, what a crash leaves.

``stories/NAME.sh`` is a script, or ``NAME.py``: a step is a paragraph, its comment the words. It
runs on each kernel and with each size of tree blocks that the page has a slider for. After each
step the device is looked at: a step is what it has besides what the one before has.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from gallery import LICENCE, SIZE, of_files, shelf
from markupsafe import Markup

import btrfs_model as bm
from btrfs_model.base.charts import COLOURS
from btrfs_model.base.tables import plural
from btrfs_model.drawings.picture import DARK, STYLE, Drawing
from btrfs_model.experiments.crashes.seen import State, names_of, path_of, seen
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.volume.blocks import HEADER
from btrfs_model.volume.device.memory import Memory
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import tree_name

HERE = Path(__file__).parent
STORIES = HERE / "stories"
SIZES = (4096, 16384)
"""Of tree blocks."""
BLOCKS = 24
"""Boxes of a picture, about."""
NAMED = 6
"""Files that are named, at most; and places of blocks."""
PAGE = 4096


@dataclass(frozen=True)
class Story:
    """A story: `file` in the folder of stories, `title` and `words`, the `kernels` to compare."""

    file: str
    title: str
    words: str
    kernels: tuple[str, ...] = ("v5.15", "v7.2")
    chunks: bool = False

    @property
    def name(self) -> str:
        """Of its page."""
        return self.file.partition(".")[0]

    @property
    def is_python(self) -> bool:
        """Whether its steps are Python."""
        return self.file.endswith(".py")

    @property
    def paragraphs(self) -> list[tuple[str, str]]:
        """The words and the commands of each step."""
        text = (STORIES / self.file).read_text().removeprefix(LICENCE).strip()
        found = []
        for paragraph in re.split(r"\n\n+", text):
            words, commands = re.fullmatch(r"((?:# .+\n)+)((?s:.+))", paragraph).groups()
            found.append((words.replace("# ", "").replace("\n", " ").strip(), commands))
        return found


TOLD = (
    Story("write.sh", "A write", "What a new file writes, and when."),
    Story("overwrite.sh", "An overwrite", "New bytes never go where the old ones are."),
    Story("snapshot.sh", "A snapshot", "A copy of all files that copies a block."),
    Story(
        "rewrite-after-snapshot.sh",
        "A write after a snapshot",
        "What was shared is shared no more, leaf by leaf.",
    ),
    Story("delete.sh", "A deletion", "What is left of a file."),
    Story(
        "fsync.sh",
        "An fsync",
        "A log of a directory, before and after a commit of Linux 5.17.",
        ("v5.16", "v5.17", "v7.2"),
    ),
    Story("crash.sh", "A crash", "The last commit is there, whole."),
    Story("replay.sh", "A log is replayed", "What fsync made last, and what it did not."),
    Story("send.sh", "Send and receive", "Two snapshots become a stream, and a subvolume again."),
    Story("balance.py", "A balance", "Chunks are emptied and go.", chunks=True),
    Story("out-of-space.sh", "Out of space", "A write that does not fit."),
    Story("self-healing.py", "Self-healing", "A rotted block, and its other copy."),
)


class Written(NamedTuple):
    """What was written: `what` it is, `how_much`, and `where`."""

    what: str
    how_much: str
    where: str


@dataclass
class Step:
    """What became of the device: `picture` of its trees, and what was `written` to it.

    `crash`: what a crash leaves, in words; `output`: what the commands print.
    """

    words: str
    commands: str
    output: str
    written: list[Written]
    crash: str
    picture: Drawing

    @property
    def shown(self) -> Markup:
        """The picture, for a page that has its style."""
        return Markup(self.picture.step)


@dataclass
class Variant:
    """The steps on some kernels, which do the same, with tree blocks of one size."""

    at: list[tuple[int, int]]
    steps: list[Step]


@dataclass
class Moment:
    """After a step: what is on the device, what processes see, what the commands printed."""

    device: Memory
    seen: State
    output: str


# ---------------------------------------------------------------------------------- running --


def moments(story: Story, kernel: str, nodesize: int) -> Iterator[Moment]:
    """Run a story to the end of each step."""
    runs = _python if story.is_python else _shell
    return runs([commands for _, commands in story.paragraphs], kernel, nodesize)


def _shell(steps: list[str], kernel: str, nodesize: int) -> Iterator[Moment]:
    """Run a script as often as it has steps, each time to the end of the next one."""
    told = 0
    for end in range(1, len(steps) + 1):
        text = "\n".join(steps[:end])
        result = bm.script(text, behaviour=kernel, size=SIZE, variables={"NODESIZE": str(nodesize)})
        (fs,) = result.filesystems.values()
        device = fs.memory.copy()
        fs.sync()
        output = result.output.decode()
        yield Moment(device, seen(fs), output[told:])
        told = len(output)
        result.close()


def _python(steps: list[str], kernel: str, nodesize: int) -> Iterator[Moment]:
    """Run Python, of which each step saves the device."""
    with TemporaryDirectory() as folder:
        disk = Path(folder, "disk.img")
        names = {"bm": bm, "disk": disk, "kernel": kernel, "nodesize": nodesize}
        for commands in steps:
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(commands, names)
            device = Memory.copy_of(disk, disk.stat().st_size)
            with opened(device) as fs:
                yield Moment(device, seen(fs), printed.getvalue().replace(f"{folder}/", ""))


def opened(device: Memory) -> Filesystem:
    """Open what is on a device."""
    return Filesystem(Image(device.buffer, "disk"))


def steps_of(story: Story, kernel: str, nodesize: int) -> list[Step]:
    """Run a story, and look at what each step does."""
    found, before = [], None
    pictures = {}
    for (words, commands), moment in zip(
        story.paragraphs, moments(story, kernel, nodesize), strict=True
    ):
        if before is None:
            before = Memory(len(moment.device.buffer))
        with opened(moment.device) as fs:
            trees = [*([fs.chunk_tree] if story.chunks else []), *of_files(fs)]
            picture = bm.draw(trees, blocks=BLOCKS)
            changes = [(start, len(run)) for start, run in before.take_changes(moment.device)]
            written = list(written_in(fs, changes))
        pictures[str(len(pictures))] = picture
        commands = commands.replace("$NODESIZE", str(nodesize))
        crash = left(moment, kernel)
        found.append(Step(words, commands, moment.output, written, crash, picture))
    for step, picture in zip(found, bm.draw(pictures).drawings.values(), strict=True):
        step.picture = picture
    return found


# ---------------------------------------------------------------------------------- writing --


def written_in(fs: Filesystem, changes: list[tuple[int, int]]) -> Iterator[Written]:
    """Say what is at the places of a device that changed, by owner."""
    places = [
        (start, start + chunk.stripe_length, chunk)
        for chunk in fs.image.chunks
        for start in chunk.stripes
    ]
    reached = {
        block.logical
        for tree in (*fs.trees.values(), fs.root_tree, fs.chunk_tree, *fs.log_trees.values())
        for block in tree.blocks()
    }
    data: set[int] = set()
    blocks: dict[str, dict[int, int]] = {}
    others, has_super = 0, False
    for page in (at for start, size in changes for at in range(start, start + size, PAGE)):
        low, chunk = _place(places, page)
        if page in SUPER_OFFSETS:
            # a mount that finds the first one reads no other
            has_super |= page == SUPER_OFFSETS[0]
        elif chunk is None:
            others += PAGE
        elif chunk.type & BTRFS_BLOCK_GROUP_DATA:
            data.add(chunk.logical + page - low)
        else:
            within = (page - low) // fs.image.nodesize * fs.image.nodesize
            logical = chunk.logical + within
            # a block that waits in memory has no second copy yet
            if logical in reached or _is_whole(fs, chunk, within):
                header = HEADER.unpack_from(fs.image.view, low + within)
                blocks.setdefault(tree_name(header[6]), {})[logical] = header[8]
    for name, pages in sorted(_by_file(data, _files(fs)).items()):
        yield Written(f"data of {name}", plural(len(pages) * PAGE, "byte"), _places(_starts(pages)))
    for owner, levels in sorted(blocks.items()):
        leaves = sum(not level for level in levels.values())
        parts = [
            f"{number:,} {word if number == 1 else words}"
            for number, word, words in (
                (len(levels) - leaves, "node", "nodes"),
                (leaves, "leaf", "leaves"),
            )
            if number
        ]
        yield Written(owner, ", ".join(parts), _places(sorted(levels)))
    if has_super:
        where = f"{SUPER_OFFSETS[0]:,} of the device, generation {fs.image.superblock.generation}"
        yield Written("superblock", plural(PAGE, "byte"), where)
    if others:
        yield Written("what is in no chunk", plural(others, "byte"), "")


def _is_whole(fs: Filesystem, chunk: Chunk, within: int) -> bool:
    """Whether all copies of a block are the same."""
    size = fs.image.nodesize
    copies = {bytes(fs.image.view[at + within : at + within + size]) for at in chunk.stripes}
    return len(copies) == 1 and len(chunk.stripes) > 1


def _place(places: list[tuple[int, int, Chunk]], at: int) -> tuple[int, Chunk | None]:
    for low, high, chunk in places:
        if low <= at < high:
            return low, chunk
    return 0, None


def _files(fs: Filesystem) -> list[tuple[int, int, str]]:
    """Return extents, with a file that each is part of."""
    found = {}
    for number in fs.subvolume_ids:
        subvolume = fs.subvolume(number)
        for item in subvolume.tree.items():
            if item.key.type == ItemType.EXTENT_DATA:
                ino = item.key.objectid
                for one in subvolume.extents(ino):
                    if one.disk_bytenr:
                        path = "/".join(
                            filter(None, (subvolume.path, subvolume.path_of(ino).decode()))
                        )
                        end = one.disk_bytenr + one.disk_num_bytes
                        found.setdefault((one.disk_bytenr, end), path)
    return [(start, end, path) for (start, end), path in found.items()]


def _by_file(data: set[int], files: list[tuple[int, int, str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for page in sorted(data):
        name = next((path for start, end, path in files if start <= page < end), "nobody any more")
        found.setdefault(name, []).append(page)
    return found


def _starts(pages: list[int]) -> list[int]:
    """Return where runs of pages begin."""
    known = set(pages)
    return [page for page in pages if page - PAGE not in known]


def _places(places: list[int]) -> str:
    return _some([f"{place:,}" for place in places])


def _quoted(paths: list[str]) -> str:
    return _some([f'"{path}"' for path in sorted(paths)])


def _some(names: list[str]) -> str:
    """Name the first of them, and count the others."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


# ---------------------------------------------------------------------------------- crashes --


def left(moment: Moment, kernel: str) -> str:
    """Say what a crash leaves of what processes see."""
    with bm.WritableFilesystem(
        moment.device.copy(), behaviour=kernel, replay_behaviour=kernel
    ) as fs:
        fs.sync()
        after = _paths(seen(fs))
    now = _paths(moment.seen)
    lost = [path for path in now if path not in after]
    back = [path for path in after if path not in now]
    older = [path for path in now if path in after and now[path] != after[path]]
    parts = []
    if lost:
        parts.append(f"{_quoted(lost)} would be lost")
    if back:
        parts.append(f"{_quoted(back)} would be back")
    if older:
        parts.append(f"{_quoted(older)} would be as before")
    if not parts:
        return "nothing would be lost."
    return "; ".join(parts) + "."


def _paths(state: State) -> dict[str, object]:
    """Return what is where; directories are there, whatever is in them."""
    above = {to for _, _, to in names_of(state)}
    return {
        path_of(state, ref): (inode.mode, inode.size, inode.data)
        for ref, inode in state.items()
        if ref in above
    }


# ------------------------------------------------------------------------------------- page --


def variants(story: Story) -> list[Variant]:
    """Run a story on each kernel with each size of blocks; what is the same stands once."""
    found: dict[str, Variant] = {}
    for size_at, nodesize in enumerate(SIZES):
        for kernel_at, kernel in enumerate(story.kernels):
            steps = steps_of(story, kernel, nodesize)
            key = repr([(one.commands, one.output, one.written, one.crash, one.picture.step)
                        for one in steps])  # fmt: skip
            found.setdefault(key, Variant([], steps)).at.append((kernel_at, size_at))
    return list(found.values())


def page(story: Story) -> str:
    """Return the page of a story, which needs nothing but itself."""
    code = (HERE / "templates" / "stepper.js").read_text()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    kernels = [f"Linux {kernel.removeprefix('v')}" for kernel in story.kernels]
    sizes = [f"{size >> 10} KiB" for size in SIZES]
    told = variants(story)
    return shelf().get_template("story.html.j2").render(
        story=story, variants=told, code=Markup(code), digest=digest, style=Markup(STYLE),
        sliders={"Kernel": kernels, "Tree blocks": sizes},
        names=[
            (", ".join(dict.fromkeys(kernels[at] for at, _ in one.at)),
             ", ".join(dict.fromkeys(sizes[at] for _, at in one.at)))
            for one in told
        ],
        colours=COLOURS, dark=DARK, shown=("ink", "muted", "line", "plain", "before", "after"),
    )  # fmt: skip


def cards(folder: str) -> str:
    """Return the stories as links with a word on each."""
    return "".join(
        f'- <a href="{folder}/{story.name}-steps.html">{escape(story.title)}</a>. {story.words}\n'
        for story in TOLD
    )
