// SPDX-License-Identifier: GPL-2.0-only
/* lzo streams of any bytes; and bytes that are compressed, with lzo and back again. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#define MOST 20000u
#define PAGE 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t *room_for(size_t size)
{
	uint8_t *room = malloc(size ? size : 1);

	if (!room)
		abort();
	return room;
}

static void decompress(const uint8_t *data, uint32_t size, uint32_t capacity)
{
	uint8_t *out = room_for(capacity);
	const int64_t found = bm_lzo1x_decompress(data, size, out, capacity);

	if (found != BM_BAD_DATA && (found < 0 || found > capacity))
		abort();
	free(out);
}

static void there_and_back(const uint8_t *data, uint32_t size)
{
	uint8_t *packed = room_for(size + size / 16 + 64 + 3), *again = room_for(size);
	const int64_t found = bm_lzo1x_compress(data, size, packed);

	if (bm_lzo1x_decompress(packed, (uint32_t)found, again, size) != size ||
	    memcmp(again, data, size))
		abort();
	free(packed);
	free(again);
}

static void deflate(const uint8_t *data, uint32_t size, uint8_t how)
{
	const uint32_t capacity = how & 0x80 ? size / 2 : 2 * size + PAGE;
	uint8_t *out = room_for(capacity);

	if (bm_zlib_compress(data, size, 1 + how % 9, how >> 5 & 1, PAGE, out, capacity) > capacity)
		abort();
	free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy;
	uint32_t left;

	if (size < 4 || size > MOST)
		return 0;
	left = (uint32_t)size - 3;
	/* of its exact size, for AddressSanitizer */
	copy = room_for(left);
	memcpy(copy, data + 3, left);
	if (data[0] & 1)
		decompress(copy, left, (data[1] | (uint32_t)data[2] << 8));
	else if (data[0] & 2)
		there_and_back(copy, left);
	else
		deflate(copy, left, data[1]);
	free(copy);
	return 0;
}
