// SPDX-License-Identifier: GPL-2.0-only
/*
 * Comparison of two trees: btrfs_compare_trees() of the kernel's send.c.
 *
 * Each side has a position: a level, and the slot at each level above it. The two positions move
 * in key order. Where both stand at the same level on pointers to the same block of the same
 * generation, everything below is shared and both step over it; otherwise they descend, the side
 * at the higher level first.
 */
#include "image/internal.h"

#include <stdlib.h>
#include <string.h>

enum advance { STAY, ONLY_NEXT, DESCEND };
enum {
	RUN = 64,     /* items that are looked at together */
	AT_ONCE = 64, /* bytes */
};

struct side {
	struct bm_root root;
	const uint8_t *node[BTRFS_MAX_LEVEL];
	uint32_t slot[BTRFS_MAX_LEVEL];
	int level;
	int ended;
	enum advance advance;
	struct bm_key key;
};

struct bm_compare {
	struct side left;
	struct side right;
	uint64_t newer_than; /* children of a later generation are read ahead */
};

/* The block behind the one that is gone down to is looked at soon, mostly. */
static void prefetch_next(const struct side *side)
{
	const uint8_t *node = side->node[side->level];
	uint32_t next = side->slot[side->level] + 1;
	const struct bm_image *image = side->root.image;
	const struct bm_recent *recent;

	if (next >= block_header(node)->nritems)
		return;
	recent = bm_recent_of(image, node_ptr(node, next)->blockptr);
	if (!recent->block)
		return;
	__builtin_prefetch(recent->block + offsetof(struct btrfs_header, bytenr));
	__builtin_prefetch(recent->block + BTRFS_HEADER_SIZE);
}

/* tree_advance(): down to the first child or on to the next slot, going up where a node ends. */
static int side_advance(struct side *side, uint64_t newer_than, struct bm_fault *fault)
{
	COUNT(side->root.image, tree_advance);
	if (side->level > 0 && side->advance == DESCEND) {
		const uint8_t *child;

		child = bm_read_node_slot(&side->root, side->node[side->level],
					  side->slot[side->level], newer_than, fault);
		if (!child || bm_poll(fault) < 0 ||
		    bm_check_last_key(&side->root, side->node, side->slot, child, fault) < 0)
			return fault->code;
		prefetch_next(side);
		side->level--;
		side->node[side->level] = child;
		side->slot[side->level] = 0;
	} else {
		side->slot[side->level]++;
		while (side->slot[side->level] >= block_header(side->node[side->level])->nritems) {
			if (side->level == side->root.level) {
				side->ended = 1;
				return BM_OK;
			}
			side->level++;
			side->slot[side->level]++;
		}
	}
	side->key = to_key(block_key(side->node[side->level], side->slot[side->level]));
	return BM_OK;
}

static int side_start(struct side *side, const struct bm_root *root, struct bm_fault *fault)
{
	struct bm_expect expect = {
	    .tree = root->objectid, .generation = root->generation, .level = root->level};

	side->root = *root;
	side->level = root->level;
	side->node[side->level] = bm_image_block(root->image, root->bytenr, &expect, fault);
	if (!side->node[side->level])
		return fault->code;
	if (!block_header(side->node[side->level])->nritems) {
		side->ended = 1;
		return BM_OK;
	}
	side->key = to_key(block_key(side->node[side->level], 0));
	return BM_OK;
}

struct bm_compare *bm_compare_create(const struct bm_root *left, const struct bm_root *right,
				     struct bm_fault *fault)
{
	struct bm_compare *compare = calloc(1, sizeof(*compare));

	if (!compare) {
		bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		return NULL;
	}
	compare->newer_than = UINT64_MAX;
	if (side_start(&compare->left, left, fault) < 0 ||
	    side_start(&compare->right, right, fault) < 0) {
		free(compare);
		return NULL;
	}
	return compare;
}

void bm_compare_destroy(struct bm_compare *compare)
{
	free(compare);
}

void bm_compare_read_ahead(struct bm_compare *compare)
{
	compare->newer_than = compare->right.root.generation;
}

static int same_item(const struct side *left, const struct side *right)
{
	const struct btrfs_item *a = leaf_item(left->node[0], left->slot[0]);
	const struct btrfs_item *b = leaf_item(right->node[0], right->slot[0]);

	return a->size == b->size &&
	       memcmp(item_data(left->node[0], left->slot[0]),
		      item_data(right->node[0], right->slot[0]), a->size) == 0;
}

static void emit(struct bm_step *out, enum bm_change change, const struct side *left,
		 const struct side *right)
{
	*out = (struct bm_step){.change = change, .key = left ? left->key : right->key};
	if (left) {
		out->left = left->node[0];
		out->left_slot = left->slot[0];
	}
	if (right) {
		out->right = right->node[0];
		out->right_slot = right->slot[0];
	}
}

/* One decision of the loop; 1 when it found a difference. */
static int decide(struct bm_compare *compare, struct bm_step *out)
{
	struct side *left = &compare->left, *right = &compare->right;
	int order;

	left->advance = right->advance = STAY;
	if (left->ended || right->ended) {
		struct side *rest = left->ended ? right : left;

		rest->advance = DESCEND;
		if (rest->level > 0)
			return 0;
		emit(out, left->ended ? BM_CHANGE_DELETED : BM_CHANGE_NEW,
		     left->ended ? NULL : left, left->ended ? right : NULL);
		return 1;
	}
	if (left->level != right->level) {
		(left->level > right->level ? left : right)->advance = DESCEND;
		return 0;
	}
	order = compare_keys(left->key.objectid, left->key.type, left->key.offset, &right->key);
	if (order <= 0)
		left->advance = DESCEND;
	if (order >= 0)
		right->advance = DESCEND;
	if (left->level > 0) {
		const struct btrfs_key_ptr *a, *b;

		if (order)
			return 0;
		a = node_ptr(left->node[left->level], left->slot[left->level]);
		b = node_ptr(right->node[right->level], right->slot[right->level]);
		if (a->blockptr == b->blockptr && a->generation == b->generation) {
			left->advance = right->advance = ONLY_NEXT;
			COUNT(left->root.image, subtrees_skipped);
		}
		return 0;
	}
	if (order < 0)
		emit(out, BM_CHANGE_NEW, left, NULL);
	else if (order > 0)
		emit(out, BM_CHANGE_DELETED, NULL, right);
	else
		emit(out, same_item(left, right) ? BM_CHANGE_SAME : BM_CHANGE_CHANGED, left, right);
	return 1;
}

int bm_compare_step(struct bm_compare *compare, struct bm_step *step, struct bm_fault *fault)
{
	struct side *left = &compare->left, *right = &compare->right;

	for (;;) {
		if (left->advance != STAY && !left->ended &&
		    side_advance(left, compare->newer_than, fault) < 0)
			return fault->code;
		if (right->advance != STAY && !right->ended &&
		    side_advance(right, compare->newer_than, fault) < 0)
			return fault->code;
		left->advance = right->advance = STAY;
		if (left->ended && right->ended)
			return 0;
		if (decide(compare, step))
			return 1;
	}
}

/* Of items of equal keys and sizes, how many have the same data; these lie one below the other. */
static uint32_t count_same(const struct bm_run *run)
{
	const struct btrfs_item *first = leaf_item(run->left, run->left_slot);
	const uint8_t *a = item_data(run->left, run->left_slot) + first->size;
	const uint8_t *b =
	    item_data(run->right, run->right_slot) + leaf_item(run->right, run->right_slot)->size;
	size_t size = (size_t)(a - item_data(run->left, run->left_slot + run->count - 1)), same = 0;
	uint32_t count = 0;

	while (size - same >= AT_ONCE && !memcmp(a - same - AT_ONCE, b - same - AT_ONCE, AT_ONCE))
		same += AT_ONCE;
	for (size_t end = 0; count < run->count; count++) {
		size_t start = end;

		end += leaf_item(run->left, run->left_slot + count)->size;
		if (end > same && memcmp(a - end, b - end, end - start) != 0)
			break;
	}
	return count;
}

struct bm_run bm_compare_place(const struct bm_compare *compare)
{
	const struct side *left = &compare->left, *right = &compare->right;
	struct bm_run run = {.left = left->node[0],
			     .right = right->node[0],
			     .left_slot = left->slot[0] + 1,
			     .right_slot = right->slot[0] + 1};

	if (left->ended || right->ended || left->level || right->level ||
	    left->advance != DESCEND || right->advance != DESCEND)
		return run;
	run.count = block_header(run.left)->nritems - run.left_slot;
	if (run.count > block_header(run.right)->nritems - run.right_slot)
		run.count = block_header(run.right)->nritems - run.right_slot;
	if (run.count > RUN)
		run.count = RUN;
	return run;
}

void bm_compare_run(struct bm_run *run)
{
	uint32_t most = run->count;

	for (run->count = 0; run->count < most; run->count++) {
		const struct btrfs_item *a = leaf_item(run->left, run->left_slot + run->count);
		const struct btrfs_item *b = leaf_item(run->right, run->right_slot + run->count);

		if (a->key.objectid != b->key.objectid || a->key.offset != b->key.offset ||
		    a->key.type != b->key.type || a->size != b->size)
			break;
	}
	if (run->count)
		run->count = count_same(run);
}

static void side_pass(struct side *side, uint32_t count)
{
	COUNT_N(side->root.image, tree_advance, count);
	side->slot[0] += count;
	side->key = to_key(block_key(side->node[0], side->slot[0]));
}

void bm_compare_pass(struct bm_compare *compare, const struct bm_run *run)
{
	side_pass(&compare->left, run->count);
	side_pass(&compare->right, run->count);
}

int64_t bm_compare_next(struct bm_compare *compare, struct bm_difference *differences,
			size_t capacity, struct bm_fault *fault)
{
	size_t count = 0;
	struct bm_step step;
	int ret = 0;

	while (count < capacity && (ret = bm_compare_step(compare, &step, fault)) > 0)
		differences[count++] = (struct bm_difference){
		    .key = step.key,
		    .change = (int32_t)step.change,
		    .left_block = step.left ? block_header(step.left)->bytenr : 0,
		    .left_slot = step.left_slot,
		    .right_block = step.right ? block_header(step.right)->bytenr : 0,
		    .right_slot = step.right_slot,
		};
	return ret < 0 ? ret : (int64_t)count;
}
