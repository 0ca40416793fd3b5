// SPDX-License-Identifier: GPL-2.0-only
/*
 * From a logical address to bytes of devices: the chunk map, and what parity brings back.
 *
 * An image of several devices has them one behind the other, so a place is one number. Most bytes
 * lie somewhere, in one copy or several. What RAID5 and RAID6 have besides is a copy that is made of
 * the other stripes of the row, by the XOR of all data (P) or by Q, the sum of g^i D_i over the
 * field of 256 elements with the polynomial x^8+x^4+x^3+x^2+1 and g = x (H. P. Anvin, "The
 * mathematics of RAID-6").
 *
 * Tree blocks are used as pointers into the image. One that goes over the end of a stripe, or is made
 * of parity, has its place behind the devices: each striped chunk has as many bytes there as it has
 * addresses.
 */
#include "image/internal.h"

#include <stdlib.h>
#include <string.h>

enum {
	STRIPE_LEN = 65536,
	RAID0 = 1 << 3,
	RAID1 = 1 << 4,
	DUP = 1 << 5,
	RAID10 = 1 << 6,
	RAID5 = 1 << 7,
	RAID6 = 1 << 8,
	RAID1C3 = 1 << 9,
	RAID1C4 = 1 << 10,
	PROFILES = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4,
	FIELD = 255, /* powers of g before they come again */
	PIECE = 4096,
};

int bm_image_set_devices(struct bm_image *image, const struct bm_member *devices, size_t count,
			 struct bm_fault *fault)
{
	struct bm_member *copy = malloc((count ? count : 1) * sizeof(*copy));

	if (!copy)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	for (size_t i = 0; i < count; i++) {
		uint64_t end;

		copy[i] = devices[i];
		if (__builtin_add_overflow(copy[i].start, copy[i].size, &end) ||
		    end > image->size) {
			free(copy);
			return bm_fail(fault, (struct bm_fault){.code = BM_PAST_END,
								.found = devices[i].start,
								.wanted = image->size});
		}
		if (end > image->assembled)
			image->assembled = end;
	}
	/* a block at 0 would be one without a place */
	image->assembled = (image->assembled / STRIPE_LEN + 1) * STRIPE_LEN;
	free(image->devices);
	image->devices = copy;
	image->device_count = count;
	return BM_OK;
}

static struct bm_place place_of(const struct bm_image *image, const struct bm_stripe *stripe)
{
	struct bm_member all = {.devid = stripe->devid, .size = image->size}, *device = &all;
	uint64_t room;

	if (image->devices) {
		all.size = 0;
		for (size_t i = 0; i < image->device_count; i++)
			if (image->devices[i].devid == stripe->devid)
				device = &image->devices[i];
	}
	room = stripe->offset < device->size ? device->size - stripe->offset : 0;
	return (struct bm_place){.at = device->size ? device->start + stripe->offset : UINT64_MAX,
				 .room = room,
				 .devid = stripe->devid,
				 .offset = stripe->offset,
				 .size = device->size};
}

/* How a profile lays out its stripes; 0 for one that they do not fit. */
static int set_layout(struct bm_mapped *to, const struct bm_chunk *chunk)
{
	uint32_t n = chunk->num_stripes, sub = chunk->sub_stripes;

	to->placed = 1;
	switch (chunk->type & PROFILES) {
	case 0:
		to->copies = to->placed;
		return n == 1;
	case DUP:
	case RAID1:
	case RAID1C3:
	case RAID1C4:
		to->copies = to->placed = n;
		return n >= 1;
	case RAID0:
		to->copies = 1;
		to->width = n > 1 ? n : 0;
		return n >= 1;
	case RAID10:
		if (!sub || !n || n % sub)
			return 0;
		to->copies = to->placed = sub;
		to->width = n > sub ? n / sub : 0;
		return 1;
	case RAID5:
		to->parity = 1;
		to->width = n - 1;
		to->copies = 2;
		return n >= 2;
	case RAID6:
		to->parity = 2;
		to->width = n - 2;
		to->copies = n;
		/* more would have the same factor in Q */
		return n >= 3 && n - 2 <= FIELD;
	default:
		return 0;
	}
}

/* Where tree blocks of a striped chunk go: where they went before, or after all others. */
static uint64_t place_to_assemble(struct bm_image *image, const struct bm_mapped *chunk)
{
	const struct bm_mapped *before = bm_find_chunk(image, chunk->logical);
	uint64_t at = image->assembled;

	if (!chunk->width || !image->devices)
		return 0;
	if (before && before->logical == chunk->logical && before->length == chunk->length)
		return before->assembled;
	if (at > image->size || chunk->length > image->size - at)
		return 0;
	image->assembled += chunk->length;
	return at;
}

int bm_image_set_chunks(struct bm_image *image, const struct bm_chunk *chunks, size_t count,
			struct bm_fault *fault)
{
	struct bm_mapped *table = calloc(count ? count : 1, sizeof(*table));
	struct bm_place *places, *next;
	size_t stripes = 1;

	for (size_t i = 0; i < count; i++)
		stripes += chunks[i].num_stripes;
	places = next = calloc(stripes, sizeof(*places));
	if (!table || !places) {
		free(table);
		free(places);
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	}
	for (size_t i = 0; i < count; i++) {
		table[i].logical = chunks[i].logical;
		table[i].length = chunks[i].length;
		table[i].num_stripes = chunks[i].num_stripes;
		table[i].places = next;
		if (!set_layout(&table[i], &chunks[i])) {
			free(table);
			free(places);
			return bm_fail(fault, (struct bm_fault){.code = BM_BAD_VALUE,
								.found = chunks[i].logical});
		}
		for (uint32_t j = 0; j < chunks[i].num_stripes; j++)
			*next++ = place_of(image, &chunks[i].stripes[j]);
		table[i].assembled = place_to_assemble(image, &table[i]);
	}
	memset(image->recent, 0, sizeof(image->recent));
	free(image->chunks);
	free(image->places);
	image->chunks = table;
	image->places = places;
	image->chunk_count = count;
	return BM_OK;
}

const struct bm_mapped *bm_find_chunk(const struct bm_image *image, uint64_t logical)
{
	size_t low = 0, high = image->chunk_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct bm_mapped *chunk = &image->chunks[mid];

		if (logical < chunk->logical)
			high = mid;
		else if (logical - chunk->logical >= chunk->length)
			low = mid + 1;
		else
			return chunk;
	}
	return NULL;
}

int bm_image_copies(const struct bm_image *image, uint64_t logical)
{
	const struct bm_mapped *chunk = bm_find_chunk(image, logical);

	return chunk ? (int)chunk->copies : 0;
}

/* The stripe of a row that has a role: data from 0 on, then P and Q. Parity wanders. */
static const struct bm_place *in_row(const struct bm_mapped *chunk, uint64_t row, uint32_t role)
{
	return &chunk->places[(row + role) % chunk->num_stripes];
}

int bm_image_map(const struct bm_image *image, uint64_t logical, int copy, uint64_t *physical,
		 uint64_t *contiguous, struct bm_fault *fault)
{
	const struct bm_mapped *chunk = bm_find_chunk(image, logical);
	const struct bm_place *place;
	uint64_t within, left;

	if (!chunk || copy < 0 || copy >= (int)chunk->placed)
		return bm_fail(fault, (struct bm_fault){.code = BM_UNMAPPED, .found = logical});
	within = logical - chunk->logical;
	left = chunk->length - within;
	place = &chunk->places[copy];
	if (chunk->width) {
		uint64_t number = within / STRIPE_LEN, row = number / chunk->width;
		uint32_t column = (uint32_t)(number % chunk->width);

		place = chunk->parity ? in_row(chunk, row, column)
				      : &chunk->places[column * chunk->placed + (uint32_t)copy];
		within %= STRIPE_LEN;
		left = left < STRIPE_LEN - within ? left : STRIPE_LEN - within;
		within += row * STRIPE_LEN;
	}
	if (place->at == UINT64_MAX)
		return bm_fail(fault,
			       (struct bm_fault){.code = BM_NO_DEVICE, .found = place->devid});
	if (within >= place->room)
		return bm_fail(fault, (struct bm_fault){.code = BM_PAST_END,
							.device = image->devices ? place->devid : 0,
							.found = place->offset + within,
							.wanted = place->size});
	*physical = place->at + within;
	*contiguous = left < place->room - within ? left : place->room - within;
	return BM_OK;
}

/* ----------------------------------------------------------------------------------- parity -- */

static uint8_t powers[2 * FIELD], logarithms[FIELD + 1];

__attribute__((constructor)) static void make_powers(void)
{
	unsigned value = 1;

	for (int i = 0; i < FIELD; i++) {
		powers[i] = powers[i + FIELD] = (uint8_t)value;
		logarithms[value] = (uint8_t)i;
		value = value << 1 ^ (value & 0x80 ? 0x11d : 0);
	}
}

/* What each byte is times `factor`, which is not 0. */
static void make_products(uint8_t table[256], uint8_t factor)
{
	table[0] = 0;
	for (int i = 1; i < 256; i++)
		table[i] = powers[logarithms[i] + logarithms[factor]];
}

static void add_to(uint8_t *sum, const uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		sum[i] ^= bytes[i];
}

static void times_g(uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)(bytes[i] << 1 ^ (bytes[i] & 0x80 ? 0x1d : 0));
}

/* The bytes of a stripe in a row, or NULL when it is missing or ends before. */
static const uint8_t *bytes_at(const struct bm_image *image, const struct bm_place *place,
			       uint64_t offset, size_t size)
{
	if (place->at == UINT64_MAX || offset >= place->room || size > place->room - offset)
		return NULL;
	return image->base + place->at + offset;
}

/* What is made of which stripes of a row: roles that cannot be used, the wanted one first. */
struct row {
	const struct bm_mapped *chunk;
	uint64_t number;
	uint64_t offset; /* of the bytes in each stripe */
	uint32_t failed[2];
	uint32_t count;
};

static int has_failed(const struct row *row, uint32_t role)
{
	return role == row->failed[0] || (row->count > 1 && role == row->failed[1]);
}

/* Note that a role cannot be used; 0 when there is not parity enough. */
static int fail_role(struct row *row, uint32_t role)
{
	if (has_failed(row, role))
		return 1;
	if (row->count == row->chunk->parity)
		return 0;
	row->failed[row->count++] = role;
	return 1;
}

/*
 * recover_vertical(): the bytes of row->failed[0], a stripe of data, of all that can be used. `size`
 * is PIECE at most.
 */
static void recover(const struct bm_image *image, const struct row *row, uint8_t *out, size_t size)
{
	uint32_t width = row->chunk->width, wanted = row->failed[0];
	uint32_t other = row->count > 1 ? row->failed[1] : width + 1;
	uint8_t q[PIECE] = {0}, table[256];
	const uint8_t *parity[2];

	for (uint32_t i = 0; i < row->chunk->parity; i++)
		parity[i] =
		    bytes_at(image, in_row(row->chunk, row->number, width + i), row->offset, size);
	memset(out, 0, size);
	for (uint32_t role = width; role-- > 0;) {
		const uint8_t *data =
		    bytes_at(image, in_row(row->chunk, row->number, role), row->offset, size);

		times_g(q, size);
		if (has_failed(row, role))
			continue;
		add_to(out, data, size);
		add_to(q, data, size);
	}
	if (other != width)
		add_to(out, parity[0], size);
	if (other == width + 1) /* P alone has it */
		return;
	add_to(q, parity[1], size);
	if (other == width) { /* Q alone: g^wanted D */
		make_products(table, powers[FIELD - wanted]);
		for (size_t i = 0; i < size; i++)
			out[i] = table[q[i]];
		return;
	}
	/* out is D + E, and q is g^wanted D + g^other E */
	make_products(table, powers[other]);
	for (size_t i = 0; i < size; i++)
		q[i] ^= table[out[i]];
	make_products(table, powers[FIELD - logarithms[powers[wanted] ^ powers[other]]]);
	for (size_t i = 0; i < size; i++)
		out[i] = table[q[i]];
}

/*
 * raid56_parity_recover(): as copy 1 what P makes, or Q where a second stripe is missing; as each
 * further one what comes out when another stripe is taken for bad (set_rbio_raid6_extra_error()).
 */
static int read_by_parity(const struct bm_image *image, const struct bm_mapped *chunk,
			  uint64_t within, int copy, uint8_t *out, size_t size,
			  struct bm_fault *fault)
{
	uint64_t number = within / STRIPE_LEN;
	struct row row = {.chunk = chunk, .number = number / chunk->width, .count = 1};
	uint32_t roles = chunk->num_stripes;

	row.failed[0] = (uint32_t)(number % chunk->width);
	row.offset = row.number * STRIPE_LEN + within % STRIPE_LEN;
	for (uint32_t role = 0; role < roles; role++) {
		const struct bm_place *place = in_row(chunk, row.number, role);

		if (!bytes_at(image, place, row.offset, size) && !fail_role(&row, role))
			return bm_fail(
			    fault, (struct bm_fault){.code = BM_NO_DEVICE, .found = place->devid});
	}
	if (copy > 1) {
		uint32_t second = roles - (uint32_t)copy;

		if (second <= row.failed[0])
			second--;
		if (!fail_role(&row, second))
			return bm_fail(fault, (struct bm_fault){.code = BM_UNMAPPED,
								.found = chunk->logical + within});
	}
	recover(image, &row, out, size);
	return BM_OK;
}

int bm_image_read(const struct bm_image *image, uint64_t logical, int copy, uint64_t size,
		  uint8_t *out, struct bm_fault *fault)
{
	const struct bm_mapped *chunk = bm_find_chunk(image, logical);

	if (chunk && size > chunk->length - (logical - chunk->logical))
		return bm_fail(fault, (struct bm_fault){.code = BM_PAST_END,
							.found = logical + size,
							.wanted = chunk->logical + chunk->length});
	while (size) {
		uint64_t physical, piece;
		int ret;

		if (chunk && chunk->parity && copy > 0 && copy < (int)chunk->copies) {
			uint64_t within = logical - chunk->logical;

			piece = PIECE - within % PIECE < size ? PIECE - within % PIECE : size;
			ret = read_by_parity(image, chunk, within, copy, out, piece, fault);
			if (ret < 0)
				return ret;
		} else {
			ret = bm_image_map(image, logical, copy, &physical, &piece, fault);
			if (ret < 0)
				return ret;
			piece = piece < size ? piece : size;
			memcpy(out, image->base + physical, piece);
		}
		out += piece;
		logical += piece;
		size -= piece;
	}
	return BM_OK;
}
