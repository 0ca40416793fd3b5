// SPDX-License-Identifier: GPL-2.0-only
/*
 * From a path to an inode: the names of a directory are found by their hashes (dir-item.c).
 */
#include "image/internal.h"

#include <string.h>

/* btrfs_match_dir_item_name(): the entry of a name in a DIR_ITEM, all of which is checked, or NULL. */
static int match_dir_item_name(const struct bm_root *root, const struct bm_path *path,
			       const uint8_t *name, size_t size,
			       const struct btrfs_dir_item **entry, struct bm_fault *fault)
{
	uint32_t length = leaf_item(path->node[0], path->slot[0])->size, at = 0;
	const uint8_t *data = item_data(path->node[0], path->slot[0]);

	*entry = NULL;
	do {
		const struct btrfs_dir_item *item = (const void *)(data + at);
		uint64_t end = (uint64_t)at + sizeof(*item);

		if (end <= length)
			end += (uint64_t)item->name_len + item->data_len;
		if (end > length)
			return bm_fail(
			    fault, (struct bm_fault){.code = BM_BAD_ITEM_SIZE,
						     .tree = root->objectid,
						     .block = block_header(path->node[0])->bytenr,
						     .slot = path->slot[0],
						     .found = length,
						     .wanted = end});
		if (!*entry && item->name_len == size && !memcmp(item + 1, name, size))
			*entry = item;
		at = (uint32_t)end;
	} while (at < length);
	return BM_OK;
}

/* From a directory to what a name in it leads to; 1: nothing. */
static int lookup(const struct bm_root *root, const uint8_t *name, size_t size,
		  struct bm_key *location, struct bm_fault *fault)
{
	struct bm_key key = {.objectid = location->objectid,
			     .type = BTRFS_DIR_ITEM_KEY,
			     .offset = bm_crc32c(0xfffffffe, name, size)};
	struct bm_path path = {.reada = BM_READA_NONE};
	const struct btrfs_dir_item *entry;
	int ret;

	if (location->type != BTRFS_INODE_ITEM_KEY)
		return 1;
	/* as an item is found that is looked for by its key alone */
	ret = bm_search_slot_for_read(root, &key, 1, &path, fault);
	if (ret || compare_disk_key(&leaf_item(path.node[0], path.slot[0])->key, &key) != 0)
		return ret < 0 ? ret : 1;
	ret = match_dir_item_name(root, &path, name, size, &entry, fault);
	if (ret || !entry)
		return ret < 0 ? ret : 1;
	*location = to_key(&entry->location);
	return 0;
}

int bm_lookup_path(const struct bm_root *root, const uint8_t *path, size_t size,
		   struct bm_key *location, struct bm_fault *fault)
{
	const uint8_t *end = path + size, *slash;

	for (; path < end; path = slash + 1) {
		size_t length;

		slash = memchr(path, '/', (size_t)(end - path));
		length = (size_t)((slash ? slash : end) - path);
		if (length && (length != 1 || *path != '.')) {
			int ret = lookup(root, path, length, location, fault);

			if (ret)
				return ret;
		}
		if (!slash)
			break;
	}
	return BM_OK;
}
