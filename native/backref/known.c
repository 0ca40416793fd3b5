// SPDX-License-Identifier: GPL-2.0-only
/*
 * What sends of one image found before: where inodes are, and which trees reach a leaf.
 *
 * Sends between the same snapshots ask the same again and again. Where nothing changes, and where
 * all blocks are in memory, the answers are the same, and so is the work to get them. The work is
 * added each time, as if the answer had been found anew.
 */
#include "backref/known.h"

#include "image/pool.h"

#include <stdlib.h>
#include <string.h>

/* Open addressing; a slot without a value is free. */
struct known_slot {
	uint64_t key[2];
	const void *value;
};

struct known_table {
	struct known_slot *slots;
	size_t capacity; /* a power of two, or 0 */
	size_t count;
};

struct known_work {
	uint32_t counter;
	uint64_t times;
};

/* What reaches a leaf. */
struct known_leaf {
	size_t root_count, visit_count, work_count;
	uint64_t *roots;
	uint64_t *visits; /* trees that the walk came to, each time */
	struct known_work work[];
};

struct bm_known {
	struct known_table inodes, leaves;
	/* of the walk that goes on */
	uint64_t work[BM_WORK_COUNT], *counted;
	uint64_t *visits;
	size_t visit_count, visit_capacity;
};

/* An inode that is not there. */
static const uint8_t nothing;

struct bm_known *bm_known_create(void)
{
	return calloc(1, sizeof(struct bm_known));
}

void bm_known_destroy(struct bm_known *known)
{
	if (!known)
		return;
	for (size_t i = 0; i < known->leaves.capacity; i++)
		free((void *)known->leaves.slots[i].value);
	free(known->leaves.slots);
	free(known->inodes.slots);
	free(known->visits);
	free(known);
}

/* ----------------------------------------------------------------------------------- tables -- */

static struct known_slot *slot_of(const struct known_table *table, uint64_t a, uint64_t b)
{
	size_t at = (size_t)((a * 0x9e3779b97f4a7c15ull + b) * 0x9e3779b97f4a7c15ull >> 20);

	for (;; at++) {
		struct known_slot *slot = &table->slots[at & (table->capacity - 1)];

		if (!slot->value || (slot->key[0] == a && slot->key[1] == b))
			return slot;
	}
}

static const void *look_up(const struct known_table *table, uint64_t a, uint64_t b)
{
	return table->capacity ? slot_of(table, a, b)->value : NULL;
}

/* Where there is no memory, nothing is remembered: 0. */
static int remember(struct known_table *table, uint64_t a, uint64_t b, const void *value)
{
	if (2 * (table->count + 1) > table->capacity) {
		struct known_table larger = {.capacity =
						 table->capacity ? 4 * table->capacity : 1024};

		larger.slots = calloc(larger.capacity, sizeof(*larger.slots));
		if (!larger.slots)
			return 0;
		for (size_t i = 0; i < table->capacity; i++)
			if (table->slots[i].value)
				*slot_of(&larger, table->slots[i].key[0], table->slots[i].key[1]) =
				    table->slots[i];
		larger.count = table->count;
		free(table->slots);
		*table = larger;
	}
	*slot_of(table, a, b) = (struct known_slot){.key = {a, b}, .value = value};
	table->count++;
	return 1;
}

/* ----------------------------------------------------------------------------------- inodes -- */

int known_inode(const struct bm_known *known, const struct bm_root *root, uint64_t ino,
		const uint8_t **item)
{
	const void *value = look_up(&known->inodes, root->bytenr, ino);

	if (!value)
		return 0;
	/* a search of blocks in memory goes down level by level */
	COUNT(root->image, btrfs_search_slot);
	COUNT_N(root->image, read_block_for_search, (uint64_t)root->level);
	*item = value == &nothing ? NULL : value;
	return 1;
}

void known_add_inode(struct bm_known *known, const struct bm_root *root, uint64_t ino,
		     const uint8_t *item)
{
	remember(&known->inodes, root->bytenr, ino, item ? item : &nothing);
}

/* ----------------------------------------------------------------------------------- leaves -- */

const struct known_leaf *known_leaf(const struct bm_known *known, uint64_t leaf,
				    const uint64_t **roots, size_t *count)
{
	const struct known_leaf *found = look_up(&known->leaves, leaf, 0);

	if (found) {
		*roots = found->roots;
		*count = found->root_count;
	}
	return found;
}

int known_leaf_work(const struct known_leaf *leaf, const struct bm_forest *forest, int restart,
		    struct bm_fault *fault)
{
	struct bm_image *image = bm_forest_image(forest);
	const struct bm_root *root;

	for (size_t i = 0; i < leaf->work_count; i++)
		image->work[leaf->work[i].counter] += leaf->work[i].times;
	for (size_t i = 0; i < leaf->visit_count; i++)
		if (get_fs_root_commit_root(forest, leaf->visits[i], restart, &root, fault) < 0)
			return fault->code;
	return BM_OK;
}

void known_begin(struct bm_known *known, struct bm_image *image)
{
	memset(known->work, 0, sizeof(known->work));
	known->visit_count = 0;
	known->counted = image->work;
	image->work = known->work;
}

int known_visit(struct bm_known *known, const struct bm_forest *forest, uint64_t id, int restart,
		const struct bm_root **root, struct bm_fault *fault)
{
	struct bm_image *image = bm_forest_image(forest);
	uint64_t *visits =
	    grown(known->visits, known->visit_count, &known->visit_capacity, 64, sizeof(*visits));
	int ret;

	if (!visits)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	known->visits = visits;
	visits[known->visit_count++] = id;
	/* this depends on what the send has opened, and so is no work of the answer */
	image->work = known->counted;
	ret = get_fs_root_commit_root(forest, id, restart, root, fault);
	image->work = known->work;
	return ret;
}

void known_end(struct bm_known *known, struct bm_image *image)
{
	image->work = known->counted;
	for (size_t i = 0; i < BM_WORK_COUNT; i++)
		image->work[i] += known->work[i];
}

void known_add_leaf(struct bm_known *known, uint64_t leaf, const uint64_t *roots, size_t count)
{
	size_t kinds = 0, work_size;
	struct known_leaf *made;

	for (size_t i = 0; i < BM_WORK_COUNT; i++)
		kinds += known->work[i] != 0;
	work_size = kinds * sizeof(struct known_work);
	made = malloc(sizeof(*made) + work_size + (count + known->visit_count) * sizeof(uint64_t));
	if (!made)
		return;
	*made = (struct known_leaf){.root_count = count, .visit_count = known->visit_count};
	for (uint32_t i = 0; i < BM_WORK_COUNT; i++)
		if (known->work[i])
			made->work[made->work_count++] =
			    (struct known_work){.counter = i, .times = known->work[i]};
	made->roots = (uint64_t *)(made->work + kinds);
	made->visits = made->roots + count;
	if (count)
		memcpy(made->roots, roots, count * sizeof(*roots));
	if (made->visit_count)
		memcpy(made->visits, known->visits, made->visit_count * sizeof(*made->visits));
	if (!remember(&known->leaves, leaf, 0, made))
		free(made);
}
