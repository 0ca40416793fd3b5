// SPDX-License-Identifier: GPL-2.0-only
/*
 * Inodes in bulk: what the items of each inode say together, a row for each.
 *
 * The names of a tree are in it three times: DIR_ITEM, DIR_INDEX, INODE_REF. Whether all three have
 * the same names is told by sums of hashes, in which the order of items does not matter.
 */
#include "image/internal.h"

#include <string.h>

#define MODE_FMT 0170000u

struct reduction {
	uint64_t root_dir;
	const struct bm_inode_rows *rows;
	struct bm_inode_totals *totals;
	struct bm_inode_sum *inode; /* that of the last item */
};

static const uint32_t mode_of_type[] = {
    [BTRFS_FT_REG_FILE] = 0100000, [BTRFS_FT_DIR] = 0040000,  [BTRFS_FT_CHRDEV] = 0020000,
    [BTRFS_FT_BLKDEV] = 0060000,   [BTRFS_FT_FIFO] = 0010000, [BTRFS_FT_SOCK] = 0140000,
    [BTRFS_FT_SYMLINK] = 0120000,  [BTRFS_FT_XATTR] = 0,
};

static uint64_t mix(uint64_t mixed, uint64_t field)
{
	mixed = (mixed ^ field) * 0x9e3779b97f4a7c15ull;
	return mixed ^ mixed >> 31;
}

static uint64_t mix_name(const struct bm_entry *name, uint64_t with, uint64_t and)
{
	uint64_t mixed = mix(mix(mix(0, name->parent), name->child), name->name_xxh64);

	return mix(mix(mixed, with), and);
}

/* The row of an inode; its items follow each other. */
static int find_inode(struct reduction *to, uint64_t ino, struct bm_fault *fault)
{
	if (to->inode && to->inode->ino == ino)
		return BM_OK;
	if (to->totals->inodes >= to->rows->capacity)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	to->inode = &to->rows->inodes[to->totals->inodes++];
	*to->inode = (struct bm_inode_sum){.ino = ino};
	return BM_OK;
}

static int add_inode(struct reduction *to, const struct btrfs_item *head, const uint8_t *data,
		     struct bm_fault *fault)
{
	struct btrfs_inode_item item;
	struct bm_inode_sum *row = to->inode, *first = row;

	if (head->size != sizeof(item))
		return BM_OK;
	if (row->exists) {
		/* several items of one inode: what follows belongs to the first */
		to->inode = NULL;
		if (find_inode(to, first->ino, fault) < 0)
			return BM_NOMEM;
		row = to->inode;
		to->inode = first;
	}
	memcpy(&item, data, sizeof(item));
	row->exists = 1;
	row->size = item.size;
	row->nbytes = item.nbytes;
	row->flags = item.flags;
	row->nlink = item.nlink;
	row->mode = item.mode;
	return BM_OK;
}

static void add_ref(struct reduction *to, const struct bm_entry *name, const uint8_t *text)
{
	to->inode->links++;
	to->inode->parent = name->parent;
	/* the top directory has a name that is no entry */
	if (name->child != name->parent)
		to->totals->refs += mix_name(name, name->index, to->inode->mode & MODE_FMT);
	else if (name->child != to->root_dir || name->index || name->name_len != 2 ||
		 memcmp(text, "..", 2) != 0)
		to->totals->odd++;
}

static int add_entry(struct reduction *to, uint8_t kind, const struct bm_entry *name,
		     struct bm_fault *fault)
{
	struct bm_inode_totals *totals = to->totals;
	int is_root = name->location_type == BTRFS_ROOT_ITEM_KEY;
	uint64_t mixed = mix_name(name, name->type, (uint64_t)is_root);
	size_t known = sizeof(mode_of_type) / sizeof(*mode_of_type);

	to->inode->name_bytes += name->name_len;
	if (kind == BTRFS_DIR_ITEM_KEY) {
		totals->items += mixed;
		return BM_OK;
	}
	totals->indexes += mixed;
	if (!is_root) {
		totals->entries +=
		    mix_name(name, name->index, name->type < known ? mode_of_type[name->type] : 0);
		return BM_OK;
	}
	if (name->type != BTRFS_FT_DIR)
		totals->odd++;
	if (totals->roots >= to->rows->capacity)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	to->rows->roots[totals->roots++] = *name;
	return BM_OK;
}

/* As in bm_entries(), an item of which a part cannot be unpacked has no names. */
static int add_names(struct reduction *to, const struct btrfs_item *head, const uint8_t *data,
		     struct bm_fault *fault)
{
	struct bm_key key = to_key(&head->key);
	int is_entry = key.type == BTRFS_DIR_ITEM_KEY || key.type == BTRFS_DIR_INDEX_KEY;
	struct bm_entry name;
	int64_t length;

	for (size_t at = 0; !at || at < head->size; at += (size_t)length) {
		length = bm_unpack_name(data + at, head->size - at, &key, &name);
		if (length < 0)
			return BM_OK;
	}
	for (size_t at = 0; at < head->size; at += (size_t)length) {
		const uint8_t *text;

		length = bm_unpack_name(data + at, head->size - at, &key, &name);
		text = data + at + name.position;
		name.name_xxh64 = bm_xxh64(text, name.name_len);
		if (!is_entry)
			add_ref(to, &name, text);
		else if (add_entry(to, key.type, &name, fault) < 0)
			return BM_NOMEM;
	}
	return BM_OK;
}

static int add_extent(struct reduction *to, const struct btrfs_item *head, const uint8_t *data,
		      struct bm_fault *fault)
{
	struct btrfs_file_extent_item item = {0};
	struct bm_file_extent *row;
	int is_inline;

	if (head->size < BTRFS_FILE_EXTENT_INLINE_DATA_START)
		return BM_OK;
	if (to->totals->extents >= to->rows->capacity)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	memcpy(&item, data, head->size < sizeof(item) ? head->size : sizeof(item));
	is_inline = item.type == BTRFS_FILE_EXTENT_INLINE;
	row = &to->rows->extents[to->totals->extents++];
	*row = (struct bm_file_extent){
	    .ino = head->key.objectid,
	    .start = head->key.offset,
	    .length = is_inline ? item.ram_bytes : item.num_bytes,
	    .row = (uint32_t)(to->inode - to->rows->inodes),
	    .type = item.type,
	};
	if (!is_inline && item.disk_bytenr) {
		/* of a compressed extent all sectors are read */
		row->disk_start = item.disk_bytenr + (item.compression ? 0 : item.offset);
		row->disk_length = item.compression ? item.disk_num_bytes : item.num_bytes;
	}
	if (is_inline || row->disk_length)
		to->inode->extent_bytes += row->length;
	if (is_inline) {
		to->inode->inline_bytes += row->length;
		to->inode->nul_ends += !item.compression && !data[head->size - 1];
	}
	return BM_OK;
}

static int add_item(struct reduction *to, const struct btrfs_item *head, const uint8_t *data,
		    struct bm_fault *fault)
{
	int (*add)(struct reduction *, const struct btrfs_item *, const uint8_t *,
		   struct bm_fault *) = NULL;

	switch (head->key.type) {
	case BTRFS_INODE_ITEM_KEY:
		add = add_inode;
		break;
	case BTRFS_INODE_REF_KEY:
	case BTRFS_INODE_EXTREF_KEY:
	case BTRFS_DIR_ITEM_KEY:
	case BTRFS_DIR_INDEX_KEY:
		add = add_names;
		break;
	case BTRFS_EXTENT_DATA_KEY:
		add = add_extent;
		break;
	case BTRFS_XATTR_ITEM_KEY:
		break;
	default:
		return BM_OK;
	}
	if (find_inode(to, head->key.objectid, fault) < 0)
		return BM_NOMEM;
	return add ? add(to, head, data, fault) : BM_OK;
}

int bm_reduce_inodes(struct bm_image *image, const uint64_t *leaves, size_t count, uint64_t low,
		     uint64_t high, uint64_t root_dir, const struct bm_inode_rows *rows,
		     struct bm_inode_totals *totals, struct bm_fault *fault)
{
	static const struct bm_expect leaf_expect = {.level = 0};
	struct reduction to = {.root_dir = root_dir, .rows = rows, .totals = totals};

	totals->inodes = totals->extents = totals->roots = 0;
	for (size_t i = 0; i < count; i++) {
		const uint8_t *leaf = bm_image_block(image, leaves[i], &leaf_expect, fault);
		uint32_t nritems;

		if (!leaf || bm_poll(fault) < 0)
			return fault->code;
		nritems = block_header(leaf)->nritems;
		COUNT(image, leaves_visited);
		COUNT_N(image, items_visited, nritems);
		for (uint32_t slot = 0; slot < nritems; slot++) {
			const struct btrfs_item *head = leaf_item(leaf, slot);

			if (head->key.objectid >= low && head->key.objectid <= high &&
			    add_item(&to, head, item_data(leaf, slot), fault) < 0)
				return fault->code;
		}
	}
	return BM_OK;
}
