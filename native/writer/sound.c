// SPDX-License-Identifier: GPL-2.0-only
/*
 * What assertions ask of blocks and paths that are being changed. Compiled with assertions alone.
 */
#include "writer/writer.h"

#ifdef BM_ASSERTIONS

#include <stdio.h>
#include <stdlib.h>

_Noreturn void bm_assert_failed(const char *what, const char *function, const char *file, int line)
{
	fprintf(stderr, "%s:%d: %s(): assertion failed: %s\n", file, line, function, what);
	abort();
}

/* Whether the keys of a block ascend. */
static int ascends(const uint8_t *block)
{
	for (uint32_t slot = 1; slot < block_header(block)->nritems; slot++) {
		struct bm_key key = to_key(block_key(block, slot));

		if (compare_disk_key(block_key(block, slot - 1), &key) >= 0)
			return 0;
	}
	return 1;
}

int bm_leaf_is_sound(const struct bm_writer *writer, const uint8_t *leaf)
{
	uint32_t count = block_header(leaf)->nritems, end = writer->leaf_size;
	uint32_t start = bm_leaf_start(writer, leaf);
	int loose = bm_leaf_is_loose(writer, leaf);
	uint64_t total = 0;

	if (block_header(leaf)->level || start > end || count > start / BTRFS_ITEM_SIZE)
		return 0;
	for (uint32_t slot = 0; slot < count; slot++) {
		const struct btrfs_item *item = leaf_item(leaf, slot);

		total += item->size;
		if (item->offset < start || (uint64_t)item->offset + item->size > writer->leaf_size)
			return 0;
		if (!loose && item->offset + item->size != end)
			return 0;
		end = item->offset;
	}
	return total == writer->leaf_size - start && ascends(leaf);
}

int bm_node_is_sound(const struct bm_writer *writer, const uint8_t *node)
{
	const struct btrfs_header *header = block_header(node);

	return header->level && header->level < BTRFS_MAX_LEVEL && header->nritems &&
	       header->nritems <= writer->node_ptrs && ascends(node);
}

/* Whether a block of a path is the child that the block above it says. */
static int is_child(const uint8_t *node, uint32_t slot, const uint8_t *child)
{
	const struct btrfs_key_ptr *ptr;
	struct bm_key first;

	if (slot >= block_header(node)->nritems ||
	    block_header(node)->level != block_header(child)->level + 1)
		return 0;
	ptr = node_ptr(node, slot);
	if (ptr->blockptr != block_header(child)->bytenr ||
	    ptr->generation != block_header(child)->generation)
		return 0;
	if (!block_header(child)->nritems)
		return 1;
	first = to_key(block_key(child, 0));
	return compare_disk_key(&ptr->key, &first) == 0;
}

int bm_path_is_sound(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		     const struct bm_path *path)
{
	int level = path->lowest_level;

	if (!path->node[level] || path->slot[level] > block_header(path->node[level])->nritems)
		return 0;
	for (; path->node[level]; level++) {
		const uint8_t *block = path->node[level];

		if (!bm_writer_is_new(writer, block) || block_header(block)->level != level)
			return 0;
		if (level + 1 == BTRFS_MAX_LEVEL || !path->node[level + 1])
			break;
		if (!is_child(path->node[level + 1], path->slot[level + 1], block))
			return 0;
	}
	return bm_writer_is_root(tree, path->node[level]) && tree->level == level;
}

#endif
