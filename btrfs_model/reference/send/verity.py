# SPDX-License-Identifier: GPL-2.0-only
"""The fs-verity descriptor of a file, for ENABLE_VERITY."""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, Any

from btrfs_model.base.codes import EUCLEAN
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.reference.ctree import key_at, next_leaf, nritems, payload_at, search_slot

if TYPE_CHECKING:
    from btrfs_model.reference.send.context import SendContext

# struct fsverity_descriptor: version, hash_algorithm, log_blocksize, salt_size, sig_size,
# data_size, root_hash, salt, reserved; the signature follows
_DESCRIPTOR = struct.Struct("<xBBBIQ64s32s144x")
_MAX_SIZE = 16384


def verity_attributes(sctx: SendContext) -> dict[str, Any]:
    """Return the attributes of ENABLE_VERITY of the current inode (``process_verity()``).

    Raises
    ------
    OSError
        EMSGSIZE or EUCLEAN for a descriptor that no kernel writes.
    """
    path, descriptor = sctx.search_path(), b""
    kind = (sctx.cur_ino, ItemType.VERITY_DESC_ITEM)
    # the item with offset 0 has the size, those from 1 on the descriptor itself
    search_slot(sctx.root, (*kind, 1), path)
    while path.slots[0] < nritems(path.leaf) or next_leaf(sctx.root, path):
        if key_at(path.leaf, path.slots[0])[:2] != kind:
            break
        descriptor += payload_at(path.leaf, path.slots[0])
        path.slots[0] += 1
    if len(descriptor) > _MAX_SIZE:
        raise sctx.fail(errno.EMSGSIZE)
    if len(descriptor) < _DESCRIPTOR.size:
        raise sctx.fail(EUCLEAN)
    algorithm, log_blocksize, salt_size, sig_size, *_, salt = _DESCRIPTOR.unpack_from(descriptor)
    signature = descriptor[_DESCRIPTOR.size :]
    if sig_size > len(signature) or salt_size > len(salt) or log_blocksize > 31:
        raise sctx.fail(EUCLEAN)
    return {
        "verity_algorithm": algorithm,
        "verity_block_size": 1 << log_blocksize,
        "verity_salt_data": salt[:salt_size],
        "verity_sig_data": signature[:sig_size],
    }
