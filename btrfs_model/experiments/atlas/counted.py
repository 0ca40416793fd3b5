# SPDX-License-Identifier: GPL-2.0-only
"""How often the scripts of rows call functions, in a kernel that counts and in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from btrfs_model.base.counters import NAMES
from btrfs_model.base.errors import BtrfsModelError, KernelFailedError, KernelMissingError
from btrfs_model.experiments.ab.script import LIMIT, MEMORY, Script, counts_of
from btrfs_model.experiments.atlas.rows import Row
from btrfs_model.experiments.atlas.runs import QUICK, printed_number
from btrfs_model.experiments.verify.counts import EXCEPTIONS, INLINED
from btrfs_model.kernels import gcov
from btrfs_model.kernels.uml import Uml
from btrfs_model.scripts.answer import whole
from btrfs_model.scripts.find import devices_in, mounts_in
from btrfs_model.scripts.run import script as run_in_the_model
from btrfs_model.scripts.variables import with_numbers

COLUMNS: Final = {
    "row": "object", "function": "object", "kernel": "float64", "model": "float64",
    "entered": "float64", "why": "object",
}  # fmt: skip
_BEGINS: Final = r"""
mount -t tmpfs none /tmp
cd /proc/sys/vm
for one in dirty_background_ratio:90 dirty_ratio:95 dirty_writeback_centisecs:0; do
    echo ${one#*:} > ${one%:*}
done
cd - > /dev/null
mount() { command mount -o commit=3600 "$@"; }
power_failure() {
    local device
    for device in $(findmnt -nt btrfs -o SOURCE | sed 's/\[.*//' | sort -u); do
        dd if=$device of=/tmp/lost bs=16M iflag=direct conv=sparse status=none
        umount -A $device
        dd if=/tmp/lost of=$device bs=16M oflag=direct conv=sparse,notrunc status=none
    done
}
"""
"""What a script has on a kernel: a /tmp of its own, for the guest's is this machine's; nothing that
is written, and no commit, because time goes by; and a power failure. What the disk had then comes
back when the filesystem is gone; what was written while it went is where nothing leads to."""
_ELSEWHERE: Final = dict.fromkeys(
    (
        "btrfs_search_slot", "btrfs_search_slot_for_read", "btrfs_next_old_leaf",
        "btrfs_next_old_item", "btrfs_get_next_valid_item", "btrfs_get_extent",
        "btrfs_previous_extent_item", "btrfs_lookup_dir_item", "btrfs_lookup_xattr",
        "btrfs_lookup_file_extent", "btrfs_readahead_node_child", "read_block_for_search",
        "read_tree_block", "reada_for_search", "setup_items_for_insert",
    ),
    "the rest of btrfs calls it, too",
)  # fmt: skip


def counted(
    rows: Sequence[Row], binary: Path, scale: str, step: Callable[[str], None]
) -> pd.DataFrame:
    """Run the scripts of rows in a kernel that counts, and in the model.

    Parameters
    ----------
    rows : sequence of Row
        Which ones; a row of a workload has no script.
    binary : Path
        A kernel of :func:`btrfs_model.kernels.build.build`.
    scale : str
        ``"full"`` or ``"quick"``.
    step : callable
        Is told what runs.

    Returns
    -------
    pandas.DataFrame
        A row for each function that the model calls and for each number that a script prints:
        ``kernel`` and ``model`` (calls, or the number), ``entered`` (what the row has of a kernel)
        and ``why`` a count is not compared. It has the calls of the whole script.

    Raises
    ------
    KernelMissingError
        When the kernel does not count.
    BtrfsModelError
        When a row has no script, or its script fails, with the name of the row.
    """
    if why := gcov.why_not(binary):
        raise KernelMissingError(why)
    if without := [row.name for row in rows if not row.script]:
        raise BtrfsModelError(f"atlas: {without[0]}: it has no script for a kernel")
    found: list[tuple[object, ...]] = []
    with Uml(binary, memory=MEMORY, limit=LIMIT) as kernel:
        for row in rows:
            step(row.name)
            try:
                found += _counts(row, kernel, row.quick if scale == QUICK else {})
            except KernelFailedError as error:
                raise BtrfsModelError(f"atlas: {row.name}: {error}") from error
    return pd.DataFrame(found, columns=list(COLUMNS)).astype(COLUMNS)


def _counts(
    row: Row, kernel: Uml, quick: Mapping[str, int | float]
) -> Iterator[tuple[object, ...]]:  # fmt: skip
    text = with_numbers(row.script, {name: int(value) for name, value in quick.items()})
    file = kernel.new_file()
    file.write_text(_BEGINS + text)
    script = Script(row.name, ["bash", str(file)], text, devices_in(text), mounts_in(text))
    functions, said = counts_of(script, kernel)
    result = run_in_the_model(text, behaviour=kernel.preset)
    result.close()
    made, printed = whole(result), result.output.decode(errors="replace")
    entered = {one.counter or one.line: one.after for one in row.figures if one.kernel}
    for line in dict.fromkeys(one.line for one in row.figures if one.line):
        yield (row.name, line, printed_number(line, said), printed_number(line, printed),
               entered.get(line), "")  # fmt: skip
    work = {} if made is None else made.work
    for name in sorted(set(work) & set(NAMES)):  # the others are calls of a receiver
        calls = functions.get(name)
        why = EXCEPTIONS.get(name) or _ELSEWHERE.get(name) or (INLINED if calls is None else "")
        yield row.name, name, calls, work[name], entered.get(name), why
