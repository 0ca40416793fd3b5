/* SPDX-License-Identifier: GPL-2.0-only */
/* Checksums of tree blocks, data and commands; the hashes in keys are made of CRC-32C, too. */
#ifndef BTRFS_MODEL_CHECKSUM_H
#define BTRFS_MODEL_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C without inversion before or after: name hashes and send streams use it like this. */
uint32_t bm_crc32c(uint32_t seed, const void *data, size_t size);
/* What so many zero bytes, a multiple of 4, make of a CRC: joins those of two pieces. */
struct bm_crc_shift {
	uint32_t table[4][256];
};
void bm_crc_shift_init(struct bm_crc_shift *shift, size_t bytes);
static inline uint32_t bm_crc_shifted(const struct bm_crc_shift *shift, uint32_t crc)
{
	return shift->table[0][crc & 0xff] ^ shift->table[1][crc >> 8 & 0xff] ^
	       shift->table[2][crc >> 16 & 0xff] ^ shift->table[3][crc >> 24];
}
uint64_t bm_xxh64(const void *data, size_t size);
void bm_sha256(const void *data, size_t size, uint8_t *digest);
/* blake2b with a digest of 32 bytes and no key. */
void bm_blake2b_256(const void *data, size_t size, uint8_t *digest);
/* Checksum of a tree block or data sector as stored on disk; returns the length, 0: no such type. */
int bm_csum(int csum_type, const void *data, size_t size, uint8_t *digest);

#endif
