// SPDX-License-Identifier: GPL-2.0-only
/*
 * What sends of one image found before: where inodes and their first names are, which leaves refer
 * to an extent, which trees reach a leaf, and which items two leaves have alike.
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

struct known_visit {
	uint64_t tree;
	uint32_t times;
	uint32_t place; /* in a forest */
};

/* What reaches a leaf. */
struct known_leaf {
	size_t root_count, visit_count, work_count;
	uint64_t *roots;
	struct known_visit *visits; /* trees that the walk came to */
	struct known_work work[];
};

/* Items of inodes that follow each other: who asks for one asks for those near it. */
enum { PAGE_INODES = 32 };
struct known_page {
	struct known_inode inodes[PAGE_INODES]; /* without an item: not known */
};

struct bm_known {
	struct arena memory;	  /* of what stays: all but the extents */
	struct known_table pages; /* by root node and number */
	struct known_table leaves, extents, runs;
	/* of the walk that goes on */
	uint64_t work[BM_WORK_COUNT], *counted;
	struct known_step *steps;
	size_t step_count, step_capacity;
	struct known_work *pairs;
	size_t pair_count, pair_capacity;
	struct known_asked *asked;
	size_t asked_count, asked_capacity;
	const struct btrfs_extent_item *item;
	int stopped, no_memory;
	struct walk *spare;
	struct known_visit *visits;
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
	for (size_t i = 0; i < known->extents.capacity; i++)
		free((void *)known->extents.slots[i].value);
	free(known->extents.slots);
	free(known->leaves.slots);
	free(known->runs.slots);
	free(known->pages.slots);
	arena_destroy(&known->memory);
	free(known->steps);
	free(known->pairs);
	free(known->asked);
	free(known->spare);
	free(known->visits);
	free(known);
}

struct walk *known_take_walk(struct bm_known *known)
{
	struct walk *walk = known->spare;

	known->spare = NULL;
	return walk;
}

void known_keep_walk(struct bm_known *known, struct walk *walk)
{
	free(known->spare);
	known->spare = walk;
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

		larger.slots = alloc_large(larger.capacity * sizeof(*larger.slots));
		if (!larger.slots)
			return 0;
		memset(larger.slots, 0, larger.capacity * sizeof(*larger.slots));
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

struct known_inode *known_inode(const struct bm_known *known, const struct bm_root *root,
				uint64_t ino)
{
	struct known_page *page =
	    (struct known_page *)look_up(&known->pages, root->bytenr, ino / PAGE_INODES);
	struct known_inode *inode = page ? &page->inodes[ino % PAGE_INODES] : NULL;

	return inode && inode->item ? inode : NULL;
}

void known_add_inode(struct bm_known *known, const struct bm_root *root, uint64_t ino,
		     const uint8_t *item)
{
	struct known_page *page =
	    (struct known_page *)look_up(&known->pages, root->bytenr, ino / PAGE_INODES);

	if (!page) {
		page = arena_alloc(&known->memory, sizeof(*page));
		if (!page)
			return;
		memset(page, 0, sizeof(*page));
		if (!remember(&known->pages, root->bytenr, ino / PAGE_INODES, page))
			return;
	}
	page->inodes[ino % PAGE_INODES] = (struct known_inode){
	    .item = item ? item : (const uint8_t *)&nothing,
	    .exists = item != NULL,
	    .generation = item ? ((const struct btrfs_inode_item *)item)->generation : 0,
	    .nlink = item ? ((const struct btrfs_inode_item *)item)->nlink : 0,
	};
}

/* ------------------------------------------------------------------------------------- runs -- */

const struct known_runs *known_runs(const struct bm_known *known, uint64_t low, uint64_t high)
{
	return look_up(&known->runs, low, high);
}

void known_add_runs(struct bm_known *known, uint64_t low, uint64_t high,
		    const struct known_run *rows, size_t count)
{
	struct known_runs *made;

	/* another send may have come to both leaves meanwhile */
	if (look_up(&known->runs, low, high))
		return;
	made = arena_alloc(&known->memory, sizeof(*made) + count * sizeof(*rows));
	if (!made)
		return;
	made->count = count;
	memcpy(made->rows, rows, count * sizeof(*rows));
	remember(&known->runs, low, high, made);
}

/* ----------------------------------------------------------------------------------- leaves -- */

const struct known_leaf *known_leaf(const struct bm_known *known, uint64_t leaf)
{
	return look_up(&known->leaves, leaf, 0);
}

void known_leaf_roots(const struct known_leaf *leaf, const uint64_t **roots, size_t *count)
{
	*roots = leaf->roots;
	*count = leaf->root_count;
}

void known_leaf_work(const struct known_leaf *leaf, const struct bm_forest *forest)
{
	struct bm_image *image = bm_forest_image(forest);

	for (size_t i = 0; i < leaf->work_count; i++)
		image->work[leaf->work[i].counter] += leaf->work[i].times;
	for (size_t i = 0; i < leaf->visit_count; i++)
		count_fs_root_commit_root(forest, leaf->visits[i].tree, leaf->visits[i].times,
					  &leaf->visits[i].place);
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
	struct known_visit *visits;
	size_t at = 0;
	int ret;

	while (at < known->visit_count && known->visits[at].tree != id)
		at++;
	visits = grown(known->visits, at, &known->visit_capacity, 64, sizeof(*visits));
	if (!visits)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	known->visits = visits;
	if (at == known->visit_count)
		visits[known->visit_count++] = (struct known_visit){.tree = id};
	visits[at].times++;
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
	made = arena_alloc(&known->memory, sizeof(*made) + work_size + count * sizeof(*roots) +
					       known->visit_count * sizeof(*made->visits));
	if (!made)
		return;
	*made = (struct known_leaf){.root_count = count, .visit_count = known->visit_count};
	for (uint32_t i = 0; i < BM_WORK_COUNT; i++)
		if (known->work[i])
			made->work[made->work_count++] =
			    (struct known_work){.counter = i, .times = (uint32_t)known->work[i]};
	made->roots = (uint64_t *)(made->work + kinds);
	made->visits = (struct known_visit *)(made->roots + count);
	if (count)
		memcpy(made->roots, roots, count * sizeof(*roots));
	if (made->visit_count)
		memcpy(made->visits, known->visits, made->visit_count * sizeof(*made->visits));
	remember(&known->leaves, leaf, 0, made);
}

/* ---------------------------------------------------------------------------------- extents -- */

/* Walks to one byte of an extent: those that leave references out, and others. */
static uint64_t kind_of(const struct bm_backref_walk *ask)
{
	return ask->extent_item_pos << 1 | (ask->skip_data_ref != NULL);
}

const struct known_extent *known_extent(const struct bm_known *known,
					const struct bm_backref_walk *ask)
{
	const struct known_extent *found = look_up(&known->extents, ask->bytenr, kind_of(ask));

	if (ask->ignore_extent_item_pos)
		return NULL;
	for (size_t i = 0; found && i < found->asked_count; i++) {
		const struct known_asked *asked = &found->asked[i];

		if (ask->skip_data_ref(asked->root, asked->ino, asked->offset, ask->context) !=
		    (int)asked->skip)
			return NULL;
	}
	return found;
}

void known_begin_extent(struct bm_known *known, struct bm_image *image)
{
	memset(known->work, 0, sizeof(known->work));
	known->step_count = known->pair_count = known->asked_count = 0;
	known->item = NULL;
	known->stopped = known->no_memory = 0;
	known->counted = image->work;
	image->work = known->work;
}

/* What was counted since the last step becomes work of this one. */
static void add_step(struct bm_known *known, struct known_step step)
{
	struct known_step *steps =
	    grown(known->steps, known->step_count, &known->step_capacity, 64, sizeof(*steps));

	if (steps)
		known->steps = steps;
	for (uint32_t i = 0; steps && i < BM_WORK_COUNT; i++) {
		struct known_work *pairs;

		if (!known->work[i])
			continue;
		pairs = grown(known->pairs, known->pair_count, &known->pair_capacity, 256,
			      sizeof(*pairs));
		if (!pairs) {
			steps = NULL;
			break;
		}
		known->pairs = pairs;
		pairs[known->pair_count++] =
		    (struct known_work){.counter = i, .times = (uint32_t)known->work[i]};
		step.work_count++;
		known->work[i] = 0;
	}
	if (steps)
		steps[known->step_count++] = step;
	else
		known->no_memory = 1;
}

void known_skip(struct bm_known *known, const struct known_asked *asked)
{
	struct known_asked *rows =
	    grown(known->asked, known->asked_count, &known->asked_capacity, 16, sizeof(*rows));

	if (!rows) {
		known->no_memory = 1;
		return;
	}
	known->asked = rows;
	rows[known->asked_count++] = *asked;
}

void known_item(struct bm_known *known, const struct btrfs_extent_item *item, int stopped)
{
	known->item = item;
	known->stopped = stopped;
	add_step(known, (struct known_step){.kind = KNOWN_ITEM});
}

int known_tree(struct bm_known *known, const struct bm_forest *forest, uint64_t id, int restart,
	       const struct bm_root **root, struct bm_fault *fault)
{
	struct bm_image *image = bm_forest_image(forest);
	int ret;

	add_step(known, (struct known_step){.kind = KNOWN_TREE, .at = id});
	/* this depends on what the send has opened */
	image->work = image->ignored;
	ret = get_fs_root_commit_root(forest, id, restart, root, fault);
	image->work = known->work;
	return ret;
}

void known_elem(struct bm_known *known, uint64_t leaf, const struct inode_elem *elem)
{
	add_step(known, (struct known_step){.kind = KNOWN_ELEM, .at = leaf, .elem = *elem});
}

/* The record of what happened, in one piece of memory. */
static struct known_extent *make_extent(const struct bm_known *known, const struct walk *walk)
{
	size_t refs = walk->refs.count, elems = 0;
	const struct ulist_node *node;
	struct known_extent *made;
	struct inode_elem *next;

	for (node = walk->refs.head; node; node = node->next)
		for (const struct inode_elem *elem = node->elems; elem; elem = elem->next)
			elems++;
	made = malloc(sizeof(*made) + known->step_count * sizeof(*made->steps) +
		      known->asked_count * sizeof(*made->asked) + refs * sizeof(*made->refs) +
		      elems * sizeof(*next) + known->pair_count * sizeof(*made->work));
	if (!made)
		return NULL;
	*made = (struct known_extent){.item = known->item,
				      .stopped = known->stopped,
				      .step_count = known->step_count,
				      .asked_count = known->asked_count,
				      .ref_count = refs};
	memcpy(made->steps, known->steps, known->step_count * sizeof(*made->steps));
	made->asked = (struct known_asked *)(made->steps + known->step_count);
	if (known->asked_count)
		memcpy(made->asked, known->asked, known->asked_count * sizeof(*made->asked));
	made->refs = (struct known_refs *)(made->asked + known->asked_count);
	next = (struct inode_elem *)(made->refs + refs);
	made->work = (struct known_work *)(next + elems);
	if (known->pair_count)
		memcpy(made->work, known->pairs, known->pair_count * sizeof(*made->work));
	refs = 0;
	for (node = walk->refs.head; node; node = node->next) {
		struct inode_elem **link = &made->refs[refs].elems;

		made->refs[refs].known = NULL;
		made->refs[refs++].leaf = node->val;
		for (const struct inode_elem *elem = node->elems; elem; elem = elem->next) {
			*next = *elem;
			*link = next;
			link = &next++->next;
		}
		*link = NULL;
	}
	return made;
}

const struct known_extent *known_end_extent(struct bm_known *known, const struct walk *walk,
					    int failed)
{
	const uint64_t bytenr = walk->ask->bytenr, kind = kind_of(walk->ask);
	struct known_extent *made = NULL;

	add_step(known, (struct known_step){.kind = KNOWN_END});
	walk->image->work = known->counted;
	if (!failed && !known->no_memory && !walk->ask->ignore_extent_item_pos)
		made = make_extent(known, walk);
	if (!made)
		return NULL;
	if (look_up(&known->extents, bytenr, kind)) {
		struct known_slot *slot = slot_of(&known->extents, bytenr, kind);

		free((void *)slot->value);
		slot->value = made;
		return made;
	}
	if (remember(&known->extents, bytenr, kind, made))
		return made;
	free(made);
	return NULL;
}
