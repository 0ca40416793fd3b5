// SPDX-License-Identifier: GPL-2.0-only
/*
 * The store of blocks: from a logical address to the bytes of a verified tree block.
 *
 * A block is verified once, as a whole, and after that read without further checks of its
 * structure: the header (address, filesystem, checksum), the number of items, the order of keys,
 * and for a leaf that every item's data lies inside it, packed from the end without gaps or
 * overlaps. What depends on the parent (level, generation) is compared at every read. Since a
 * child must be exactly one level below its parent, no walk can go in circles.
 *
 * As in the kernel, a block with several copies of which the first is bad is read from another. A
 * block that lies in no single place (it goes over the end of a stripe, or is made of parity) is
 * put together in memory, where it is used like any other.
 */
#include "image/internal.h"
#include "image/mapping.h"

#include <stdlib.h>
#include <string.h>

enum window_use { UNUSED, COPIES, SHOWN };

int bm_fail(struct bm_fault *fault, struct bm_fault what)
{
	if (fault)
		*fault = what;
	return what.code;
}

int bm_fail_at(const struct bm_image *image, uint64_t physical, struct bm_fault *fault,
	       struct bm_fault what)
{
	what.offset = image->devices ? 0 : physical;
	what.device = 0;
	for (size_t i = 0; physical && i < image->device_count; i++)
		if (physical - image->devices[i].start < image->devices[i].size) {
			what.device = image->devices[i].devid;
			what.offset = physical - image->devices[i].start;
		}
	return bm_fail(fault, what);
}

struct bm_image *bm_image_create(const uint8_t *base, uint64_t size, uint32_t nodesize,
				 uint32_t sectorsize, int csum_type, const uint8_t *fsid)
{
	struct bm_image *image;

	if (sectorsize < 512 || nodesize < sectorsize || nodesize > 65536)
		return NULL;
	image = calloc(1, sizeof(*image));
	if (!image)
		return NULL;
	image->verified = calloc(size / sectorsize / 8 + 1, 1);
	if (!image->verified) {
		free(image);
		return NULL;
	}
	image->base = image->blocks = base;
	image->size = size;
	image->nodesize = nodesize;
	image->sectorsize = sectorsize;
	image->csum_type = csum_type;
	memcpy(image->fsid, fsid, sizeof(image->fsid));
	image->work = image->counted;
	image->readahead = (struct bm_readahead){.distance = 65536,
						 .near = 65536,
						 .always_leaves = 131072,
						 .always_nodes = nodesize,
						 .compare_leaves = 131072,
						 .compare_nodes = nodesize,
						 .siblings = 32};
	return image;
}

void bm_image_check_items(struct bm_image *image)
{
	image->checks_items = 1;
}

void bm_image_destroy(struct bm_image *image)
{
	if (!image)
		return;
	bm_image_cache_stop(image);
	free(image->devices);
	free(image->chunks);
	free(image->places);
	free(image->verified);
	free(image->copied);
	free(image->windows);
	free(image->another);
	free(image);
}

int bm_image_copy_blocks(struct bm_image *image, uint8_t *blocks, uint64_t most,
			 struct bm_fault *fault)
{
	image->copied = calloc(image->size / image->sectorsize / 8 + 1, 1);
	image->windows = calloc(image->size / BM_WINDOW + 1, 1);
	image->another = malloc(image->nodesize);
	if (!image->copied || !image->windows || !image->another)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	image->mapping = bm_mapping_of(image->base);
	if (!image->mapping)
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_VALUE});
	image->blocks = image->copies = blocks;
	memset(image->recent, 0, sizeof(image->recent));
	image->left = most;
	bm_mapping_set_copies(image->mapping, blocks);
	return BM_OK;
}

int bm_image_use_in_place(struct bm_image *image, struct bm_fault *fault)
{
	image->mapping = bm_mapping_of(image->base);
	if (!image->mapping)
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_VALUE});
	bm_mapping_show_all(image->mapping);
	return BM_OK;
}

/* Copies cost most by the memory that they take: a large image shows its file after the first. */
static enum window_use use_window(struct bm_image *image, uint64_t at)
{
	uint8_t *use = &image->windows[at / BM_WINDOW];

	if (*use == UNUSED) {
		*use = COPIES;
		if (!image->left && !bm_mapping_show(image->mapping, at - at % BM_WINDOW))
			*use = SHOWN;
	}
	return *use;
}

static void copy_range(struct bm_image *image, uint64_t from, uint64_t to)
{
	uint64_t size = to - from;

	if (from >= to)
		return;
	bm_mapping_read(image->mapping, from, image->copies + from, size);
	image->left -= size < image->left ? size : image->left;
}

const uint8_t *bm_image_own_block(struct bm_image *image, uint64_t physical)
{
	uint64_t end = physical + image->nodesize, from = physical, at;

	if (!image->copies)
		return image->blocks + physical;
	for (at = physical; at < end; at += image->sectorsize) {
		uint64_t sector = at / image->sectorsize;
		uint8_t bit = (uint8_t)(1 << sector % 8);

		/* blocks that overlap must not change each other, so what was copied stays */
		if (use_window(image, at) == SHOWN || image->copied[sector / 8] & bit) {
			copy_range(image, from, at);
			from = at + image->sectorsize;
		} else {
			image->copied[sector / 8] |= bit;
		}
	}
	copy_range(image, from, end);
	return image->blocks + physical;
}

static void add_work(struct bm_work *work, int counter, int64_t times)
{
	for (; work; work = work->outer)
		__atomic_fetch_add(&work->counts[counter], (uint64_t)times, __ATOMIC_RELAXED);
}

int bm_image_take_work(struct bm_image *image, struct bm_work *work, struct bm_fault *fault)
{
	for (int i = 0; i < BM_WORK_COUNT; i++)
		if (image->counted[i])
			add_work(work, i, (int64_t)image->counted[i]);
	memset(image->counted, 0, sizeof(image->counted));
	if (bm_mapping_is_whole(image->mapping, fault) == BM_OK)
		return BM_OK;
	return bm_fail_at(image, fault->offset, fault, *fault);
}

/* Everything about a block that does not depend on who points at it; 0 or a fault's code. */
static int verify_structure(const struct bm_image *image, const uint8_t *block, uint64_t logical,
			    struct bm_fault *place)
{
	const struct btrfs_header *header = block_header(block);
	uint32_t data_size = image->nodesize - BTRFS_HEADER_SIZE;
	uint32_t room = data_size / (header->level ? BTRFS_KEY_PTR_SIZE : BTRFS_ITEM_SIZE);
	uint32_t end = data_size;
	uint8_t digest[BTRFS_CSUM_SIZE] = {0};
	int size;

	size = bm_csum(image->csum_type, block + BTRFS_CSUM_SIZE, image->nodesize - BTRFS_CSUM_SIZE,
		       digest);
	if (memcmp(digest, header->csum, (size_t)size) != 0) {
		memcpy(&place->found, header->csum, 8);
		memcpy(&place->wanted, digest, 8);
		if (size < 8) {
			place->found &= 0xffffffff;
			place->wanted &= 0xffffffff;
		}
		return BM_BAD_CSUM;
	}
	place->found = header->bytenr;
	place->wanted = logical;
	if (header->bytenr != logical)
		return BM_BAD_BYTENR;
	place->found = place->wanted = 0;
	if (memcmp(header->fsid, image->fsid, 16) != 0)
		return BM_BAD_FSID;
	place->found = header->level;
	place->wanted = BTRFS_MAX_LEVEL - 1;
	if (header->level >= BTRFS_MAX_LEVEL)
		return BM_BAD_LEVEL;
	place->found = header->nritems;
	place->wanted = room;
	if (header->nritems > room || (header->level && !header->nritems))
		return BM_BAD_NRITEMS;
	for (uint32_t slot = 0; slot < header->nritems; slot++) {
		place->slot = slot;
		place->found = place->wanted = 0;
		if (slot) {
			struct bm_key before = to_key(block_key(block, slot - 1));

			if (compare_disk_key(block_key(block, slot), &before) <= 0)
				return BM_BAD_KEY_ORDER;
		}
		if (header->level) {
			place->found = node_ptr(block, slot)->blockptr;
			if (!place->found || place->found % image->sectorsize)
				return BM_BAD_BLOCKPTR;
		} else {
			const struct btrfs_item *item = leaf_item(block, slot);

			/* offsets fit 32 bits, so their sum needs 64 */
			place->found = (uint64_t)item->offset + item->size;
			place->wanted = end;
			if (place->found != end ||
			    item->offset < (slot + 1) * (uint32_t)BTRFS_ITEM_SIZE)
				return BM_BAD_ITEM_RANGE;
			end = item->offset;
		}
	}
	/* the data of the last item must not reach into the item headers */
	if (!header->level && end < header->nritems * (uint32_t)BTRFS_ITEM_SIZE) {
		place->found = end;
		place->wanted = header->nritems * (uint32_t)BTRFS_ITEM_SIZE;
		return BM_BAD_ITEM_RANGE;
	}
	place->slot = 0;
	place->found = place->wanted = 0;
	return image->checks_items && !header->level ? bm_check_leaf(image, block, place) : BM_OK;
}

/* What the parent says of the block. */
static int verify_expected(const uint8_t *block, const struct bm_expect *expect,
			   struct bm_fault *place)
{
	const struct btrfs_header *header = block_header(block);

	if (expect->level >= 0 && header->level != expect->level) {
		place->found = header->level;
		place->wanted = (uint64_t)expect->level;
		return BM_BAD_LEVEL;
	}
	if (expect->generation && header->generation != expect->generation) {
		place->found = header->generation;
		place->wanted = expect->generation;
		return BM_BAD_GENERATION;
	}
	return BM_OK;
}

/*
 * A copy where it is read: *place and what is there, for what was not verified yet, or `again`. A
 * second look must not change what is in use. NULL with `fault` filled.
 */
static const uint8_t *look_at(struct bm_image *image, uint64_t logical, int copy, int again,
			      uint64_t *place, struct bm_fault *fault)
{
	const struct bm_mapped *chunk = bm_find_chunk(image, logical);
	uint64_t contiguous = 0;
	uint8_t *out;
	int is_placed = !chunk || !chunk->parity || copy < (int)chunk->placed, is_verified;

	if (is_placed && bm_image_map(image, logical, copy, place, &contiguous, fault) < 0)
		return NULL;
	/* what lies in no single place is put together, unless it does not fit into its chunk */
	if (contiguous < image->nodesize) {
		uint64_t within = logical - chunk->logical;

		if (!image->copies || !chunk->assembled || chunk->length < image->nodesize ||
		    within > chunk->length - image->nodesize) {
			bm_fail_at(image, *place, fault,
				   (struct bm_fault){.code = BM_PAST_END,
						     .found = *place + image->nodesize,
						     .wanted = *place + contiguous});
			return NULL;
		}
		*place = chunk->assembled + within;
		is_placed = 0;
	}
	/* a bit stands for what starts at its sector */
	if (*place % image->sectorsize) {
		bm_fail_at(image, *place, fault,
			   (struct bm_fault){.code = BM_UNALIGNED, .found = *place});
		return NULL;
	}
	is_verified =
	    image->verified[*place / image->sectorsize / 8] & 1 << *place / image->sectorsize % 8;
	if (is_verified && !again)
		return image->blocks + *place;
	/* nor take room for what is not in use */
	if (is_placed && image->copies && (is_verified || (again && copy))) {
		bm_mapping_read(image->mapping, *place, image->another, image->nodesize);
		return image->another;
	}
	if (is_placed)
		return bm_image_own_block(image, *place);
	out = is_verified ? image->another : image->copies + *place;
	return bm_image_read(image, logical, copy, image->nodesize, out, fault) < 0 ? NULL : out;
}

/* One copy, verified unless its bit says that it was before; NULL with `fault` filled. */
static const uint8_t *read_copy(struct bm_image *image, uint64_t logical, int copy,
				const struct bm_expect *expect, int again, struct bm_fault *fault)
{
	struct bm_fault place = {.tree = expect->tree, .block = logical};
	uint64_t physical = 0, sector;
	const uint8_t *block;

	if (logical % image->sectorsize) {
		place.code = BM_UNALIGNED;
		place.found = logical;
		bm_fail(fault, place);
		return NULL;
	}
	block = look_at(image, logical, copy, again, &physical, fault);
	if (!block) {
		if (fault) {
			fault->tree = expect->tree;
			fault->block = logical;
		}
		return NULL;
	}
	sector = physical / image->sectorsize;
	if (again || !(image->verified[sector / 8] & 1 << sector % 8)) {
		place.code = verify_structure(image, block, logical, &place);
		if (place.code < 0) {
			bm_fail_at(image, physical, fault, place);
			return NULL;
		}
	}
	/* chunks that overlap on the device would show a verified block at another address */
	if (block_header(block)->bytenr != logical) {
		place.code = BM_BAD_BYTENR;
		place.found = block_header(block)->bytenr;
		place.wanted = logical;
	} else {
		place.code = verify_expected(block, expect, &place);
	}
	if (place.code < 0) {
		bm_fail_at(image, physical, fault, place);
		return NULL;
	}
	/* not before: a copy that is put together takes the place of the one before */
	if (block != image->another)
		image->verified[sector / 8] |= (uint8_t)(1 << sector % 8);
	return block;
}

int bm_image_is_good(const struct bm_image *image, uint64_t logical, int copy,
		     const struct bm_expect *expect, uint8_t *memory)
{
	const struct bm_mapped *chunk = bm_find_chunk(image, logical);
	const uint8_t *block = memory;
	struct bm_fault ignored = {0};
	uint64_t place, contiguous;

	if (!chunk || copy >= (int)chunk->placed ||
	    bm_image_map(image, logical, copy, &place, &contiguous, &ignored) < 0 ||
	    contiguous < image->nodesize || (logical | place) % image->sectorsize)
		return 0;
	if (image->copies)
		bm_mapping_read(image->mapping, place, memory, image->nodesize);
	else
		block = image->base + place;
	return verify_structure(image, block, logical, &ignored) == BM_OK &&
	       verify_expected(block, expect, &ignored) == BM_OK;
}

int bm_image_verify_copy(struct bm_image *image, uint64_t logical, int copy,
			 const struct bm_expect *expect, struct bm_fault *fault)
{
	struct bm_fault place = {0};

	if (read_copy(image, logical, copy, expect, 1, &place))
		return BM_OK;
	return bm_fail(fault, place);
}

static int is_verified_at(const struct bm_image *image, const uint8_t *block)
{
	uint64_t sector = (uint64_t)(block - image->blocks) / image->sectorsize;

	return image->verified[sector / 8] >> sector % 8 & 1;
}

const uint8_t *bm_image_block(struct bm_image *image, uint64_t logical,
			      const struct bm_expect *expect, struct bm_fault *fault)
{
	struct bm_recent *recent = bm_recent_of(image, logical);
	struct bm_fault ignored;
	const uint8_t *block;
	int copies;

	/* what is written there meanwhile takes the bit away */
	if (recent->logical == logical && logical && is_verified_at(image, recent->block) &&
	    block_header(recent->block)->bytenr == logical &&
	    verify_expected(recent->block, expect, &ignored) == BM_OK)
		return recent->block;
	block = read_copy(image, logical, 0, expect, 0, fault);
	if (block) {
		*recent = (struct bm_recent){logical, block};
		return block;
	}
	copies = bm_image_copies(image, logical);
	for (int copy = 1; copy < copies; copy++) {
		/* another copy that is bad too leaves the fault of the first */
		block = read_copy(image, logical, copy, expect, 0, NULL);
		if (block)
			return block;
	}
	return NULL;
}
