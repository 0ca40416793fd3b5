// SPDX-License-Identifier: GPL-2.0-only
/*
 * Free ranges of a block group: a treap by address in which each node knows the largest range
 * below it, so that the lowest range that is large enough is found in one descent.
 */
#include "writer/space/free_map.h"

#include "base/asserts.h"
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

struct free_node {
	uint64_t start;
	uint64_t size;
	uint64_t largest; /* of the subtree */
	uint32_t left, right;
	uint32_t priority; /* parents have greater ones */
};

void free_map_clear(struct free_map *map)
{
	free(map->nodes);
	memset(map, 0, sizeof(*map));
}

/* Room for one more node, so that what follows cannot fail. */
static int ensure_spare(struct free_map *map)
{
	uint32_t capacity = map->capacity ? map->capacity * 2 : 64;
	struct free_node *nodes;

	if (map->spare || map->used < map->capacity)
		return BM_OK;
	if (capacity < map->capacity)
		return BM_NOMEM;
	nodes = realloc(map->nodes, capacity * sizeof(*nodes));
	if (!nodes)
		return BM_NOMEM;
	if (!map->used) {
		memset(nodes, 0, sizeof(*nodes));
		map->used = 1;
	}
	map->nodes = nodes;
	map->capacity = capacity;
	return BM_OK;
}

static uint32_t new_node(struct free_map *map, uint64_t start, uint64_t size)
{
	uint32_t n = map->spare;

	if (n)
		map->spare = map->nodes[n].left;
	else
		n = map->used++;
	map->random = map->random * 1664525 + 1013904223;
	/* the low bits of such a generator are poor */
	map->nodes[n] = (struct free_node){.start = start,
					   .size = size,
					   .largest = size,
					   .priority = map->random ^ map->random >> 15};
	map->count++;
	map->total += size;
	return n;
}

static void pull(struct free_map *map, uint32_t n)
{
	struct free_node *node = &map->nodes[n];
	uint64_t left = map->nodes[node->left].largest, right = map->nodes[node->right].largest;

	node->largest = left > right ? left : right;
	if (node->size > node->largest)
		node->largest = node->size;
}

/* Nodes that start below `key` to *left, the others to *right. */
static void split(struct free_map *map, uint32_t n, uint64_t key, uint32_t *left, uint32_t *right)
{
	struct free_node *node = &map->nodes[n];

	if (!n) {
		*left = *right = 0;
		return;
	}
	if (node->start < key) {
		split(map, node->right, key, &node->right, right);
		*left = n;
	} else {
		split(map, node->left, key, left, &node->left);
		*right = n;
	}
	pull(map, n);
}

static uint32_t merge(struct free_map *map, uint32_t left, uint32_t right)
{
	if (!left || !right)
		return left ? left : right;
	if (map->nodes[left].priority > map->nodes[right].priority) {
		map->nodes[left].right = merge(map, map->nodes[left].right, right);
		pull(map, left);
		return left;
	}
	map->nodes[right].left = merge(map, left, map->nodes[right].left);
	pull(map, right);
	return right;
}

static void insert(struct free_map *map, uint64_t start, uint64_t size)
{
	uint32_t left, right, n = new_node(map, start, size);

	split(map, map->root, start, &left, &right);
	map->root = merge(map, merge(map, left, n), right);
}

static uint32_t remove_below(struct free_map *map, uint32_t n, uint64_t start)
{
	struct free_node *node = &map->nodes[n];
	uint32_t rest;

	BM_ASSERT(n && map->count);
	if (node->start == start) {
		rest = merge(map, node->left, node->right);
		map->count--;
		map->total -= node->size;
		*node = (struct free_node){.left = map->spare};
		map->spare = n;
		return rest;
	}
	if (start < node->start)
		node->left = remove_below(map, node->left, start);
	else
		node->right = remove_below(map, node->right, start);
	pull(map, n);
	return n;
}

/* The range that starts at `old` becomes another one that sorts in the same place. */
static void change(struct free_map *map, uint32_t n, uint64_t old, uint64_t start, uint64_t size)
{
	struct free_node *node = &map->nodes[n];

	BM_ASSERT(n && size);
	if (node->start == old) {
		map->total += size - node->size;
		node->start = start;
		node->size = size;
	} else {
		change(map, old < node->start ? node->left : node->right, old, start, size);
	}
	pull(map, n);
}

/* The last range that starts at or below `at`, and the first one above; 0: none. */
static void around(const struct free_map *map, uint64_t at, uint32_t *before, uint32_t *after)
{
	uint32_t n = map->root;

	*before = *after = 0;
	while (n) {
		if (map->nodes[n].start <= at) {
			*before = n;
			n = map->nodes[n].right;
		} else {
			*after = n;
			n = map->nodes[n].left;
		}
	}
}

static uint64_t end_of(const struct free_map *map, uint32_t n)
{
	return map->nodes[n].start + map->nodes[n].size;
}

int free_map_add(struct free_map *map, uint64_t start, uint64_t size)
{
	uint32_t before, after;
	int joins_before, joins_after;

	if (!size || start > UINT64_MAX - size)
		return BM_BAD_VALUE;
	if (ensure_spare(map) < 0)
		return BM_NOMEM;
	around(map, start, &before, &after);
	if ((before && end_of(map, before) > start) ||
	    (after && map->nodes[after].start < start + size))
		return BM_BAD_VALUE;
	joins_before = before && end_of(map, before) == start;
	joins_after = after && map->nodes[after].start == start + size;
	if (joins_after) {
		size += map->nodes[after].size;
		if (joins_before)
			map->root = remove_below(map, map->root, map->nodes[after].start);
		else
			change(map, map->root, map->nodes[after].start, start, size);
	}
	if (joins_before)
		change(map, map->root, map->nodes[before].start, map->nodes[before].start,
		       map->nodes[before].size + size);
	else if (!joins_after)
		insert(map, start, size);
	BM_ASSERT(map->total >= size && map->count < map->used);
	return BM_OK;
}

int free_map_take(struct free_map *map, uint64_t start, uint64_t size)
{
	uint32_t n, after;
	uint64_t first, end;

	if (!size || start > UINT64_MAX - size)
		return BM_BAD_VALUE;
	if (ensure_spare(map) < 0)
		return BM_NOMEM;
	around(map, start, &n, &after);
	if (!n || end_of(map, n) < start + size)
		return BM_BAD_VALUE;
	first = map->nodes[n].start;
	end = end_of(map, n);
	if (first < start)
		change(map, map->root, first, first, start - first);
	else if (end > start + size)
		change(map, map->root, first, start + size, end - start - size);
	else
		map->root = remove_below(map, map->root, first);
	if (first < start && end > start + size)
		insert(map, start + size, end - start - size);
	return BM_OK;
}

static uint32_t find_below(const struct free_map *map, uint32_t n, uint64_t from, uint64_t size)
{
	const struct free_node *node = &map->nodes[n];
	uint32_t found;

	if (!n || node->largest < size)
		return 0;
	if (end_of(map, n) <= from)
		return find_below(map, node->right, from, size);
	found = find_below(map, node->left, from, size);
	if (found)
		return found;
	return node->size >= size ? n : find_below(map, node->right, from, size);
}

int free_map_find(const struct free_map *map, uint64_t from, uint64_t size,
		  struct free_range *found)
{
	uint32_t n = map->root ? find_below(map, map->root, from, size) : 0;

	if (!n)
		return 0;
	*found = (struct free_range){map->nodes[n].start, map->nodes[n].size};
	return 1;
}

int free_map_largest(const struct free_map *map, struct free_range *found)
{
	return map->root && free_map_find(map, 0, map->nodes[map->root].largest, found);
}
