// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leaves with nothing in them that a check of single items would report, told from the others.
 *
 * The rules stand in questions/check/items.py, which looks at all leaves that are not passed over
 * here. Most are those of a mount, bm_check_leaf(); here is what goes beyond them. Who is in doubt
 * does not pass a leaf over: that costs time, and no finding.
 */
#include "image/internal.h"

#define NAME_LIMIT 255

static int is_inode_plain(const uint8_t *data, uint64_t newest)
{
	const struct btrfs_inode_item *inode = (const struct btrfs_inode_item *)data;

	return inode->generation <= newest && inode->transid <= newest;
}

/* What bm_check_leaf() took apart is taken apart again; so each length is right. */
static int are_refs_plain(const uint8_t *data, uint32_t size)
{
	for (uint32_t at = 0; at < size;) {
		const struct btrfs_inode_ref *ref = (const struct btrfs_inode_ref *)(data + at);

		if (!ref->name_len || ref->name_len > NAME_LIMIT)
			return 0;
		at += (uint32_t)sizeof(*ref) + ref->name_len;
	}
	return 1;
}

static int are_entries_plain(uint8_t kind, const uint8_t *data, uint32_t size)
{
	for (uint32_t at = 0; at < size;) {
		const struct btrfs_dir_item *entry = (const struct btrfs_dir_item *)(data + at);
		uint8_t location = entry->location.type;

		if (kind == BTRFS_XATTR_ITEM_KEY
			? location || entry->location.objectid
			: location != BTRFS_INODE_ITEM_KEY && location != BTRFS_ROOT_ITEM_KEY)
			return 0;
		at += (uint32_t)sizeof(*entry) + entry->name_len + entry->data_len;
		/* several names of one hash may be one name twice */
		if (!entry->name_len || (kind != BTRFS_XATTR_ITEM_KEY && at < size))
			return 0;
	}
	return 1;
}

static int is_on_disk(const struct btrfs_file_extent_item *extent)
{
	return extent->type != BTRFS_FILE_EXTENT_INLINE && extent->disk_bytenr;
}

static int is_file_extent_plain(const uint8_t *data, uint64_t newest)
{
	const struct btrfs_file_extent_item *extent = (const struct btrfs_file_extent_item *)data;
	uint64_t end, holds;

	if (extent->generation > newest)
		return 0;
	if (extent->type == BTRFS_FILE_EXTENT_INLINE)
		return 1;
	end = extent->offset + extent->num_bytes;
	holds = extent->compression ? extent->ram_bytes : extent->disk_num_bytes;
	return extent->num_bytes &&
	       (!extent->disk_bytenr || (end <= holds && end >= extent->offset));
}

static int is_extent_plain(const struct btrfs_item *head, const uint8_t *data, uint64_t newest)
{
	const struct btrfs_extent_item *extent = (const struct btrfs_extent_item *)data;
	struct bm_key key = to_key(&head->key);

	return !(extent->flags & ~(uint64_t)(BTRFS_EXTENT_FLAG_DATA | BTRFS_EXTENT_FLAG_TREE_BLOCK |
					     BTRFS_BLOCK_FLAG_FULL_BACKREF)) &&
	       extent->generation <= newest && extent->refs &&
	       bm_inline_refs_ascend(data, head->size, &key);
}

static int is_plain(const struct bm_screen *screen, const uint8_t *passes,
		    const struct btrfs_item *head, const uint8_t *data)
{
	uint8_t kind = head->key.type;

	if (!passes[kind] || head->size < screen->least[kind] || head->size > screen->most[kind])
		return 0;
	switch (kind) {
	case BTRFS_INODE_ITEM_KEY:
		return is_inode_plain(data, screen->newest);
	case BTRFS_INODE_REF_KEY:
		return are_refs_plain(data, head->size);
	case BTRFS_DIR_ITEM_KEY:
	case BTRFS_DIR_INDEX_KEY:
	case BTRFS_XATTR_ITEM_KEY:
		return are_entries_plain(kind, data, head->size);
	case BTRFS_EXTENT_DATA_KEY:
		return is_file_extent_plain(data, screen->newest);
	case BTRFS_EXTENT_ITEM_KEY:
	case BTRFS_METADATA_ITEM_KEY:
		return is_extent_plain(head, data, screen->newest);
	default:
		return 1;
	}
}

static int is_leaf_plain(const struct bm_image *image, const struct bm_screen *screen,
			 const uint8_t *passes, const uint8_t *leaf)
{
	uint32_t nritems = block_header(leaf)->nritems;
	struct bm_fault place = {0};

	if (bm_check_leaf(image, leaf, &place) < 0)
		return 0;
	for (uint32_t slot = 0; slot < nritems; slot++)
		if (!is_plain(screen, passes, leaf_item(leaf, slot), item_data(leaf, slot)))
			return 0;
	return 1;
}

static int64_t add_extents(const uint8_t *leaf, struct bm_data_extent *extents, int64_t total)
{
	const struct btrfs_header *header = block_header(leaf);

	for (uint32_t slot = 0; slot < header->nritems; slot++) {
		const struct btrfs_item *head = leaf_item(leaf, slot);
		const struct btrfs_file_extent_item *extent = (const void *)item_data(leaf, slot);

		if (head->key.type == BTRFS_EXTENT_DATA_KEY && head->size == sizeof(*extent) &&
		    is_on_disk(extent))
			extents[total++] = (struct bm_data_extent){
			    .block = header->bytenr,
			    .ino = head->key.objectid,
			    .offset = head->key.offset - extent->offset,
			    .bytenr = extent->disk_bytenr,
			    .num_bytes = extent->disk_num_bytes,
			};
	}
	return total;
}

int64_t bm_screen_leaves(struct bm_image *image, const struct bm_screen *screen,
			 const uint64_t *leaves, const uint16_t *tables, size_t count,
			 uint8_t *passed, struct bm_data_extent *extents, size_t capacity,
			 struct bm_fault *fault)
{
	static const struct bm_expect leaf_expect = {.level = 0};
	int64_t total = 0;

	for (size_t i = 0; i < count; i++) {
		const uint8_t *leaf = bm_image_block(image, leaves[i], &leaf_expect, fault);

		if (!leaf || bm_poll(fault) < 0)
			return fault->code;
		COUNT(image, leaves_visited);
		COUNT_N(image, items_visited, block_header(leaf)->nritems);
		passed[i] = (uint8_t)is_leaf_plain(image, screen,
						   screen->passes + 256 * (size_t)tables[i], leaf);
		if (block_header(leaf)->nritems > capacity - (size_t)total)
			return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		total = add_extents(leaf, extents, total);
	}
	return total;
}
