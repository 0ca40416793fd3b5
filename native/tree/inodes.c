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
#define MODE_DIR 0040000u

struct reduction {
	uint64_t root_dir;
	const struct bm_inode_rows *rows;
	struct bm_inode_totals *totals;
	struct bm_inode_sum *inode; /* that of the last item */
};

/* Some items of a leaf. */
struct slots {
	uint32_t first, end;
};

static uint64_t ino_at(const uint8_t *leaf, uint32_t slot)
{
	return leaf_item(leaf, slot)->key.objectid;
}

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
	    .compression = item.compression,
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

static int add_items(struct reduction *to, const uint8_t *leaf, struct slots slots,
		     struct bm_fault *fault)
{
	for (uint32_t slot = slots.first; slot < slots.end; slot++)
		if (add_item(to, leaf_item(leaf, slot), item_data(leaf, slot), fault) < 0)
			return fault->code;
	return BM_OK;
}

/* The items of inodes that have all of theirs in this leaf, as far as the leaf tells. */
static struct slots whole_inodes(const uint8_t *leaf, struct slots all)
{
	struct slots whole = all;

	if (all.first == all.end)
		return whole;
	while (whole.first < whole.end && ino_at(leaf, whole.first) == ino_at(leaf, all.first))
		whole.first++;
	while (whole.end > whole.first && ino_at(leaf, whole.end - 1) == ino_at(leaf, all.end - 1))
		whole.end--;
	return whole;
}

/* A directory in which nothing was wrong: it has as many names as links, and those in it its size. */
static int add_known_directory(struct reduction *to, const uint8_t *leaf, struct slots slots,
			       uint32_t slot, struct bm_fault *fault)
{
	const struct btrfs_item *head = leaf_item(leaf, slot);

	if (find_inode(to, head->key.objectid, fault) < 0 ||
	    add_inode(to, head, item_data(leaf, slot), fault) < 0)
		return BM_NOMEM;
	to->inode->links = to->inode->nlink;
	to->inode->name_bytes = to->inode->size;
	for (; slot < slots.end && ino_at(leaf, slot) == to->inode->ino; slot++) {
		struct bm_key key = to_key(&leaf_item(leaf, slot)->key);
		struct bm_entry name;

		if ((key.type == BTRFS_INODE_REF_KEY || key.type == BTRFS_INODE_EXTREF_KEY) &&
		    bm_unpack_name(item_data(leaf, slot), leaf_item(leaf, slot)->size, &key,
				   &name) >= 0)
			to->inode->parent = name.parent;
	}
	return BM_OK;
}

/* Of inodes in which nothing was wrong only directories are wanted, and what all add to the sums. */
static int add_known(struct reduction *to, const uint8_t *leaf, struct slots slots,
		     const struct bm_known_leaf *known, struct bm_fault *fault)
{
	struct bm_inode_totals *totals = to->totals;

	totals->items += known->items;
	totals->indexes += known->indexes;
	totals->entries += known->entries;
	totals->refs += known->refs;
	for (uint32_t slot = slots.first; slot < slots.end; slot++) {
		const struct btrfs_item *head = leaf_item(leaf, slot);
		const struct btrfs_inode_item *inode = (const void *)item_data(leaf, slot);

		if (head->key.type == BTRFS_INODE_ITEM_KEY && head->size == sizeof(*inode) &&
		    (inode->mode & MODE_FMT) == MODE_DIR &&
		    add_known_directory(to, leaf, slots, slot, fault) < 0)
			return fault->code;
	}
	return BM_OK;
}

/* Reduce items of whole inodes, and note what another tree with the same leaf needs of them. */
static int learn(struct reduction *to, const uint8_t *leaf, struct slots slots,
		 struct bm_known_leaf *known, struct bm_fault *fault)
{
	const struct bm_inode_totals before = *to->totals, *now = to->totals;

	if (add_items(to, leaf, slots, fault) < 0)
		return fault->code;
	/* what leads elsewhere, or waits for its deletion, is a matter of the tree */
	if (now->roots != before.roots || now->odd != before.odd)
		return BM_OK;
	for (uint64_t row = before.inodes; row < now->inodes; row++)
		if (!to->rows->inodes[row].nlink)
			return BM_OK;
	*known = (struct bm_known_leaf){.state = BM_LEAF_REDUCED,
					.items = now->items - before.items,
					.indexes = now->indexes - before.indexes,
					.entries = now->entries - before.entries,
					.refs = now->refs - before.refs};
	return BM_OK;
}

static int reduce_leaf(struct reduction *to, const uint8_t *leaf, uint64_t low, uint64_t high,
		       struct bm_known_leaf *known, struct bm_fault *fault)
{
	struct slots all = {0, block_header(leaf)->nritems}, whole;
	int ret;

	while (all.first < all.end && ino_at(leaf, all.first) < low)
		all.first++;
	while (all.end > all.first && ino_at(leaf, all.end - 1) > high)
		all.end--;
	/* a window of inodes ends where it wants to: what is known is known of the leaf as a whole */
	if (!known || all.end - all.first < block_header(leaf)->nritems)
		return add_items(to, leaf, all, fault);
	whole = whole_inodes(leaf, all);
	ret = add_items(to, leaf, (struct slots){all.first, whole.first}, fault);
	if (!ret && known->state == BM_LEAF_GOOD)
		ret = add_known(to, leaf, whole, known, fault);
	else if (!ret)
		ret = learn(to, leaf, whole, known, fault);
	return ret ? ret : add_items(to, leaf, (struct slots){whole.end, all.end}, fault);
}

int bm_reduce_inodes(struct bm_image *image, const struct bm_reduce *ask,
		     const struct bm_inode_rows *rows, struct bm_inode_totals *totals,
		     struct bm_fault *fault)
{
	static const struct bm_expect leaf_expect = {.level = 0};
	struct reduction to = {.root_dir = ask->root_dir, .rows = rows, .totals = totals};

	totals->inodes = totals->extents = totals->roots = 0;
	for (size_t i = 0; i < ask->count; i++) {
		const uint8_t *leaf = bm_image_block(image, ask->leaves[i], &leaf_expect, fault);
		struct bm_known_leaf *known = ask->known ? &ask->known[ask->numbers[i]] : NULL;

		if (!leaf || bm_poll(fault) < 0)
			return fault->code;
		COUNT(image, leaves_visited);
		COUNT_N(image, items_visited, block_header(leaf)->nritems);
		if (reduce_leaf(&to, leaf, ask->low, ask->high, known, fault) < 0)
			return fault->code;
	}
	return BM_OK;
}
