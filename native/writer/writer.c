// SPDX-License-Identifier: GPL-2.0-only
/*
 * The writer: its trees, and which tree blocks changed in the running transaction.
 *
 * A block that the writer allocates lives at its place in the image from the first moment, so that
 * readers find it there; its bit in image->verified says that it need not be verified, and its bit
 * in dirty_bits that its checksum and its further copies are still to be written.
 */
#include "image/pool.h"
#include "writer/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct bm_key no_key;

struct bm_writer *bm_writer_create(const struct bm_writer_args *args, struct bm_fault *fault)
{
	struct bm_image *image = args->image;
	struct bm_writer *writer = calloc(1, sizeof(*writer));

	if (!writer)
		goto nomem;
	writer->image = image;
	writer->base = args->base;
	writer->nodesize = image->nodesize;
	writer->sectorsize = image->sectorsize;
	writer->leaf_size = image->nodesize - BTRFS_HEADER_SIZE;
	writer->node_ptrs = writer->leaf_size / BTRFS_KEY_PTR_SIZE;
	writer->transid = args->transid;
	writer->features = args->features;
	writer->ssd = args->ssd;
	writer->structure = 1;
	writer->behaviour = UINT64_MAX;
	memcpy(writer->fsid, args->fsid, sizeof(writer->fsid));
	memcpy(writer->chunk_tree_uuid, args->chunk_tree_uuid, sizeof(writer->chunk_tree_uuid));
	writer->dirty_bits = calloc(image->size / image->sectorsize / 8 + 1, 1);
	writer->loose_bits = calloc(image->size / image->sectorsize / 8 + 1, 1);
	if (!writer->dirty_bits || !writer->loose_bits)
		goto nomem;
	if (bm_space_create(writer, fault) < 0 || bm_refs_create(writer, fault) < 0 ||
	    bm_quota_create(writer, fault) < 0) {
		bm_writer_destroy(writer);
		return NULL;
	}
	return writer;
nomem:
	bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	bm_writer_destroy(writer);
	return NULL;
}

void bm_writer_set_behaviour(struct bm_writer *writer, uint64_t behaviour)
{
	writer->behaviour = behaviour;
}

void bm_writer_set_ssd(struct bm_writer *writer, int ssd)
{
	writer->ssd = ssd != 0;
}

void bm_writer_destroy(struct bm_writer *writer)
{
	if (!writer)
		return;
	bm_refs_destroy(writer);
	bm_quota_destroy(writer);
	bm_space_destroy(writer);
	for (size_t i = 0; i < writer->tree_count; i++)
		free(writer->trees[i]);
	free(writer->trees);
	free(writer->changed);
	free(writer->dirty_bits);
	free(writer->loose_bits);
	free(writer->loose);
	free(writer->dirty);
	free(writer);
}

void bm_writer_set_transid(struct bm_writer *writer, uint64_t transid)
{
	writer->transid = transid;
}

/* ----------------------------------------------------------------------------------- trees -- */

/* Place of the first tree whose id is not less. */
static size_t tree_place(const struct bm_writer *writer, uint64_t id)
{
	size_t low = 0, high = writer->tree_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (writer->trees[mid]->id < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static struct bm_writer_tree *find_tree(const struct bm_writer *writer, uint64_t id)
{
	size_t place = tree_place(writer, id);

	if (place < writer->tree_count && writer->trees[place]->id == id)
		return writer->trees[place];
	return NULL;
}

struct bm_writer_tree *bm_writer_tree_of(const struct bm_writer *writer, uint64_t id,
					 struct bm_fault *fault)
{
	struct bm_writer_tree *tree = find_tree(writer, id);

	if (!tree)
		bm_fail(fault, (struct bm_fault){.code = BM_NOT_FOUND, .tree = id, .found = id});
	return tree;
}

int bm_writer_set_tree(struct bm_writer *writer, const struct bm_writer_tree *tree,
		       struct bm_fault *fault)
{
	size_t place = tree_place(writer, tree->id);
	struct bm_writer_tree *known = find_tree(writer, tree->id);
	uint32_t dirty;

	if (tree->level < 0 || tree->level >= BTRFS_MAX_LEVEL)
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_LEVEL,
							.tree = tree->id,
							.found = (uint64_t)tree->level,
							.wanted = BTRFS_MAX_LEVEL - 1});
	if (!known) {
		void *larger = grown(writer->trees, writer->tree_count, &writer->tree_capacity, 16,
				     sizeof(*writer->trees));

		if (!larger)
			return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		writer->trees = larger;
		larger = grown(writer->changed, writer->changed_count + writer->tree_count,
			       &writer->changed_capacity, 16, sizeof(*writer->changed));
		if (!larger)
			return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		writer->changed = larger;
		known = malloc(sizeof(*known));
		if (!known)
			return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		memmove(writer->trees + place + 1, writer->trees + place,
			(writer->tree_count - place) * sizeof(*writer->trees));
		writer->trees[place] = known;
		writer->tree_count++;
		BM_ASSERT(
		    (!place || writer->trees[place - 1]->id < tree->id) &&
		    (place + 1 == writer->tree_count || writer->trees[place + 1]->id > tree->id));
		known->dirty = 0;
	}
	dirty = known->dirty;
	*known = *tree;
	known->dirty = dirty;
	if (tree->dirty)
		bm_writer_note_changed(writer, known);
	return BM_OK;
}

int bm_writer_get_tree(const struct bm_writer *writer, uint64_t id, struct bm_writer_tree *tree,
		       struct bm_fault *fault)
{
	const struct bm_writer_tree *known = bm_writer_tree_of(writer, id, fault);

	if (!known)
		return fault->code;
	*tree = *known;
	return BM_OK;
}

int64_t bm_writer_tree_ids(const struct bm_writer *writer, uint64_t *ids, size_t capacity)
{
	for (size_t i = 0; i < writer->tree_count && i < capacity; i++)
		ids[i] = writer->trees[i]->id;
	return (int64_t)writer->tree_count;
}

int64_t bm_writer_changed_trees(const struct bm_writer *writer, uint64_t *ids, size_t capacity)
{
	for (size_t i = 0; i < writer->changed_count && i < capacity; i++)
		ids[i] = writer->changed[i];
	return (int64_t)writer->changed_count;
}

void bm_writer_clear_changed(struct bm_writer *writer)
{
	for (size_t i = 0; i < writer->changed_count; i++) {
		struct bm_writer_tree *tree = find_tree(writer, writer->changed[i]);

		if (tree)
			tree->dirty = 0;
	}
	writer->changed_count = 0;
}

void bm_writer_note_changed(struct bm_writer *writer, struct bm_writer_tree *tree)
{
	BM_ASSERT(tree->dirty || writer->changed_count < writer->changed_capacity);
	if (!tree->dirty)
		writer->changed[writer->changed_count++] = tree->id;
	tree->dirty = 1;
}

void bm_writer_set_root(struct bm_writer *writer, struct bm_writer_tree *tree, const uint8_t *block)
{
	tree->bytenr = block_header(block)->bytenr;
	tree->generation = writer->transid;
	tree->level = block_header(block)->level;
	bm_writer_note_changed(writer, tree);
}

void bm_writer_forget_tree(struct bm_writer *writer, uint64_t id)
{
	size_t place = tree_place(writer, id);

	struct bm_writer_tree *tree = find_tree(writer, id);

	if (!tree)
		return;
	bm_writer_note_changed(writer, tree);
	free(writer->trees[place]);
	writer->tree_count--;
	memmove(writer->trees + place, writer->trees + place + 1,
		(writer->tree_count - place) * sizeof(*writer->trees));
}

int bm_writer_new_tree(struct bm_writer *writer, uint64_t id, uint64_t owner, uint32_t shareable,
		       struct bm_fault *fault)
{
	struct bm_writer_tree fresh = {
	    .id = id, .owner = owner, .shareable = shareable, .generation = writer->transid};
	struct bm_writer_tree *tree = find_tree(writer, id);
	const uint8_t *root;

	if (tree)
		return bm_writer_errno(fault, tree, EEXIST);
	if (bm_writer_set_tree(writer, &fresh, fault) < 0)
		return fault->code;
	tree = find_tree(writer, id);
	root = bm_writer_alloc_block(writer, tree, 0, &no_key, 0, fault);
	if (!root) {
		bm_writer_forget_tree(writer, id);
		return fault->code;
	}
	tree->bytenr = block_header(root)->bytenr;
	bm_writer_note_changed(writer, tree);
	return BM_OK;
}

int bm_writer_root(const struct bm_writer *writer, uint64_t id, struct bm_root *root,
		   struct bm_fault *fault)
{
	const struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);

	if (!tree)
		return fault->code;
	*root = (struct bm_root){.image = writer->image,
				 .objectid = tree->owner,
				 .bytenr = tree->bytenr,
				 .generation = tree->generation,
				 .level = tree->level};
	return BM_OK;
}

int64_t bm_writer_get(const struct bm_writer *writer, uint64_t id, const struct bm_key *key,
		      const uint8_t **data, struct bm_fault *fault)
{
	struct bm_path path = {0};
	const struct btrfs_item *item;
	struct bm_root root;
	int ret;

	*data = NULL;
	if (bm_writer_root(writer, id, &root, fault) < 0)
		return fault->code;
	ret = bm_search_slot_for_read(&root, key, 1, &path, fault);
	if (ret)
		return ret < 0 ? ret : 0;
	item = leaf_item(path.node[0], path.slot[0]);
	if (compare_disk_key(&item->key, key))
		return 0;
	*data = item_data(path.node[0], path.slot[0]);
	return item->size;
}

/* ---------------------------------------------------------------------------------- blocks -- */

const uint8_t *bm_writer_read(struct bm_writer *writer, const struct bm_writer_tree *tree,
			      uint64_t logical, uint64_t generation, int level,
			      struct bm_fault *fault)
{
	struct bm_expect expect = {.tree = tree->owner, .generation = generation, .level = level};

	return bm_image_block(writer->image, logical, &expect, fault);
}

static int is_set(const uint8_t *bits, uint64_t sector)
{
	return bits[sector / 8] >> sector % 8 & 1;
}

static void set_bit(uint8_t *bits, uint64_t sector)
{
	bits[sector / 8] |= (uint8_t)(1 << sector % 8);
}

static void clear_bit(uint8_t *bits, uint64_t sector)
{
	bits[sector / 8] &= (uint8_t) ~(1 << sector % 8);
}

static uint64_t sector_of(const struct bm_writer *writer, const uint8_t *block)
{
	return (uint64_t)(block - writer->image->blocks) / writer->sectorsize;
}

const uint8_t *bm_writer_read_child(struct bm_writer *writer, const struct bm_writer_tree *tree,
				    const uint8_t *node, uint32_t slot, struct bm_fault *fault)
{
	const struct btrfs_key_ptr *ptr = node_ptr(node, slot);
	struct bm_key wanted = to_key(&ptr->key);
	const uint8_t *child = bm_writer_read(writer, tree, ptr->blockptr, ptr->generation,
					      block_header(node)->level - 1, fault);

	if (!child)
		return NULL;
	/* a search may have made a leaf into which nothing was inserted yet */
	if (!block_header(child)->nritems && is_set(writer->dirty_bits, sector_of(writer, child)))
		return child;
	if (!block_header(child)->nritems || compare_disk_key(block_key(child, 0), &wanted) != 0) {
		bm_fail(fault, (struct bm_fault){.code = BM_BAD_FIRST_KEY,
						 .slot = slot,
						 .tree = tree->owner,
						 .block = ptr->blockptr});
		return NULL;
	}
	return child;
}

/*
 * should_cow_block(). The dirty bit adds nothing to what the kernel asks as long as the image is
 * sound; a block of a damaged one that claims to be of this transaction is not ours.
 */
int bm_writer_is_ours(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		      const uint8_t *block)
{
	const struct btrfs_header *header = block_header(block);

	return !tree->force_cow && bm_writer_is_new(writer, block) &&
	       (bm_writer_is_reloc(tree) || !(header->flags & BM_HEADER_RELOC));
}

int bm_writer_is_new(const struct bm_writer *writer, const uint8_t *block)
{
	const struct btrfs_header *header = block_header(block);

	return header->generation == writer->transid && !(header->flags & BM_HEADER_WRITTEN) &&
	       is_set(writer->dirty_bits, sector_of(writer, block));
}

int bm_writer_mark_dirty(struct bm_writer *writer, uint64_t logical, struct bm_fault *fault)
{
	uint64_t physical, contiguous, sector;
	void *larger;

	if (bm_image_map(writer->image, logical, 0, &physical, &contiguous, fault) < 0)
		return fault->code;
	if (contiguous < writer->nodesize)
		return bm_fail(fault, (struct bm_fault){.code = BM_PAST_END,
							.block = logical,
							.found = physical + writer->nodesize,
							.wanted = physical + contiguous});
	sector = physical / writer->sectorsize;
	if (is_set(writer->dirty_bits, sector))
		return BM_OK;
	larger = grown(writer->dirty, writer->dirty_count, &writer->dirty_capacity, 256,
		       sizeof(*writer->dirty));
	if (!larger)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	writer->dirty = larger;
	writer->dirty[writer->dirty_count++] = logical;
	set_bit(writer->dirty_bits, sector);
	set_bit(writer->image->verified, sector);
	writer->dirty_blocks++;
	BM_ASSERT(writer->dirty_blocks <= writer->dirty_count &&
		  writer->dirty_count <= writer->dirty_capacity);
	return BM_OK;
}

void bm_writer_tree_info(const struct bm_writer *writer, struct bm_space_info *info)
{
	/* btrfs_update_global_block_rsv() */
	static const uint64_t in_every_commit[] = {
	    BTRFS_EXTENT_TREE_OBJECTID, BTRFS_CSUM_TREE_OBJECTID, BTRFS_FREE_SPACE_TREE_OBJECTID,
	    BTRFS_BLOCK_GROUP_TREE_OBJECTID};

	for (size_t i = 0; i < sizeof(in_every_commit) / sizeof(*in_every_commit); i++) {
		const struct bm_writer_tree *tree = find_tree(writer, in_every_commit[i]);

		info->trees += tree != NULL;
		info->tree_bytes += tree ? tree->bytes_used : 0;
	}
	info->has_free_space_tree = find_tree(writer, BTRFS_FREE_SPACE_TREE_OBJECTID) != NULL;
	info->dirty = (uint64_t)writer->dirty_blocks * writer->nodesize;
}

void bm_writer_forget_block(struct bm_writer *writer, uint64_t logical)
{
	uint64_t physical, contiguous;

	for (int copy = 0; copy < 2; copy++) {
		if (bm_image_map(writer->image, logical, copy, &physical, &contiguous, NULL) < 0)
			return;
		BM_ASSERT(writer->dirty_blocks ||
			  !is_set(writer->dirty_bits, physical / writer->sectorsize));
		writer->dirty_blocks -=
		    (size_t)is_set(writer->dirty_bits, physical / writer->sectorsize);
		clear_bit(writer->dirty_bits, physical / writer->sectorsize);
		clear_bit(writer->image->verified, physical / writer->sectorsize);
	}
}

void bm_writer_forget_range(struct bm_writer *writer, uint64_t logical, uint64_t size)
{
	uint32_t sectorsize = writer->sectorsize;
	uint64_t before = writer->nodesize - sectorsize, physical, contiguous;

	for (int copy = 0; copy < 2; copy++) {
		if (bm_image_map(writer->image, logical, copy, &physical, &contiguous, NULL) < 0)
			return;
		/* a block that starts before the range may reach into it */
		for (uint64_t at = physical - (physical < before ? physical : before);
		     at < physical + size; at += sectorsize)
			clear_bit(writer->image->verified, at / sectorsize);
	}
}

/* Zero what is neither header nor item nor data: nothing of old blocks gets out to a device. */
static void zero_unused(const struct bm_writer *writer, uint8_t *block)
{
	const struct btrfs_header *header = block_header(block);
	uint32_t entry = header->level ? BTRFS_KEY_PTR_SIZE : BTRFS_ITEM_SIZE;
	uint32_t start = header->nritems * entry, end = writer->leaf_size;

	if (!header->level && header->nritems)
		end = leaf_item(block, header->nritems - 1)->offset;
	memset(block + BTRFS_HEADER_SIZE + start, 0, end - start);
}

static int write_block(struct bm_writer *writer, uint64_t logical, uint64_t physical,
		       struct bm_fault *fault)
{
	uint8_t *block = writer->base + physical;
	uint64_t contiguous;

	BM_ASSERT(block_header(block)->level ? bm_node_is_sound(writer, block)
					     : bm_leaf_is_sound(writer, block));
	zero_unused(writer, block);
	header_of(block)->flags |= BM_HEADER_WRITTEN;
	memset(block, 0, BTRFS_CSUM_SIZE);
	bm_csum(writer->image->csum_type, block + BTRFS_CSUM_SIZE,
		writer->nodesize - BTRFS_CSUM_SIZE, block);
	/* a chunk of one copy has no copy 1: bm_image_map() says so */
	if (bm_image_map(writer->image, logical, 1, &physical, &contiguous, NULL) < 0)
		return BM_OK;
	if (contiguous < writer->nodesize)
		return bm_fail(fault, (struct bm_fault){.code = BM_PAST_END,
							.block = logical,
							.found = physical + writer->nodesize,
							.wanted = physical + contiguous});
	memcpy(writer->base + physical, block, writer->nodesize);
	return BM_OK;
}

/* Write the blocks that changed, all of them or those of logs; the list keeps the others. */
static int64_t write_dirty(struct bm_writer *writer, int log_only, struct bm_fault *fault)
{
	uint64_t physical, contiguous;
	int64_t written = 0;
	size_t kept = 0;

	for (size_t i = 0; i < writer->dirty_count; i++) {
		uint64_t logical = writer->dirty[i];

		if (bm_image_map(writer->image, logical, 0, &physical, &contiguous, fault) < 0)
			return fault->code;
		/* freed, or twice in the list and written already */
		if (!is_set(writer->dirty_bits, physical / writer->sectorsize))
			continue;
		if (log_only && !bm_is_log(writer->base + physical)) {
			writer->dirty[kept++] = logical;
			continue;
		}
		if (log_only && block_header(writer->base + physical)->level)
			COUNT(writer->image, log_nodes_written);
		else if (log_only)
			COUNT(writer->image, log_leaves_written);
		if (write_block(writer, logical, physical, fault) < 0)
			return fault->code;
		clear_bit(writer->dirty_bits, physical / writer->sectorsize);
		writer->dirty_blocks--;
		written++;
	}
	writer->dirty_count = kept;
	BM_ASSERT(log_only ? writer->dirty_blocks <= kept : !writer->dirty_blocks);
	return written;
}

int64_t bm_writer_write_blocks(struct bm_writer *writer, struct bm_fault *fault)
{
	return write_dirty(writer, 0, fault);
}

int64_t bm_writer_write_log(struct bm_writer *writer, struct bm_fault *fault)
{
	return write_dirty(writer, 1, fault);
}
