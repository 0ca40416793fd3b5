// SPDX-License-Identifier: GPL-2.0-only
/*
 * lzo and zlib of data of many kinds, and lzo streams in which bytes are wrong. What is read and
 * written lies at the very end of an allocation, so that under AddressSanitizer a byte too many ends
 * the test.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SECTOR 4096
#define MOST 131072
#define WORST(size) ((size) + (size) / 16 + 64 + 3)

static uint32_t state = 1;

static uint32_t number(uint32_t below)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % below;
}

/* Runs, copies of what came before, and noise. */
static uint8_t *make(uint32_t size)
{
	uint8_t *data = malloc(size);

	for (uint32_t at = 0; at < size;) {
		uint32_t count = 1 + number(number(2) ? 400 : 12), kind = number(4);
		uint32_t from = number(at + 1);

		for (; count && at < size; count--, at++)
			data[at] = (uint8_t)(kind == 0	 ? 0
					     : kind == 1 ? number(256)
							 : data[from++]);
	}
	return data;
}

static void test_lzo(uint32_t size)
{
	uint8_t *data = make(size), *room = malloc(WORST(size));
	int64_t packed = bm_lzo1x_compress(data, size, room);
	uint8_t *stream = malloc((size_t)packed), *again = malloc(size);

	CHECK(packed >= 3 && packed <= (int64_t)WORST(size));
	memcpy(stream, room, (size_t)packed);
	CHECK(bm_lzo1x_decompress(stream, (uint32_t)packed, again, size) == size);
	CHECK(!memcmp(data, again, size));
	CHECK(bm_lzo1x_decompress(stream, (uint32_t)packed, again, size - 1) == BM_BAD_DATA);
	CHECK(bm_lzo1x_decompress(stream, (uint32_t)packed - 1, again, size) == BM_BAD_DATA);
	for (int i = 0; i < 20; i++) {
		int64_t found;

		stream[number((uint32_t)packed)] = (uint8_t)number(256);
		found = bm_lzo1x_decompress(stream, (uint32_t)packed, again, size);
		CHECK(found == BM_BAD_DATA || (found >= 0 && found <= size));
	}
	free(data);
	free(room);
	free(stream);
	free(again);
}

static void test_zlib(uint32_t size)
{
	uint32_t room = 2 * size + SECTOR;
	uint8_t *data = make(size), *out = malloc(room);

	for (int level = 1; level <= 9; level++) {
		int64_t packed = bm_zlib_compress(data, size, level, level % 2, SECTOR, out, room);

		CHECK(packed >= 0 && packed < size);
		/* what does not fit is none */
		if (packed > 10)
			CHECK(!bm_zlib_compress(data, size, level, level % 2, SECTOR, out, 10));
	}
	free(data);
	free(out);
}

int main(void)
{
	for (uint32_t size = 1; size < 200; size++)
		test_lzo(size);
	for (int i = 0; i < 200; i++)
		test_lzo(1 + number(2 * SECTOR));
	for (int i = 0; i < 20; i++) {
		test_lzo(1 + number(MOST));
		test_zlib(1 + number(MOST));
	}
	return finish("compress");
}
