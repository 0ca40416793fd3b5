// SPDX-License-Identifier: GPL-2.0-only
/*
 * What send makes of a file extent: WRITE, CLONE, ENCODED_WRITE or UPDATE_EXTENT.
 *
 * Before the data of an extent is written, the back references of its disk extent are walked, to
 * find a place that the receiver has already and from which the range can be cloned. How far that
 * search goes and which place wins has changed often (see the send-clone-* and send-backref-*
 * toggles).
 */
#include "send.h"

#include <errno.h>
#include <stdlib.h>

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
	MAX_REFS = 1024,
	MAX_REFS_BEFORE = 64,
};

/* ------------------------------------------------------------------------------- commands -- */

int send_truncate(struct send_ctx *ctx, uint64_t size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_TRUNCATE) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_SIZE, size) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int send_update_extent(struct send_ctx *ctx, uint64_t offset, uint64_t size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_UPDATE_EXTENT) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_SIZE, size) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int send_write(struct send_ctx *ctx, const struct file_extent *extent, uint64_t offset,
		      size_t size)
{
	const struct fs_path *path;
	uint8_t *data;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_WRITE) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0)
		return ctx->fault->code;
	data = put_data(ctx, size);
	if (!data || open_for_data(ctx, extent) < 0 ||
	    read_extent_data(ctx, extent, offset, data, size) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int encoded_compression(const struct send_ctx *ctx, const struct file_extent *extent)
{
	int sector_bits = 0;

	if (extent->compression == BTRFS_COMPRESS_ZLIB)
		return ENCODED_ZLIB;
	if (extent->compression == BTRFS_COMPRESS_ZSTD)
		return ENCODED_ZSTD;
	while (ctx->image->sectorsize >> sector_bits > PAGE)
		sector_bits++;
	return ENCODED_LZO_4K + sector_bits;
}

/* The bytes of a compressed extent as they are: send_encoded_extent(), _inline_extent(). */
static int send_encoded(struct send_ctx *ctx, const struct file_extent *extent, uint64_t offset,
			uint64_t size)
{
	bool is_inline = extent->inline_data != NULL;
	uint64_t packed = is_inline ? extent->inline_size : extent->disk_num_bytes;
	uint64_t plain_end = extent->start + (is_inline ? extent->ram_bytes : extent->num_bytes);
	uint64_t file_len = plain_end - offset < size ? plain_end - offset : size;
	const struct fs_path *path;
	uint8_t *data;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_ENCODED_WRITE) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_UNENCODED_FILE_LEN, file_len) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_UNENCODED_LEN, extent->ram_bytes) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_UNENCODED_OFFSET,
			offset - extent->start + extent->offset) < 0 ||
	    tlv_put_u32(ctx, BTRFS_SEND_A_COMPRESSION, (uint32_t)encoded_compression(ctx, extent)) <
		0 ||
	    (!is_inline && tlv_put_u32(ctx, BTRFS_SEND_A_ENCRYPTION, 0) < 0))
		return ctx->fault->code;
	/* the kernel reads into whole pages of its buffer, behind the attributes */
	if (!is_inline &&
	    (ctx->size - ctx->cmd + 2 + PAGE - 1) / PAGE * PAGE + packed > ctx->max_size)
		return send_errno(ctx, EOVERFLOW);
	data = put_data(ctx, packed);
	if (!data)
		return ctx->fault->code;
	if (is_inline) {
		for (uint64_t i = 0; i < packed; i++)
			data[i] = extent->inline_data[i];
	} else if (read_raw_extent(ctx, extent, data) < 0) {
		return ctx->fault->code;
	}
	return send_cmd(ctx);
}

/* send_extent_data(): the data of a range of the extent that the walk stands on. */
static int send_extent_data(struct send_ctx *ctx, const struct file_extent *extent, uint64_t offset,
			    uint64_t size)
{
	uint64_t packed = extent->inline_data ? extent->inline_size : extent->disk_num_bytes;
	uint64_t piece = ctx->max_size - NOT_DATA;

	COUNT(ctx->image, send_extent_data);
	if (ctx->args->flags & BM_SEND_NO_FILE_DATA)
		return send_update_extent(ctx, offset, size);
	/* a part of an extent may be smaller plain than the whole is compressed */
	if (ctx->args->flags & BM_SEND_COMPRESSED && extent->compression && packed <= size)
		return send_encoded(ctx, extent, offset, size);
	for (uint64_t sent = 0; sent < size; sent += piece) {
		if (size - sent < piece)
			piece = size - sent;
		if (send_write(ctx, extent, offset + sent, piece) < 0)
			return ctx->fault->code;
	}
	return BM_OK;
}

static int send_clone(struct send_ctx *ctx, uint64_t offset, uint64_t size,
		      const struct clone_root *from)
{
	const struct fs_path *path;
	struct fs_path source;
	uint64_t gen;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_CLONE) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_CLONE_LEN, size) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0)
		return ctx->fault->code;
	if (from->root.objectid == ctx->root.objectid) {
		if (get_inode_gen(ctx, &ctx->root, from->ino, &gen) < 0 ||
		    get_cur_path(ctx, from->ino, gen, &source) < 0)
			return ctx->fault->code;
	} else if (get_inode_path(ctx, &from->root, from->ino, &source) < 0) {
		return ctx->fault->code;
	}
	if (tlv_put(ctx, BTRFS_SEND_A_CLONE_UUID, from->source->uuid, sizeof(from->source->uuid)) <
		0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_CLONE_CTRANSID, from->source->ctransid) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_CLONE_PATH, &source) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_CLONE_OFFSET, from->offset) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

/* --------------------------------------------------------------- finding a clone source -- */

struct backref_ctx {
	struct send_ctx *send;
	uint64_t bytenr;
	uint64_t cur_offset;
	uint64_t extent_len; /* up to the end of the file at most */
	uint64_t backref_owner;
	uint64_t backref_offset;
	uint64_t found;
	bool found_itself;
};

static struct clone_root *find_clone_root(struct send_ctx *ctx, uint64_t root)
{
	size_t low = 0, high = ctx->clone_root_count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (ctx->clone_roots[mid].root.objectid == root)
			return &ctx->clone_roots[mid];
		if (ctx->clone_roots[mid].root.objectid < root)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

/* Before v6.2: of each root the reference of the lowest inode counts. */
static void choose_lowest_inode(struct clone_root *clone, const struct backref_ctx *backref,
				uint64_t ino, uint64_t offset)
{
	if (ino < clone->ino) {
		clone->ino = ino;
		clone->offset = offset;
	} else if (ino == clone->ino && clone->offset > offset + backref->extent_len) {
		clone->offset = offset;
	}
}

/* iterate_backrefs(): a place that refers to the extent. 1: none can be better. */
static int iterate_backrefs(uint64_t ino, uint64_t offset, uint64_t num_bytes, uint64_t root,
			    void *context)
{
	struct backref_ctx *backref = context;
	struct send_ctx *ctx = backref->send;
	struct clone_root *clone = find_clone_root(ctx, root);

	if (!clone)
		return 0;
	if (root == ctx->root.objectid) {
		if (ino == ctx->cur_ino && offset == backref->cur_offset) {
			backref->found_itself = true;
			if (TOGGLE(ctx, SEND_CLONE_LARGEST))
				return 0;
		}
		/* the receiver must have the source already */
		if (ino > ctx->cur_ino)
			return 0;
		if (ino == ctx->cur_ino &&
		    offset + backref->extent_len > ctx->cur_inode_next_write_offset)
			return 0;
	}
	backref->found++;
	clone->found_ref = true;
	if (!TOGGLE(ctx, SEND_CLONE_LARGEST)) {
		choose_lowest_inode(clone, backref, ino, offset);
	} else if (num_bytes > clone->num_bytes) {
		clone->ino = ino;
		clone->offset = offset;
		clone->num_bytes = num_bytes;
		if (TOGGLE(ctx, SEND_BACKREF_SKIP) && num_bytes >= backref->extent_len)
			return 1;
	}
	return 0;
}

static uint64_t max_refs(const struct send_ctx *ctx)
{
	return TOGGLE(ctx, SEND_CLONE_REFS_1024) ? MAX_REFS : MAX_REFS_BEFORE;
}

/* Whether the extent being sent is referred to by nobody else (with one clone root: itself). */
static bool is_unshared(const struct send_ctx *ctx, uint64_t refs)
{
	return TOGGLE(ctx, SEND_CLONE_NO_BACKREFS) && refs == 1 && ctx->clone_root_count == 1;
}

static int check_extent_item(uint64_t bytenr, const struct btrfs_extent_item *item, void *context)
{
	const struct backref_ctx *backref = context;

	if (bytenr == backref->bytenr) {
		if (item->flags & BTRFS_EXTENT_FLAG_TREE_BLOCK)
			return -EUCLEAN;
		if (is_unshared(backref->send, item->refs))
			return -ENOENT;
	}
	return item->refs > max_refs(backref->send) ? -ENOENT : 0;
}

static int skip_self_data_ref(uint64_t root, uint64_t ino, uint64_t offset, void *context)
{
	const struct backref_ctx *backref = context;

	return ino == backref->send->cur_ino && root == backref->backref_owner &&
	       offset == backref->backref_offset;
}

struct backref_entry {
	struct lru_entry lru;
	size_t count;
	uint64_t roots[BACKREF_CACHE_ROOTS];
};

static int lookup_backref_cache(uint64_t leaf, void *context, const uint64_t **roots, size_t *count)
{
	struct send_ctx *ctx = ((struct backref_ctx *)context)->send;
	struct backref_entry *entry;

	if (!ctx->backref_cache.size)
		return 0;
	COUNT(ctx->image, btrfs_lru_cache_lookup);
	entry = (struct backref_entry *)lru_lookup(&ctx->backref_cache, leaf, 0);
	if (!entry)
		return 0;
	*roots = entry->roots;
	*count = entry->count;
	return 1;
}

/* Of the roots that reach a leaf, those that may be cloned from are remembered. */
static void store_backref_cache(uint64_t leaf, const uint64_t *roots, size_t count, void *context)
{
	struct send_ctx *ctx = ((struct backref_ctx *)context)->send;
	size_t limit =
	    TOGGLE(ctx, SEND_BACKREF_CACHE_17) ? BACKREF_CACHE_ROOTS : BACKREF_CACHE_ROOTS_BEFORE;
	struct backref_entry *entry = malloc(sizeof(*entry));

	if (!entry)
		return;
	entry->lru.key = leaf;
	entry->lru.generation = 0;
	entry->count = 0;
	for (size_t i = 0; i < count; i++) {
		if (!find_clone_root(ctx, roots[i]))
			continue;
		if (entry->count == limit) {
			free(entry);
			return;
		}
		entry->roots[entry->count++] = roots[i];
	}
	COUNT(ctx->image, btrfs_lru_cache_store);
	lru_store(&ctx->backref_cache, &entry->lru);
}

/* The root to clone from: the best of those in which a reference was found. */
static struct clone_root *choose_root(struct send_ctx *ctx, const struct backref_ctx *backref)
{
	struct clone_root *best = NULL;

	for (size_t i = 0; i < ctx->clone_root_count; i++) {
		struct clone_root *clone = &ctx->clone_roots[i];

		if (!clone->found_ref)
			continue;
		if (!TOGGLE(ctx, SEND_CLONE_LARGEST)) {
			if (!best || clone->root.objectid == ctx->root.objectid)
				best = clone;
		} else if (!best || clone->num_bytes > best->num_bytes) {
			best = clone;
			if (clone->num_bytes >= backref->extent_len)
				break;
		}
	}
	return best;
}

/* Whether a search failed with ENOENT, which only means that there is nothing to clone. */
static bool is_enoent(struct send_ctx *ctx, int ret)
{
	if (ret != BM_ERRNO || ctx->fault->found != ENOENT)
		return false;
	ctx->fault->code = BM_OK;
	return true;
}

/*
 * Before v6.2 the extent item is searched by itself first. 1: the extent is not to be cloned.
 */
static int extent_search_says_no(struct send_ctx *ctx, uint64_t disk_bytenr)
{
	uint64_t flags, refs;
	struct bm_key key;
	int ret;

	ret = bm_extent_from_logical(ctx->args->forest, disk_bytenr, ctx->args->behaviour, &key,
				     &flags, &refs, ctx->fault);
	if (is_enoent(ctx, ret))
		return 1;
	if (ret < 0)
		return ret;
	if (flags & BTRFS_EXTENT_FLAG_TREE_BLOCK)
		return send_errno(ctx, EIO);
	return refs > max_refs(ctx) || is_unshared(ctx, refs);
}

/* find_extent_clone(): *found is where to clone the extent from, or NULL. */
static int find_extent_clone(struct send_ctx *ctx, const struct file_extent *extent,
			     struct clone_root **found)
{
	uint64_t to_end = ctx->cur_inode_size - extent->start;
	struct backref_ctx backref = {
	    .send = ctx,
	    .bytenr = extent->disk_bytenr,
	    .cur_offset = extent->start,
	    .extent_len = extent->num_bytes < to_end ? extent->num_bytes : to_end,
	    .backref_owner = block_header(ctx->leaf)->owner,
	    .backref_offset = extent->start - extent->offset,
	};
	struct bm_backref_walk walk = {
	    .forest = ctx->args->forest,
	    .bytenr = extent->disk_bytenr,
	    .extent_item_pos = extent->compression ? 0 : extent->offset,
	    .behaviour = ctx->args->behaviour,
	    .context = &backref,
	    .iterate = iterate_backrefs,
	};
	int ret;

	COUNT(ctx->image, find_extent_clone);
	*found = NULL;
	if (extent->start >= ctx->cur_inode_size || extent->inline_data || !extent->disk_bytenr)
		return BM_OK;
	for (size_t i = 0; i < ctx->clone_root_count; i++) {
		ctx->clone_roots[i].ino = UINT64_MAX;
		ctx->clone_roots[i].offset = 0;
		ctx->clone_roots[i].num_bytes = 0;
		ctx->clone_roots[i].found_ref = false;
	}
	if (TOGGLE(ctx, SEND_SINGLE_EXTENT_SEARCH)) {
		walk.check_extent_item = check_extent_item;
	} else {
		ret = extent_search_says_no(ctx, extent->disk_bytenr);
		if (ret)
			return ret < 0 ? ret : BM_OK;
	}
	if (TOGGLE(ctx, SEND_SKIP_OWN_REF) && ctx->clone_root_count == 1)
		walk.skip_data_ref = skip_self_data_ref;
	if (TOGGLE(ctx, SEND_BACKREF_CACHE)) {
		walk.cache_lookup = lookup_backref_cache;
		walk.cache_store = store_backref_cache;
	}
	ret = bm_iterate_extent_inodes(&walk, ctx->fault);
	if (is_enoent(ctx, ret))
		return BM_OK;
	if (ret < 0)
		return ret;
	if (!TOGGLE(ctx, SEND_CLONE_LARGEST) && !backref.found_itself)
		return send_errno(ctx, EIO);
	if (backref.found)
		*found = choose_root(ctx, &backref);
	return BM_OK;
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
static int clone_piece(struct send_ctx *ctx, const struct clone_target *target,
		       const struct clone_root *from, uint64_t source_size, uint64_t size)
{
	uint64_t source_end = from->offset + size, aligned = size;
	int ret;

	/*
	 * The unaligned end of the source cannot be cloned into the middle of a file: clone what is
	 * aligned for every receiver and write the rest.
	 */
	if (source_end == source_size && source_end % CLONE_ALIGN &&
	    target->offset + size < ctx->cur_inode_size)
		aligned = size / CLONE_ALIGN * CLONE_ALIGN;
	if (aligned) {
		ret = send_clone(ctx, target->offset, aligned, from);
		if (ret < 0 || aligned == size)
			return ret;
	}
	return send_extent_data(ctx, target->extent, target->offset + aligned, size - aligned);
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
static int clone_from_item(struct send_ctx *ctx, struct clone_target *target,
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
		ret = send_extent_data(ctx, target->extent, target->offset, hole);
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
		crossed = TOGGLE(ctx, SEND_CLONE_SRC_EOF);
	}
	if (disk_bytenr == target->extent->disk_bytenr) {
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
		ret = clone_piece(ctx, target, from, source_size, piece);
	} else {
		if (crossed && piece < target->size)
			return 1;
		ret = send_extent_data(ctx, target->extent, target->offset, piece);
	}
	if (ret < 0)
		return ret;
	advance(target, from, piece);
	if (!target->size)
		return 1;
	/* a file that is cloned from itself: no further than it reaches by now */
	if (from->root.objectid == ctx->root.objectid && from->ino == ctx->cur_ino &&
	    from->offset >= ctx->cur_inode_next_write_offset)
		return 1;
	target->data_offset += piece;
	return 0;
}

/* clone_range(): walk the items of the source, cloning where they refer to the same data. */
static int clone_range(struct send_ctx *ctx, const struct file_extent *extent,
		       struct clone_root *from, uint64_t size)
{
	struct clone_target target = {
	    .extent = extent, .data_offset = extent->offset, .offset = extent->start, .size = size};
	struct bm_key key = {
	    .objectid = from->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = from->offset};
	struct bm_path path = send_path(ctx);
	struct inode_info info;
	int ret;

	/* the receiver might have inlined a first block that is not inline here */
	if (!from->offset && size == ctx->image->sectorsize)
		return send_extent_data(ctx, extent, target.offset, size);
	ret = get_inode_info(ctx, &from->root, from->ino, &info);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	ret = bm_search_slot(&from->root, &key, &path, ctx->fault);
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
			ret = bm_next_leaf(&from->root, &path, ctx->fault);
			if (ret)
				break;
		}
		at = &leaf_item(path.node[0], path.slot[0])->key;
		if (at->objectid != from->ino || at->type != BTRFS_EXTENT_DATA_KEY)
			break;
		ret = parse_file_extent(ctx, path.node[0], path.slot[0], &source);
		if (!ret)
			ret = clone_from_item(ctx, &target, from, &source, info.size);
	}
	if (ret < 0 || !target.size)
		return ret < 0 ? ret : BM_OK;
	return send_extent_data(ctx, extent, target.offset, target.size);
}

/* 1: the range up to `end` can be cloned, 0: it has to be written. */
static int can_clone(struct send_ctx *ctx, const struct file_extent *extent, uint64_t end,
		     const struct clone_root *from)
{
	struct inode_info info;
	int ret;

	if (end % ctx->image->sectorsize == 0)
		return 1;
	if (!TOGGLE(ctx, SEND_CLONE_UNALIGNED_TAIL) || end != ctx->cur_inode_size)
		return 0;
	/* an unaligned end can only be cloned where it is the end of both files */
	ret = get_inode_info(ctx, &from->root, from->ino, &info);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	return from->offset + (end - extent->start) == info.size;
}

static int send_write_or_clone(struct send_ctx *ctx, const struct file_extent *extent,
			       struct clone_root *from)
{
	uint64_t end = extent->end < ctx->cur_inode_size ? extent->end : ctx->cur_inode_size;
	int ret = 0;

	if (extent->start >= end)
		return BM_OK;
	if (from)
		ret = can_clone(ctx, extent, end, from);
	if (ret < 0)
		return ret;
	if (ret)
		ret = clone_range(ctx, extent, from, end - extent->start);
	else
		ret = send_extent_data(ctx, extent, extent->start, end - extent->start);
	ctx->cur_inode_next_write_offset = end;
	return ret;
}

int process_extent(struct send_ctx *ctx)
{
	struct file_extent extent;
	struct clone_root *from;
	int ret;

	COUNT(ctx->image, process_extent);
	if ((ctx->cur_inode_mode & MODE_FMT) == MODE_LNK)
		return BM_OK;
	ret = parse_file_extent(ctx, ctx->leaf, ctx->slot, &extent);
	if (ret < 0)
		return ret;
	/* new files simply have holes where nothing was written */
	if (extent.type == BTRFS_FILE_EXTENT_PREALLOC ||
	    (extent.type == BTRFS_FILE_EXTENT_REG && !extent.disk_bytenr))
		return BM_OK;
	ret = find_extent_clone(ctx, &extent, &from);
	if (ret < 0)
		return ret;
	return send_write_or_clone(ctx, &extent, from);
}
