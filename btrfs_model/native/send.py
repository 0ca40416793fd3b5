# SPDX-License-Identifier: GPL-2.0-only
"""``native/send``: arguments in, callbacks out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from btrfs_model.base.codes import Code
from btrfs_model.native.backref import Forest
from btrfs_model.native.door import ffi, keep, lib
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


def send(
    forest: Forest,
    parent: Root | None,
    clone_roots: Sequence[Root],
    callbacks: Callbacks,
    *,
    limits: Mapping[str, int | None],
    reads_only: bool = False,
    known: Known | None = None,
    **numbers: int,
) -> tuple[bool, list[int]]:
    """Send.

    `forest`: the trees.
    `parent`: send the difference to it.
    `clone_roots`: what the receiver has.
    `callbacks`: who gets the stream.
    `limits`: of :data:`SEND_LIMITS`, each 1 at least.
    `known`: what sends before it found.
    `reads_only`: read what a full send reads, without the stream.
    `**numbers`: more of ``struct bm_send_args``: ``send_root`` (id of the snapshot), ``behaviour``
    (bits of ``enum bm_toggle``), ``flags``, ``proto`` (version of the stream).
    Returns `told`: with `reads_only`: whether what is read could be told.
    Returns `commands`: how many commands of each number.
    """
    commands, size = ffi.new("uint64_t[]", lib.BM_SEND_COMMANDS), ffi.new("uint64_t *")
    handle, explained = ffi.new_handle(callbacks), ffi.NULL
    if callbacks.explain is not None:
        explained = ffi.new("struct bm_send_explained *")
    # fields of a struct do not keep what they point at alive
    sources, base = _roots(clone_roots), ffi.NULL if parent is None else _roots([parent])
    args = ffi.new(
        "struct bm_send_args *",
        {
            "forest": forest.raw, "clone_roots": sources, "clone_root_count": len(sources),
            "parent": base, "limits": limits, "commands": commands, "size": size,
            "explained": explained, "known": ffi.NULL if known is None else known.raw,
            "context": handle, "write": lib.bm_python_write,
            "decompress": lib.bm_python_decompress, **numbers,
        },
    )  # fmt: skip
    try:
        told = forest.lease.run(lib.bm_send_reads if reads_only else lib.bm_send, args)
    finally:
        if callbacks.explain is not None:
            callbacks.explain(
                *(bytes(ffi.buffer(rows, count * ffi.sizeof(rows[0]))) if count else b""
                  for rows, count in ((explained.rows, explained.count),
                                      (explained.places, explained.place_count)))
            )  # fmt: skip
            lib.bm_send_explained_free(explained)
    if callbacks.estimate is not None:
        callbacks.estimate(size[0])
    return bool(told), list(commands)


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
