// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files that have nothing on disk yet and are written back one after the other: their data, which may
 * lie in pieces, become one extent of each, or lie in its item.
 */
#include "writer/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct run {
	struct bm_writer *writer;
	const struct bm_written_files *args;
	struct bm_fault *fault;
	uint8_t *sums; /* of one file */
	uint64_t room;
};

static uint64_t blocks_of(const struct run *run, const struct bm_written_file *file)
{
	return (file->size + run->writer->sectorsize - 1) / run->writer->sectorsize;
}

/* Put the pieces of a file side by side, zeros behind them. */
static void gather(const struct bm_written_file *file, uint8_t *to, uint64_t length)
{
	uint64_t at = 0;

	for (uint64_t i = 0; i < file->count; i++) {
		memcpy(to + at, file->data + file->pieces[i].at, file->pieces[i].size);
		at += file->pieces[i].size;
	}
	memset(to + at, 0, length - at);
}

/* Whether the pieces are as long as the file. */
static int is_whole(const struct bm_written_file *file)
{
	uint64_t left = file->size;

	for (uint64_t i = 0; i < file->count; i++) {
		if (file->pieces[i].size > left)
			return 0;
		left -= file->pieces[i].size;
	}
	return file->size && !left;
}

/* cow_file_range_inline() */
static int write_inline(const struct run *run, const struct bm_written_file *file)
{
	const struct bm_key key = {.objectid = file->ino, .type = BTRFS_EXTENT_DATA_KEY};
	const uint32_t head = offsetof(struct btrfs_file_extent_item, disk_bytenr);
	struct btrfs_file_extent_item item = {.generation = run->writer->transid,
					      .ram_bytes = file->size};
	uint8_t payload[sizeof(item) + BM_WRITTEN_INLINE];

	if (file->size > BM_WRITTEN_INLINE)
		return bm_writer_errno(run->fault, NULL, EINVAL);
	memcpy(payload, &item, head);
	gather(file, payload + head, file->size);
	return bm_writer_insert_extent(run->writer, run->args->tree, &key, NULL, payload,
				       head + (uint32_t)file->size, run->fault);
}

/* Store data in each copy of their chunk; checksums of the first. */
static int store(struct run *run, const struct bm_written_file *file, uint64_t length)
{
	const struct bm_writer *writer = run->writer;
	const int copies = bm_image_copies(writer->image, file->bytenr);
	const uint64_t sectors = length / writer->sectorsize;

	for (int copy = 0; copy < copies; copy++) {
		uint64_t physical, contiguous;

		if (bm_image_map(writer->image, file->bytenr, copy, &physical, &contiguous,
				 run->fault) < 0)
			return run->fault->code;
		if (contiguous < length)
			return bm_fail(run->fault,
				       (struct bm_fault){.code = BM_PAST_END,
							 .block = file->bytenr,
							 .found = physical + length,
							 .wanted = physical + contiguous});
		gather(file, writer->base + physical, length);
		if (!copy)
			bm_csum_sectors(writer->image->csum_type, writer->base + physical,
					writer->sectorsize, sectors, run->sums);
	}
	return BM_OK;
}

/* Room for the checksums of a file. */
static int make_room(struct run *run, uint64_t sectors)
{
	const uint64_t wanted = sectors * BTRFS_CSUM_SIZE;
	void *larger;

	if (wanted <= run->room)
		return BM_OK;
	larger = realloc(run->sums, wanted);
	if (!larger)
		return bm_fail(run->fault, (struct bm_fault){.code = BM_NOMEM});
	run->sums = larger;
	run->room = wanted;
	return BM_OK;
}

/* insert_reserved_file_extent(), add_pending_csums() */
static int insert_extent(const struct run *run, const struct bm_written_file *file, uint64_t length)
{
	const struct bm_key key = {.objectid = file->ino, .type = BTRFS_EXTENT_DATA_KEY};
	const struct btrfs_file_extent_item item = {.generation = run->writer->transid,
						    .ram_bytes = length,
						    .type = BTRFS_FILE_EXTENT_REG,
						    .disk_bytenr = file->bytenr,
						    .disk_num_bytes = length,
						    .num_bytes = length};
	const struct bm_data_ref ref = {file->bytenr, length, 0, run->args->tree, file->ino, 0};

	if (bm_writer_insert_extent(run->writer, run->args->tree, &key, NULL,
				    (const uint8_t *)&item, sizeof(item), run->fault) < 0 ||
	    bm_writer_alloc_data_ref(run->writer, &ref, 1, run->fault) < 0)
		return run->fault->code;
	return bm_writer_insert_csums(run->writer, BTRFS_CSUM_TREE_OBJECTID, file->bytenr,
				      run->sums, length / run->writer->sectorsize, run->fault);
}

/* cow_file_range(): 1, or 0 when there is no room in one piece. */
static int write_regular(struct run *run, struct bm_written_file *file)
{
	const uint64_t length = blocks_of(run, file) * run->writer->sectorsize;
	uint64_t got = length;
	int ret = make_room(run, blocks_of(run, file));

	if (ret < 0)
		return ret;
	if (run->args->in_class)
		ret = bm_writer_reserve_in_class(run->writer, length, 0, &file->bytenr, run->fault);
	else
		ret = bm_writer_reserve_data(run->writer, length, length, 0, &file->bytenr, &got,
					     run->fault);
	if (ret == 1 || (ret == BM_ERRNO && run->fault->found == ENOSPC))
		return 0;
	if (ret < 0 || store(run, file, length) < 0 || insert_extent(run, file, length) < 0)
		return run->fault->code;
	return 1;
}

int64_t bm_writer_write_files(struct bm_writer *writer, const struct bm_written_files *args,
			      struct bm_fault *fault)
{
	struct run run = {.writer = writer, .args = args, .fault = fault};
	size_t done = 0;
	int ret = 1;

	for (; done < args->count && ret > 0; done += ret > 0) {
		struct bm_written_file *file = &args->files[done];

		if (!is_whole(file))
			ret = bm_writer_errno(fault, NULL, EINVAL);
		else if (!file->in_item)
			ret = write_regular(&run, file);
		else if (write_inline(&run, file) < 0)
			ret = fault->code;
	}
	free(run.sums);
	return ret < 0 ? ret : (int64_t)done;
}
