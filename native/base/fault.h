/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What went wrong, and where.
 *
 * A kernel cannot raise an exception, and a number alone does not say where an image is damaged. So
 * every kernel that can fail fills a struct bm_fault: a code and a place. Python makes one line of
 * it that names the file (btrfs_model/base/errors.py); btrfs_model/base/codes.py has the same codes.
 * With it how a caller ends a kernel that takes long.
 */
#ifndef BTRFS_MODEL_FAULT_H
#define BTRFS_MODEL_FAULT_H

#include <stdint.h>

enum bm_code {
	BM_OK = 0,
	BM_NOMEM = -1,
	/* reading a tree block */
	BM_UNMAPPED = -2,	 /* no chunk holds this logical address: found = address */
	BM_PAST_END = -3,	 /* the chunk lies beyond the end of the image: found = physical */
	BM_UNALIGNED = -4,	 /* a block address that is not a multiple of the sector size */
	BM_BAD_CSUM = -5,	 /* found/wanted = first 8 bytes of the checksums */
	BM_BAD_BYTENR = -6,	 /* header.bytenr differs from the address read */
	BM_BAD_FSID = -7,	 /* header.fsid is not the filesystem's */
	BM_BAD_LEVEL = -8,	 /* header.level differs from what the parent implies */
	BM_BAD_GENERATION = -9,	 /* header.generation differs from the pointer's */
	BM_BAD_NRITEMS = -10,	 /* more items than fit, or an empty node */
	BM_BAD_KEY_ORDER = -11,	 /* keys of the block do not ascend: slot = the offender */
	BM_BAD_ITEM_RANGE = -12, /* item data outside the leaf, overlapping or with gaps */
	BM_BAD_BLOCKPTR = -13,	 /* a node points at address 0 or an unaligned one */
	BM_BAD_FIRST_KEY = -14,	 /* first key differs from the key in the parent */
	BM_BAD_OWNER = -15,	 /* header.owner is not this tree */
	BM_BAD_MAGIC = -16,	 /* no superblock where one must be */
	BM_BAD_LAST_KEY = -17,	 /* found = block below the slot, with keys of the next slot */
	BM_NO_DEVICE = -18,	 /* the device is missing: found = devid */
	/* reading an item */
	BM_BAD_ITEM_SIZE = -20, /* payload too short for its type: found = size, wanted = minimum */
	BM_BAD_VALUE = -21,	/* a field holds what no kernel writes: found = value */
	BM_NOT_FOUND = -22,	/* an item that must exist does not */
	BM_LOOP = -23,		/* a walk came back to where it had been */
	/* file data */
	BM_BAD_DATA = -30,	/* compressed bytes that do not decompress */
	BM_BAD_DATA_CSUM = -31, /* a data sector whose checksum differs */
	/* streams: offset = byte of the stream */
	BM_STREAM_TRUNCATED = -40,
	BM_STREAM_BAD_MAGIC = -41,
	BM_STREAM_BAD_VERSION = -42,
	BM_STREAM_BAD_CRC = -43,
	BM_STREAM_BAD_COMMAND = -44,
	BM_STREAM_BAD_ATTRIBUTE = -45, /* slot = the attribute, here and in the following */
	BM_STREAM_BAD_LENGTH = -46,    /* an attribute goes on past the end of its command */
	BM_STREAM_BAD_SIZE = -47,      /* a value of another size than its type has */
	BM_STREAM_MISSING = -48,       /* a mandatory attribute is not there */
	BM_STREAM_TWICE = -49,	       /* an attribute is there twice */
	BM_STREAM_LONG_PATH = -60,     /* a path that does not fit into PATH_MAX */
	BM_STREAM_BAD_TIME = -61,      /* a time that has no date */
	/* the world outside */
	BM_ERRNO = -50,	   /* the kernel would return this errno here: found = errno */
	BM_CALLBACK = -51, /* a callback of the caller failed, or bm_set_poll()'s said to stop */
	BM_FILE_CHANGED = -52, /* a mapped file was cut off, or cannot be read: offset = byte */
};

/* Where something went wrong. Fields that do not apply are 0. */
struct bm_fault {
	int32_t code;
	uint32_t slot;
	uint64_t tree;	 /* objectid of the tree */
	uint64_t block;	 /* logical address of the tree block */
	uint64_t offset; /* byte in the image, or device of it, the stream or the file */
	uint64_t device; /* devid, of an image of several devices */
	uint64_t found;
	uint64_t wanted;
};

/*
 * What loops over many blocks call from time to time; not 0: end with BM_CALLBACK. It is for all
 * threads, and changes nothing. NULL: nothing is called.
 */
void bm_set_poll(int (*poll)(void));

#endif
