// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leaves to come back to: many changes in one call often go where one of the last few went, or
 * right beside it. A finger is the path of such a change. As long as nothing but items of leaves
 * changed since, a search for a key of that leaf would follow the same path and change nothing on
 * its way, so it is left out and only counted.
 */
#include "writer/writer.h"

static int compare(const struct bm_key *a, const struct bm_key *b)
{
	return compare_keys(a->objectid, a->type, a->offset, b);
}

/* Whether a search for `key` that makes room for `size` bytes (0: for none) would end there. */
static int leads_to(const struct bm_writer *writer, const struct bm_finger *finger,
		    const struct bm_key *key, uint32_t size)
{
	const uint8_t *leaf = finger->path.node[0];

	if (finger->structure != writer->structure)
		return 0;
	if (size && (finger->full || bm_leaf_free(writer, leaf) < size))
		return 0;
	if (finger->bounded && compare(key, &finger->bound) >= 0)
		return 0;
	return finger->leftmost ||
	       (block_header(leaf)->nritems && compare_disk_key(&leaf_item(leaf, 0)->key, key) < 0);
}

void bm_finger_count(struct bm_writer *writer, struct bm_writer_tree *tree)
{
	COUNT(writer->image, btrfs_search_slot);
	COUNT_N(writer->image, read_block_for_search, (uint64_t)tree->level);
	bm_writer_note_changed(writer, tree);
}

struct bm_finger *bm_finger_at(struct bm_writer *writer, struct bm_writer_tree *tree,
			       struct bm_fingers *fingers, const struct bm_key *key, uint32_t size,
			       int *found)
{
	for (size_t i = 0; i < BM_FINGERS; i++) {
		size_t place = (fingers->last + i) % BM_FINGERS;
		struct bm_finger *finger = &fingers->at[place];

		if (!leads_to(writer, finger, key, size))
			continue;
		fingers->last = place;
		bm_finger_count(writer, tree);
		finger->path.slot[0] = bm_bin_search(finger->path.node[0], key, found);
		return finger;
	}
	return NULL;
}

struct bm_finger *bm_finger_next(struct bm_fingers *fingers)
{
	/* the one before the last: it was not used for longest */
	fingers->last = (fingers->last + BM_FINGERS - 1) % BM_FINGERS;
	fingers->at[fingers->last].structure = 0;
	return &fingers->at[fingers->last];
}

void bm_finger_keep(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		    struct bm_finger *finger)
{
	const struct bm_path *path = &finger->path;

	/* it was known before, or the tree copies every block each time */
	if (finger->structure || tree->force_cow)
		return;
	finger->full = 0;
	finger->leftmost = 1;
	for (int level = 1; level < BTRFS_MAX_LEVEL && path->node[level]; level++) {
		if (bm_node_is_full(writer, path->node[level]))
			finger->full = 1;
		if (path->slot[level])
			finger->leftmost = 0;
	}
	finger->bounded = bm_path_upper_bound(path, &finger->bound);
	finger->structure = writer->structure;
}

int bm_path_is_ready(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		     const struct bm_path *path, uint32_t size)
{
	if (bm_leaf_free(writer, path->node[0]) < size)
		return 0;
	for (int level = 0; level < BTRFS_MAX_LEVEL && path->node[level]; level++)
		if (!bm_writer_is_ours(writer, tree, path->node[level]) ||
		    (level && bm_node_is_full(writer, path->node[level])))
			return 0;
	return 1;
}
