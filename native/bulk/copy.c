// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copies of many items of one tree in another: what a log takes from a subvolume. The payloads are
 * read where a scan found them; nothing that is inserted into the one tree moves a block of the
 * other.
 */
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

/* The payload of a row; NULL: it does not lie in the image. */
static const uint8_t *payload_at(const struct bm_writer *writer, const struct bm_columns *columns,
				 size_t row, uint32_t size, struct bm_fault *fault)
{
	const struct bm_image *image = writer->image;
	uint64_t position = columns->position[row];

	if (position <= image->size && size <= image->size - position)
		return image->blocks + position;
	bm_fail(fault, (struct bm_fault){
			   .code = BM_PAST_END, .found = position + size, .wanted = image->size});
	return NULL;
}

static struct bm_key key_at(const struct bm_columns *columns, size_t row)
{
	return (struct bm_key){.objectid = columns->objectid[row],
			       .type = columns->type[row],
			       .offset = columns->offset[row]};
}

int bm_writer_copy_each(struct bm_writer *writer, uint64_t id, const struct bm_columns *columns,
			size_t count, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_fingers fingers = {0};

	if (!tree)
		return fault->code;
	for (size_t row = 0; row < count; row++) {
		const struct bm_key key = key_at(columns, row);
		const uint32_t size = columns->size[row];
		const uint8_t *data = payload_at(writer, columns, row, size, fault);

		if (!data ||
		    bm_writer_insert_near(writer, tree, &fingers, &key, &size, 1, data, fault) < 0)
			return fault->code;
	}
	return BM_OK;
}

/* fill_inode_item() with LOG_INODE_EXISTS, of an inode that is new in this transaction */
static void fill_inode_item(const struct bm_writer *writer, struct btrfs_inode_item *item)
{
	item->generation = 0;
	item->transid = writer->transid;
	item->size = 0;
	item->nbytes = 0;
	item->block_group = 0;
	if (!(writer->behaviour >> BM_TOGGLE_LOG_OTIME & 1))
		memset(&item->otime, 0, sizeof(item->otime));
}

/* The inode item at a row and the name behind it: at once where they lie in one leaf. */
static int log_file(struct bm_writer *writer, struct bm_writer_tree *tree,
		    struct bm_fingers *fingers, const struct bm_columns *columns, size_t row,
		    uint8_t *data, struct bm_fault *fault)
{
	const struct bm_key keys[2] = {key_at(columns, row), key_at(columns, row + 1)};
	const uint32_t sizes[2] = {columns->size[row], columns->size[row + 1]};
	const uint8_t *item = payload_at(writer, columns, row, sizes[0], fault);
	const uint8_t *name = payload_at(writer, columns, row + 1, sizes[1], fault);

	if (!item || !name)
		return fault->code;
	if (sizes[0] != sizeof(struct btrfs_inode_item) || sizes[1] > writer->nodesize - sizes[0] ||
	    keys[0].objectid != keys[1].objectid)
		return bm_writer_errno(fault, tree, EINVAL);
	memcpy(data, item, sizes[0]);
	memcpy(data + sizes[0], name, sizes[1]);
	fill_inode_item(writer, (struct btrfs_inode_item *)data);
	if (columns->block[row] == columns->block[row + 1])
		return bm_writer_insert_near(writer, tree, fingers, keys, sizes, 2, data, fault);
	if (bm_writer_insert_near(writer, tree, fingers, keys, sizes, 1, data, fault) < 0)
		return fault->code;
	return bm_writer_insert_near(writer, tree, fingers, keys + 1, sizes + 1, 1, data + sizes[0],
				     fault);
}

/*
 * Files that come in the order of the hashes of names are read from anywhere and written to
 * anywhere: most of the time would go by waiting for memory. So what the next ones need is asked
 * for while others are logged: the rows first, then the payloads, at last the leaves.
 */
enum { ROW_AHEAD = 24, PAYLOAD_AHEAD = 16, LEAF_AHEAD = 8, LINE = 64 };

static void fetch(const void *start, size_t size)
{
	for (size_t at = 0; at < size; at += LINE)
		__builtin_prefetch((const uint8_t *)start + at);
}

static void fetch_row(const struct bm_columns *columns, uint64_t row)
{
	__builtin_prefetch(&columns->objectid[row]);
	__builtin_prefetch(&columns->type[row]);
	__builtin_prefetch(&columns->offset[row]);
	__builtin_prefetch(&columns->block[row]);
	__builtin_prefetch(&columns->position[row]);
	__builtin_prefetch(&columns->size[row]);
}

static void fetch_payloads(const struct bm_writer *writer, const struct bm_columns *columns,
			   uint64_t row)
{
	const struct bm_image *image = writer->image;

	for (uint64_t at = row; at < row + 2; at++)
		if (columns->position[at] < image->size)
			fetch(image->blocks + columns->position[at],
			      at == row ? sizeof(struct btrfs_inode_item) : LINE);
}

/* The item headers of the leaf into which a key would go now. */
static void fetch_leaf(struct bm_writer *writer, const struct bm_writer_tree *tree,
		       const struct bm_columns *columns, uint64_t row)
{
	const struct bm_key key = key_at(columns, (size_t)row);
	struct bm_path path = {.lowest_level = 1};
	uint64_t physical, contiguous, logical, *work = writer->image->work;
	struct bm_fault ignored;
	uint32_t slot;
	int ret;

	if (!tree->level)
		return;
	writer->image->work = writer->image->ignored;
	ret = bm_writer_find(writer, tree, &key, &path, &ignored);
	writer->image->work = work;
	if (ret < 0)
		return;
	slot = path.slot[1] && ret ? path.slot[1] - 1 : path.slot[1];
	logical = node_ptr(path.node[1], slot)->blockptr;
	if (!bm_image_map(writer->image, logical, 0, &physical, &contiguous, NULL))
		fetch(writer->image->blocks + physical,
		      writer->leaf_size / sizeof(struct btrfs_inode_item) * BTRFS_ITEM_SIZE);
}

static void fetch_ahead(struct bm_writer *writer, const struct bm_writer_tree *tree,
			const struct bm_columns *columns, size_t capacity, const uint64_t *rows,
			size_t left)
{
	if (left > ROW_AHEAD)
		fetch_row(columns, rows[ROW_AHEAD]);
	if (left > PAYLOAD_AHEAD && rows[PAYLOAD_AHEAD] + 1 < capacity)
		fetch_payloads(writer, columns, rows[PAYLOAD_AHEAD]);
	if (left > LEAF_AHEAD && rows[LEAF_AHEAD] < capacity)
		fetch_leaf(writer, tree, columns, rows[LEAF_AHEAD]);
}

int bm_writer_log_files(struct bm_writer *writer, uint64_t id, const struct bm_columns *columns,
			size_t capacity, const uint64_t *rows, size_t count, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	/* they come in the order of the hashes of names: from anywhere to anywhere */
	struct bm_fingers fingers = {.loose = 1};
	uint8_t data[65536];
	int ret = BM_OK;

	if (!tree)
		return fault->code;
	for (size_t i = 0; i < count && ret >= 0; i++) {
		fetch_ahead(writer, tree, columns, capacity, rows + i, count - i);
		if (rows[i] >= capacity || capacity - rows[i] < 2)
			ret = bm_writer_errno(fault, tree, EINVAL);
		else
			ret =
			    log_file(writer, tree, &fingers, columns, (size_t)rows[i], data, fault);
	}
	bm_writer_tidy(writer);
	return ret;
}
