# SPDX-License-Identifier: GPL-2.0-only
"""``native/send``: arguments in, callbacks out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from btrfs_model.base.codes import Code
from btrfs_model.native.backref import Forest
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import keep, new_fault, raise_fault
from btrfs_model.ondisk.layout import PayloadError

Root = tuple[int, int, bytes]
"""Id, ctransid and the uuid that the receiver knows of a subvolume."""


SEND_LIMITS = tuple(name for name, _ in ffi.typeof("struct bm_send_limits").fields)
"""Names of the limits of a send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One send.

    Attributes
    ----------
    forest : Forest
        The trees.
    send_root : int
        Id of the snapshot.
    parent : Root or None
        Send the difference to it.
    clone_roots : sequence of Root
        What the receiver has.
    behaviour : int
        Bits of ``enum bm_toggle``.
    limits : mapping
        Of :data:`SEND_LIMITS`, each 1 at least.
    proto : int
        Version of the stream.
    no_file_data, omit_header, omit_end, compressed : bool
        See :func:`btrfs_model.questions.send.ioctl.send`.
    write : callable
        Gets the stream, piece by piece.
    decompress : callable
        Gets type, bytes and the size that comes out; what it raises as ``PayloadError`` is damage.
    explain : callable or None
        Gets why each command was sent, rows of ``struct bm_send_why``; also where the send fails.
    """

    forest: Forest
    send_root: int
    parent: Root | None
    clone_roots: Sequence[Root]
    behaviour: int
    limits: Mapping[str, int | None]
    proto: int
    no_file_data: bool
    omit_header: bool
    omit_end: bool
    compressed: bool
    write: Callable[[bytes], object]
    decompress: Callable[[int, bytes, int], bytes]
    explain: Callable[[bytes], object] | None

    def run(self) -> list[int]:
        """Send; return the number of commands by their number."""
        commands = ffi.new("uint64_t[]", lib.BM_SEND_COMMANDS)
        self._call(lib.bm_send, commands)
        return list(commands)

    def walk(self) -> bool:
        """Read what a full send reads, without the stream; whether that could be told."""
        return bool(self._call(lib.bm_send_reads, ffi.new("uint64_t[]", lib.BM_SEND_COMMANDS)))

    def _call(self, kernel: Any, commands: Any) -> int:
        fault, handle = new_fault(), ffi.new_handle(self)
        # fields of a struct do not keep what they point at alive
        args, clone_roots = ffi.new("struct bm_send_args *"), _roots(self.clone_roots)
        args.forest = self.forest.raw
        args.clone_roots, args.clone_root_count = clone_roots, len(clone_roots)
        args.send_root = self.send_root
        if self.parent is not None:
            parent = _roots([self.parent])
            args.parent = parent
        args.behaviour, args.limits = self.behaviour, self.limits
        args.flags = (
            self.no_file_data * lib.BM_SEND_NO_FILE_DATA
            | self.omit_header * lib.BM_SEND_OMIT_STREAM_HEADER
            | self.omit_end * lib.BM_SEND_OMIT_END_CMD
            | self.compressed * lib.BM_SEND_COMPRESSED
        )
        args.proto = self.proto
        args.commands = commands
        args.context = handle
        args.write = lib.bm_python_write
        args.decompress = lib.bm_python_decompress
        if self.explain is not None:
            args.explained = explained = ffi.new("struct bm_send_explained *")
        with self.forest.lease:
            ret: int = kernel(args, fault)
        if self.explain is not None:
            size = explained.count * ffi.sizeof("struct bm_send_why")
            self.explain(bytes(ffi.buffer(explained.rows, size)))
            lib.bm_send_explained_free(explained)
        if ret < 0:
            raise_fault(self.forest.lease.path, fault)
        return ret


def _roots(roots: Sequence[Root]) -> Any:
    names = ("objectid", "ctransid", "uuid")
    return ffi.new("struct bm_send_root[]", [dict(zip(names, root, strict=True)) for root in roots])


@ffi.def_extern(error=1, onerror=keep)  # type: ignore[untyped-decorator]
def bm_python_write(context: Any, data: Any, size: int) -> int:
    """Hand a piece of the stream on."""
    ffi.from_handle(context).write(ffi.buffer(data, size)[:])
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
