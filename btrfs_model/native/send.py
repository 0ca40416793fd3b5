# SPDX-License-Identifier: GPL-2.0-only
"""``native/send``: arguments in, callbacks out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import NAMES
from btrfs_model.native.backref import Forest
from btrfs_model.native.door import ffi, interruption, keep, lib, raise_fault
from btrfs_model.ondisk.layout import Payload, PayloadError

Root = tuple[int, int, bytes]
"""Id, ctransid and the uuid that the receiver knows of a subvolume."""


SEND_LIMITS = tuple(name for name, _ in ffi.typeof("struct bm_send_limits").fields)
"""Names of the limits of a send."""

FLAGS = {
    "no_file_data": lib.BM_SEND_NO_FILE_DATA,
    "omit_header": lib.BM_SEND_OMIT_STREAM_HEADER,
    "omit_end": lib.BM_SEND_OMIT_END_CMD,
    "compressed": lib.BM_SEND_COMPRESSED,
    "estimate": lib.BM_SEND_SIZE_ONLY,
}
"""``enum bm_send_flag``, by the names of :func:`btrfs_model.questions.send.ioctl.send`."""


class Callbacks(NamedTuple):
    """What C calls while it sends.

    `write`: gets the stream, piece by piece; a piece (a buffer) is there during the call only.
    `estimate`: gets the bytes of the stream in place of it, where the flag of this name is set.
    `decompress`: gets type, bytes and the size that comes out; what it raises as ``PayloadError``
    is damage.
    `explain`: gets why each command was sent, rows of ``struct bm_send_why``, and the places that
    data might be cloned from, of ``struct bm_send_place``; also where the send fails.
    """

    write: Callable[[Payload], object]
    estimate: Callable[[int], object] | None
    decompress: Callable[[int, bytes, int], bytes]
    explain: Callable[[bytes, bytes], object] | None


class Known:
    """What sends of one image remember for each other (``struct bm_known``).

    They are of one behaviour, with the same limits and all blocks in memory, and nothing changes
    the image meanwhile.
    """

    def __init__(self) -> None:
        raw = lib.bm_known_create()
        if not raw:
            raise MemoryError
        self.raw = ffi.gc(raw, lib.bm_known_destroy)


class Asked:
    """One send, as it is asked for (``struct bm_send_args``).

    `forest`: the trees.
    `parent`: send the difference to it.
    `clone_roots`: what the receiver has.
    `callbacks`: who gets the stream.
    `limits`: of :data:`SEND_LIMITS`, each 1 at least.
    `known`: what sends before it found.
    `**numbers`: more of the struct: ``send_root`` (id of the snapshot), ``behaviour`` (bits of
    ``enum bm_toggle``), ``flags``, ``proto`` (version of the stream).
    """

    def __init__(
        self,
        forest: Forest,
        parent: Root | None,
        clone_roots: Sequence[Root],
        callbacks: Callbacks,
        *,
        limits: Mapping[str, int | None],
        known: Known | None = None,
        **numbers: int,
    ) -> None:
        self.lease, self._callbacks = forest.lease, callbacks
        self._commands = ffi.new("uint64_t[]", lib.BM_SEND_COMMANDS)
        self._size, self._explained = ffi.new("uint64_t *"), ffi.NULL
        if callbacks.explain is not None:
            self._explained = ffi.new("struct bm_send_explained *")
        sources, base = _roots(clone_roots), ffi.NULL if parent is None else _roots([parent])
        handle = ffi.new_handle(callbacks)
        # fields of a struct do not keep what they point at alive
        self._kept = forest, known, sources, base, handle
        self.fields = {
            "forest": forest.raw, "clone_roots": sources, "clone_root_count": len(sources),
            "parent": base, "limits": limits, "commands": self._commands, "size": self._size,
            "explained": self._explained, "known": ffi.NULL if known is None else known.raw,
            "context": handle, "write": lib.bm_python_write,
            "decompress": lib.bm_python_decompress, **numbers,
        }  # fmt: skip

    def ended(self) -> None:
        """Hand on why each command was sent; also where the send failed."""
        explained = self._explained
        if self._callbacks.explain is not None:
            self._callbacks.explain(
                *(bytes(ffi.buffer(rows, count * ffi.sizeof(rows[0]))) if count else b""
                  for rows, count in ((explained.rows, explained.count),
                                      (explained.places, explained.place_count)))
            )  # fmt: skip
            lib.bm_send_explained_free(explained)

    def commands(self) -> list[int]:
        """Hand on the size; return how many commands of each number there are."""
        if self._callbacks.estimate is not None:
            self._callbacks.estimate(self._size[0])
        return list(self._commands)


def send(asked: Asked, *, reads_only: bool = False) -> tuple[bool, list[int]]:
    """Send.

    `reads_only`: read what a full send reads, without the stream.
    Returns `told`: with `reads_only`: whether what is read could be told.
    Returns `commands`: how many commands of each number.
    """
    args = ffi.new("struct bm_send_args *", asked.fields)
    try:
        told = asked.lease.run(lib.bm_send_reads if reads_only else lib.bm_send, args)
    finally:
        asked.ended()
    return bool(told), asked.commands()


def side_by_side(sends: Sequence[Asked]) -> list[tuple[list[int], dict[str, int]] | OSError]:
    """Carry out sends of one image in turns, some inodes each.

    Returns, for each, the error that the kernel gives, or how many commands of each number there
    are, and the work.
    Raises CorruptImageError: the first one's for which the image is broken.
    """
    if not sends:
        return []
    work = [ffi.new("uint64_t[]", lib.BM_WORK_COUNT) for _ in sends]
    rows = [{**one.fields, "work": counts} for one, counts in zip(sends, work, strict=True)]
    args, faults = ffi.new("struct bm_send_args[]", rows), ffi.new("struct bm_fault[]", len(rows))
    lease = sends[0].lease
    with lease:
        if lib.bm_send_side_by_side(args, len(rows), faults) == lib.BM_CALLBACK:
            raise interruption()
    told: list[tuple[list[int], dict[str, int]] | OSError] = []
    for one, counts, fault in zip(sends, work, faults, strict=True):
        one.ended()
        try:
            if fault.code:
                raise_fault(lease.path, fault)
        except OSError as error:
            told.append(error)
        else:
            told.append((one.commands(), dict(zip(NAMES, counts, strict=True))))
    return told


def _roots(roots: Sequence[Root]) -> Any:
    names = ("objectid", "ctransid", "uuid")
    return ffi.new("struct bm_send_root[]", [dict(zip(names, root, strict=True)) for root in roots])


@ffi.def_extern(error=1, onerror=keep)  # type: ignore[untyped-decorator]
def bm_python_write(context: Any, data: Any, size: int) -> int:
    """Hand a piece of the stream on."""
    ffi.from_handle(context).write(memoryview(ffi.buffer(data, size)))
    return 0


@ffi.def_extern(error=lib.BM_CALLBACK, onerror=keep)  # type: ignore[untyped-decorator]
def bm_python_decompress(
    context: Any, compression: int, data: Any, size: int, out: Any, out_size: int
) -> int:
    """Decompress an extent."""
    try:
        plain = ffi.from_handle(context).decompress(
            compression, ffi.buffer(data, size)[:], out_size
        )
    except PayloadError:
        return int(Code.BAD_DATA)
    ffi.memmove(out, plain, out_size)
    return 0
