// SPDX-License-Identifier: GPL-2.0-only
/*
 * What send makes of a file extent: WRITE, CLONE, ENCODED_WRITE or UPDATE_EXTENT.
 *
 * A range is cloned item by item of its source, as far as these refer to the same data; the rest is
 * written.
 */
#include "send/send.h"

#include <errno.h>

enum {
	/* BTRFS_ENCODED_IO_COMPRESSION_* */
	ENCODED_ZLIB = 1,
	ENCODED_ZSTD = 2,
	ENCODED_LZO_4K = 3,
	PAGE = 4096,
	/* the part of the command buffer that is not file data */
	NOT_DATA = 16384,
	/* the largest sector size that a receiver may have */
	CLONE_ALIGN = 65536,
};

/* ------------------------------------------------------------------------------- commands -- */

static int send_write(struct send_ctx *sctx, const struct file_extent *extent, uint64_t offset,
		      size_t size)
{
	const struct fs_path *path;
	uint8_t *data;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_WRITE) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0)
		return sctx->fault->code;
	data = put_data(sctx, size);
	if (!data || open_for_data(sctx, extent) < 0 ||
	    read_extent_data(sctx, extent, offset, data, size) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

static int encoded_compression(const struct send_ctx *sctx, const struct file_extent *extent)
{
	int sector_bits = 0;

	if (extent->compression == BTRFS_COMPRESS_ZLIB)
		return ENCODED_ZLIB;
	if (extent->compression == BTRFS_COMPRESS_ZSTD)
		return ENCODED_ZSTD;
	while (sctx->image->sectorsize >> sector_bits > PAGE)
		sector_bits++;
	return ENCODED_LZO_4K + sector_bits;
}

/* The bytes of a compressed extent as they are: send_encoded_extent(), send_encoded_inline_extent(). */
static int send_encoded_extent(struct send_ctx *sctx, const struct file_extent *extent,
			       uint64_t offset, uint64_t size)
{
	bool is_inline = extent->inline_data != NULL;
	uint64_t packed = is_inline ? extent->inline_size : extent->disk_num_bytes;
	uint64_t plain_end = extent->start + (is_inline ? extent->ram_bytes : extent->num_bytes);
	uint64_t file_len = plain_end - offset < size ? plain_end - offset : size;
	const struct fs_path *path;
	uint8_t *data;

	if (get_cur_inode_path(sctx, &path) < 0 ||
	    begin_cmd(sctx, BTRFS_SEND_C_ENCODED_WRITE) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_UNENCODED_FILE_LEN, file_len) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_UNENCODED_LEN, extent->ram_bytes) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_UNENCODED_OFFSET,
			offset - extent->start + extent->offset) < 0 ||
	    tlv_put_u32(sctx, BTRFS_SEND_A_COMPRESSION,
			(uint32_t)encoded_compression(sctx, extent)) < 0 ||
	    (!is_inline && tlv_put_u32(sctx, BTRFS_SEND_A_ENCRYPTION, 0) < 0))
		return sctx->fault->code;
	/* the kernel reads into whole pages of its buffer, behind the attributes */
	if (!is_inline &&
	    (sctx->size - sctx->cmd + 2 + PAGE - 1) / PAGE * PAGE + packed > sctx->max_size)
		return send_errno(sctx, EOVERFLOW);
	data = put_data(sctx, packed);
	if (!data)
		return sctx->fault->code;
	if (is_inline) {
		for (uint64_t i = 0; i < packed; i++)
			data[i] = extent->inline_data[i];
	} else if (read_raw_extent(sctx, extent, data) < 0) {
		return sctx->fault->code;
	}
	/* the kernel writes what it read into its pages itself */
	return is_inline ? send_cmd(sctx) : write_cmd(sctx);
}

/* send_extent_data(): the data of a range of the extent that the walk stands on. */
static int send_extent_data(struct send_ctx *sctx, const struct file_extent *extent,
			    uint64_t offset, uint64_t size)
{
	uint64_t packed = extent->inline_data ? extent->inline_size : extent->disk_num_bytes;
	uint64_t piece = sctx->max_size - NOT_DATA;

	COUNT(sctx->image, send_extent_data);
	if (sctx->args->flags & BM_SEND_NO_FILE_DATA)
		return send_update_extent(sctx, offset, size);
	/* a part of an extent may be smaller plain than the whole is compressed */
	if (sctx->args->flags & BM_SEND_COMPRESSED && extent->compression && packed <= size)
		return send_encoded_extent(sctx, extent, offset, size);
	for (uint64_t sent = 0; sent < size; sent += piece) {
		if (size - sent < piece)
			piece = size - sent;
		if (send_write(sctx, extent, offset + sent, piece) < 0)
			return sctx->fault->code;
	}
	return BM_OK;
}

/* The length is a u32, as the kernel's. */
static int send_clone(struct send_ctx *sctx, uint64_t offset, uint32_t size,
		      const struct clone_root *from)
{
	const struct fs_path *path;
	struct fs_path source;
	uint64_t gen;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_CLONE) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_CLONE_LEN, size) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0)
		return sctx->fault->code;
	if (from->root.objectid == sctx->root.objectid) {
		if (get_inode_gen(sctx, &sctx->root, from->ino, &gen) < 0 ||
		    get_cur_path(sctx, from->ino, gen, &source) < 0)
			return sctx->fault->code;
	} else if (get_inode_path(sctx, &from->root, from->ino, &source) < 0) {
		return sctx->fault->code;
	}
	if (tlv_put(sctx, BTRFS_SEND_A_CLONE_UUID, from->source->uuid, sizeof(from->source->uuid)) <
		0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_CLONE_CTRANSID, from->source->ctransid) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_CLONE_PATH, &source) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_CLONE_OFFSET, from->offset) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

/* ------------------------------------------------------------------------- clone or write -- */

/* The range of the file being sent that is still to be cloned, and where in its extent it lies. */
struct clone_target {
	const struct file_extent *extent;
	uint64_t data_offset;
	uint64_t offset;
	uint64_t size;
};

/* Clone or write `size` bytes that one item of the source covers. */
static int clone_piece(struct send_ctx *sctx, const struct clone_target *target,
		       const struct clone_root *from, uint64_t source_size, uint64_t size)
{
	uint64_t source_end = from->offset + size, aligned = size;
	int ret;

	/*
	 * The unaligned end of the source cannot be cloned into the middle of a file: clone what is
	 * aligned for every receiver and write the rest.
	 */
	if (TOGGLE(sctx, SEND_CLONE_EOF_BLOCK) && source_end == source_size &&
	    source_end % CLONE_ALIGN && target->offset + size < sctx->cur_inode_size)
		aligned = size / CLONE_ALIGN * CLONE_ALIGN;
	if (aligned) {
		because_of_rule(sctx, BM_SEND_CLONE_SOURCE);
		ret = send_clone(sctx, target->offset, aligned, from);
		if (ret < 0 || aligned == size)
			return ret;
	}
	because_of_rule(sctx, BM_SEND_WRITE_SOURCE_TAIL);
	return send_extent_data(sctx, target->extent, target->offset + aligned, size - aligned);
}

static void advance(struct clone_target *target, struct clone_root *from, uint64_t size)
{
	target->offset += size;
	target->size -= size;
	from->offset += size;
}

/*
 * One item of the clone source. 0: go on with the next item, 1: the rest is to be written.
 */
static int clone_from_item(struct send_ctx *sctx, struct clone_target *target,
			   struct clone_root *from, const struct file_extent *source,
			   uint64_t source_size)
{
	uint64_t size =
	    source->inline_data ? (source->ram_bytes + PAGE - 1) / PAGE * PAGE : source->num_bytes;
	/* an inline item has neither: what the kernel reads there is data, which never matches */
	uint64_t disk_bytenr = source->inline_data ? 0 : source->disk_bytenr;
	uint64_t data_offset = source->offset;
	bool crossed = false;
	uint64_t piece;
	int ret;

	if (source->start + size <= from->offset)
		return 0;
	if (source->start > from->offset) {
		/* a hole without an item */
		uint64_t hole = source->start - from->offset;

		if (hole > target->size)
			hole = target->size;
		because_of_rule(sctx, BM_SEND_WRITE_SOURCE_HOLE);
		ret = send_extent_data(sctx, target->extent, target->offset, hole);
		if (ret < 0)
			return ret;
		advance(target, from, hole);
		target->data_offset += hole;
		if (!target->size)
			return 1;
	}
	if (source->start >= from->offset + target->size || source->start >= source_size)
		return 1;
	if (source->start + size > source_size) {
		size = source_size - source->start;
		crossed = TOGGLE(sctx, SEND_CLONE_SRC_EOF);
	}
	if (disk_bytenr == target->extent->disk_bytenr && TOGGLE(sctx, SEND_CLONE_PARTS)) {
		from->offset = source->start;
		if (data_offset < target->data_offset && data_offset + size > target->data_offset) {
			uint64_t skip = target->data_offset - data_offset;

			size -= skip;
			data_offset += skip;
			from->offset += skip;
		}
	}
	piece = size < target->size ? size : target->size;
	if (disk_bytenr == target->extent->disk_bytenr && data_offset == target->data_offset) {
		ret = clone_piece(sctx, target, from, source_size, piece);
	} else {
		if (crossed && piece < target->size)
			return 1;
		because_of_rule(sctx, BM_SEND_WRITE_SOURCE_DIFFERS);
		ret = send_extent_data(sctx, target->extent, target->offset, piece);
	}
	if (ret < 0)
		return ret;
	advance(target, from, piece);
	if (!target->size)
		return 1;
	/* a file that is cloned from itself: no further than it reaches by now */
	if (TOGGLE(sctx, SEND_CLONE_SELF_EOF) && from->root.objectid == sctx->root.objectid &&
	    from->ino == sctx->cur_ino && from->offset >= sctx->cur_inode_next_write_offset)
		return 1;
	target->data_offset += piece;
	return 0;
}

/* clone_range(): walk the items of the source, cloning where they refer to the same data. */
static int clone_range(struct send_ctx *sctx, const struct file_extent *extent,
		       struct clone_root *from, uint64_t size)
{
	struct clone_target target = {
	    .extent = extent, .data_offset = extent->offset, .offset = extent->start, .size = size};
	struct bm_key key = {
	    .objectid = from->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = from->offset};
	struct bm_path path = alloc_path_for_send(sctx);
	struct inode_info info = {.size = UINT64_MAX};
	int ret;

	because_of_rule(sctx, BM_SEND_WRITE_FIRST_SECTOR);
	/* the receiver might have inlined a first block that is not inline here */
	if (!from->offset && size == sctx->image->sectorsize)
		return send_extent_data(sctx, extent, target.offset, size);
	if (TOGGLE(sctx, SEND_CLONE_PARTS) &&
	    get_inode_info(sctx, &from->root, from->ino, &info) < 0)
		return sctx->fault->code;
	ret = bm_search_slot(&from->root, &key, &path, sctx->fault);
	if (ret < 0)
		return ret;
	if (ret && path.slot[0] > 0) {
		const struct btrfs_disk_key *before =
		    &leaf_item(path.node[0], path.slot[0] - 1)->key;

		if (before->objectid == from->ino && before->type == BTRFS_EXTENT_DATA_KEY)
			path.slot[0]--;
	}
	for (ret = 0; !ret; path.slot[0]++) {
		const struct btrfs_disk_key *at;
		struct file_extent source;

		if (path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&from->root, &path, sctx->fault);
			if (ret)
				break;
		}
		at = &leaf_item(path.node[0], path.slot[0])->key;
		if (at->objectid != from->ino || at->type != BTRFS_EXTENT_DATA_KEY)
			break;
		ret = parse_file_extent(sctx, path.node[0], path.slot[0], &source);
		if (!ret)
			ret = clone_from_item(sctx, &target, from, &source, info.size);
	}
	if (ret < 0 || !target.size)
		return ret < 0 ? ret : BM_OK;
	because_of_rule(sctx, BM_SEND_WRITE_SOURCE_ENDS);
	return send_extent_data(sctx, extent, target.offset, target.size);
}

/* 1: the range up to `end` can be cloned, 0: it has to be written. */
static int can_clone(struct send_ctx *sctx, const struct file_extent *extent, uint64_t end,
		     const struct clone_root *from)
{
	struct inode_info info;

	if (end % sctx->image->sectorsize == 0)
		return 1;
	if (!TOGGLE(sctx, SEND_CLONE_UNALIGNED_TAIL) || end != sctx->cur_inode_size)
		return 0;
	/* an unaligned end can only be cloned where it is the end of both files */
	if (get_inode_info(sctx, &from->root, from->ino, &info) < 0)
		return sctx->fault->code;
	if (from->offset + (end - extent->start) != info.size)
		return 0;
	because_of_rule(sctx, BM_SEND_CLONE_TRUNCATE);
	/* the file of the parent snapshot may reach further, so that this end is not its end yet */
	if (has_parent(sctx) && TOGGLE(sctx, SEND_TRUNCATE_BEFORE_CLONE) &&
	    send_truncate(sctx, extent->start) < 0)
		return sctx->fault->code;
	return 1;
}

/* The extent item that is being sent: of an inode that took a number, the walk is elsewhere. */
static struct bm_send_item extent_item(const struct send_ctx *sctx)
{
	const struct btrfs_disk_key *key = &leaf_item(sctx->leaf, sctx->slot)->key;

	return (struct bm_send_item){
	    .objectid = key->objectid,
	    .type = key->type,
	    .offset = key->offset,
	    .change = (uint8_t)(sctx->cur_inode_new_gen ? BM_CHANGE_NEW : sctx->result)};
}

/* Why an extent is written that was found nowhere else. */
static enum bm_send_cause write_cause(const struct file_extent *extent)
{
	if (extent->inline_data)
		return BM_SEND_WRITE_INLINE;
	if (extent->type == BTRFS_FILE_EXTENT_PREALLOC || !extent->disk_bytenr)
		return BM_SEND_WRITE_UNALLOCATED;
	return BM_SEND_WRITE_NO_SOURCE;
}

static int send_write_or_clone(struct send_ctx *sctx, const struct file_extent *extent,
			       struct clone_root *from)
{
	uint64_t end = extent->end < sctx->cur_inode_size ? extent->end : sctx->cur_inode_size;
	int ret = 0;

	if (extent->start >= end) {
		/* without it such a range has a length below 0, of which no data are read */
		if (extent->start == end || TOGGLE(sctx, SEND_SKIP_TRUNCATE))
			return BM_OK;
		because(sctx, write_cause(extent), sctx->cur_ino, extent_item(sctx));
		COUNT(sctx->image, send_extent_data);
		if (sctx->args->flags & BM_SEND_NO_FILE_DATA)
			return send_update_extent(sctx, extent->start,
						  (uint32_t)(end - extent->start));
		return BM_OK;
	}
	because(sctx, write_cause(extent), sctx->cur_ino, extent_item(sctx));
	if (from)
		ret = can_clone(sctx, extent, end, from);
	if (ret < 0)
		return ret;
	if (from && !ret) {
		because_of_rule(sctx, BM_SEND_WRITE_UNALIGNED);
		refuse_chosen_place(sctx, BM_SEND_END_UNALIGNED);
	}
	if (ret)
		ret = clone_range(sctx, extent, from, end - extent->start);
	else
		ret = send_extent_data(sctx, extent, extent->start, end - extent->start);
	sctx->cur_inode_next_write_offset = end;
	return ret;
}

int process_extent(struct send_ctx *sctx)
{
	struct file_extent extent;
	struct clone_root *from;
	int ret;

	COUNT(sctx->image, process_extent);
	if (is_type(sctx->cur_inode_mode, MODE_LNK))
		return BM_OK;
	ret = parse_file_extent(sctx, sctx->leaf, sctx->slot, &extent);
	if (ret < 0)
		return ret;
	if (has_parent(sctx) && !sctx->cur_inode_new) {
		ret = is_extent_unchanged(sctx, &extent);
		if (ret)
			return ret < 0 ? ret : maybe_send_hole(sctx);
	} else if (extent.type == BTRFS_FILE_EXTENT_PREALLOC ||
		   (extent.type == BTRFS_FILE_EXTENT_REG && !extent.disk_bytenr)) {
		/* new files simply have holes where nothing was written */
		return BM_OK;
	}
	if (find_extent_clone(sctx, &extent, &from) < 0 ||
	    send_write_or_clone(sctx, &extent, from) < 0)
		return sctx->fault->code;
	return maybe_send_hole(sctx);
}

int process_all_extents(struct send_ctx *sctx)
{
	struct bm_key key = {.objectid = sctx->key.objectid, .type = BTRFS_EXTENT_DATA_KEY};
	const uint8_t *leaf = sctx->leaf;
	struct bm_path path = alloc_path_for_send(sctx);
	uint32_t slot = sctx->slot;
	int ret;

	if (bm_search_slot(&sctx->root, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	while (!(ret = btrfs_get_next_valid_item(sctx, &sctx->root, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;

		if (at->objectid != key.objectid || at->type != key.type)
			break;
		sctx->leaf = path.node[0];
		sctx->slot = path.slot[0];
		ret = process_extent(sctx);
		if (ret < 0)
			return ret;
		path.slot[0]++;
	}
	sctx->leaf = leaf;
	sctx->slot = slot;
	return ret < 0 ? ret : BM_OK;
}
