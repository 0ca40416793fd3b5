// SPDX-License-Identifier: GPL-2.0-only
/*
 * What quota groups learn of references: which extents to look at when the transaction ends, or
 * with simple quotas what was allocated and freed, by the subvolume that allocated it.
 */
#include "writer/writer.h"

#include "image/pool.h"

#include <stdlib.h>

/* struct btrfs_qgroup_extent_record */
struct record {
	uint64_t bytenr; /* 0: none */
	uint64_t num_bytes;
};

struct bm_quota {
	enum bm_quota_mode mode;
	uint64_t enable_gen;
	int drop_subtree_threshold;
	int inconsistent;	/* a subtree was too high to look at what is in it */
	struct record *records; /* open addressing */
	size_t mask, record_count;
	struct bm_quota_delta *deltas;
	size_t delta_count, delta_capacity;
};

/* is_fstree() */
static int is_subvolume(uint64_t id)
{
	return id == BTRFS_FS_TREE_OBJECTID || (id >= BTRFS_FIRST_FREE_OBJECTID && !(id >> 48));
}

static int fail_nomem(struct bm_fault *fault)
{
	return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
}

int bm_quota_create(struct bm_writer *writer, struct bm_fault *fault)
{
	writer->quota = calloc(1, sizeof(*writer->quota));
	return writer->quota ? BM_OK : fail_nomem(fault);
}

void bm_quota_destroy(struct bm_writer *writer)
{
	if (!writer->quota)
		return;
	free(writer->quota->records);
	free(writer->quota->deltas);
	free(writer->quota);
	writer->quota = NULL;
}

void bm_writer_set_quota(struct bm_writer *writer, int mode, uint64_t enable_gen,
			 int drop_subtree_threshold)
{
	writer->quota->mode = (enum bm_quota_mode)mode;
	writer->quota->enable_gen = enable_gen;
	writer->quota->drop_subtree_threshold = drop_subtree_threshold;
}

int bm_quota_is_simple(const struct bm_writer *writer)
{
	return writer->quota->mode == BM_QUOTA_SIMPLE;
}

/* -------------------------------------------------------------------------- extents to look at -- */

static size_t slot_of(const struct bm_quota *quota, uint64_t bytenr)
{
	size_t slot = (size_t)(bytenr / 4096 * 0x9E3779B97F4A7C15ull >> 20) & quota->mask;

	while (quota->records[slot].bytenr && quota->records[slot].bytenr != bytenr)
		slot = (slot + 1) & quota->mask;
	return slot;
}

static int grow_records(struct bm_quota *quota)
{
	size_t old = quota->records ? quota->mask + 1 : 0, size = old ? old * 2 : 1024;
	struct record *before = quota->records, *records;

	if (quota->record_count * 2 < old)
		return BM_OK;
	records = calloc(size, sizeof(*records));
	if (!records)
		return BM_NOMEM;
	quota->records = records;
	quota->mask = size - 1;
	for (size_t i = 0; i < old; i++)
		if (before[i].bytenr)
			records[slot_of(quota, before[i].bytenr)] = before[i];
	free(before);
	return BM_OK;
}

int bm_quota_trace(struct bm_writer *writer, uint64_t root, uint64_t bytenr, uint64_t num_bytes,
		   struct bm_fault *fault)
{
	struct bm_quota *quota = writer->quota;
	size_t slot;

	if (quota->mode != BM_QUOTA_FULL || !is_subvolume(root) || !bytenr)
		return BM_OK;
	if (grow_records(quota) < 0)
		return fail_nomem(fault);
	slot = slot_of(quota, bytenr);
	if (!quota->records[slot].bytenr) {
		quota->records[slot] = (struct record){bytenr, num_bytes};
		quota->record_count++;
	}
	return BM_OK;
}

/* btrfs_qgroup_trace_leaf_items() */
static int trace_leaf(struct bm_writer *writer, const struct bm_writer_tree *tree,
		      const uint8_t *leaf, struct bm_fault *fault)
{
	for (uint32_t slot = 0; slot < block_header(leaf)->nritems; slot++) {
		struct bm_data_ref ref;
		int ret = bm_writer_data_ref_of(leaf, slot, &ref, fault);

		if (ret > 0)
			ret = bm_quota_trace(writer, tree->owner, ref.bytenr, ref.num_bytes, fault);
		if (ret < 0)
			return ret;
	}
	return BM_OK;
}

/* All that is below a node, less the node. */
static int trace_below(struct bm_writer *writer, const struct bm_writer_tree *tree,
		       const uint8_t *block, struct bm_fault *fault)
{
	if (!block_header(block)->level)
		return trace_leaf(writer, tree, block, fault);
	for (uint32_t slot = 0; slot < block_header(block)->nritems; slot++) {
		const uint8_t *child = bm_writer_read_child(writer, tree, block, slot, fault);

		if (!child ||
		    bm_quota_trace(writer, tree->owner, block_header(child)->bytenr,
				   writer->nodesize, fault) < 0 ||
		    trace_below(writer, tree, child, fault) < 0)
			return fault->code;
	}
	return BM_OK;
}

int bm_quota_trace_subtree(struct bm_writer *writer, const struct bm_writer_tree *tree,
			   const uint8_t *node, uint32_t slot, struct bm_fault *fault)
{
	struct bm_quota *quota = writer->quota;
	const uint8_t *child;

	if (quota->mode != BM_QUOTA_FULL || !is_subvolume(tree->owner))
		return BM_OK;
	if (block_header(node)->level - 1 >= quota->drop_subtree_threshold) {
		quota->inconsistent = 1;
		return BM_OK;
	}
	child = bm_writer_read_child(writer, tree, node, slot, fault);
	return child ? trace_below(writer, tree, child, fault) : fault->code;
}

static int compare_records(const void *left, const void *right)
{
	const struct record *a = left, *b = right;

	return a->bytenr < b->bytenr ? -1 : a->bytenr > b->bytenr;
}

int64_t bm_writer_traced(const struct bm_writer *writer)
{
	return (int64_t)writer->quota->record_count;
}

void bm_writer_take_traced(struct bm_writer *writer, uint64_t *bytenr, uint64_t *num_bytes)
{
	struct bm_quota *quota = writer->quota;
	size_t count = 0, size = quota->records ? quota->mask + 1 : 0;

	for (size_t i = 0; i < size; i++)
		if (quota->records[i].bytenr)
			quota->records[count++] = quota->records[i];
	if (count)
		qsort(quota->records, count, sizeof(*quota->records), compare_records);
	for (size_t i = 0; i < count; i++) {
		bytenr[i] = quota->records[i].bytenr;
		num_bytes[i] = quota->records[i].num_bytes;
	}
	free(quota->records);
	quota->records = NULL;
	quota->record_count = 0;
}

int bm_writer_quota_inconsistent(struct bm_writer *writer)
{
	int inconsistent = writer->quota->inconsistent;

	writer->quota->inconsistent = 0;
	return inconsistent;
}

/* ------------------------------------------------------------------------------- simple quotas -- */

int bm_quota_delta(struct bm_writer *writer, uint64_t root, int64_t bytes, uint64_t generation,
		   struct bm_fault *fault)
{
	struct bm_quota *quota = writer->quota;
	struct bm_quota_delta *deltas;

	if (quota->mode != BM_QUOTA_SIMPLE || !is_subvolume(root) || generation < quota->enable_gen)
		return BM_OK;
	for (size_t i = quota->delta_count; i-- > 0;) {
		if (quota->deltas[i].root == root) {
			quota->deltas[i].bytes += bytes;
			return BM_OK;
		}
	}
	deltas =
	    grown(quota->deltas, quota->delta_count, &quota->delta_capacity, 16, sizeof(*deltas));
	if (!deltas)
		return fail_nomem(fault);
	quota->deltas = deltas;
	deltas[quota->delta_count++] = (struct bm_quota_delta){root, bytes};
	return BM_OK;
}

int64_t bm_writer_take_deltas(struct bm_writer *writer, struct bm_quota_delta *deltas,
			      size_t capacity)
{
	struct bm_quota *quota = writer->quota;
	size_t count = quota->delta_count;

	if (count <= capacity) {
		for (size_t i = 0; i < count; i++)
			deltas[i] = quota->deltas[i];
		quota->delta_count = 0;
	}
	return (int64_t)count;
}
