// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files that have nothing on disk yet and are written back one after the other: their data, which may
 * lie in pieces, become one extent of each, or lie in its item.
 */
#define _DEFAULT_SOURCE /* madvise(), pwritev(2) */
#include "writer/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#define PAGE 4096
#define STORED_AT_ONCE (1 << 18) /* bytes, whole sectors: they stay in the processor's cache */
#define MOST_PARTS 64		 /* that a file takes at once */
#define MOST_OF_A_SECTOR 65536

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

/* Where in the pieces of a file the next byte is. */
struct place {
	const struct bm_piece *piece;
	uint64_t at;
};

/* Go on by some bytes. */
static void pass(struct place *place, uint64_t size)
{
	do {
		const uint64_t left = place->piece->size - place->at;
		const uint64_t part = left < size ? left : size;

		size -= part;
		place->at += part;
		if (part == left)
			*place = (struct place){.piece = place->piece + 1};
	} while (size);
}

/* Put the next bytes of the pieces side by side. */
static void gather(struct place *from, uint8_t *to, uint64_t size)
{
	while (size) {
		const uint64_t left = from->piece->size - from->at;
		const uint64_t part = left < size ? left : size;

		memcpy(to, from->piece->data + from->at, part);
		to += part;
		size -= part;
		pass(from, part);
	}
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

/* Whether it is the beginning of a file, or what follows the part before. */
static int is_next(const struct bm_written_file *file, const struct bm_written_file *before)
{
	if (!file->offset)
		return 1;
	return before && before->ino == file->ino && !before->in_item && !file->in_item &&
	       before->offset + before->size == file->offset;
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
	gather(&(struct place){.piece = file->pieces}, payload + head, file->size);
	return bm_writer_insert_extent(run->writer, run->args->tree, &key, NULL, payload,
				       head + (uint32_t)file->size, run->fault);
}

/* Let pages be there that are about to be written: many at once cost less than one after another. */
static void populate(uint8_t *start, uint64_t size)
{
#ifdef MADV_POPULATE_WRITE
	const uint64_t before = (0 - (uintptr_t)start) % PAGE;

	/* where that is not possible, each comes when it is written */
	if (size > before + PAGE)
		(void)madvise(start + before, (size - before) / PAGE * PAGE, MADV_POPULATE_WRITE);
#else
	(void)start;
	(void)size;
#endif
}

/* Checksums of data that lie in pieces, zeros behind them; sectors in two pieces are put together. */
static uint8_t *sum_pieces(const struct run *run, struct place from, uint64_t data, uint8_t *sums)
{
	const uint16_t type = run->writer->image->csum_type;
	const uint32_t sectorsize = run->writer->sectorsize;
	uint8_t sector[MOST_OF_A_SECTOR];

	while (data) {
		uint64_t left = from.piece->size - from.at, sectors, width;
		const uint8_t *start = from.piece->data + from.at;

		left = left < data ? left : data;
		sectors = left / sectorsize;
		if (sectors) {
			left = sectors * sectorsize;
			pass(&from, left);
		} else {
			left = data < sectorsize ? data : sectorsize;
			gather(&from, sector, left);
			memset(sector + left, 0, sectorsize - left);
			start = sector;
			sectors = 1;
		}
		width = (uint64_t)bm_csum_sectors(type, start, sectorsize, sectors, sums);
		sums += sectors * width;
		data -= left;
	}
	return sums;
}

/* Let the file of the image have data, zeros behind them: 1, or 0 when it does not take all. */
static int write_to_file(const struct run *run, struct place from, uint64_t at, uint64_t data,
			 uint64_t size)
{
	static uint8_t zeros[MOST_OF_A_SECTOR];
	struct iovec parts[MOST_PARTS];
	int count = 0;

	for (uint64_t left = data; left; count++) {
		uint64_t part = from.piece->size - from.at;

		if (count == MOST_PARTS - 1)
			return 0;
		part = part < left ? part : left;
		parts[count] =
		    (struct iovec){(void *)(uintptr_t)(from.piece->data + from.at), part};
		pass(&from, part);
		left -= part;
	}
	if (size > data)
		parts[count++] = (struct iovec){zeros, size - data};
	if (pwritev(run->args->file, parts, count, (off_t)at) != (ssize_t)size)
		return 0;
	/* pages that were written in memory hide those of the file */
	return !madvise(run->writer->base + at, size, MADV_DONTNEED);
}

/* Store data, zeros behind them; their checksums, unless `sums` is NULL. */
static void store_copy(const struct run *run, const struct bm_written_file *file, uint64_t physical,
		       uint8_t *sums)
{
	const uint32_t sectorsize = run->writer->sectorsize;
	const uint64_t length = blocks_of(run, file) * sectorsize;
	struct place from = {.piece = file->pieces};

	for (uint64_t at = 0; at < length; at += STORED_AT_ONCE) {
		const uint64_t size = length - at < STORED_AT_ONCE ? length - at : STORED_AT_ONCE;
		const uint64_t data = file->size - at < size ? file->size - at : size;
		uint8_t *to = run->writer->base + physical + at;

		if (sums)
			sums = sum_pieces(run, from, data, sums);
		if (run->args->file >= 0 && write_to_file(run, from, physical + at, data, size)) {
			pass(&from, data);
			continue;
		}
		populate(to, size);
		gather(&from, to, data);
		memset(to + data, 0, size - data);
	}
}

/* Store data in each copy of their chunk; checksums of the first. */
static int store(struct run *run, const struct bm_written_file *file, uint64_t length)
{
	const struct bm_writer *writer = run->writer;
	const int copies = bm_image_copies(writer->image, file->bytenr);

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
		store_copy(run, file, physical, copy ? NULL : run->sums);
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
	const struct bm_key key = {
	    .objectid = file->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = file->offset};
	const struct btrfs_file_extent_item item = {.generation = run->writer->transid,
						    .ram_bytes = length,
						    .type = BTRFS_FILE_EXTENT_REG,
						    .disk_bytenr = file->bytenr,
						    .disk_num_bytes = length,
						    .num_bytes = length};
	const struct bm_data_ref ref = {file->bytenr,	 length,    0,
					run->args->tree, file->ino, file->offset};

	if (bm_writer_insert_extent(run->writer, run->args->tree, &key, NULL,
				    (const uint8_t *)&item, sizeof(item), run->fault) < 0 ||
	    bm_writer_alloc_data_ref(run->writer, &ref, 1, run->fault) < 0)
		return run->fault->code;
	return bm_writer_insert_csums(run->writer, BTRFS_CSUM_TREE_OBJECTID, file->bytenr,
				      run->sums, length / run->writer->sectorsize, run->fault);
}

/* cow_file_range(): 1, or 0 when there is no room in one piece. `hint`: where the part before is. */
static int write_regular(struct run *run, struct bm_written_file *file, uint64_t hint)
{
	const uint64_t length = blocks_of(run, file) * run->writer->sectorsize;
	uint64_t got = length;
	int ret = make_room(run, blocks_of(run, file));

	if (ret < 0)
		return ret;
	if (run->args->in_class)
		ret = bm_writer_reserve_in_class(run->writer, length, hint, &file->bytenr,
						 run->fault);
	else
		ret = bm_writer_reserve_data(run->writer, length, length, hint, &file->bytenr, &got,
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
		const struct bm_written_file *before = done ? file - 1 : NULL;

		if (!is_whole(file) || !is_next(file, before) || file->offset % writer->sectorsize)
			ret = bm_writer_errno(fault, NULL, EINVAL);
		else if (!file->in_item)
			ret = write_regular(&run, file, file->offset ? before->bytenr : 0);
		else if (write_inline(&run, file) < 0)
			ret = fault->code;
	}
	free(run.sums);
	return ret < 0 ? ret : (int64_t)done;
}
