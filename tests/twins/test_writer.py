# SPDX-License-Identifier: GPL-2.0-only
"""Trees that are changed at random: the C kernels, their Python twin and a dictionary side by side.

The dictionary says what is in the tree, and C and twin must agree on every byte of every block, on
every refusal and on the work that they count.
"""

import errno
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import bare
import corpus
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.counters import counting
from btrfs_model.base.errors import CorruptImageError
from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.native.bulk import insert_batches
from btrfs_model.native.choice import Choice, select
from btrfs_model.native.door import lib
from btrfs_model.native.tree import RawKey
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

TREE = 300
SIZE = 16 << 20
BOTH: tuple[Choice, ...] = ("c", "python")
ITEM = 25
# kinds of change, and how often each is drawn
KINDS = {"insert": 8, "insert_extent": 5, "insert_many": 3, "insert_each": 2, "extend": 3,
         "truncate": 3, "update": 1, "replace": 2, "set_key": 2, "duplicate": 2, "delete": 4,
         "delete_range": 3,
         "commit": 1}  # fmt: skip
DRAWN = [kind for kind, weight in KINDS.items() for _ in range(weight)]


class Trees:
    """The same tree twice, and what must be in it."""

    def __init__(self, nodesize: int, behaviour: str = "v6.18") -> None:
        self.nodesize = nodesize
        self.writers = [(choice, bare.writer(SIZE, nodesize, dup=True)) for choice in BOTH]
        for _, writer in self.writers:
            writer.set_behaviour(Behaviour.parse(behaviour))
            writer.new_tree(TREE)
        self.model: dict[RawKey, bytes] = {}

    def run(self, call: Callable[[TreeWriter], Any]) -> Any:
        """Make a change with both; an errno where they refuse it."""
        results = []
        for choice, writer in self.writers:
            with select(choice), counting() as work:
                try:
                    result = call(writer)
                except CorruptImageError:
                    raise
                except OSError as error:
                    result = error
                done = work["btrfs_search_slot"], work["read_block_for_search"]
                answer = result.errno if isinstance(result, OSError) else result
                results.append((answer, done))
        assert results[0] == results[1]
        return results[0][0]

    def limit(self) -> int:
        """Bytes that the items of a leaf may take."""
        return self.nodesize - 101

    def neighbours(self, key: RawKey) -> tuple[RawKey | None, RawKey | None]:
        """Keys of the model before and after one."""
        before = max((other for other in self.model if other < key), default=None)
        after = min((other for other in self.model if other > key), default=None)
        return before, after

    # each change: what the dictionary says must come of it, and the dictionary changed

    def insert(self, key: RawKey, data: bytes) -> int | None:
        """One new item."""
        want = None
        if len(data) + ITEM > self.limit():
            want = errno.EOVERFLOW
        elif key in self.model:
            joined = len(self.model[key]) + len(data) + ITEM
            want = errno.EOVERFLOW if joined > self.limit() else errno.EEXIST
        else:
            self.model[key] = data
        assert self.run(lambda writer: writer.insert(TREE, key, data)) == want
        return want

    def insert_extent(self, key: RawKey, data: bytes, last: RawKey | None) -> None:
        """One new item in the place of others."""
        want = None
        if len(data) + ITEM > self.limit():
            want = errno.EOVERFLOW
        elif last is None and key in self.model:
            want = errno.EEXIST
        else:
            for gone in [other for other in self.model if last and key <= other <= last]:
                del self.model[gone]
            self.model[key] = data
        assert self.run(lambda writer: writer.insert_extent(TREE, key, data, last)) == want

    def insert_many(self, items: list[tuple[RawKey, bytes]]) -> None:
        """Several new items side by side."""
        first, last = items[0][0], items[-1][0]
        size = sum(len(data) + ITEM for _, data in items)
        after = self.neighbours(first)[1]
        want = None
        if size > self.limit():
            want = errno.EOVERFLOW
        elif first in self.model:
            joined = len(self.model[first]) + size
            want = errno.EOVERFLOW if joined > self.limit() else errno.EEXIST
        elif after is not None and after <= last:
            want = errno.EINVAL
        else:
            self.model.update(items)
        assert self.run(lambda writer: writer.insert_many(TREE, items)) == want

    def insert_each(self, items: list[tuple[RawKey, bytes]]) -> None:
        """Several, until one is there already."""
        ret = self.run(lambda writer: writer.insert_each(TREE, items))
        for key, data in items:
            if key in self.model:
                assert ret in (errno.EEXIST, errno.EOVERFLOW)
                return
            self.model[key] = data
        assert ret is None

    def extend(self, key: RawKey, data: bytes) -> None:
        """Longer."""
        want = None
        if key not in self.model:
            want = errno.ENOENT
        elif len(self.model[key]) + len(data) + ITEM > self.limit():
            want = errno.EOVERFLOW
        else:
            self.model[key] += data
        assert self.run(lambda writer: writer.extend(TREE, key, data)) == want

    def truncate(self, key: RawKey, size: int, from_end: bool) -> None:
        """Shorter."""
        want, old = None, self.model.get(key)
        if old is None:
            want = errno.ENOENT
        elif size > len(old):
            want = errno.EINVAL
        else:
            self.model[key] = old[len(old) - size :] if from_end else old[:size]
        call = lambda writer: writer.truncate(TREE, key, size, from_end=from_end)  # noqa: E731
        assert self.run(call) == want

    def update(self, key: RawKey, at: int, data: bytes) -> None:
        """The same size."""
        want, old = None, self.model.get(key)
        if old is None:
            want = errno.ENOENT
        elif at + len(data) > len(old):
            want = errno.EINVAL
        else:
            self.model[key] = old[:at] + data + old[at + len(data) :]
        assert self.run(lambda writer: writer.update(TREE, key, at, data)) == want

    def replace(self, key: RawKey, data: bytes) -> None:
        """Any size."""
        want = None
        if key not in self.model:
            want = errno.ENOENT
        elif len(data) + ITEM > self.limit():
            want = errno.EOVERFLOW
        else:
            self.model[key] = data
        assert self.run(lambda writer: writer.replace(TREE, key, data)) == want

    def set_key(self, old: RawKey, new: RawKey) -> None:
        """Another key for an item."""
        before, after = self.neighbours(old)
        want = None
        if old not in self.model:
            want = errno.ENOENT
        elif (before is not None and new <= before) or (after is not None and new >= after):
            want = errno.EINVAL
        else:
            self.model[new] = self.model.pop(old)
        assert self.run(lambda writer: writer.set_key(TREE, old, new)) == want

    def duplicate(self, old: RawKey, new: RawKey) -> None:
        """A second item like one."""
        want, after = None, self.neighbours(old)[1]
        ret = self.run(lambda writer: writer.duplicate(TREE, old, new))
        if old not in self.model:
            want = errno.ENOENT
        elif new <= old or (after is not None and new >= after):
            want = errno.EINVAL
        elif 2 * (len(self.model[old]) + ITEM) > self.limit():
            want = errno.EOVERFLOW
        else:
            self.model[new] = self.model[old]
        assert ret == want

    def delete(self, key: RawKey) -> None:
        """One item."""
        want = None if self.model.pop(key, None) is not None else errno.ENOENT
        assert self.run(lambda writer: writer.delete(TREE, key)) == want

    def delete_range(self, first: RawKey, last: RawKey, backward: bool) -> None:
        """Many items."""
        gone = [key for key in self.model if first <= key <= last]
        for key in gone:
            del self.model[key]
        call = lambda writer: writer.delete_range(TREE, first, last, backward=backward)  # noqa: E731
        assert self.run(call) == len(gone)

    def commit(self) -> None:
        """The next transaction."""
        self.run(lambda writer: writer.write_blocks())
        for _, writer in self.writers:
            writer.unpin()
            writer.set_transid(writer.transid + 1)

    # ------------------------------------------------------------------------- judging ------

    def check(self) -> None:
        """Judge the items, while they are not written yet, and each block's place in the tree."""
        for choice, writer in self.writers:
            with select(choice):
                tree = writer.tree(TREE)
                items = [(tuple(item.key), bytes(item.data)) for item in tree.items()]
                assert items == sorted(self.model.items())
                blocks = tree.blocks()
            assert writer.tree_state(TREE).bytes_used == len(blocks) * self.nodesize
            assert all(a.first < b.first for a, b in pairwise(blocks) if a.level == b.level)
            # no empty leaf, no node of one child, but for the root
            assert all(block.nritems > (block.level > 0) for block in blocks if block.parent)

    def check_written(self) -> None:
        """Both wrote the same blocks, whose copies verify."""
        self.run(lambda writer: writer.write_blocks())
        states = [writer.tree_state(TREE) for _, writer in self.writers]
        assert states[0] == states[1]
        images = [Image(writer.image.buffer) for _, writer in self.writers]
        assert images[0].view[: 2 * SIZE] == images[1].view[: 2 * SIZE]
        tree = Tree(images[0], TREE, states[0].bytenr, states[0].generation, states[0].level)
        for block in tree.blocks():
            for copy in (0, 1):
                images[0].verify_copy(block.logical, copy, generation=block.generation)
        for choice in BOTH:
            with select(choice):
                assert {tuple(item.key): bytes(item.data) for item in tree.items()} == self.model


def key_of(number: int) -> RawKey:
    """Keys that are close together, so that they meet."""
    return 256 + number // 60, number // 20 % 3, number % 20


def payload(number: int, nodesize: int) -> bytes:
    """Return a payload: most are small, some take a leaf each."""
    size = number % 101
    if number % 4 == 1:
        size = number % (nodesize // 3)
    elif number % 64 == 3:
        size = nodesize - 101 - ITEM - number % 3 + 1
    return bytes((number + i) % 256 for i in range(16)) * (size // 16) + bytes(size % 16)


def apply(trees: Trees, kind: str, a: int, b: int, c: int) -> None:
    """Make one change out of three numbers."""
    known = sorted(trees.model)
    key = known[a % len(known)] if known and a % 10 else key_of(a)
    data = payload(b, trees.nodesize)
    near = (key[0], key[1], max(0, key[2] + c % 5 - 2))
    if kind in ("insert_many", "insert_each"):
        fresh = (2000 + a % 500, 7, c % 5) if c % 8 else key_of(a)
        items = [
            ((fresh[0], fresh[1], fresh[2] + i), payload(b + 4 * i, trees.nodesize))
            for i in range(1 + c % 12)
        ]
        getattr(trees, kind)([item for item in items if len(item[1]) < trees.nodesize // 3])
        return
    if kind == "delete_range":
        end = known[min(len(known) - 1, known.index(key) + c % 60)] if key in known else near
        trees.delete_range(key, end, bool(b & 1))
        return
    if kind == "insert_extent":
        first = near if c & 1 else key
        last = known[min(len(known) - 1, known.index(key) + b % 6)] if key in known else None
        trees.insert_extent(first, data, last if last is not None and last >= first else None)
        return
    {
        "insert": lambda: trees.insert(key_of(a), data),
        "extend": lambda: trees.extend(key, data[: c % 500]),
        "truncate": lambda: trees.truncate(
            key, b % (1 + len(trees.model.get(key, b""))), bool(c & 1)
        ),
        "update": lambda: trees.update(key, c % 50, data[: b % 60]),
        "replace": lambda: trees.replace(key, data),
        "set_key": lambda: trees.set_key(key, near),
        "duplicate": lambda: trees.duplicate(key, near),
        "delete": lambda: trees.delete(key),
        "commit": trees.commit,
    }[kind]()


NUMBER = st.integers(0, 2**16 - 1)
CHANGES = st.lists(st.tuples(st.sampled_from(DRAWN), NUMBER, NUMBER, NUMBER), max_size=60)


@pytest.mark.claim("The editing of trees writes the same bytes in C and Python.")
@pytest.mark.parametrize("nodesize", [4096, 16384])
@given(
    start=st.integers(0, 400), large=st.booleans(), seed=NUMBER, changes=CHANGES,
    behaviour=st.sampled_from(["v6.18", "v5.10"]),
)  # fmt: skip
def test_c_twin_and_model(
    nodesize: int, start: int, large: bool, seed: int,
    changes: list[tuple[str, int, int, int]], behaviour: str,
) -> None:  # fmt: skip
    """After any changes to any tree all three agree."""
    trees = Trees(nodesize, behaviour)
    size = nodesize // 3 if large else nodesize // 40
    numbers = sorted({(seed + 7919 * i) % 4801 for i in range(start)}, key=lambda n: n * 31 % 997)
    trees.insert_each([(key_of(n), bytes([n % 256]) * (size + n % 50)) for n in numbers])
    trees.check()
    for change in changes:
        apply(trees, *change)
    trees.check()
    trees.check_written()


# Items of a leaf each: changes of many make nodes full and empty, and give pointers to neighbours.
WIDE = 3000
RUNS = st.lists(
    st.tuples(st.sampled_from(["fill", "fill", "drain", "commit"]), NUMBER, st.integers(1, 200)),
    max_size=8,
)


def change_run(trees: Trees, kind: str, at: int, count: int) -> None:
    """Insert or delete a run of wide items, or commit."""
    known = sorted(trees.model)
    if kind == "commit":
        trees.commit()
    elif kind == "drain":
        if known:
            first = at % len(known)
            last = min(len(known) - 1, first + count)
            trees.delete_range(known[first], known[last], bool(count & 1))
    else:
        order = range(count) if at & 1 else range(count - 1, -1, -1)
        step = 1 + at % 7
        keys = [(at % 3000 + step * i, 1, 0) for i in order]
        fresh = [key for key in keys if key not in trees.model]
        trees.insert_each([(key, bytes([key[0] % 256]) * WIDE) for key in fresh])


@settings(max_examples=300 if corpus.LONG else 12)
@example(0, True, [("fill", 2998, 200), ("drain", 0, 1), ("commit", 0, 1), ("drain", 0, 199)])
@example(600, True, [("fill", 300, 120), ("drain", 100, 200), ("commit", 0, 1), ("drain", 9, 199)])
@given(start=st.integers(0, 600), ascending=st.booleans(), runs=RUNS)
def test_nodes(start: int, ascending: bool, runs: list[tuple[str, int, int]]) -> None:
    """Nodes are split, filled, merged and removed alike."""
    trees = Trees(4096)
    numbers = sorted(range(start), key=lambda n: n if ascending else n * 7919 % 2003)
    trees.insert_each([((5 * n, 1, 0), bytes([n % 256]) * WIDE) for n in numbers])
    for run in runs:
        change_run(trees, *run)
        trees.check()
    trees.check_written()


@pytest.mark.parametrize(("behaviour", "touched"), [("v6.18", 1), ("v5.10", 3)])
def test_neighbours_of_a_leaf_that_empties(behaviour: str, touched: int) -> None:
    """Before 5.18 they are copied for what they may have room for, and take a part of it."""
    trees = Trees(4096, behaviour)
    trees.insert_each([((n, 1, 0), bytes([n % 256]) * 75) for n in range(1, 161)])
    tree = trees.writers[0][1].tree(TREE)
    second = list(dict.fromkeys(item.block for item in tree.items()))[1]
    leaf = [item.key.objectid for item in tree.items() if item.block == second]
    # of what will be left there is room for an item on the right, and for none on the left
    trees.truncate((leaf[-1] + 1, 1, 0), 0, from_end=False)
    trees.commit()
    before = {item.block for item in trees.writers[0][1].tree(TREE).items()}
    trees.delete_range((leaf[11], 1, 0), (leaf[-1], 1, 0), False)
    trees.check()
    trees.check_written()
    now = {item.block for item in trees.writers[0][1].tree(TREE).items()}
    assert len(before - now) == touched


# ------------------------------------------------------------------------- delayed items, old --


def insert_beside(writer: TreeWriter, items: list[tuple[RawKey, bytes]]) -> None:
    """``btrfs_insert_delayed_items()`` of Linux 5.10 by single calls."""
    at = 0
    while at < len(items):
        key, data = items[at]
        writer.insert(TREE, key, data)
        room = writer.leaf_free(TREE, key)
        first = at = at + 1
        while at < len(items) and items[at][0][2] == items[at - 1][0][2] + 1:
            room -= len(items[at][1]) + ITEM
            if room < 0:
                break
            at += 1
        if at > first:
            writer.insert_many(TREE, items[first:at])


@given(
    before=st.lists(st.integers(0, 200), max_size=60, unique=True),
    gaps=st.lists(st.sampled_from([1, 1, 1, 1, 1, 1, 2, 5]), max_size=150),
    sizes=st.randoms(use_true_random=False),
)
def test_delayed_items_before_5_15(
    before: list[int], gaps: list[int], sizes: random.Random
) -> None:
    """One, and beside it what has room in its leaf: the same leaves as by single calls."""
    offsets = np.cumsum(np.array([100, *gaps], np.uint64))
    data = [bytes([n % 256]) * sizes.randrange(30, 400) for n in range(len(offsets))]
    items = [((256, 96, offset), d) for offset, d in zip(offsets.tolist(), data, strict=True)]
    leaves = []
    for at_once in (True, False):
        writer = bare.writer(SIZE, 4096, dup=True)
        writer.set_behaviour(Behaviour.parse("v5.10"))
        writer.new_tree(TREE)
        for n in before:
            # on both sides of those that follow
            writer.insert(TREE, (256 + n % 2, 84 if n % 2 == 0 else 1, n), bytes(n))
        if at_once:
            lengths = np.array([len(d) for d in data], np.uint32)
            insert_batches(writer, TREE, 256, 96, offsets, lengths, b"".join(data))
        else:
            insert_beside(writer, items)
        leaves.append([(item.block, tuple(item.key), bytes(item.data))
                       for item in writer.tree(TREE).items()])  # fmt: skip
    assert leaves[0] == leaves[1]


# --------------------------------------------------------------------------------- refusals --


def errno_of(call: Callable[[], Any]) -> int | None:
    """Errno of the error that a call raises."""
    with pytest.raises(OSError) as caught:
        call()
    assert not isinstance(caught.value, CorruptImageError)
    return caught.value.errno


@pytest.mark.parametrize("choice", BOTH)
def test_refusals(choice: Choice) -> None:
    """What cannot be done is refused with an errno and changes nothing."""
    writer = bare.writer(nodesize=4096)
    writer.new_tree(TREE)
    item, other = (1, 2, 3), (1, 2, 9)
    most = 4096 - 101 - ITEM
    with select(choice):
        writer.insert_many(TREE, [])
        writer.insert(TREE, item, b"payload")
        wide = [((1, 2, 2), b""), ((1, 2, 4), b"")]
        assert errno_of(lambda: writer.insert_many(TREE, wide)) == errno.EINVAL
        assert errno_of(lambda: writer.insert_many(TREE, wide[::-1])) == errno.EINVAL
        assert errno_of(lambda: writer.insert(TREE, item, b"")) == errno.EEXIST
        # the kernel wants to join what has one key, and they do not fit
        assert errno_of(lambda: writer.insert(TREE, item, bytes(most))) == errno.EOVERFLOW
        assert errno_of(lambda: writer.insert(TREE, other, bytes(most + 1))) == errno.EOVERFLOW
        assert errno_of(lambda: writer.extend(TREE, other, b"x")) == errno.ENOENT
        assert errno_of(lambda: writer.extend(TREE, item, bytes(most))) == errno.EOVERFLOW
        assert errno_of(lambda: writer.truncate(TREE, item, 8)) == errno.EINVAL
        assert errno_of(lambda: writer.update(TREE, item, 7, b"x")) == errno.EINVAL
        assert errno_of(lambda: writer.replace(TREE, other, b"x")) == errno.ENOENT
        assert errno_of(lambda: writer.duplicate(TREE, item, item)) == errno.EINVAL
        assert errno_of(lambda: writer.duplicate(TREE, other, (9, 9, 9))) == errno.ENOENT
        assert errno_of(lambda: writer.delete(TREE, other)) == errno.ENOENT
        assert writer.delete_range(TREE, other, item) == 0
        assert [(tuple(i.key), bytes(i.data)) for i in writer.tree(TREE).items()] == [
            (item, b"payload")
        ]
    assert errno_of(lambda: writer.new_tree(TREE)) == errno.EEXIST
    with pytest.raises(CorruptImageError):
        writer.tree_state(TREE + 1)


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("level", [0, 1])
def test_damaged_block(choice: Choice, level: int) -> None:
    """A damaged block of an older transaction is named, and the tree stays as it was."""
    writer = bare.writer(nodesize=4096)
    writer.new_tree(TREE)
    writer.insert_each(TREE, [((i, 1, 0), bytes(300)) for i in range(100)])
    block = next(block for block in writer.tree(TREE).blocks() if block.level == level)
    writer.write_blocks()
    state = writer.tree_state(TREE)
    memory = memoryview(writer.image.buffer)
    memory[writer.image.map(block.logical)[0] + 200] ^= 1
    again = TreeWriter(Image(writer.image.buffer), writer.image.buffer, transid=9, features=0)
    again.set_tree(TREE, bytenr=state.bytenr, generation=state.generation, level=state.level)
    again.add_group(bare.METADATA, 64 << 20, 4)
    again.occupy([(bare.METADATA, 1 << 20)])
    with select(choice), pytest.raises(CorruptImageError) as caught:
        again.insert(TREE, (0, 0, 0), b"")
    assert caught.value.fault.code == lib.BM_BAD_CSUM
    assert caught.value.fault.block == block.logical


def unlisted(choice: Choice, level: int) -> tuple[TreeWriter, int]:
    """A writer that takes the blocks of a tree for free, which lie from its first block on."""
    writer = bare.writer(nodesize=16384)
    writer.new_tree(TREE)
    writer.insert_each(TREE, [((i, 1, 0), bytes(2000)) for i in range(8 if level else 5)])
    assert writer.tree_state(TREE).level == level
    writer.write_blocks()
    state = writer.tree_state(TREE)
    again = TreeWriter(Image(writer.image.buffer), writer.image.buffer, transid=9, features=0)
    again.set_tree(TREE, bytenr=state.bytenr, generation=state.generation, level=state.level)
    return again, state.bytenr


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("gap", [0, 4096, 12288])
def test_block_that_the_extent_tree_does_not_know(choice: Choice, gap: int) -> None:
    """The place of a block counts as free: no copy of it is made over itself."""
    writer, bytenr = unlisted(choice, 0)
    writer.add_group(bare.METADATA, 64 << 20, 4)
    if bytenr - gap > bare.METADATA:
        writer.occupy([(bare.METADATA, bytenr - gap - bare.METADATA)])
    with select(choice), pytest.raises(CorruptImageError, match="tree 2: impossible value"):
        writer.insert(TREE, (0, 0, 0), b"")
    assert writer.aborted


@pytest.mark.parametrize("choice", BOTH)
def test_block_under_another_is_verified_again(choice: Choice) -> None:
    """What was verified of a tree is not any more once something else is written there."""
    writer, bytenr = unlisted(choice, 0)
    with select(choice):
        assert writer.get(TREE, (1, 1, 0)) == bytes(2000)
        writer.add_group(bare.METADATA, 64 << 20, 1)
        # its last sectors; a block is read from its first one
        writer.occupy([(bare.METADATA, bytenr + 8192 - bare.METADATA)])
        at, _ = writer.reserve_data(8192, 8192, bytenr + 8192)
        assert at == bytenr + 8192
        place = writer.image.map(at)[0]
        writer.image.buffer[place : place + 8192] = b"x" * 8192
        if choice == "c":
            with pytest.raises(CorruptImageError, match="bad checksum"):
                writer.get(TREE, (1, 1, 0))


def test_trees() -> None:
    """What is known of trees can be asked, changed and forgotten."""
    writer = bare.writer(transid=5)
    writer.new_tree(-6, owner=-6)
    writer.new_tree(TREE, owner=TREE, shareable=True)
    assert writer.tree_ids() == [TREE, 2**64 - 6]
    state = writer.tree_state(TREE)
    assert (state.generation, state.level, state.bytes_used) == (5, 0, 4096)
    assert state.shareable
    assert state.dirty
    assert writer.changed_trees() == [TREE, 2**64 - 6]
    writer.clear_changed()
    writer.change_tree(TREE, last_snapshot=4)
    assert writer.tree_state(TREE) == state._replace(dirty=False, last_snapshot=4)
    assert writer.changed_trees() == []
    writer.insert(TREE, (1, 1, 1), b"")
    assert writer.tree_state(TREE).dirty
    assert writer.has_tree(-6)


def test_copy_on_write() -> None:
    """In the next transaction the path of a change is copied, once, and nothing else."""
    writer = bare.writer()
    writer.new_tree(TREE)
    writer.insert_each(TREE, [((i, 1, 0), bytes(300)) for i in range(2000)])
    writer.write_blocks()
    old = {block.logical: bytes(writer.image.block(block.logical))
           for block in writer.tree(TREE).blocks()}  # fmt: skip
    writer.unpin()
    writer.set_transid(writer.transid + 1)
    for _ in range(2):
        writer.update(TREE, (1000, 1, 0), 0, b"new")
        blocks = writer.tree(TREE).blocks()
        fresh = [block for block in blocks if block.logical not in old]
        assert [block.level for block in fresh] == list(
            range(writer.tree_state(TREE).level, -1, -1)
        )
        assert {block.generation for block in fresh} == {writer.transid}
        assert len(blocks) == len(old)
    assert writer.write_blocks() == len(fresh)
    # the blocks of the last transaction are there as they were, until it is unpinned
    for logical, data in old.items():
        assert writer.image.data(logical, 4096) == data


def changed_filesystem(seed: int) -> bytes:
    """Return the image of a filesystem after random calls and some commits."""
    dice = random.Random(seed)
    fs = bm.create(256 << 20, nodesize=4096, seed=seed)
    names: list[str] = []
    for step in range(150):
        what = dice.random()
        if what < 0.5 or not names:
            names.append(f"/{step}-" + "n" * dice.randrange(60))
            fs.create(names[-1])
            fs.setxattr(names[-1], "user.x", bytes(dice.randrange(600)))
        elif what < 0.65:
            fs.write(dice.choice(names), dice.randrange(9) * 4096, b"data" * dice.randrange(4000))
        elif what < 0.8:
            fs.unlink(names.pop(dice.randrange(len(names))))
        elif what < 0.9:
            index = dice.randrange(len(names))
            fs.rename(names[index], f"/moved{step}", 0)
            names[index] = f"/moved{step}"
        elif what < 0.97:
            fs.sync()
        else:
            fs.snapshot("/", f"/snapshot{step}")
    fs.sync()
    return bytes(fs.image.view)


def test_filesystem_by_twin() -> None:
    """A filesystem that the twin wrote is that of the C kernels, to the last byte."""
    images = []
    for choice in BOTH:
        with select(choice):
            images.append(changed_filesystem(6))
    assert images[0] == images[1]
