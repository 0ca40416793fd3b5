// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many extents of one file, or of a file each, at once: what writeback does for each of them, in the order given, with
 * nothing of Python in between. Each extent fills a hole of the file; the caller sees to that.
 *
 * Where the next extent goes depends on what the file has already (the allocation hint), and that
 * changes with every extent. So the extents, those that the file has and those to come, are put in
 * a list in the order of the file first; then those to come are taken out again, the last one
 * first. What is left beside an extent when it is taken out is what it will find beside it when it
 * is written.
 */
#include "writer/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct place {
	uint32_t before;
	uint32_t behind;
};

struct file_run {
	const struct bm_file_extents *args;
	struct place *places; /* of all extents, those that are there first */
	uint64_t *bytenr;     /* likewise; 0 of holes and inline extents */
	uint32_t lowest;      /* of those that are there so far */
};

static uint64_t offset_of(const struct bm_file_extents *args, uint32_t i)
{
	return i < args->known ? args->known_offsets[i] : args->offsets[i - args->known];
}

static void link_places(const struct bm_file_extents *args, struct place *places)
{
	uint32_t total = (uint32_t)(args->known + args->count);

	for (uint32_t i = 0; i < total; i++) {
		struct place *place = &places[args->order[i]];

		place->before = i ? args->order[i - 1] : NONE;
		place->behind = i + 1 < total ? args->order[i + 1] : NONE;
	}
	for (uint32_t i = total; i-- > args->known;) {
		const struct place *place = &places[i];

		if (place->before != NONE)
			places[place->before].behind = place->behind;
		if (place->behind != NONE)
			places[place->behind].before = place->before;
	}
}

/* btrfs_get_extent_allocation_hint(): the extent behind, or before, or the first of the file. */
static uint64_t hint_for(const struct file_run *run, uint32_t i)
{
	const struct place *place = &run->places[i];
	uint32_t near;

	if (run->args->inos)
		return 0;
	near = place->behind != NONE ? place->behind : place->before;
	if (near == NONE)
		return 0;
	return run->bytenr[near] ? run->bytenr[near] : run->bytenr[run->lowest];
}

static void fill_item(struct btrfs_file_extent_item *item, const struct bm_file_extents *args,
		      uint64_t generation, uint64_t bytenr)
{
	memset(item, 0, sizeof(*item));
	item->generation = generation;
	item->ram_bytes = args->length;
	item->compression = (uint8_t)args->compression;
	item->type = BTRFS_FILE_EXTENT_REG;
	item->disk_bytenr = bytenr;
	item->disk_num_bytes = args->disk_num_bytes;
	item->num_bytes = args->length;
}

/* 1: there is no room in one piece. */
static int reserve_one(struct bm_writer *writer, struct file_run *run, size_t i,
		       struct bm_fault *fault)
{
	const struct bm_file_extents *args = run->args;
	uint32_t at = (uint32_t)(args->known + i);
	uint64_t got = args->disk_num_bytes;
	int ret =
	    bm_writer_reserve_in_class(writer, got, hint_for(run, at), &run->bytenr[at], fault);

	if (ret == 1 && !args->in_class)
		ret = bm_writer_reserve_data(writer, got, got, hint_for(run, at), &run->bytenr[at],
					     &got, fault);
	if (ret < 0)
		return fault->code == BM_ERRNO && fault->found == ENOSPC ? 1 : fault->code;
	if (ret == 1)
		return 1;
	if (run->lowest == NONE || args->offsets[i] < offset_of(args, run->lowest))
		run->lowest = at;
	return BM_OK;
}

static void release_one(struct bm_writer *writer, const struct file_run *run, size_t i)
{
	struct bm_fault ignored;

	bm_writer_release_data(writer, run->bytenr[run->args->known + i], run->args->disk_num_bytes,
			       &ignored);
}

/* btrfs_finish_one_ordered() */
static int finish_one(struct bm_writer *writer, const struct file_run *run, size_t i,
		      struct bm_fault *fault)
{
	const struct bm_file_extents *args = run->args;
	uint64_t bytenr = run->bytenr[args->known + i];
	const struct bm_key key = {.objectid = args->inos ? args->inos[i] : args->ino,
				   .type = BTRFS_EXTENT_DATA_KEY,
				   .offset = args->offsets[i]};
	const struct bm_data_ref ref = {bytenr,	    args->disk_num_bytes, 0,
					args->root, key.objectid,	  key.offset};
	struct btrfs_file_extent_item item;
	int ret;

	fill_item(&item, args, writer->transid, bytenr);
	ret = bm_writer_insert_extent(writer, args->tree, &key, NULL, (const uint8_t *)&item,
				      sizeof(item), fault);
	if (ret < 0) {
		release_one(writer, run, i);
		return ret;
	}
	ret = bm_writer_alloc_data_ref(writer, &ref, 1, fault);
	if (ret < 0 || !args->sums)
		return ret < 0 ? ret : BM_OK;
	ret = bm_writer_insert_csums(writer, BTRFS_CSUM_TREE_OBJECTID, bytenr, args->sums,
				     args->disk_num_bytes / writer->sectorsize, fault);
	return ret < 0 ? ret : BM_OK;
}

/* Each is finished before the next is begun; returns how many. */
static int64_t write_in_turn(struct bm_writer *writer, struct file_run *run, struct bm_fault *fault)
{
	size_t done = 0;
	int ret = BM_OK;

	for (; done < run->args->count; done++) {
		ret = reserve_one(writer, run, done, fault);
		if (!ret)
			ret = finish_one(writer, run, done, fault);
		if (ret)
			break;
		if (run->args->levels)
			(void)bm_writer_space_info(writer, run->args->kind,
						   &run->args->levels[done]);
	}
	return ret < 0 ? ret : (int64_t)done;
}

/* All are begun, then finished in an order of their own. */
static int64_t write_side_by_side(struct bm_writer *writer, struct file_run *run,
				  struct bm_fault *fault)
{
	const struct bm_file_extents *args = run->args;
	size_t begun = 0;
	int ret = BM_OK;

	while (begun < args->count && !(ret = reserve_one(writer, run, begun, fault)))
		begun++;
	if (ret > 0)
		ret = BM_OK;
	for (size_t i = 0; i < args->count; i++) {
		if (args->finish[i] >= begun)
			continue;
		if (ret < 0)
			release_one(writer, run, args->finish[i]);
		else
			ret = finish_one(writer, run, args->finish[i], fault);
	}
	return ret < 0 ? ret : (int64_t)begun;
}

/* Whether `finish` has every extent once. */
static int check_finish(const struct bm_file_extents *args, struct bm_fault *fault)
{
	uint8_t *seen = calloc(args->count, 1);
	int ret = BM_OK;

	if (!seen)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	for (size_t i = 0; i < args->count && !ret; i++) {
		if (args->finish[i] >= args->count || seen[args->finish[i]])
			ret = bm_writer_errno(fault, NULL, EINVAL);
		else
			seen[args->finish[i]] = 1;
	}
	free(seen);
	return ret;
}

static int check_args(const struct bm_writer *writer, const struct bm_file_extents *args,
		      struct bm_fault *fault)
{
	size_t total = args->known + args->count;

	if (!args->length || args->length % writer->sectorsize || !args->disk_num_bytes ||
	    args->disk_num_bytes % writer->sectorsize || total >= NONE)
		return bm_writer_errno(fault, NULL, EINVAL);
	for (size_t i = 0; !args->inos && i < total; i++)
		if (args->order[i] >= total)
			return bm_writer_errno(fault, NULL, EINVAL);
	return args->finish && args->count ? check_finish(args, fault) : BM_OK;
}

int64_t bm_writer_file_extents(struct bm_writer *writer, const struct bm_file_extents *args,
			       uint64_t *bytenr, struct bm_fault *fault)
{
	struct file_run run = {.args = args, .lowest = args->known ? 0 : NONE};
	size_t total = args->known + args->count;
	int64_t done = 0;
	int ret = check_args(writer, args, fault);

	if (ret < 0 || !args->count)
		return ret;
	run.places = malloc(total * sizeof(*run.places));
	run.bytenr = calloc(total, sizeof(*run.bytenr));
	if (!run.places || !run.bytenr) {
		ret = bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		goto out;
	}
	if (args->known)
		memcpy(run.bytenr, args->known_bytenr, args->known * sizeof(*run.bytenr));
	if (!args->inos)
		link_places(args, run.places);
	done = args->finish ? write_side_by_side(writer, &run, fault)
			    : write_in_turn(writer, &run, fault);
	if (done < 0) {
		ret = (int)done;
		goto out;
	}
	memcpy(bytenr, run.bytenr + args->known, (size_t)done * sizeof(*bytenr));
out:
	free(run.places);
	free(run.bytenr);
	return ret < 0 ? ret : done;
}
