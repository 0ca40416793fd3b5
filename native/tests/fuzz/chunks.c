// SPDX-License-Identifier: GPL-2.0-only
/*
 * Devices and chunks of any profile, with any stripes: bytes that are found and read through them, by
 * parity as well. Chunks ascend and do not overlap, as their caller sees to it.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#define DEVICES 6
#define CHUNKS 4
#define STRIPES 8
#define SIZE (1u << 20)
#define SECTOR 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	const uint8_t *data;
	size_t size;
};

static uint64_t take(struct input *input, size_t bytes)
{
	uint64_t value = 0;

	bytes = bytes < input->size ? bytes : input->size;
	memcpy(&value, input->data, bytes);
	input->data += bytes;
	input->size -= bytes;
	return value;
}

/* Mostly a number that makes sense; now and then any. */
static uint64_t number(struct input *input, uint64_t unit, uint64_t limit)
{
	const uint64_t how = take(input, 1);

	return how == 0xff ? take(input, 8) : how % limit * unit;
}

static void set_devices(struct bm_image *image, struct input *input)
{
	struct bm_member devices[DEVICES];
	const size_t count = take(input, 1) % (DEVICES + 1);
	struct bm_fault fault;

	for (size_t i = 0; i < count; i++)
		devices[i] = (struct bm_member){.devid = take(input, 1) % 8,
						.start = number(input, 65536, 16),
						.size = number(input, 65536, 16)};
	bm_image_set_devices(image, devices, count, &fault);
}

static void set_chunks(struct bm_image *image, struct input *input)
{
	struct bm_stripe stripes[CHUNKS][STRIPES];
	struct bm_chunk chunks[CHUNKS];
	const size_t count = 1 + take(input, 1) % CHUNKS;
	uint64_t logical = 1 << 20;
	struct bm_fault fault;

	for (size_t i = 0; i < count; i++) {
		chunks[i] = (struct bm_chunk){.logical = logical,
					      .length = number(input, SECTOR, 200),
					      .type = take(input, 2),
					      .stripes = stripes[i],
					      .num_stripes = take(input, 1) % (STRIPES + 1),
					      .sub_stripes = take(input, 1) % 5};
		for (size_t n = 0; n < STRIPES; n++)
			stripes[i][n] = (struct bm_stripe){.devid = take(input, 1) % 8,
							   .offset = number(input, SECTOR, 256)};
		if (chunks[i].length > UINT64_MAX - logical - SECTOR)
			chunks[i].length = SECTOR;
		logical += chunks[i].length + take(input, 1) % 2 * SECTOR;
	}
	bm_image_set_chunks(image, chunks, count, &fault);
}

static void use(struct bm_image *image, struct input *input)
{
	const struct bm_expect expect = {.level = -1};
	struct bm_fault fault;

	while (input->size) {
		const uint64_t logical = (1 << 20) + number(input, 512, 256);
		const uint64_t size = 1 + take(input, 2);
		const int copy = (int)(take(input, 1) % 6);
		uint64_t physical, contiguous;
		uint8_t *out = malloc(size);

		if (!out)
			abort();
		if (bm_image_map(image, logical, copy, &physical, &contiguous, &fault) == 0 &&
		    (physical > SIZE || contiguous > SIZE - physical))
			abort();
		bm_image_read(image, logical, copy, size, out, &fault);
		bm_image_verify_copy(image, logical, copy, &expect, &fault);
		bm_image_block(image, logical, &expect, &fault);
		if (bm_image_copies(image, logical) < 0)
			abort();
		free(out);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t base[SIZE];
	static const uint8_t fsid[16];
	struct input input = {data, size};
	struct bm_image *image = bm_image_create(base, SIZE, 16384, SECTOR, 0, fsid);

	if (!image)
		abort();
	if (take(&input, 1) & 1)
		set_devices(image, &input);
	set_chunks(image, &input);
	use(image, &input);
	bm_image_destroy(image);
	return 0;
}
