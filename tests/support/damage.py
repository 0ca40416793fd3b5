# SPDX-License-Identifier: GPL-2.0-only
"""Images to break: private, writable mappings in which damage gets past the checksums."""

import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.superblock import SUPER_OFFSETS, SUPER_SIZE
from btrfs_model.volume.blocks import HEADER, ITEM, KEY_PTR
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Item, RawKey

NAME = "broken.img"
_NRITEMS_AT = 96


class Broken:
    """A private copy-on-write mapping of an image; the file itself never changes."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.sound = Image(self.map, NAME)
        self.nodesize = self.sound.nodesize
        self.csum_type = self.sound.superblock.csum_type

    def image(self) -> Image:
        """The image as it is now; nothing in it counts as verified."""
        return Image(self.map, NAME)

    def fs(self) -> Filesystem:
        return Filesystem(self.image())

    def copies(self, logical: int) -> list[int]:
        """Bytes of the image at which the copies of an address lie."""
        chunk = self.sound.chunk_at(logical)
        assert chunk is not None
        return [self.sound.map(logical, copy)[0] for copy in range(len(chunk.stripes))]

    def seal(self, logical: int) -> None:
        """Make the checksums of all copies of a tree block right."""
        for start in self.copies(logical):
            block = self.map[start : start + self.nodesize]
            self.map[start : start + 32] = csum(self.csum_type, block[32:]).ljust(32, b"\0")

    def write(self, logical: int, offset: int, data: bytes, *, seal: bool = True) -> None:
        """Overwrite bytes in all copies of a tree block."""
        for start in self.copies(logical):
            self.map[start + offset : start + offset + len(data)] = data
        if seal:
            self.seal(logical)

    def read(self, logical: int, offset: int, size: int) -> bytes:
        start = self.copies(logical)[0] + offset
        return self.map[start : start + size]

    def write_item(self, item: Item, offset: int, data: bytes) -> None:
        """Overwrite bytes of a payload."""
        at = ITEM.unpack_from(self.read(item.block, item_head(item.slot), ITEM.size))[3]
        self.write(item.block, HEADER.size + at + offset, data)

    def items(self, logical: int) -> list[tuple[RawKey, bytes]]:
        """Keys and payloads of a leaf."""
        leaf = self.read(logical, 0, self.nodesize)
        found = []
        for slot in range(HEADER.unpack_from(leaf)[7]):
            *key, at, size = ITEM.unpack_from(leaf, item_head(slot))
            found.append((tuple(key), leaf[HEADER.size + at : HEADER.size + at + size]))
        return found

    def write_items(self, logical: int, items: Iterable[tuple[RawKey, bytes]]) -> None:
        """Make a leaf of items, in the order of their keys, as many as there is room for."""
        heads, data, end = b"", b"", self.nodesize - HEADER.size
        count = 0
        for key, payload in sorted(dict(items).items()):
            if end - len(payload) < (count + 1) * ITEM.size:
                break
            end -= len(payload)
            heads += ITEM.pack(*key, end, len(payload))
            data = payload + data
            count += 1
        space = self.nodesize - HEADER.size - len(heads) - len(data)
        self.write(logical, _NRITEMS_AT, count.to_bytes(4, "little"), seal=False)
        self.write(logical, HEADER.size, heads + bytes(space) + data)

    def store(self, file: Path, blocks: Iterable[int]) -> None:
        """Bring tree blocks of a file to what the mapping holds."""
        with file.open("r+b") as image:
            for logical in blocks:
                for start in self.copies(logical):
                    image.seek(start)
                    image.write(self.map[start : start + self.nodesize])

    def seal_super(self) -> None:
        """Make the checksums of all superblocks right."""
        for offset in SUPER_OFFSETS:
            if offset + SUPER_SIZE <= len(self.map):
                block = self.map[offset : offset + SUPER_SIZE]
                digest = csum(self.csum_type, block[32:]).ljust(32, b"\0")
                self.map[offset : offset + 32] = digest

    @contextmanager
    def restored(self, *places: tuple[int, int]) -> Iterator[None]:
        """Put (start, length) ranges of the image back afterwards."""
        before = [(start, self.map[start : start + length]) for start, length in places]
        try:
            yield
        finally:
            for start, data in before:
                self.map[start : start + len(data)] = data


def item_head(slot: int) -> int:
    """Offset of an item header in its leaf."""
    return HEADER.size + slot * ITEM.size


def node_ptr(slot: int) -> int:
    """Offset of a key pointer in its node."""
    return HEADER.size + slot * KEY_PTR.size
