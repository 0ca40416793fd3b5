// SPDX-License-Identifier: GPL-2.0-only
/*
 * The four checksums of btrfs: crc32c, xxhash64, sha256, blake2b-256.
 *
 * crc32c is computed without inversion; callers that need the ordinary one (tree blocks, data)
 * start with ~0 and invert the result. Where the processor multiplies polynomials of 64 bits in
 * eight lanes, 256 bytes at a time are folded onto the next 256. Where it has the instruction for
 * a CRC, three chains run side by side, because it takes three cycles to finish but one can start
 * every cycle; the three results are joined by tables that advance a CRC over a fixed number of
 * zero bytes. Elsewhere eight table look-ups take eight bytes at a time.
 *
 * Sources: CRC-32C is iSCSI's (RFC 3720); XXH64 its specification; SHA-256 FIPS 180-4; BLAKE2b
 * RFC 7693.
 */
#include "image/internal.h"

#include <string.h>

/* `make test` defines these, so that what other processors do is tested on this one. */
#if defined(__x86_64__) && !defined(TABLES_ONLY)
#define HAVE_SSE42 1
#else
#define HAVE_SSE42 0
#endif
#if HAVE_SSE42 && !defined(CHAINS_ONLY)
#include <immintrin.h>
#define HAVE_FOLDING 1
#else
#define HAVE_FOLDING 0
#endif

#define CRC32C_POLY 0x82f63b78u /* reflected */
#define LONG_RUN 2048		/* bytes of each of the three chains */
#define SHORT_RUN 256

static uint32_t crc_table[8][256];

#if HAVE_SSE42
static struct bm_crc_shift long_shift, short_shift;
static int crc_hardware;
#endif

/* Advance `crc` over one zero bit. */
static uint32_t crc_zero_bit(uint32_t crc)
{
	return (crc >> 1) ^ (crc & 1 ? CRC32C_POLY : 0);
}

/* A CRC is the sum of its bits, and so is what becomes of it: each bit by itself, in byte tables. */
void bm_crc_shift_init(struct bm_crc_shift *shift, size_t bytes)
{
	for (int byte = 0; byte < 4; byte++) {
		uint32_t *table = shift->table[byte];

		for (int bit = 0; bit < 8; bit++) {
			uint32_t crc = 1u << (8 * byte + bit);

			for (size_t i = 0; i < bytes; i += 4)
				crc = crc_table[3][crc & 0xff] ^ crc_table[2][crc >> 8 & 0xff] ^
				      crc_table[1][crc >> 16 & 0xff] ^ crc_table[0][crc >> 24];
			table[1 << bit] = crc;
		}
		table[0] = 0;
		for (int value = 1; value < 256; value++)
			table[value] = table[value & -value] ^ table[value & (value - 1)];
	}
}

static uint32_t crc32c_tables(uint32_t crc, const uint8_t *p, size_t size)
{
	for (; size >= 8; p += 8, size -= 8) {
		uint64_t word;

		memcpy(&word, p, 8);
		word ^= crc;
		crc = 0;
		for (int k = 0; k < 8; k++)
			crc ^= crc_table[7 - k][word >> (8 * k) & 0xff];
	}
	for (; size; p++, size--)
		crc = (crc >> 8) ^ crc_table[0][(crc ^ *p) & 0xff];
	return crc;
}

#if HAVE_SSE42
/*
 * The instruction by its name: the intrinsics want a target to be named, and compilers differ in
 * which one has it.
 */
static inline uint64_t crc_word(uint64_t crc, const uint8_t *p)
{
	uint64_t word;

	memcpy(&word, p, 8);
	__asm__("crc32q %1, %0" : "+r"(crc) : "r"(word));
	return crc;
}

static inline uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
	__asm__("crc32b %1, %0" : "+r"(crc) : "r"(byte));
	return crc;
}

/* As many groups of three runs of `run` bytes as fit. */
static inline uint64_t crc_three(uint64_t crc, const uint8_t **data, size_t *size, size_t run,
				 const struct bm_crc_shift *shift)
{
	const uint8_t *p = *data;

	while (*size >= 3 * run) {
		uint64_t a = crc, b = 0, c = 0;

		for (const uint8_t *end = p + run; p < end; p += 8) {
			a = crc_word(a, p);
			b = crc_word(b, p + run);
			c = crc_word(c, p + 2 * run);
		}
		crc = bm_crc_shifted(shift, (uint32_t)a) ^ b;
		crc = bm_crc_shifted(shift, (uint32_t)crc) ^ c;
		p += 2 * run;
		*size -= 3 * run;
	}
	*data = p;
	return crc;
}

static uint32_t crc32c_sse42(uint32_t seed, const uint8_t *p, size_t size)
{
	uint64_t crc = seed;

	crc = crc_three(crc, &p, &size, LONG_RUN, &long_shift);
	crc = crc_three(crc, &p, &size, SHORT_RUN, &short_shift);
	for (; size >= 8; p += 8, size -= 8)
		crc = crc_word(crc, p);
	for (; size; p++, size--)
		crc = crc_byte((uint32_t)crc, *p);
	return (uint32_t)crc;
}
#endif

#if HAVE_FOLDING
/* sse4.2 has crc32 in it, but for clang 22 */
#define FOLDS __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2,crc32")))

enum { FOLD_RUN = 256 };

/* What to multiply by, the two halves of a lane, to get over so many bits. */
struct fold {
	uint64_t low, high;
};
static struct fold fold_2048, fold_512, fold_384, fold_256, fold_128;
static int crc_folds;

/* x to this power, reflected; a product of two reflected numbers is one bit short. */
static uint64_t crc_power(int bits)
{
	uint32_t crc = 0x80000000;

	while (bits--)
		crc = crc_zero_bit(crc);
	return (uint64_t)crc << 1;
}

static struct fold fold_over(int bits)
{
	return (struct fold){crc_power(bits + 32), crc_power(bits - 32)};
}

FOLDS static inline __m512i fold_four(__m512i lanes, struct fold by, __m512i next)
{
	__m512i both = _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)by.high, (int64_t)by.low));

	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, both, 0x00),
					 _mm512_clmulepi64_epi128(lanes, both, 0x11), next, 0x96);
}

FOLDS static inline __m128i fold_one(__m128i lane, struct fold by, __m128i next)
{
	__m128i both = _mm_set_epi64x((int64_t)by.high, (int64_t)by.low);

	return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(lane, both, 0x00),
					   _mm_clmulepi64_si128(lane, both, 0x11)),
			     next);
}

/* Of whole runs, one at least. */
FOLDS static uint32_t crc32c_folded(uint32_t seed, const uint8_t *p, size_t size)
{
	__m512i lanes[4], all;
	__m128i last;

	for (int i = 0; i < 4; i++)
		lanes[i] = _mm512_loadu_si512(p + 64 * i);
	lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)seed)));
	for (p += FOLD_RUN; size > FOLD_RUN; p += FOLD_RUN, size -= FOLD_RUN)
		for (int i = 0; i < 4; i++)
			lanes[i] = fold_four(lanes[i], fold_2048, _mm512_loadu_si512(p + 64 * i));
	all = fold_four(lanes[0], fold_512, lanes[1]);
	all = fold_four(all, fold_512, lanes[2]);
	all = fold_four(all, fold_512, lanes[3]);
	last = _mm512_extracti32x4_epi32(all, 3);
	last = fold_one(_mm512_extracti32x4_epi32(all, 0), fold_384, last);
	last = fold_one(_mm512_extracti32x4_epi32(all, 1), fold_256, last);
	last = fold_one(_mm512_extracti32x4_epi32(all, 2), fold_128, last);
	return (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(last)),
				       (uint64_t)_mm_extract_epi64(last, 1));
}
#endif

__attribute__((constructor)) static void crc32c_init(void)
{
	for (int n = 0; n < 256; n++) {
		uint32_t crc = (uint32_t)n;

		for (int bit = 0; bit < 8; bit++)
			crc = crc_zero_bit(crc);
		crc_table[0][n] = crc;
	}
	for (int n = 0; n < 256; n++)
		for (int k = 1; k < 8; k++)
			crc_table[k][n] =
			    (crc_table[k - 1][n] >> 8) ^ crc_table[0][crc_table[k - 1][n] & 0xff];
#if HAVE_SSE42
	crc_hardware = __builtin_cpu_supports("sse4.2") != 0;
	if (crc_hardware) {
		bm_crc_shift_init(&long_shift, LONG_RUN);
		bm_crc_shift_init(&short_shift, SHORT_RUN);
	}
#endif
#if HAVE_FOLDING
	crc_folds = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq");
	fold_2048 = fold_over(2048);
	fold_512 = fold_over(512);
	fold_384 = fold_over(384);
	fold_256 = fold_over(256);
	fold_128 = fold_over(128);
#endif
}

uint32_t bm_crc32c(uint32_t seed, const void *data, size_t size)
{
#if HAVE_FOLDING
	if (crc_folds && size >= FOLD_RUN) {
		size_t whole = size / FOLD_RUN * FOLD_RUN;

		seed = crc32c_folded(seed, data, whole);
		data = (const uint8_t *)data + whole;
		size -= whole;
	}
#endif
#if HAVE_SSE42
	if (crc_hardware)
		return crc32c_sse42(seed, data, size);
#endif
	return crc32c_tables(seed, data, size);
}

/* ------------------------------------------------------------------------------------ xxh64 -- */

#define XXH_P1 0x9e3779b185ebca87ull
#define XXH_P2 0xc2b2ae3d27d4eb4full
#define XXH_P3 0x165667b19e3779f9ull
#define XXH_P4 0x85ebca77c2b2ae63ull
#define XXH_P5 0x27d4eb2f165667c5ull

static inline uint64_t rotl64(uint64_t x, int n)
{
	return x << n | x >> (64 - n);
}

static inline uint64_t rotr64(uint64_t x, int n)
{
	return x >> n | x << (64 - n);
}

static inline uint32_t rotr32(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static inline uint64_t xxh_round(uint64_t acc, uint64_t lane)
{
	return rotl64(acc + lane * XXH_P2, 31) * XXH_P1;
}

uint64_t bm_xxh64(const void *data, size_t size)
{
	const uint8_t *p = data;
	size_t left = size;
	uint64_t hash, lane;
	uint32_t half;

	if (size >= 32) {
		uint64_t acc[4] = {XXH_P1 + XXH_P2, XXH_P2, 0, 0 - XXH_P1};

		for (; left >= 32; left -= 32)
			for (int i = 0; i < 4; i++, p += 8) {
				memcpy(&lane, p, 8);
				acc[i] = xxh_round(acc[i], lane);
			}
		hash =
		    rotl64(acc[0], 1) + rotl64(acc[1], 7) + rotl64(acc[2], 12) + rotl64(acc[3], 18);
		for (int i = 0; i < 4; i++)
			hash = (hash ^ xxh_round(0, acc[i])) * XXH_P1 + XXH_P4;
	} else {
		hash = XXH_P5;
	}
	hash += size;
	for (; left >= 8; left -= 8, p += 8) {
		memcpy(&lane, p, 8);
		hash = rotl64(hash ^ xxh_round(0, lane), 27) * XXH_P1 + XXH_P4;
	}
	if (left >= 4) {
		memcpy(&half, p, 4);
		hash = rotl64(hash ^ half * XXH_P1, 23) * XXH_P2 + XXH_P3;
		p += 4;
		left -= 4;
	}
	for (; left; left--, p++)
		hash = rotl64(hash ^ *p * XXH_P5, 11) * XXH_P1;
	hash = (hash ^ hash >> 33) * XXH_P2;
	hash = (hash ^ hash >> 29) * XXH_P3;
	return hash ^ hash >> 32;
}

/* ----------------------------------------------------------------------------------- sha256 -- */

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static void sha256_block(uint32_t state[8], const uint8_t *p)
{
	uint32_t w[64], v[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t s0 = rotr32(w[i - 15], 7) ^ rotr32(w[i - 15], 18) ^ w[i - 15] >> 3;
		uint32_t s1 = rotr32(w[i - 2], 17) ^ rotr32(w[i - 2], 19) ^ w[i - 2] >> 10;

		w[i] = w[i - 16] + s0 + w[i - 7] + s1;
	}
	memcpy(v, state, sizeof(v));
	for (int i = 0; i < 64; i++) {
		uint32_t s1 = rotr32(v[4], 6) ^ rotr32(v[4], 11) ^ rotr32(v[4], 25);
		uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + sha256_k[i] + w[i];
		uint32_t s0 = rotr32(v[0], 2) ^ rotr32(v[0], 13) ^ rotr32(v[0], 22);
		uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

		memmove(v + 1, v, 7 * sizeof(v[0]));
		v[4] += t1;
		v[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		state[i] += v[i];
}

void bm_sha256(const void *data, size_t size, uint8_t *digest)
{
	uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
			     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	const uint8_t *p = data;
	uint8_t tail[128] = {0};
	size_t left = size, tail_size;
	uint64_t bits = (uint64_t)size * 8;

	for (; left >= 64; left -= 64, p += 64)
		sha256_block(state, p);
	if (left)
		memcpy(tail, p, left);
	tail[left] = 0x80;
	tail_size = left < 56 ? 64 : 128;
	for (int i = 0; i < 8; i++)
		tail[tail_size - 1 - i] = (uint8_t)(bits >> (8 * i));
	for (size_t at = 0; at < tail_size; at += 64)
		sha256_block(state, tail + at);
	for (int i = 0; i < 32; i++)
		digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---------------------------------------------------------------------------------- blake2b -- */

static const uint64_t blake2b_iv[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const uint8_t blake2b_sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline void blake2b_mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
	v[a] += v[b] + x;
	v[d] = rotr64(v[d] ^ v[a], 32);
	v[c] += v[d];
	v[b] = rotr64(v[b] ^ v[c], 24);
	v[a] += v[b] + y;
	v[d] = rotr64(v[d] ^ v[a], 16);
	v[c] += v[d];
	v[b] = rotr64(v[b] ^ v[c], 63);
}

static void blake2b_block(uint64_t h[8], const uint8_t *p, uint64_t count, int last)
{
	uint64_t m[16], v[16];

	memcpy(m, p, sizeof(m));
	memcpy(v, h, 8 * sizeof(*v));
	memcpy(v + 8, blake2b_iv, sizeof(blake2b_iv));
	v[12] ^= count;
	if (last)
		v[14] = ~v[14];
	for (int round = 0; round < 12; round++) {
		const uint8_t *s = blake2b_sigma[round % 10];

		for (int i = 0; i < 4; i++)
			blake2b_mix(v, i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
		for (int i = 0; i < 4; i++)
			blake2b_mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4,
				    m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
	}
	for (int i = 0; i < 8; i++)
		h[i] ^= v[i] ^ v[i + 8];
}

void bm_blake2b_256(const void *data, size_t size, uint8_t *digest)
{
	uint64_t h[8];
	const uint8_t *p = data;
	uint8_t tail[128] = {0};
	size_t left = size;

	memcpy(h, blake2b_iv, sizeof(h));
	h[0] ^= 0x01010020; /* digest of 32 bytes, no key, sequential */
	for (; left > 128; left -= 128, p += 128)
		blake2b_block(h, p, size - left + 128, 0);
	if (left)
		memcpy(tail, p, left);
	blake2b_block(h, tail, size, 1);
	memcpy(digest, h, 32);
}

int bm_csum(int csum_type, const void *data, size_t size, uint8_t *digest)
{
	uint32_t crc;
	uint64_t hash;

	switch (csum_type) {
	case BTRFS_CSUM_TYPE_CRC32:
		crc = ~bm_crc32c(~0u, data, size);
		memcpy(digest, &crc, 4);
		return 4;
	case BTRFS_CSUM_TYPE_XXHASH:
		hash = bm_xxh64(data, size);
		memcpy(digest, &hash, 8);
		return 8;
	case BTRFS_CSUM_TYPE_SHA256:
		bm_sha256(data, size, digest);
		return 32;
	case BTRFS_CSUM_TYPE_BLAKE2:
		bm_blake2b_256(data, size, digest);
		return 32;
	default:
		return 0;
	}
}

void bm_name_hashes(const uint8_t *names, const uint32_t *sizes, size_t count, uint64_t *hashes)
{
	for (size_t i = 0; i < count; names += sizes[i++])
		hashes[i] = bm_crc32c(0xfffffffe, names, sizes[i]);
}
