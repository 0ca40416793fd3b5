# SPDX-License-Identifier: GPL-2.0-only
"""The door to ``native/send/``: arguments in, callbacks out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.codes import Code
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import keep, new_fault, raise_fault
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.reference.send.causes import ROW
from btrfs_model.volume.compression import decompress
from btrfs_model.volume.forest import Forest

if TYPE_CHECKING:
    from btrfs_model.reference.send.request import SendRequest
    from btrfs_model.volume.subvolume import Subvolume


class Sender:
    """One send by the C kernel.

    Parameters
    ----------
    request : SendRequest
        What to send, checked.
    """

    def __init__(self, request: SendRequest) -> None:
        self.request = request

    def run(self) -> dict[str, int]:
        """Send; return the number of commands by name.

        Raises
        ------
        OSError, CorruptImageError
            See :func:`btrfs_model.questions.send.send`.
        """
        commands = ffi.new("uint64_t[]", lib.BM_SEND_COMMANDS)
        self._call(lib.bm_send, commands)
        return {
            command.name: count
            for command in COMMANDS.values()
            if (count := commands[command.number])
        }

    def walk(self) -> bool:
        """Read the tree blocks that a full send reads, without the stream.

        Returns
        -------
        bool
            Whether that could be told; False where it takes :meth:`run`.

        Raises
        ------
        OSError, CorruptImageError
            As :meth:`run`.
        """
        return bool(self._call(lib.bm_send_reads, ffi.new("uint64_t[]", lib.BM_SEND_COMMANDS)))

    def _call(self, kernel: Any, commands: Any) -> int:
        """Call a C kernel with what is asked for."""
        with self.request.fs.image.lease:
            return self._call_held(kernel, commands)

    def _call_held(self, kernel: Any, commands: Any) -> int:
        request, image = self.request, self.request.fs.image
        opened = [subvolume.id for subvolume in request.clone_roots]
        if request.parent is not None:
            opened.append(request.parent.id)
        forest = Forest.of(request.fs, opened)
        fault = new_fault()
        handle = ffi.new_handle(self)
        # fields of a struct do not keep what they point at alive
        args, clone_roots = ffi.new("struct bm_send_args *"), self._clone_roots()
        args.forest = forest.handle
        args.clone_roots, args.clone_root_count = clone_roots, len(clone_roots)
        args.send_root = request.snapshot.id
        if request.parent is not None:
            parent = ffi.new("struct bm_send_root *")
            self._fill(parent, request.parent)
            args.parent = parent
        args.behaviour = request.behaviour.bits
        args.flags = (
            request.no_file_data * lib.BM_SEND_NO_FILE_DATA
            | request.omit_header * lib.BM_SEND_OMIT_STREAM_HEADER
            | request.omit_end * lib.BM_SEND_OMIT_END_CMD
            | request.compressed * lib.BM_SEND_COMPRESSED
        )
        args.proto = request.proto
        args.commands = commands
        args.context = handle
        args.write = lib.bm_python_write
        args.decompress = lib.bm_python_decompress
        if request.explanation is not None:
            args.explained = explained = ffi.new("struct bm_send_explained *")
        ret: int = kernel(args, fault)
        if request.explanation is not None:
            rows = ffi.buffer(explained.rows, explained.count * ROW.itemsize)
            request.explanation.rows = np.frombuffer(bytes(rows), ROW)
            lib.bm_send_explained_free(explained)
        if ret < 0:
            raise_fault(image.path, fault)
        return ret

    def _clone_roots(self) -> Any:
        rows = ffi.new("struct bm_send_root[]", len(self.request.clone_roots))
        for row, subvolume in zip(rows, self.request.clone_roots, strict=True):
            self._fill(row, subvolume)
        return rows

    @staticmethod
    def _fill(row: Any, subvolume: Subvolume) -> None:
        item = subvolume.item
        row.objectid = subvolume.id
        row.ctransid = item.ctransid
        row.uuid = item.received_uuid if any(item.received_uuid) else item.uuid


@ffi.def_extern(error=1, onerror=keep)  # type: ignore[untyped-decorator]
def bm_python_write(context: Any, data: Any, size: int) -> int:
    """Hand a piece of the stream on."""
    ffi.from_handle(context).request.write(ffi.buffer(data, size)[:])
    return 0


@ffi.def_extern(error=lib.BM_CALLBACK, onerror=keep)  # type: ignore[untyped-decorator]
def bm_python_decompress(
    context: Any, compression: int, data: Any, size: int, out: Any, out_size: int
) -> int:
    """Decompress an extent by the libraries that :mod:`btrfs_model.volume` uses."""
    image = ffi.from_handle(context).request.fs.image
    try:
        plain = decompress(compression, ffi.buffer(data, size)[:], out_size, image.sectorsize)
    except PayloadError:
        return int(Code.BAD_DATA)
    ffi.memmove(out, plain, out_size)
    return 0
