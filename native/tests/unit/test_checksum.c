// SPDX-License-Identifier: GPL-2.0-only
/*
 * Checksums against published values, and crc32c against its definition bit by bit.
 */
#include "image/checksum.h"
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

/* CRC-32C by polynomial division, reflected: 0x82f63b78. */
static uint32_t crc_by_bits(uint32_t crc, const uint8_t *data, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		crc ^= data[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
	}
	return crc;
}

static int is_hex(const uint8_t *digest, const char *hex)
{
	for (size_t i = 0; hex[2 * i]; i++) {
		char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};

		if (digest[i] != strtoul(pair, NULL, 16))
			return 0;
	}
	return 1;
}

static void test_crc32c(void)
{
	uint8_t data[20000];
	uint32_t state = 1;

	for (size_t i = 0; i < sizeof(data); i++) {
		state = state * 1103515245 + 12345;
		data[i] = (uint8_t)(state >> 16);
	}
	CHECK(~bm_crc32c(~0u, "123456789", 9) == 0xe3069283);
	CHECK(bm_crc32c(7, data, 0) == 7);
	/* every length and alignment around the widths that fast versions work in */
	for (size_t size = 0; size < 300; size++)
		for (size_t start = 0; start < 9; start++)
			CHECK(bm_crc32c(state, data + start, size) ==
			      crc_by_bits(state, data + start, size));
	for (size_t size = 301; size < sizeof(data); size = size * 7 / 5 + 1)
		CHECK(bm_crc32c(0, data + size % 3, size - size % 3) ==
		      crc_by_bits(0, data + size % 3, size - size % 3));
	/* in two parts as in one */
	for (size_t cut = 0; cut < 4096; cut += 61)
		CHECK(bm_crc32c(bm_crc32c(5, data, cut), data + cut, 4096 - cut) ==
		      bm_crc32c(5, data, 4096));
}

static void test_digests(void)
{
	uint8_t digest[32];
	char *million = malloc(1000000);

	CHECK(bm_xxh64("", 0) == 0xef46db3751d8e999);
	CHECK(bm_xxh64("abc", 3) == 0x44bc2cf5ad770999);
	CHECK(bm_xxh64("Nobody inspects the spammish repetition", 39) == 0xfbcea83c8a378bf1);
	bm_sha256("", 0, digest);
	CHECK(is_hex(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
	bm_sha256("abc", 3, digest);
	CHECK(is_hex(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
	bm_blake2b_256("abc", 3, digest);
	CHECK(is_hex(digest, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"));
	CHECK(million != NULL);
	if (!million)
		return;
	memset(million, 'a', 1000000);
	bm_sha256(million, 1000000, digest);
	CHECK(is_hex(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
	free(million);
}

static void test_on_disk(void)
{
	static const int lengths[] = {4, 8, 32, 32};
	uint8_t digest[32];

	for (int type = 0; type < 4; type++)
		CHECK(bm_csum(type, "abc", 3, digest) == lengths[type]);
	CHECK(bm_csum(4, "abc", 3, digest) == 0);
	CHECK(bm_csum(-1, "abc", 3, digest) == 0);
	bm_csum(0, "123456789", 9, digest);
	CHECK(is_hex(digest, "839206e3"));
	bm_csum(1, "abc", 3, digest);
	CHECK(is_hex(digest, "990977adf52cbc44"));
}

int main(void)
{
	test_crc32c();
	test_digests();
	test_on_disk();
	return finish("checksum");
}
