/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Changing the items of a tree: what the kernel's ctree.c does with a path to a leaf.
 *
 * A key that must (not) be there: BM_ERRNO with ENOENT (EEXIST) in fault->found. What does not fit
 * into a leaf: EOVERFLOW; an insertion of what is there counts the two as one item.
 */
#ifndef BTRFS_MODEL_WRITER_BTREE_API_H
#define BTRFS_MODEL_WRITER_BTREE_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "tree/api.h"
#include "writer/api.h"

/*
 * btrfs_insert_empty_items(): `count` items, ascending, side by side at the place of the first;
 * data[] follows item by item. The caller sees to it that no key lies between them and that they
 * fit into a leaf.
 */
int bm_writer_insert(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
		     const uint32_t *sizes, size_t count, const uint8_t *data,
		     struct bm_fault *fault);
/* The same one item at a time, in the order given: a run of `count` searches and insertions. */
int bm_writer_insert_each(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, const uint8_t *data,
			  struct bm_fault *fault);
/*
 * btrfs_drop_extents() with replace_extent: items from `key` up to `last` (NULL: none) go and a file
 * extent comes. It stays in the leaf where the last of them was, or that was searched without an
 * insertion in view, so that no node is split on the way, if there is room.
 */
int bm_writer_insert_extent(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
			    const struct bm_key *last, const uint8_t *data, uint32_t size,
			    struct bm_fault *fault);
/* Overwrite `size` bytes of a payload from `offset` on; the item keeps its size. */
int bm_writer_update(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
		     uint32_t offset, const uint8_t *data, uint32_t size, struct bm_fault *fault);
/* btrfs_extend_item() and fill the new end of the payload. */
int bm_writer_extend(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
		     const uint8_t *data, uint32_t size, struct bm_fault *fault);
/* btrfs_truncate_item(): down to new_size bytes, with from_end its last ones; the key stays. */
int bm_writer_truncate(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
		       uint32_t new_size, int from_end, struct bm_fault *fault);
/* btrfs_set_item_key_safe(): `to` must sort between the neighbours. */
int bm_writer_set_key(struct bm_writer *writer, uint64_t tree, const struct bm_key *from,
		      const struct bm_key *to, struct bm_fault *fault);
/* btrfs_duplicate_item(): insert a copy of an item behind it, under the key `to`. */
int bm_writer_duplicate(struct bm_writer *writer, uint64_t tree, const struct bm_key *from,
			const struct bm_key *to, struct bm_fault *fault);
/*
 * btrfs_del_items(): delete all items with min <= key <= max, a leaf's run at a time, from the last
 * leaf to the first (`backward`, as truncation does) or from the first on. Returns how many.
 */
int64_t bm_writer_delete(struct bm_writer *writer, uint64_t tree, const struct bm_key *min,
			 const struct bm_key *max, int backward, struct bm_fault *fault);

/*
 * The ground of the Python twin of all this: a block of this transaction that is made, given back,
 * or takes the place of an older one (the root, or the child in a slot of a block that may be
 * written to). bm_writer_is_dirty: a block that starts at this byte of the image is not written.
 */
int bm_writer_is_dirty(const struct bm_writer *writer, uint64_t physical);
int bm_writer_make_block(struct bm_writer *writer, uint64_t tree, int level,
			 const struct bm_key *first, uint64_t hint, uint64_t *bytenr,
			 struct bm_fault *fault);
int bm_writer_drop_block(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			 struct bm_fault *fault);
int bm_writer_own_root(struct bm_writer *writer, uint64_t tree, struct bm_fault *fault);
int bm_writer_own_child(struct bm_writer *writer, uint64_t tree, uint64_t parent, uint32_t slot,
			uint64_t *bytenr, struct bm_fault *fault);

#endif
