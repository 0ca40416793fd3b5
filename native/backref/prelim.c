// SPDX-License-Identifier: GPL-2.0-only
/*
 * The containers of a backref walk: arena, ulist and the trees of preliminary references.
 *
 * The order in which references leave the trees decides the order of everything that a walk
 * reports, and with it which clone source send sees first, so it is the kernel's. The shape of the
 * trees is the kernel's too, and so is the number of comparisons (prelim_ref_compare).
 */
#include "backref/backref.h"
#include "image/pool.h"

#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- arena -- */

struct arena_block {
	struct arena_block *older;
	size_t size;
	_Alignas(16) unsigned char bytes[];
};

void arena_init(struct arena *arena)
{
	arena->newest = NULL;
	arena->used = 0;
}

void *arena_alloc(struct arena *arena, size_t size)
{
	struct arena_block *newest = arena->newest;
	size_t capacity = newest ? newest->size : sizeof(arena->first);
	unsigned char *bytes = newest ? newest->bytes : arena->first;

	size = (size + 15) & ~(size_t)15;
	if (size > capacity - arena->used) {
		struct arena_block *block;

		capacity *= 2;
		if (capacity < size)
			capacity = size;
		block = alloc_large(sizeof(*block) + capacity);
		if (!block)
			return NULL;
		block->older = newest;
		block->size = capacity;
		arena->newest = block;
		arena->used = 0;
		bytes = block->bytes;
	}
	bytes += arena->used;
	arena->used += size;
	return bytes;
}

struct arena_mark arena_mark(const struct arena *arena)
{
	return (struct arena_mark){.newest = arena->newest, .used = arena->used};
}

void arena_release(struct arena *arena, struct arena_mark mark)
{
	while (arena->newest != mark.newest) {
		struct arena_block *block = arena->newest;

		arena->newest = block->older;
		free(block);
	}
	arena->used = mark.used;
}

void arena_destroy(struct arena *arena)
{
	arena_release(arena, (struct arena_mark){0});
}

/* ----------------------------------------------------------------------------------- ulist -- */

enum { ULIST_LINEAR = 8 }; /* up to here a look through the list is faster than a table */

static size_t hash_slot(uint64_t val, size_t capacity)
{
	return (size_t)((val * 0x9e3779b97f4a7c15u) >> 32) & (capacity - 1);
}

static void table_insert(struct ulist *list, struct ulist_node *node)
{
	size_t slot = hash_slot(node->val, list->capacity);

	while (list->table[slot])
		slot = (slot + 1) & (list->capacity - 1);
	list->table[slot] = node;
}

static struct ulist_node *ulist_find(const struct ulist *list, uint64_t val)
{
	struct ulist_node *node;
	size_t slot;

	if (!list->capacity) {
		for (node = list->head; node && node->val != val; node = node->next)
			;
		return node;
	}
	slot = hash_slot(val, list->capacity);
	while ((node = list->table[slot]) && node->val != val)
		slot = (slot + 1) & (list->capacity - 1);
	return node;
}

/* Make room for one more; the old table stays in the arena, which is given back soon. */
static int ulist_grow(struct ulist *list, struct arena *arena)
{
	struct ulist_node *node;
	size_t capacity;

	if (list->count < ULIST_LINEAR || list->count * 2 < list->capacity)
		return BM_OK;
	capacity = list->capacity ? list->capacity * 2 : ULIST_LINEAR * 4;
	list->table = arena_alloc(arena, capacity * sizeof(struct ulist_node *));
	if (!list->table)
		return BM_NOMEM;
	memset(list->table, 0, capacity * sizeof(struct ulist_node *));
	list->capacity = capacity;
	for (node = list->head; node; node = node->next)
		table_insert(list, node);
	return BM_OK;
}

int ulist_add_merge(struct ulist *list, struct arena *arena, uint64_t val, struct ulist_node **ret,
		    struct bm_image *image)
{
	struct ulist_node *node = ulist_find(list, val);

	COUNT(image, ulist_add_merge);
	*ret = node;
	if (node)
		return 0;
	node = arena_alloc(arena, sizeof(*node));
	if (!node || ulist_grow(list, arena) < 0)
		return BM_NOMEM;
	*node = (struct ulist_node){.val = val};
	if (list->tail)
		list->tail->next = node;
	else
		list->head = node;
	list->tail = node;
	list->count++;
	if (list->capacity)
		table_insert(list, node);
	*ret = node;
	return 1;
}

struct inode_elem *inode_elems_append(struct inode_elem *list, struct inode_elem *tail)
{
	struct inode_elem *last = list;

	if (!list)
		return tail;
	while (last->next)
		last = last->next;
	last->next = tail;
	return list;
}

/* ---------------------------------------------------------------- preliminary references -- */

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int prelim_ref_compare(const struct prelim_ref *a, const struct prelim_ref *b,
			      struct bm_image *image)
{
	int order;

	COUNT(image, prelim_ref_compare);
	if (a->level != b->level)
		return a->level < b->level ? -1 : 1;
	order = compare_u64(a->root_id, b->root_id);
	if (!order)
		order = compare_u64(a->key.type, b->key.type);
	if (!order)
		order = compare_u64(a->key.objectid, b->key.objectid);
	if (!order)
		order = compare_u64(a->key.offset, b->key.offset);
	if (!order)
		order = compare_u64(a->parent, b->parent);
	return order;
}

/* Let `child` take the place of `ref` below the node above it. */
static void replace_child(struct preftree *tree, struct prelim_ref *ref, struct prelim_ref *child)
{
	child->up = ref->up;
	if (!ref->up)
		tree->root = child;
	else if (ref->up->left == ref)
		ref->up->left = child;
	else
		ref->up->right = child;
	ref->up = child;
}

static void rotate(struct preftree *tree, struct prelim_ref *ref, int to_left)
{
	struct prelim_ref *child = to_left ? ref->right : ref->left;
	struct prelim_ref *inner = to_left ? child->left : child->right;

	if (inner)
		inner->up = ref;
	replace_child(tree, ref, child);
	if (to_left) {
		ref->right = inner;
		child->left = ref;
	} else {
		ref->left = inner;
		child->right = ref;
	}
}

/* Restore the rule that no red node has a red child, after `ref` was added as a red leaf. */
static void rebalance(struct preftree *tree, struct prelim_ref *ref)
{
	struct prelim_ref *parent, *grand, *uncle;

	while ((parent = ref->up) && parent->red) {
		int left = parent == parent->up->left;

		grand = parent->up;
		uncle = left ? grand->right : grand->left;
		if (uncle && uncle->red) {
			parent->red = uncle->red = 0;
			grand->red = 1;
			ref = grand;
			continue;
		}
		if (ref == (left ? parent->right : parent->left)) {
			rotate(tree, parent, left);
			parent = ref;
		}
		parent->red = 0;
		grand->red = 1;
		rotate(tree, grand, !left);
		break;
	}
	tree->root->red = 0;
}

struct prelim_ref *prelim_ref_insert(struct preftree *tree, struct prelim_ref *ref,
				     struct bm_image *image)
{
	struct prelim_ref **link = &tree->root, *up = NULL;

	COUNT(image, prelim_ref_insert);
	while (*link) {
		int order;

		up = *link;
		order = prelim_ref_compare(up, ref, image);
		if (!order) {
			up->elems = inode_elems_append(up->elems, ref->elems);
			up->count += ref->count;
			return up;
		}
		link = order < 0 ? &up->left : &up->right;
	}
	ref->up = up;
	ref->left = ref->right = NULL;
	ref->red = 1;
	*link = ref;
	rebalance(tree, ref);
	return ref;
}

struct prelim_ref *prelim_first(const struct preftree *tree)
{
	struct prelim_ref *ref = tree->root;

	while (ref && ref->left)
		ref = ref->left;
	return ref;
}

struct prelim_ref *prelim_next(const struct prelim_ref *ref)
{
	struct prelim_ref *next = ref->right;

	if (next) {
		while (next->left)
			next = next->left;
		return next;
	}
	for (next = ref->up; next && ref == next->right; next = next->up)
		ref = next;
	return next;
}

int is_shared_data_backref(const struct preftree *direct, uint64_t parent, struct bm_image *image)
{
	struct prelim_ref target = {.parent = parent}, *ref = direct->root;

	COUNT(image, is_shared_data_backref);
	while (ref) {
		int order = prelim_ref_compare(ref, &target, image);

		if (!order)
			return 1;
		ref = order < 0 ? ref->left : ref->right;
	}
	return 0;
}
