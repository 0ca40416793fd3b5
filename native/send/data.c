// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reading file data: from a file extent item to the bytes that WRITE carries.
 *
 * Every sector is verified against the csum tree before it is handed on; where it is wrong and the
 * chunk has another copy, or parity that makes one, that is used. Compressed extents are decompressed as a whole by the
 * caller's libraries, and the last one is kept, because it is usually wanted in several pieces.
 */
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	INODE_NODATASUM = 1,
	CSUM_OBJECTID_LOW = 10,
	MAX_PLAIN = 1 << 20,
	/* items that are looked at for an acl */
	MAX_SCANNED = 8,
	CACHE_LINE = 64,
	PREFETCHED = 4096,
};

#define CSUM_OBJECTID (0 - (uint64_t)CSUM_OBJECTID_LOW)

int parse_file_extent(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot,
		      struct file_extent *extent)
{
	const struct btrfs_item *item = leaf_item(leaf, slot);
	const uint8_t *data = item_data(leaf, slot);
	const struct btrfs_file_extent_item *fi = (const void *)data;
	uint64_t sectorsize = sctx->image->sectorsize;
	uint32_t wanted = BTRFS_FILE_EXTENT_INLINE_DATA_START;

	if (item->size >= wanted && fi->type != BTRFS_FILE_EXTENT_INLINE)
		wanted = sizeof(*fi);
	if (item->size < wanted)
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, leaf, slot, item->size, wanted);
	if (fi->type > BTRFS_FILE_EXTENT_PREALLOC)
		return send_bad_item(sctx, BM_BAD_VALUE, leaf, slot, fi->type, 0);
	if (fi->compression > BTRFS_COMPRESS_ZSTD)
		return send_bad_item(sctx, BM_BAD_VALUE, leaf, slot, fi->compression, 0);
	*extent = (struct file_extent){.start = item->key.offset,
				       .ram_bytes = fi->ram_bytes,
				       .generation = fi->generation,
				       .type = fi->type,
				       .compression = fi->compression};
	if (fi->type == BTRFS_FILE_EXTENT_INLINE) {
		extent->inline_data = data + wanted;
		extent->inline_size = item->size - wanted;
		extent->end =
		    (item->key.offset + fi->ram_bytes + sectorsize - 1) / sectorsize * sectorsize;
		return BM_OK;
	}
	extent->disk_bytenr = fi->disk_bytenr;
	extent->disk_num_bytes = fi->disk_num_bytes;
	extent->offset = fi->offset;
	extent->num_bytes = fi->num_bytes;
	extent->end = item->key.offset + fi->num_bytes;
	/* what a sum could overflow to, no kernel writes */
	if (extent->end < extent->start || fi->offset + fi->num_bytes < fi->offset)
		return send_bad_item(sctx, BM_BAD_VALUE, leaf, slot, fi->num_bytes, 0);
	return BM_OK;
}

/* The csum item that covers `logical`, if any, into sctx->csum_start, csum_end, csums. */
static int find_csums(struct send_ctx *sctx, uint64_t logical, uint32_t csum_size)
{
	struct bm_key key = {
	    .objectid = CSUM_OBJECTID, .type = BTRFS_EXTENT_CSUM_KEY, .offset = logical};
	struct bm_path path = alloc_path_for_send(sctx);
	const struct btrfs_item *item;
	int ret;

	sctx->csum_start = sctx->csum_end = 0;
	ret = bm_search_slot(&sctx->csum_root, &key, &path, sctx->fault);
	if (ret < 0)
		return ret;
	if (ret && path.slot[0]-- == 0)
		return BM_OK;
	item = leaf_item(path.node[0], path.slot[0]);
	if (item->key.objectid != CSUM_OBJECTID || item->key.type != BTRFS_EXTENT_CSUM_KEY)
		return BM_OK;
	sctx->csum_start = item->key.offset;
	sctx->csum_end =
	    item->key.offset + (uint64_t)(item->size / csum_size) * sctx->image->sectorsize;
	sctx->csums = item_data(path.node[0], path.slot[0]);
	return BM_OK;
}

static bool has_csum(const struct send_ctx *sctx, uint64_t logical)
{
	return logical >= sctx->csum_start && logical < sctx->csum_end;
}

/*
 * 1: the checksum of a sector, which comes into `digest`, is that of the csum tree; otherwise `bad`
 * says how it differs.
 */
static int sector_is_good(struct send_ctx *sctx, uint64_t logical, const uint8_t *sector,
			  uint8_t *digest, struct bm_fault *bad)
{
	uint32_t size =
	    (uint32_t)bm_csum(sctx->image->csum_type, sector, sctx->image->sectorsize, digest);
	const uint8_t *stored;

	if (!has_csum(sctx, logical) && find_csums(sctx, logical, size) < 0)
		return sctx->fault->code;
	bad->code = BM_BAD_DATA_CSUM;
	bad->found = bad->wanted = 0;
	memcpy(&bad->wanted, digest, size < 8 ? size : 8);
	/* a sector without a checksum reads as an error too */
	if (!has_csum(sctx, logical))
		return 0;
	stored = sctx->csums + (logical - sctx->csum_start) / sctx->image->sectorsize * size;
	memcpy(&bad->found, stored, size < 8 ? size : 8);
	return memcmp(stored, digest, size) == 0;
}

/* A sector where it lies, or put into sctx->sector; *physical is where a fault is. */
static const uint8_t *find_sector(struct send_ctx *sctx, uint64_t logical, int copy,
				  uint64_t *physical, struct bm_fault *bad)
{
	const struct bm_image *image = sctx->image;
	struct bm_fault why = {0}, none;
	uint64_t contiguous;
	int ret = bm_image_map(image, logical, copy, physical, &contiguous, &why);

	if (ret == BM_OK && contiguous >= image->sectorsize)
		return image->base + *physical;
	if (!sctx->sector)
		sctx->sector = malloc(image->sectorsize);
	if (!sctx->sector)
		*bad = (struct bm_fault){.code = BM_NOMEM};
	else if (bm_image_read(image, logical, copy, image->sectorsize, sctx->sector, &none) == 0)
		return sctx->sector;
	else if (ret < 0 && (copy == 0 || why.code != BM_UNMAPPED))
		*bad = why;
	else if (ret == BM_OK)
		bm_fail_at(image, *physical, bad, *bad);
	return NULL;
}

/* What is most likely read next comes from memory while this sector is summed. */
static void prefetch(const uint8_t *next)
{
	for (size_t at = 0; at < PREFETCHED; at += CACHE_LINE)
		__builtin_prefetch(next + at, 0, 1);
}

/*
 * One sector of a data extent, of the first copy whose checksum is right: where it lies or, with
 * `out`, copied before it is verified, as the file may change meanwhile.
 */
static const uint8_t *verified_sector(struct send_ctx *sctx, uint64_t logical, uint8_t *out,
				      uint8_t *digest)
{
	struct bm_image *image = sctx->image;
	struct bm_fault bad = {.code = BM_PAST_END, .tree = sctx->root.objectid};
	int copies = bm_image_copies(image, logical);

	/* without a chunk the first copy says so */
	for (int copy = 0; copy < copies || copy == 0; copy++) {
		uint64_t physical = 0;
		const uint8_t *sector = find_sector(sctx, logical, copy, &physical, &bad);
		int ret;

		if (!sector)
			continue;
		if (out) {
			memcpy(out, sector, image->sectorsize);
			prefetch(sector + image->sectorsize);
			sector = out;
		}
		if (sctx->cur_inode_flags & INODE_NODATASUM)
			return sector;
		ret = sector_is_good(sctx, logical, sector, digest, &bad);
		if (ret)
			return ret < 0 ? NULL : sector;
		bad.tree = sctx->root.objectid;
		bm_fail_at(image, physical, &bad, bad);
	}
	bm_fail(sctx->fault, bad);
	return NULL;
}

/* The checksum of the command goes on over a sector in it: made of that of the sector, if it can be. */
static void sum_sector(struct send_ctx *sctx, const uint8_t *sector, const uint8_t *digest)
{
	uint32_t size = sctx->image->sectorsize, csum;

	if (sctx->image->csum_type != BTRFS_CSUM_TYPE_CRC32 ||
	    sctx->cur_inode_flags & INODE_NODATASUM) {
		sum_command(sctx, sector, size);
		return;
	}
	/* csum = ~crc(~0, sector); seeds and data add up */
	memcpy(&csum, digest, sizeof(csum));
	sctx->crc = bm_crc_shifted(&sctx->after_sector, ~sctx->crc) ^ ~csum;
	sctx->summed += size;
}

/* Search for the checksums of `size` bytes from `logical` on, as who reads them does. */
static int pass_disk(struct send_ctx *sctx, uint64_t logical, uint64_t size)
{
	uint64_t end = logical + size, at = logical - logical % sctx->image->sectorsize;
	uint8_t digest[BTRFS_CSUM_SIZE];
	uint32_t csum_size = (uint32_t)bm_csum(sctx->image->csum_type, "", 0, digest);

	if (sctx->cur_inode_flags & INODE_NODATASUM)
		return BM_OK;
	while (at < end) {
		if (!has_csum(sctx, at) && find_csums(sctx, at, csum_size) < 0)
			return sctx->fault->code;
		/* one without a checksum ends a send in an error, which tells of its data too */
		if (!has_csum(sctx, at) && !verified_sector(sctx, at, NULL, digest))
			return sctx->fault->code;
		at = has_csum(sctx, at) ? sctx->csum_end : at + sctx->image->sectorsize;
	}
	return BM_OK;
}

/* `size` bytes from `logical` on, which need not be aligned; as data of a command or elsewhere. */
static int read_disk(struct send_ctx *sctx, uint64_t logical, uint8_t *out, uint64_t size,
		     bool in_command)
{
	uint32_t sectorsize = sctx->image->sectorsize;
	uint8_t digest[BTRFS_CSUM_SIZE];

	if (size_only(sctx))
		return pass_disk(sctx, logical, size);
	while (size) {
		uint64_t within = logical % sectorsize;
		uint64_t piece = sectorsize - within < size ? sectorsize - within : size;
		bool whole = piece == sectorsize;
		const uint8_t *sector =
		    verified_sector(sctx, logical - within, whole ? out : NULL, digest);

		if (!sector)
			return sctx->fault->code;
		if (!whole)
			memcpy(out, sector + within, piece);
		if (in_command && whole)
			sum_sector(sctx, out, digest);
		else if (in_command)
			sum_command(sctx, out, piece);
		out += piece;
		logical += piece;
		size -= piece;
	}
	return BM_OK;
}

int read_raw_extent(struct send_ctx *sctx, const struct file_extent *extent, uint8_t *out)
{
	return read_disk(sctx, extent->disk_bytenr, out, extent->disk_num_bytes, true);
}

static int reserve_plain(struct send_ctx *sctx, size_t size)
{
	uint8_t *data;

	sctx->plain.disk_bytenr = 0;
	if (sctx->plain.capacity >= size)
		return BM_OK;
	data = realloc(sctx->plain.data, size);
	if (!data)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	sctx->plain.data = data;
	sctx->plain.capacity = size;
	return BM_OK;
}

/* Decompress the whole of an extent into sctx->plain. */
static int decompress(struct send_ctx *sctx, const struct file_extent *extent)
{
	uint64_t packed_size = extent->inline_data ? extent->inline_size : extent->disk_num_bytes;
	const uint8_t *packed = extent->inline_data;
	struct bm_fault bad = {.code = BM_BAD_DATA,
			       .tree = sctx->root.objectid,
			       .block = block_header(sctx->leaf)->bytenr,
			       .slot = sctx->slot,
			       .found = packed_size,
			       .wanted = extent->ram_bytes};
	int ret;

	if (!extent->inline_data && sctx->plain.disk_bytenr == extent->disk_bytenr &&
	    sctx->plain.size == extent->ram_bytes)
		return BM_OK;
	/* a compressed extent never holds more than 128 KiB */
	if (extent->ram_bytes > MAX_PLAIN || packed_size > MAX_PLAIN)
		return bm_fail(sctx->fault, bad);
	ret = reserve_plain(sctx, extent->ram_bytes + (packed ? 0 : packed_size));
	if (ret < 0)
		return ret;
	if (!packed) {
		uint8_t *disk = sctx->plain.data + extent->ram_bytes;

		ret = read_disk(sctx, extent->disk_bytenr, disk, packed_size, false);
		if (ret < 0)
			return ret;
		packed = disk;
	}
	if (size_only(sctx))
		bad.code = BM_OK;
	else
		bad.code = sctx->args->decompress(sctx->args->context, extent->compression, packed,
						  packed_size, sctx->plain.data, extent->ram_bytes);
	if (bad.code)
		return bm_fail(sctx->fault, bad);
	sctx->plain.disk_bytenr = extent->disk_bytenr;
	sctx->plain.size = extent->ram_bytes;
	return BM_OK;
}

int read_extent_data(struct send_ctx *sctx, const struct file_extent *extent, uint64_t offset,
		     uint8_t *out, size_t size)
{
	uint64_t at = offset - extent->start + extent->offset, have;
	const uint8_t *from;
	int ret;

	/* preallocated, or a hole that stands in the tree */
	if (!extent->inline_data &&
	    (extent->type == BTRFS_FILE_EXTENT_PREALLOC || !extent->disk_bytenr)) {
		if (!size_only(sctx))
			memset(out, 0, size);
		return BM_OK;
	}
	if (!extent->inline_data && !extent->compression)
		return read_disk(sctx, extent->disk_bytenr + at, out, size, true);
	if (extent->compression) {
		ret = decompress(sctx, extent);
		if (ret < 0)
			return ret;
		from = sctx->plain.data;
		have = sctx->plain.size;
	} else {
		from = extent->inline_data;
		have = extent->inline_size;
	}
	if (size_only(sctx))
		return BM_OK;
	/* what lies beyond the data of the last extent of a file reads as zeros */
	have = have > at ? have - at : 0;
	if (have > size)
		have = size;
	if (have)
		memcpy(out, from + at, have);
	memset(out + have, 0, size - have);
	return BM_OK;
}

/*
 * btrfs_iget(): the inode item, and whether the inode may have acls or properties. Where the leaf
 * ends before an item tells, the next leaf is looked at (acls_after_inode_item(),
 * btrfs_load_inode_props()).
 */
static int open_inode(struct send_ctx *sctx)
{
	struct bm_key key = {.objectid = sctx->cur_ino, .type = BTRFS_INODE_ITEM_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	uint32_t slot, scanned = 0;

	if (was_searched(sctx, KNOWN_OPENED))
		return BM_OK;
	if (bm_search_slot(&sctx->root, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	/* the item behind the inode is taken for its name */
	for (slot = path.slot[0] + 2; slot < block_header(path.node[0])->nritems; slot++) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], slot)->key;

		if (at->objectid != sctx->cur_ino || at->type >= BTRFS_XATTR_ITEM_KEY ||
		    ++scanned == MAX_SCANNED) {
			set_searched(sctx, KNOWN_OPENED);
			return BM_OK;
		}
	}
	return bm_next_leaf(&sctx->root, &path, sctx->fault) < 0 ? sctx->fault->code : BM_OK;
}

/*
 * What the kernel searches before the data of an extent can be read through the page cache: the
 * inode once, and the item of each extent (btrfs_get_extent()).
 */
int open_for_data(struct send_ctx *sctx, const struct file_extent *extent)
{
	struct bm_key key = {
	    .objectid = sctx->cur_ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = extent->start};
	struct bm_path path = alloc_path_for_send(sctx);

	if (!sctx->cur_inode_open) {
		if (open_inode(sctx) < 0)
			return sctx->fault->code;
		sctx->cur_inode_open = true;
		sctx->mapped_start = sctx->mapped_end = 0;
	}
	if (extent->start >= sctx->mapped_start && extent->end <= sctx->mapped_end)
		return BM_OK;
	sctx->mapped_start = extent->start;
	sctx->mapped_end = extent->end;
	/* the read of an extent is one bio, for which the checksums are looked up once */
	if (extent->type == BTRFS_FILE_EXTENT_REG && extent->disk_bytenr) {
		COUNT(sctx->image, submit_bio);
		COUNT(sctx->image, data_reads);
		sctx->csum_start = sctx->csum_end = 0;
	}
	path.reada = BM_READA_FORWARD;
	COUNT(sctx->image, btrfs_lookup_file_extent);
	if (bm_search_slot(&sctx->root, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	return BM_OK;
}
