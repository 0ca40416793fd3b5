// SPDX-License-Identifier: GPL-2.0-only
/*
 * Delayed references: what the extent tree is still to learn.
 *
 * Whoever takes or drops a reference of an extent only notes it here, in the extent's head. Notes
 * of one reference merge: what was taken and dropped since leaves no trace. They are run head by
 * head in order of address from where the last run stopped, within a head first what adds, in the
 * order in which it was noted, and then what drops, by type and content. Running them changes the
 * extent tree, whose own blocks come and go, so new heads appear meanwhile.
 */
#include "writer/space/refs.h"

#include "image/pool.h"

#include <stdlib.h>
#include <string.h>

struct delayed_ref {
	struct delayed_ref *hash_next;
	struct delayed_ref *prev, *next; /* in one of the lists of the head */
	struct ref_head *head;
	struct bm_extent_ref what;
	uint8_t is_drop;
};

struct ref_list {
	struct delayed_ref *first, *last;
};

/* struct btrfs_delayed_ref_head */
struct ref_head {
	struct ref_head *hash_next;
	uint64_t bytenr;
	uint64_t num_bytes;
	int64_t ref_mod; /* of all references that wait */
	uint64_t flags;	 /* to be set: extent_op->flags_to_set */
	uint64_t owning_root;
	struct ref_list adds;
	struct ref_list drops;
	struct bm_key first; /* of a tree block that is new */
	int8_t level;	     /* -1: data */
	uint8_t must_insert; /* there is no extent item yet */
	uint8_t processing;
	uint8_t drops_sorted;
};

struct bm_waiting_refs {
	struct pool heads;
	struct pool refs;
	struct ref_head **head_table;
	size_t head_mask;
	size_t head_count;
	struct delayed_ref **ref_table;
	size_t ref_mask;
	size_t ref_count;
	uint64_t noted;	    /* how many were ever, those included that took each other away */
	size_t losing;	    /* heads of data that have fewer references in the end */
	uint64_t cursor;    /* delayed_refs->run_delayed_start */
	struct heap ahead;  /* heads at or above the cursor */
	struct heap behind; /* the others: their turn comes after the last one */
};

static int fail_nomem(struct bm_fault *fault)
{
	return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
}

/* ------------------------------------------------------------------------------------- tables -- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
	return hash ^ hash >> 29;
}

static size_t head_slot(const struct bm_waiting_refs *refs, uint64_t bytenr)
{
	return (size_t)(mix(0, bytenr) >> 8) & refs->head_mask;
}

static size_t ref_slot(const struct bm_waiting_refs *refs, const struct bm_extent_ref *what)
{
	uint64_t hash = mix(mix(what->type, what->bytenr), what->value);

	return (size_t)(mix(mix(hash, what->ino), what->offset) >> 8) & refs->ref_mask;
}

static int grow_heads(struct bm_waiting_refs *refs)
{
	size_t old = refs->head_table ? refs->head_mask + 1 : 0, size = old ? old * 2 : 1024;
	struct ref_head **table, **before = refs->head_table;

	if (refs->head_count < old)
		return BM_OK;
	table = calloc(size, sizeof(*table));
	if (!table)
		return BM_NOMEM;
	refs->head_table = table;
	refs->head_mask = size - 1;
	for (size_t i = 0; i < old; i++) {
		struct ref_head *head = before[i], *next;

		for (; head; head = next) {
			size_t slot = head_slot(refs, head->bytenr);

			next = head->hash_next;
			head->hash_next = table[slot];
			table[slot] = head;
		}
	}
	free(before);
	return BM_OK;
}

static int grow_refs(struct bm_waiting_refs *refs)
{
	size_t old = refs->ref_table ? refs->ref_mask + 1 : 0, size = old ? old * 2 : 1024;
	struct delayed_ref **table, **before = refs->ref_table;

	if (refs->ref_count < old)
		return BM_OK;
	table = calloc(size, sizeof(*table));
	if (!table)
		return BM_NOMEM;
	refs->ref_table = table;
	refs->ref_mask = size - 1;
	for (size_t i = 0; i < old; i++) {
		struct delayed_ref *ref = before[i], *next;

		for (; ref; ref = next) {
			size_t slot = ref_slot(refs, &ref->what);

			next = ref->hash_next;
			ref->hash_next = table[slot];
			table[slot] = ref;
		}
	}
	free(before);
	return BM_OK;
}

static struct ref_head *find_head(const struct bm_waiting_refs *refs, uint64_t bytenr)
{
	struct ref_head *head = refs->head_table[head_slot(refs, bytenr)];

	while (head && head->bytenr != bytenr)
		head = head->hash_next;
	return head;
}

static int same_ref(const struct bm_extent_ref *a, const struct bm_extent_ref *b)
{
	return a->bytenr == b->bytenr && a->type == b->type && a->value == b->value &&
	       a->ino == b->ino && a->offset == b->offset;
}

static struct delayed_ref *find_ref(const struct bm_waiting_refs *refs,
				    const struct bm_extent_ref *what)
{
	struct delayed_ref *ref = refs->ref_table[ref_slot(refs, what)];

	while (ref && !same_ref(&ref->what, what))
		ref = ref->hash_next;
	return ref;
}

/* -------------------------------------------------------------------------------------- lists -- */

static struct ref_list *list_of(const struct delayed_ref *ref)
{
	return ref->is_drop ? &ref->head->drops : &ref->head->adds;
}

static void list_append(struct delayed_ref *ref)
{
	struct ref_list *list = list_of(ref);

	BM_ASSERT(ref->what.count && !list->first == !list->last);
	ref->prev = list->last;
	ref->next = NULL;
	if (list->last)
		list->last->next = ref;
	else
		list->first = ref;
	list->last = ref;
	if (ref->is_drop)
		ref->head->drops_sorted = 0;
}

static void list_remove(struct delayed_ref *ref)
{
	struct ref_list *list = list_of(ref);

	BM_ASSERT((ref->prev ? ref->prev->next : list->first) == ref);
	BM_ASSERT((ref->next ? ref->next->prev : list->last) == ref);
	if (ref->prev)
		ref->prev->next = ref->next;
	else
		list->first = ref->next;
	if (ref->next)
		ref->next->prev = ref->prev;
	else
		list->last = ref->prev;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* comp_refs() */
static int compare_refs(const void *left, const void *right)
{
	const struct bm_extent_ref *a = &(*(struct delayed_ref *const *)left)->what;
	const struct bm_extent_ref *b = &(*(struct delayed_ref *const *)right)->what;
	int order = compare_numbers(a->type, b->type);

	if (!order)
		order = compare_numbers(a->value, b->value);
	if (!order)
		order = compare_numbers(a->ino, b->ino);
	return order ? order : compare_numbers(a->offset, b->offset);
}

/* What drops a reference is run in the order of the head's tree of references. */
static int sort_drops(struct ref_head *head)
{
	struct delayed_ref **sorted;
	size_t count = 0, i = 0;

	head->drops_sorted = 1;
	for (struct delayed_ref *ref = head->drops.first; ref; ref = ref->next)
		count++;
	if (count < 2)
		return BM_OK;
	sorted = malloc(count * sizeof(struct delayed_ref *));
	if (!sorted)
		return BM_NOMEM;
	for (struct delayed_ref *ref = head->drops.first; ref; ref = ref->next)
		sorted[i++] = ref;
	qsort(sorted, count, sizeof(struct delayed_ref *), compare_refs);
	head->drops = (struct ref_list){0};
	for (i = 0; i < count; i++)
		list_append(sorted[i]);
	head->drops_sorted = 1;
	free(sorted);
	return BM_OK;
}

/* ------------------------------------------------------------------------------- taking notes -- */

int bm_refs_create(struct bm_writer *writer, struct bm_fault *fault)
{
	struct bm_waiting_refs *refs = calloc(1, sizeof(*refs));

	writer->refs = refs;
	if (!refs || grow_heads(refs) < 0 || grow_refs(refs) < 0)
		return fail_nomem(fault);
	refs->heads.size = sizeof(struct ref_head);
	refs->refs.size = sizeof(struct delayed_ref);
	return BM_OK;
}

void bm_refs_destroy(struct bm_writer *writer)
{
	struct bm_waiting_refs *refs = writer->refs;

	if (!refs)
		return;
	pool_destroy(&refs->heads);
	pool_destroy(&refs->refs);
	free(refs->head_table);
	free(refs->ref_table);
	free(refs->ahead.items);
	free(refs->behind.items);
	free(refs);
	writer->refs = NULL;
}

/* The head of an extent, made where there is none; NULL: no memory. */
static struct ref_head *get_head(struct bm_waiting_refs *refs, uint64_t bytenr, uint64_t num_bytes,
				 int level)
{
	struct ref_head *head = find_head(refs, bytenr);
	size_t slot;

	if (head)
		return head;
	if (grow_heads(refs) < 0 ||
	    heap_push(bytenr < refs->cursor ? &refs->behind : &refs->ahead, bytenr) < 0)
		return NULL;
	head = pool_alloc(&refs->heads);
	if (!head)
		return NULL;
	head->bytenr = bytenr;
	head->num_bytes = num_bytes;
	head->level = (int8_t)level;
	slot = head_slot(refs, bytenr);
	head->hash_next = refs->head_table[slot];
	refs->head_table[slot] = head;
	refs->head_count++;
	return head;
}

static size_t loses(const struct ref_head *head)
{
	return head->level < 0 && head->ref_mod < 0;
}

static void change_ref_mod(struct bm_waiting_refs *refs, struct ref_head *head, int64_t by)
{
	BM_ASSERT(refs->losing >= loses(head));
	refs->losing -= loses(head);
	head->ref_mod += by;
	refs->losing += loses(head);
}

static void delete_head(struct bm_waiting_refs *refs, struct ref_head *head)
{
	struct ref_head **link = &refs->head_table[head_slot(refs, head->bytenr)];

	/* all that was taken and dropped was run, or took each other away */
	BM_ASSERT(!head->adds.first && !head->drops.first && !head->ref_mod && refs->head_count);
	while (*link != head)
		link = &(*link)->hash_next;
	*link = head->hash_next;
	refs->head_count--;
	refs->losing -= loses(head);
	pool_free(&refs->heads, head);
}

static void delete_ref(struct bm_waiting_refs *refs, struct delayed_ref *ref)
{
	struct delayed_ref **link = &refs->ref_table[ref_slot(refs, &ref->what)];

	BM_ASSERT(refs->ref_count);
	list_remove(ref);
	while (*link != ref)
		link = &(*link)->hash_next;
	*link = ref->hash_next;
	refs->ref_count--;
	pool_free(&refs->refs, ref);
}

/* insert_delayed_ref(): merge with a note of the same reference. */
static int note_ref(struct bm_waiting_refs *refs, struct ref_head *head,
		    const struct bm_extent_ref *what, int is_drop)
{
	struct delayed_ref *ref = find_ref(refs, what);
	size_t slot;

	if (ref && ref->is_drop == is_drop) {
		ref->what.count += what->count;
		return BM_OK;
	}
	if (ref && ref->what.count > what->count) {
		ref->what.count -= what->count;
		return BM_OK;
	}
	if (ref && ref->what.count == what->count) {
		delete_ref(refs, ref);
		return BM_OK;
	}
	if (ref) {
		list_remove(ref);
		ref->what.count = what->count - ref->what.count;
		ref->is_drop = (uint8_t)is_drop;
		list_append(ref);
		return BM_OK;
	}
	if (grow_refs(refs) < 0)
		return BM_NOMEM;
	ref = pool_alloc(&refs->refs);
	if (!ref)
		return BM_NOMEM;
	ref->head = head;
	ref->what = *what;
	ref->is_drop = (uint8_t)is_drop;
	slot = ref_slot(refs, what);
	ref->hash_next = refs->ref_table[slot];
	refs->ref_table[slot] = ref;
	refs->ref_count++;
	list_append(ref);
	return BM_OK;
}

static int add_ref(struct bm_writer *writer, enum bm_ref_action action,
		   const struct bm_extent_ref *what, const struct bm_key *first,
		   struct bm_fault *fault)
{
	struct bm_waiting_refs *refs = writer->refs;
	struct ref_head *head = get_head(refs, what->bytenr, what->num_bytes, what->level);

	if (!head)
		return fail_nomem(fault);
	if ((head->level < 0) != (what->level < 0))
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_VALUE,
							.tree = BTRFS_EXTENT_TREE_OBJECTID,
							.found = what->bytenr});
	if (action == BM_REF_ALLOC) {
		head->must_insert = 1;
		head->num_bytes = what->num_bytes;
		head->level = what->level;
		if (first)
			head->first = *first;
	}
	if (!head->owning_root || action == BM_REF_ALLOC)
		head->owning_root = what->owning_root;
	refs->noted++;
	change_ref_mod(refs, head, action == BM_REF_DROP ? -1 : 1);
	if (note_ref(refs, head, what, action == BM_REF_DROP) < 0)
		return fail_nomem(fault);
	return BM_OK;
}

int bm_refs_tree(struct bm_writer *writer, enum bm_ref_action action, uint64_t bytenr,
		 uint64_t parent, uint64_t owner, uint64_t owning_root, int level,
		 const struct bm_key *first, struct bm_fault *fault)
{
	struct bm_extent_ref what = {
	    .bytenr = bytenr,
	    .num_bytes = writer->nodesize,
	    .type = parent ? BTRFS_SHARED_BLOCK_REF_KEY : BTRFS_TREE_BLOCK_REF_KEY,
	    .level = (int8_t)level,
	    .count = 1,
	    .value = parent ? parent : owner,
	    .owning_root = owning_root,
	};

	if (bm_quota_trace(writer, owner, bytenr, writer->nodesize, fault) < 0)
		return fault->code;
	return add_ref(writer, action, &what, first, fault);
}

int bm_refs_data(struct bm_writer *writer, enum bm_ref_action action, const struct bm_data_ref *ref,
		 struct bm_fault *fault)
{
	struct bm_extent_ref what = {
	    .bytenr = ref->bytenr,
	    .num_bytes = ref->num_bytes,
	    .type = ref->parent ? BTRFS_SHARED_DATA_REF_KEY : BTRFS_EXTENT_DATA_REF_KEY,
	    .level = -1,
	    .count = 1,
	    .value = ref->parent ? ref->parent : ref->root,
	    .ino = ref->parent ? 0 : ref->ino,
	    .offset = ref->parent ? 0 : ref->offset,
	    .owning_root = ref->root,
	};
	struct bm_writer_group group;

	if (bm_space_group_of(writer, ref->bytenr, &group, fault) < 0)
		return fault->code;
	if (!ref->num_bytes || (ref->bytenr | ref->num_bytes) % writer->sectorsize ||
	    ref->num_bytes > group.length - (ref->bytenr - group.start))
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_VALUE,
							.tree = BTRFS_EXTENT_TREE_OBJECTID,
							.found = ref->bytenr,
							.wanted = ref->num_bytes});
	if (bm_quota_trace(writer, ref->root, ref->bytenr, ref->num_bytes, fault) < 0)
		return fault->code;
	return add_ref(writer, action, &what, NULL, fault);
}

int bm_refs_set_flags(struct bm_writer *writer, uint64_t bytenr, uint64_t flags, int level,
		      struct bm_fault *fault)
{
	struct ref_head *head = get_head(writer->refs, bytenr, writer->nodesize, level);

	if (!head)
		return fail_nomem(fault);
	head->flags |= flags;
	return BM_OK;
}

int bm_refs_forget(struct bm_writer *writer, uint64_t bytenr)
{
	struct bm_waiting_refs *refs = writer->refs;
	struct ref_head *head = find_head(refs, bytenr);
	int must_insert;

	if (!head || head->processing || head->adds.first || head->drops.first)
		return 0;
	must_insert = head->must_insert;
	if (head->flags && !must_insert)
		return 0;
	delete_head(refs, head);
	return must_insert;
}

/* ------------------------------------------------------------------------------------ running -- */

/* btrfs_select_ref_head(); NULL: none is left. */
static struct ref_head *select_head(struct bm_waiting_refs *refs)
{
	for (;;) {
		struct ref_head *head;

		if (!refs->ahead.count) {
			struct heap empty = refs->ahead;

			refs->cursor = 0;
			if (!refs->behind.count)
				return NULL;
			refs->ahead = refs->behind;
			refs->behind = empty;
		}
		/* a head may have gone, or gone and come again: then it is there twice */
		head = find_head(refs, heap_pop(&refs->ahead));
		if (head) {
			refs->cursor = head->bytenr + head->num_bytes;
			return head;
		}
	}
}

/* select_delayed_ref(); NULL: none is left, or no memory (*code). */
static struct delayed_ref *select_ref(struct ref_head *head, int *code)
{
	*code = BM_OK;
	if (head->adds.first)
		return head->adds.first;
	if (head->drops.first && !head->drops_sorted) {
		*code = sort_drops(head);
		if (*code < 0)
			return NULL;
	}
	return head->drops.first;
}

/* run_one_delayed_ref() */
static int run_ref(struct bm_writer *writer, struct ref_head *head, struct delayed_ref *ref,
		   struct bm_fault *fault)
{
	struct bm_extent_ref what = ref->what;
	int is_drop = ref->is_drop, must_insert = head->must_insert;
	uint64_t flags = head->flags;

	what.owning_root = head->owning_root;
	delete_ref(writer->refs, ref);
	change_ref_mod(writer->refs, head, is_drop ? (int64_t)what.count : -(int64_t)what.count);
	head->must_insert = 0;
	head->flags = 0;
	if (is_drop)
		return bm_extent_drop(writer, &what, flags, fault);
	if (must_insert)
		return bm_extent_insert(writer, &what, flags, &head->first, fault);
	return bm_extent_add(writer, &what, flags, fault);
}

static int run_head(struct bm_writer *writer, struct ref_head *head, struct bm_fault *fault)
{
	struct delayed_ref *ref;
	uint64_t flags;
	int code;

	do {
		while ((ref = select_ref(head, &code))) {
			if (run_ref(writer, head, ref, fault) < 0)
				return fault->code;
		}
		if (code < 0)
			return fail_nomem(fault);
		flags = head->must_insert ? 0 : head->flags;
		head->flags = 0;
		if (flags &&
		    bm_extent_set_flags(writer, head->bytenr, head->level, flags, fault) < 0)
			return fault->code;
	} while (flags || head->adds.first || head->drops.first);
	return BM_OK;
}

/* cleanup_ref_head(): an extent that came and went before anyone heard of it is pinned. */
static int cleanup_head(struct bm_writer *writer, struct ref_head *head, struct bm_fault *fault)
{
	uint64_t bytenr = head->bytenr, num_bytes = head->num_bytes;
	int must_insert = head->must_insert, is_data = head->level < 0;

	delete_head(writer->refs, head);
	if (!must_insert)
		return BM_OK;
	if (bm_space_pin(writer, bytenr, num_bytes, 0, fault) < 0)
		return fault->code;
	return is_data ? bm_writer_delete_csums(writer, BTRFS_CSUM_TREE_OBJECTID, bytenr, num_bytes,
						fault)
		       : BM_OK;
}

int64_t bm_writer_run_some_refs(struct bm_writer *writer, int64_t most, struct bm_fault *fault)
{
	struct ref_head *head;
	int64_t count = 0;

	while (count < most && (head = select_head(writer->refs))) {
		int ret;

		head->processing = 1;
		ret = run_head(writer, head, fault);
		head->processing = 0;
		if (ret < 0 || cleanup_head(writer, head, fault) < 0)
			return fault->code;
		count++;
	}
	return count;
}

int64_t bm_writer_run_refs(struct bm_writer *writer, struct bm_fault *fault)
{
	return bm_writer_run_some_refs(writer, INT64_MAX, fault);
}

int64_t bm_writer_waiting_refs(const struct bm_writer *writer)
{
	return (int64_t)writer->refs->head_count;
}

int64_t bm_writer_list_refs(const struct bm_writer *writer, struct bm_waiting_ref *refs,
			    size_t capacity)
{
	const struct bm_waiting_refs *waiting = writer->refs;
	size_t count = 0;

	for (size_t slot = 0; slot <= waiting->ref_mask; slot++) {
		const struct delayed_ref *ref = waiting->ref_table[slot];

		for (; ref; ref = ref->hash_next, count++) {
			const struct bm_extent_ref *what = &ref->what;

			if (count >= capacity)
				continue;
			refs[count] = (struct bm_waiting_ref){
			    .bytenr = what->bytenr,
			    .value = what->value,
			    .ino = what->ino,
			    .offset = what->offset,
			    .count = ref->is_drop ? -(int64_t)what->count : what->count,
			    .type = what->type,
			    .level = what->level,
			};
		}
	}
	return (int64_t)count;
}

void bm_refs_info(const struct bm_writer *writer, struct bm_space_info *info)
{
	info->refs = writer->refs->ref_count;
	info->losing = writer->refs->losing;
}

uint64_t bm_refs_noted(const struct bm_writer *writer)
{
	return writer->refs->noted;
}

/* --------------------------------------------------------------------------- what others ask -- */

int bm_writer_extent_info(struct bm_writer *writer, uint64_t bytenr, uint64_t *refs,
			  uint64_t *flags, struct bm_fault *fault)
{
	const struct ref_head *head = find_head(writer->refs, bytenr);

	if (bm_extent_lookup(writer, bytenr, refs, flags, fault) < 0)
		return fault->code;
	if (head) {
		*refs += (uint64_t)head->ref_mod;
		*flags |= head->flags;
	}
	return BM_OK;
}

static int data_refs(struct bm_writer *writer, enum bm_ref_action action,
		     const struct bm_data_ref *refs, size_t count, struct bm_fault *fault)
{
	for (size_t i = 0; i < count; i++) {
		if (bm_refs_data(writer, action, &refs[i], fault) < 0) {
			fault->slot = (uint32_t)i;
			return fault->code;
		}
	}
	return BM_OK;
}

int bm_writer_alloc_data_ref(struct bm_writer *writer, const struct bm_data_ref *refs, size_t count,
			     struct bm_fault *fault)
{
	return data_refs(writer, BM_REF_ALLOC, refs, count, fault);
}

int bm_writer_inc_data_ref(struct bm_writer *writer, const struct bm_data_ref *refs, size_t count,
			   struct bm_fault *fault)
{
	return data_refs(writer, BM_REF_ADD, refs, count, fault);
}

int bm_writer_drop_data_ref(struct bm_writer *writer, const struct bm_data_ref *refs, size_t count,
			    struct bm_fault *fault)
{
	return data_refs(writer, BM_REF_DROP, refs, count, fault);
}
