// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copies of many items of one tree in another: what a log takes from a subvolume. The payloads are
 * read where a scan found them; nothing that is inserted into the one tree moves a block of the
 * other.
 */
#include "writer.h"

#include <errno.h>
#include <string.h>

/* The payload of a row; NULL: it does not lie in the image. */
static const uint8_t *payload_at(const struct bm_writer *writer, const struct bm_columns *columns,
				 size_t row, uint32_t size, struct bm_fault *fault)
{
	const struct bm_image *image = writer->image;
	uint64_t position = columns->position[row];

	if (position <= image->size && size <= image->size - position)
		return image->base + position;
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
static void fill_inode_item(struct btrfs_inode_item *item, uint64_t transid)
{
	item->generation = 0;
	item->transid = transid;
	item->size = 0;
	item->nbytes = 0;
	item->block_group = 0;
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
	fill_inode_item((struct btrfs_inode_item *)data, writer->transid);
	if (columns->block[row] == columns->block[row + 1])
		return bm_writer_insert_near(writer, tree, fingers, keys, sizes, 2, data, fault);
	if (bm_writer_insert_near(writer, tree, fingers, keys, sizes, 1, data, fault) < 0)
		return fault->code;
	return bm_writer_insert_near(writer, tree, fingers, keys + 1, sizes + 1, 1, data + sizes[0],
				     fault);
}

int bm_writer_log_files(struct bm_writer *writer, uint64_t id, const struct bm_columns *columns,
			size_t capacity, const uint64_t *rows, size_t count, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_fingers fingers = {0};
	uint8_t data[65536];

	if (!tree)
		return fault->code;
	for (size_t i = 0; i < count; i++) {
		if (rows[i] >= capacity || capacity - rows[i] < 2)
			return bm_writer_errno(fault, tree, EINVAL);
		if (log_file(writer, tree, &fingers, columns, (size_t)rows[i], data, fault) < 0)
			return fault->code;
	}
	return BM_OK;
}
