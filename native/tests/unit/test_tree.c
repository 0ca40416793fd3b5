// SPDX-License-Identifier: GPL-2.0-only
/*
 * Searches, walks, scans and comparisons of small trees that are built here in memory, judged by
 * loops over the sorted array of keys that they were built from; and each kind of damage to a
 * block, which has to be named.
 */
#include "image/internal.h"
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define NODESIZE 4096u
#define BLOCKS 512u
#define LOGICAL 0x100000ull
#define MAX_KEYS 600
#define LEAF_ITEMS 9
#define NODE_PTRS 4
#define GENERATION 7u

static uint8_t memory[BLOCKS * NODESIZE];
static size_t used_blocks;
static const uint8_t fsid[16] = "a filesystem id";
static const struct bm_key lowest, highest = {UINT64_MAX, UINT64_MAX, UINT8_MAX};
static struct bm_image *image;

/* What trees are built from: keys in order, each with the byte that fills its payload. */
struct sorted {
	struct bm_key keys[MAX_KEYS];
	uint8_t fill[MAX_KEYS];
	int count;
};

static uint32_t random_state;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % limit;
}

/* --------------------------------------------------------------------------------- building -- */

static uint8_t *block_at(uint64_t logical)
{
	return memory + (logical - LOGICAL);
}

static void seal(uint8_t *block)
{
	memset(block, 0, 32);
	bm_csum(0, block + 32, NODESIZE - 32, block);
}

static uint8_t *new_block(int level, uint64_t *logical)
{
	uint8_t *block = memory + used_blocks * NODESIZE;
	struct btrfs_header *header = (struct btrfs_header *)block;

	*logical = LOGICAL + used_blocks++ * NODESIZE;
	memset(block, 0, NODESIZE);
	memcpy(header->fsid, fsid, 16);
	header->bytenr = *logical;
	header->generation = GENERATION;
	header->owner = 5;
	header->level = (uint8_t)level;
	return block;
}

static struct btrfs_item *items_of(uint8_t *leaf)
{
	return (struct btrfs_item *)(leaf + 101);
}

static struct btrfs_key_ptr *ptrs_of(uint8_t *node)
{
	return (struct btrfs_key_ptr *)(node + 101);
}

static struct btrfs_disk_key disk_key(const struct bm_key *key)
{
	return (struct btrfs_disk_key){
	    .objectid = key->objectid, .type = key->type, .offset = key->offset};
}

static uint64_t build_leaf(const struct sorted *from, int start, int count)
{
	uint32_t end = NODESIZE - 101;
	uint64_t logical;
	uint8_t *leaf = new_block(0, &logical);

	((struct btrfs_header *)leaf)->nritems = (uint32_t)count;
	for (int i = 0; i < count; i++) {
		uint32_t size = from->fill[start + i] % 50;

		end -= size;
		memset(leaf + 101 + end, from->fill[start + i], size);
		items_of(leaf)[i] = (struct btrfs_item){
		    .key = disk_key(&from->keys[start + i]), .offset = end, .size = size};
	}
	seal(leaf);
	return logical;
}

/* A tree of all of `from`, filled from the left. */
static struct bm_root build(const struct sorted *from)
{
	uint64_t below[MAX_KEYS];
	int count = 0, level = 0;

	for (int i = 0; i < from->count || !count; i += LEAF_ITEMS) {
		int left = from->count - i;

		below[count++] = build_leaf(from, i, left < LEAF_ITEMS ? left : LEAF_ITEMS);
	}
	while (count > 1) {
		int above = 0;

		level++;
		for (int i = 0; i < count; i += NODE_PTRS) {
			int width = count - i < NODE_PTRS ? count - i : NODE_PTRS;
			uint64_t logical;
			uint8_t *node = new_block(level, &logical);

			((struct btrfs_header *)node)->nritems = (uint32_t)width;
			for (int j = 0; j < width; j++) {
				uint8_t *child = block_at(below[i + j]);

				ptrs_of(node)[j] = (struct btrfs_key_ptr){
				    .key =
					level > 1 ? ptrs_of(child)[0].key : items_of(child)[0].key,
				    .blockptr = below[i + j],
				    .generation = GENERATION};
			}
			seal(node);
			below[above++] = logical;
		}
		count = above;
	}
	return (struct bm_root){.image = image,
				.objectid = 5,
				.bytenr = below[0],
				.generation = GENERATION,
				.level = level};
}

static void start_image(void)
{
	struct bm_stripe stripe = {.offset = 0};
	struct bm_chunk chunk = {
	    .logical = LOGICAL, .length = sizeof(memory), .stripes = &stripe, .num_stripes = 1};
	struct bm_fault fault;

	bm_image_destroy(image);
	used_blocks = 0;
	image = bm_image_create(memory, sizeof(memory), NODESIZE, NODESIZE, 0, fsid);
	CHECK(image && bm_image_set_chunks(image, &chunk, 1, &fault) == 0);
}

static void fill_sorted(struct sorted *sorted, int count)
{
	struct bm_key key = {256, 0, 1};

	sorted->count = count;
	for (int i = 0; i < count; i++) {
		if (random_below(4) == 0)
			key = (struct bm_key){key.objectid + 1 + random_below(3), 0, 1};
		else if (random_below(2))
			key.type = (uint8_t)(key.type + 1 + random_below(3));
		else
			key.offset += 1 + random_below(1000);
		if (key.type > 200)
			key = (struct bm_key){key.objectid + 1, 0, 1};
		sorted->keys[i] = key;
		sorted->fill[i] = (uint8_t)random_below(256);
	}
}

/* ---------------------------------------------------------------------------------- judging -- */

static int order(const struct bm_key *a, const struct bm_key *b)
{
	if (a->objectid != b->objectid)
		return a->objectid < b->objectid ? -1 : 1;
	if (a->type != b->type)
		return a->type < b->type ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return 0;
}

/* Number of keys below `key`. */
static int rank(const struct sorted *sorted, const struct bm_key *key)
{
	int n = 0;

	while (n < sorted->count && order(&sorted->keys[n], key) < 0)
		n++;
	return n;
}

static struct bm_key key_at(const struct bm_path *path)
{
	const struct btrfs_item *item =
	    (const struct btrfs_item *)(path->node[0] + 101) + path->slot[0];

	return (struct bm_key){item->key.objectid, item->key.offset, item->key.type};
}

static int is_key(const struct bm_path *path, const struct bm_key *key)
{
	struct bm_key found = key_at(path);

	return order(&found, key) == 0;
}

static uint32_t nritems(const uint8_t *block)
{
	return ((const struct btrfs_header *)block)->nritems;
}

static void check_search(const struct bm_root *root, const struct sorted *sorted,
			 const struct bm_key *key)
{
	int at = rank(sorted, key);
	int exact = at < sorted->count && order(&sorted->keys[at], key) == 0;
	struct bm_path path = {0};
	struct bm_fault fault;
	int ret;

	CHECK(bm_search_slot(root, key, &path, &fault) == !exact);
	if (path.slot[0] < nritems(path.node[0]))
		CHECK(is_key(&path, &sorted->keys[at]));

	memset(&path, 0, sizeof(path));
	ret = bm_search_slot_for_read(root, key, 1, &path, &fault);
	CHECK(ret == (at == sorted->count));
	if (ret == 0)
		CHECK(is_key(&path, &sorted->keys[at]));

	memset(&path, 0, sizeof(path));
	ret = bm_search_slot_for_read(root, key, 0, &path, &fault);
	CHECK(ret == (at + exact == 0));
	if (ret == 0)
		CHECK(is_key(&path, &sorted->keys[at + exact - 1]));
}

static void check_leaves(const struct bm_root *root, const struct sorted *sorted)
{
	struct bm_path path = {0};
	struct bm_fault fault;
	int seen = 0;

	CHECK(bm_search_slot(root, &lowest, &path, &fault) == 1);
	do {
		for (path.slot[0] = 0; path.slot[0] < nritems(path.node[0]); path.slot[0]++)
			CHECK(seen < sorted->count && is_key(&path, &sorted->keys[seen++]));
	} while (bm_next_leaf(root, &path, &fault) == 0);
	CHECK(seen == sorted->count);

	memset(&path, 0, sizeof(path));
	CHECK(bm_search_slot(root, &highest, &path, &fault) == 1);
	do {
		for (path.slot[0] = nritems(path.node[0]); path.slot[0]-- > 0;)
			CHECK(seen > 0 && is_key(&path, &sorted->keys[--seen]));
	} while (bm_prev_leaf(root, &path, &fault) == 0);
	CHECK(seen == 0);
}

static void check_scan(const struct bm_root *root, const struct sorted *sorted,
		       const struct bm_key *min, const struct bm_key *max)
{
	static uint64_t objectid[MAX_KEYS], offset[MAX_KEYS], block[MAX_KEYS], position[MAX_KEYS];
	static uint32_t size[MAX_KEYS];
	static uint16_t slot[MAX_KEYS];
	static uint8_t type[MAX_KEYS];
	struct bm_columns columns = {objectid, type, offset, block, slot, position, size};
	struct bm_fault fault;
	int first = rank(sorted, min), wanted = 0;
	int64_t bound = bm_scan_bound(root, min, max, &fault);
	int64_t found = bm_scan(root, min, max, &columns, MAX_KEYS, &fault);

	while (first + wanted < sorted->count && order(&sorted->keys[first + wanted], max) <= 0)
		wanted++;
	CHECK(found == wanted);
	CHECK(bound >= found && bound <= MAX_KEYS);
	for (int i = 0; i < wanted && i < found; i++) {
		struct bm_key key = {objectid[i], offset[i], type[i]};

		CHECK(order(&key, &sorted->keys[first + i]) == 0);
		CHECK(size[i] == sorted->fill[first + i] % 50u);
		if (size[i])
			CHECK(memory[position[i]] == sorted->fill[first + i]);
		CHECK(items_of(block_at(block[i]))[slot[i]].size == size[i]);
	}
	if (wanted)
		CHECK(bm_scan(root, min, max, &columns, (size_t)wanted - 1, &fault) == BM_NOMEM);
}

static void check_walk(const struct bm_root *root, const struct sorted *sorted)
{
	static struct bm_block blocks[BLOCKS];
	struct bm_fault fault;
	int64_t count = bm_walk_blocks(root, 0, blocks, BLOCKS, &fault);
	uint32_t items = 0, inner = 0;

	CHECK(count > 0 && count <= BLOCKS);
	CHECK(blocks[0].logical == root->bytenr && blocks[0].parent == 0);
	for (int64_t i = 0; i < count; i++) {
		if (blocks[i].level)
			inner++;
		else
			items += blocks[i].nritems;
		if (i)
			CHECK(ptrs_of(block_at(blocks[i].parent))[blocks[i].parent_slot].blockptr ==
			      blocks[i].logical);
	}
	CHECK(items == (uint32_t)sorted->count);
	if (root->level)
		CHECK(bm_walk_blocks(root, 1, NULL, 0, &fault) == inner);
}

/* A search that remembers where others ended is the same search, and the same work. */
static void check_near(const struct bm_root *root, const struct sorted *sorted)
{
	struct bm_near near = {0};
	struct bm_root same = *root;
	struct bm_fault fault;

	same.near = &near;
	for (int n = 0; n < 4 * sorted->count; n++) {
		struct bm_key key = sorted->keys[random_below((uint32_t)sorted->count)];
		struct bm_path path = {0}, other = {0};
		uint64_t work[2][BM_WORK_COUNT] = {0};
		int ret[2];

		key.offset += random_below(3) - 1;
		root->image->work = work[0];
		ret[0] = bm_search_slot(root, &key, &path, &fault);
		root->image->work = work[1];
		ret[1] = bm_search_slot(&same, &key, &other, &fault);
		root->image->work = root->image->counted;
		CHECK(ret[0] == ret[1] && !memcmp(path.node, other.node, sizeof(path.node)));
		CHECK(!memcmp(path.slot, other.slot, sizeof(path.slot)));
		CHECK(!memcmp(work[0], work[1], sizeof(work[0])));
	}
}

static void test_trees(void)
{
	static const int sizes[] = {0, 1, 2, 9, 10, 36, 37, 145, 600};
	static struct sorted sorted;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct bm_root root;

		start_image();
		fill_sorted(&sorted, sizes[i]);
		root = build(&sorted);
		check_leaves(&root, &sorted);
		check_walk(&root, &sorted);
		check_near(&root, &sorted);
		check_scan(&root, &sorted, &lowest, &highest);
		check_search(&root, &sorted, &lowest);
		check_search(&root, &sorted, &highest);
		for (int n = 0; n < sorted.count; n++) {
			struct bm_key key = sorted.keys[n], end;

			check_search(&root, &sorted, &key);
			key.offset++;
			check_search(&root, &sorted, &key);
			key.offset -= 2;
			check_search(&root, &sorted, &key);
			end = sorted.keys[random_below((uint32_t)sorted.count)];
			end.offset += random_below(3);
			check_scan(&root, &sorted, &key, &end);
		}
	}
}

/* -------------------------------------------------------------------------------- comparing -- */

/* A variant of `old`: some keys dropped, some added, some payloads changed. */
static void vary(const struct sorted *old, struct sorted *new, uint32_t one_in)
{
	new->count = 0;
	for (int i = 0; i < old->count && new->count < MAX_KEYS - 1; i++) {
		struct bm_key key = old->keys[i];
		uint32_t what = random_below(one_in);

		if (what == 0)
			continue;
		new->keys[new->count] = key;
		new->fill[new->count++] = what == 1 ? (uint8_t)~old->fill[i] : old->fill[i];
		key.offset++;
		if (what == 2 && (i + 1 == old->count || order(&key, &old->keys[i + 1]) < 0)) {
			new->keys[new->count] = key;
			new->fill[new->count++] = 99;
		}
	}
}

/* What the comparison says, key by key, against a merge of the two arrays. */
static void check_compare(const struct bm_root *left, const struct bm_root *right,
			  const struct sorted *new, const struct sorted *old)
{
	struct bm_difference found[7];
	struct bm_fault fault;
	struct bm_compare *compare = bm_compare_create(left, right, &fault);
	int64_t count = 0, at = 0;
	int i = 0, j = 0;

	CHECK(compare != NULL);
	while (compare) {
		int side, wanted;

		if (at == count) {
			count = bm_compare_next(compare, found, 7, &fault);
			CHECK(count >= 0);
			at = 0;
			if (count <= 0)
				break;
		}
		if (i < new->count && j < old->count)
			side = order(&new->keys[i], &old->keys[j]);
		else
			side = i < new->count ? -1 : 1;
		if (i == new->count && j == old->count) {
			CHECK(!"more differences than keys");
			break;
		}
		wanted = side < 0 ? BM_CHANGE_NEW : BM_CHANGE_DELETED;
		if (side == 0)
			wanted = new->fill[i] == old->fill[j] ? BM_CHANGE_SAME : BM_CHANGE_CHANGED;
		CHECK(order(&found[at].key, side <= 0 ? &new->keys[i] : &old->keys[j]) == 0);
		CHECK(found[at].change == wanted);
		i += side <= 0;
		j += side >= 0;
		at++;
	}
	CHECK(i == new->count &&j == old->count);
	bm_compare_destroy(compare);
}

/* Runs of items that are the same are the steps that they stand for, and the same work. */
static void check_runs(const struct bm_root *left, const struct bm_root *right)
{
	static struct bm_difference found[2 * MAX_KEYS];
	struct bm_fault fault;
	struct bm_compare *all = bm_compare_create(left, right, &fault);
	struct bm_compare *runs = bm_compare_create(left, right, &fault);
	uint64_t *work = left->image->work, counts[2][BM_WORK_COUNT] = {0};
	int64_t count, at = 0;
	struct bm_step step;
	struct bm_run run;

	left->image->work = counts[0];
	count = bm_compare_next(all, found, 2 * MAX_KEYS, &fault);
	left->image->work = counts[1];
	while (bm_compare_step(runs, &step, &fault) > 0) {
		CHECK(at < count && order(&step.key, &found[at].key) == 0);
		CHECK(step.change == (enum bm_change)found[at++].change);
		while ((run = bm_compare_place(runs)).count) {
			bm_compare_run(&run);
			if (!run.count)
				break;
			for (uint32_t i = 0; i < run.count; i++, at++) {
				struct bm_key key =
				    to_key(&leaf_item(run.left, run.left_slot + i)->key);

				CHECK(at < count && order(&key, &found[at].key) == 0);
				CHECK(found[at].change == BM_CHANGE_SAME);
			}
			bm_compare_pass(runs, &run);
		}
	}
	left->image->work = work;
	CHECK(at == count && !memcmp(counts[0], counts[1], sizeof(counts[0])));
	bm_compare_destroy(all);
	bm_compare_destroy(runs);
}

static void test_compare(void)
{
	static struct sorted old, new, none;
	struct bm_difference found;
	struct bm_fault fault;

	for (uint32_t turn = 0; turn < 40; turn++) {
		struct bm_root left, right, empty;
		struct bm_compare *same;

		start_image();
		fill_sorted(&old, (int)random_below(500));
		vary(&old, &new, 3 + turn);
		right = build(&old);
		left = build(&new);
		empty = build(&none);
		/* no block is shared, so every key of both comes out */
		check_compare(&left, &right, &new, &old);
		check_compare(&right, &left, &old, &new);
		check_compare(&left, &empty, &new, &none);
		check_compare(&empty, &right, &none, &old);
		check_runs(&left, &right);
		check_runs(&right, &left);
		check_runs(&left, &empty);
		/* everything is shared, so nothing does; the root itself is never skipped */
		same = bm_compare_create(&left, &left, &fault);
		CHECK(same && bm_compare_next(same, &found, 1, &fault) ==
				  (left.level == 0 && new.count > 0));
		bm_compare_destroy(same);
	}
}

/* Two trees that share all but one leaf: only that leaf is looked at. */
static void test_compare_shared(void)
{
	static struct sorted sorted;
	struct bm_difference found[MAX_KEYS];
	struct bm_root old, new;
	struct bm_fault fault;
	struct bm_compare *compare;
	struct bm_work work = {0};
	uint64_t logical;
	uint8_t *node, *leaf;

	start_image();
	fill_sorted(&sorted, LEAF_ITEMS * NODE_PTRS);
	old = new = build(&sorted);
	CHECK(old.level == 1);
	node = new_block(1, &new.bytenr);
	memcpy(node + 96, block_at(old.bytenr) + 96, NODESIZE - 96);
	leaf = new_block(0, &logical);
	memcpy(leaf + 96, block_at(ptrs_of(node)[2].blockptr) + 96, NODESIZE - 96);
	items_of(leaf)[4].key.offset++;
	seal(leaf);
	ptrs_of(node)[2].blockptr = logical;
	seal(node);

	compare = bm_compare_create(&new, &old, &fault);
	CHECK(compare && bm_compare_next(compare, found, MAX_KEYS, &fault) == LEAF_ITEMS + 1);
	CHECK(found[3].change == BM_CHANGE_SAME);
	CHECK(found[4].change == BM_CHANGE_DELETED && found[4].right_slot == 4);
	CHECK(found[5].change == BM_CHANGE_NEW && found[5].left_block == logical);
	CHECK(found[9].change == BM_CHANGE_SAME && found[9].left_slot == 8);
	CHECK(bm_image_take_work(image, &work, &fault) == 0);
	CHECK(work.counts[BM_WORK_subtrees_skipped] == NODE_PTRS - 1);
	bm_compare_destroy(compare);
}

/* ----------------------------------------------------------------------------------- damage -- */

static struct bm_root damaged_tree(uint8_t **leaf)
{
	static struct sorted sorted;
	struct bm_root root;

	start_image();
	fill_sorted(&sorted, 30);
	root = build(&sorted);
	*leaf = block_at(ptrs_of(block_at(root.bytenr))[1].blockptr);
	return root;
}

/* Code with which a walk over everything ends; the fault has to name the tree and a block. */
static int walk(const struct bm_root *root, struct bm_fault *fault)
{
	int64_t ret;

	memset(fault, 0, sizeof(*fault));
	ret = bm_walk_blocks(root, 0, NULL, 0, fault);
	if (ret < 0)
		CHECK(fault->code == ret && fault->tree == 5 && fault->block);
	return ret < 0 ? (int)ret : 0;
}

#define DAMAGE(code, statement)                                                                    \
	do {                                                                                       \
		uint8_t *leaf;                                                                     \
		struct bm_root root = damaged_tree(&leaf);                                         \
		struct btrfs_header *header = (struct btrfs_header *)leaf;                         \
		struct btrfs_key_ptr *ptrs = ptrs_of(block_at(root.bytenr));                       \
		(void)header;                                                                      \
		(void)ptrs;                                                                        \
		statement;                                                                         \
		seal(leaf);                                                                        \
		seal(block_at(root.bytenr));                                                       \
		CHECK(walk(&root, &fault) == (code));                                              \
	} while (0)

static void test_damage(void)
{
	struct bm_fault fault;
	struct bm_root root;
	uint8_t *leaf;

	DAMAGE(BM_OK, );
	DAMAGE(BM_BAD_BYTENR, header->bytenr += NODESIZE);
	DAMAGE(BM_BAD_FSID, header->fsid[3] ^= 1);
	DAMAGE(BM_BAD_LEVEL, header->level = 8);
	DAMAGE(BM_BAD_GENERATION, header->generation++);
	DAMAGE(BM_BAD_NRITEMS, header->nritems = 160);
	DAMAGE(BM_BAD_NRITEMS, header->nritems = UINT32_MAX);
	DAMAGE(BM_BAD_NRITEMS, header->level = 1; header->nritems = 0);
	DAMAGE(BM_BAD_FIRST_KEY, header->nritems = 0);
	DAMAGE(BM_BAD_KEY_ORDER, items_of(leaf)[5].key = items_of(leaf)[4].key);
	DAMAGE(BM_BAD_KEY_ORDER, items_of(leaf)[5].key.objectid = 1);
	DAMAGE(BM_BAD_ITEM_RANGE, items_of(leaf)[0].offset++);
	DAMAGE(BM_BAD_ITEM_RANGE, items_of(leaf)[8].offset = 3);
	DAMAGE(BM_BAD_ITEM_RANGE, items_of(leaf)[3].size = UINT32_MAX);
	DAMAGE(BM_BAD_ITEM_RANGE, items_of(leaf)[3].offset = UINT32_MAX);
	DAMAGE(BM_BAD_FIRST_KEY, items_of(leaf)[0].key.offset--);
	DAMAGE(BM_BAD_FIRST_KEY, ptrs[1].key.offset++);
	DAMAGE(BM_BAD_LAST_KEY, items_of(leaf)[header->nritems - 1].key = ptrs[2].key);
	DAMAGE(BM_BAD_BLOCKPTR, ptrs[1].blockptr = 0);
	DAMAGE(BM_BAD_BLOCKPTR, ptrs[1].blockptr++);
	DAMAGE(BM_UNMAPPED, ptrs[1].blockptr = LOGICAL + sizeof(memory));
	DAMAGE(BM_UNMAPPED, ptrs[1].blockptr = 0xfffffffffffff000);
	DAMAGE(BM_BAD_GENERATION, ptrs[1].generation++);
	/* a pointer back to the root: the level stops it */
	DAMAGE(BM_BAD_LEVEL, ptrs[1].blockptr = root.bytenr);

	root = damaged_tree(&leaf);
	leaf[4000] ^= 1;
	CHECK(walk(&root, &fault) == BM_BAD_CSUM);
	CHECK(fault.block == ((struct btrfs_header *)leaf)->bytenr && fault.found != fault.wanted);
	CHECK(fault.offset == (uint64_t)(leaf - memory));
	root.bytenr += 512;
	CHECK(walk(&root, &fault) == BM_UNALIGNED);
}

/* With two copies the good one is read. */
static void test_second_copy(void)
{
	struct bm_stripe stripes[] = {{.offset = 0}, {.offset = sizeof(memory) / 2}};
	struct bm_chunk chunk = {.logical = LOGICAL,
				 .length = sizeof(memory) / 2,
				 .type = 4 | 32 /* metadata, DUP */,
				 .stripes = stripes,
				 .num_stripes = 2};
	struct bm_expect expect = {.tree = 5, .level = -1};
	struct bm_fault fault;
	uint8_t *leaf;
	struct bm_root root = damaged_tree(&leaf);

	memcpy(memory + sizeof(memory) / 2, memory, sizeof(memory) / 2);
	CHECK(bm_image_set_chunks(image, &chunk, 1, &fault) == 0);
	leaf[4000] ^= 1;
	CHECK(walk(&root, &fault) == BM_OK);
	CHECK(bm_image_verify_copy(image, root.bytenr, 1, &expect, &fault) == 0);
	CHECK(bm_image_verify_copy(image, ((struct btrfs_header *)leaf)->bytenr, 0, &expect,
				   &fault) == BM_BAD_CSUM);
	CHECK(bm_image_verify_copy(image, root.bytenr, 2, &expect, &fault) == BM_UNMAPPED);

	/* the device ends before the chunk does, in the middle of a block */
	leaf = NULL;
	bm_image_destroy(image);
	image = bm_image_create(memory, NODESIZE + 100, NODESIZE, NODESIZE, 0, fsid);
	chunk.num_stripes = 1;
	CHECK(bm_image_set_chunks(image, &chunk, 1, &fault) == 0);
	root.image = image;
	root.bytenr = LOGICAL + NODESIZE;
	CHECK(walk(&root, &fault) == BM_PAST_END);
	root.bytenr = LOGICAL + 8 * NODESIZE;
	CHECK(walk(&root, &fault) == BM_PAST_END);
}

static int asked;

static int stop(void)
{
	asked++;
	return 1;
}

/* Every long loop asks from time to time whether it is to go on. */
static void test_poll(void)
{
	struct sorted sorted;
	struct bm_path path = {0};
	struct bm_fault fault = {0};
	struct bm_root root;
	int ret;

	fill_sorted(&sorted, MAX_KEYS);
	start_image();
	root = build(&sorted);
	bm_set_poll(stop);
	while ((ret = (int)bm_walk_blocks(&root, 0, NULL, 0, &fault)) > 0)
		;
	CHECK(ret == BM_CALLBACK && fault.code == BM_CALLBACK && asked == 1);
	/* not again at once */
	CHECK(bm_search_slot(&root, &lowest, &path, &fault) >= 0);
	CHECK(bm_next_leaf(&root, &path, &fault) == BM_OK && asked == 1);
	bm_set_poll(NULL);
}

int main(void)
{
	random_state = 20260101;
	test_trees();
	test_compare();
	test_compare_shared();
	test_damage();
	test_second_copy();
	test_poll();
	bm_image_destroy(image);
	return finish("tree");
}
