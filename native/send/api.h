/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The stream of a subvolume, byte for byte as BTRFS_IOC_SEND writes it: the kernel's send.c.
 *
 * With it the reason for each command, which the kernel knows and does not tell.
 */
#ifndef BTRFS_MODEL_SEND_API_H
#define BTRFS_MODEL_SEND_API_H

#include <stddef.h>
#include <stdint.h>

#include "backref/api.h"
#include "base/fault.h"
#include "toggles.h"
#include "tree/api.h"

enum bm_send_flag {
	BM_SEND_NO_FILE_DATA = 1,
	BM_SEND_OMIT_STREAM_HEADER = 2,
	BM_SEND_OMIT_END_CMD = 4,
	BM_SEND_COMPRESSED = 16,
	/*
	 * Not the kernel's: file data are neither read nor summed, and nothing is handed out; args->size
	 * takes the bytes of the stream.
	 */
	BM_SEND_SIZE_ONLY = 1 << 16,
};

enum { BM_SEND_COMMANDS = 27 };

/* A subvolume that may be cloned from; the subvolume being sent is one of them. */
struct bm_send_root {
	uint64_t objectid;
	uint64_t ctransid;
	uint8_t uuid[16]; /* its received_uuid, or its own where that is zero */
};

/* The rule by which a command was sent; btrfs_model/questions/send/causes.py has a line on each. */
enum bm_send_cause {
	BM_SEND_SUBVOL_BEGIN,
	BM_SEND_STREAM_END,
	BM_SEND_INODE_NEW,
	BM_SEND_INODE_REPLACED,
	BM_SEND_PARENT_EARLY,
	BM_SEND_NAME_IN_THE_WAY,
	BM_SEND_LINK_IN_THE_WAY,
	BM_SEND_FIRST_NAME,
	BM_SEND_NAME_AFTER_ORPHAN,
	BM_SEND_DIR_MOVED,
	BM_SEND_DIR_MOVED_LATER,
	BM_SEND_NAME_ADDED,
	BM_SEND_NAME_REMOVED,
	BM_SEND_ORPHAN_REMOVED,
	BM_SEND_LINKS_GONE,
	BM_SEND_DIR_REMOVED,
	BM_SEND_DIR_NOT_EMPTY,
	BM_SEND_DIR_EMPTIED,
	BM_SEND_DIR_LEFT,
	BM_SEND_XATTR_SET,
	BM_SEND_XATTR_REMOVED,
	BM_SEND_CAPABILITIES,
	BM_SEND_CLONE_SOURCE,
	BM_SEND_CLONE_TRUNCATE,
	BM_SEND_WRITE_INLINE,
	BM_SEND_WRITE_UNALLOCATED,
	BM_SEND_WRITE_NO_SOURCE,
	BM_SEND_WRITE_UNALIGNED,
	BM_SEND_WRITE_FIRST_SECTOR,
	BM_SEND_WRITE_SOURCE_HOLE,
	BM_SEND_WRITE_SOURCE_DIFFERS,
	BM_SEND_WRITE_SOURCE_TAIL,
	BM_SEND_WRITE_SOURCE_ENDS,
	BM_SEND_HOLE,
	BM_SEND_HOLE_AT_END,
	BM_SEND_TRUNCATE_SIZE,
	BM_SEND_TRUNCATE_ALWAYS,
	BM_SEND_OWNER_NEW,
	BM_SEND_OWNER_CHANGED,
	BM_SEND_MODE_NEW,
	BM_SEND_MODE_CHANGED,
	BM_SEND_FLAGS_CHANGED,
	BM_SEND_VERITY,
	BM_SEND_TIMES_INODE,
	BM_SEND_TIMES_ENTRY,
	BM_SEND_TIMES_MOVE,
	BM_SEND_CAUSES,
};

/* The item that differs, by its key; all zero where a command comes from no item. */
struct bm_send_item {
	uint64_t objectid;
	uint64_t offset;
	uint8_t type;
	uint8_t change; /* enum bm_change */
};

/* Why a command was sent, and which inode it is about. */
struct bm_send_why {
	uint64_t inode;
	struct bm_send_item item;
	uint32_t cause; /* enum bm_send_cause */
};

/* What became of a place that an extent might be cloned from; the names are in causes.py, too. */
enum bm_send_verdict {
	BM_SEND_CHOSEN,
	BM_SEND_NOT_SENT_YET,
	BM_SEND_FILE_TOO_SHORT,
	BM_SEND_OTHER_PLACE,
	BM_SEND_OTHER_SOURCE,
	BM_SEND_END_UNALIGNED,
	BM_SEND_TOO_MANY_REFERENCES,
	BM_SEND_NOT_A_SOURCE,
	BM_SEND_VERDICTS,
};

/*
 * A place that refers to an extent, in a tree that may be cloned from. Of an extent for which none
 * was found there is one row without a place, NOT_A_SOURCE or TOO_MANY_REFERENCES.
 */
struct bm_send_place {
	uint64_t command;     /* row of the extent's first command */
	uint64_t bytenr, pos; /* of the extent, and the byte of it that is sought */
	uint64_t root, ino, offset, num_bytes;
	uint64_t verdict; /* enum bm_send_verdict */
};

/* One row for each command, in the order of the stream; places in the order they were found in. */
struct bm_send_explained {
	struct bm_send_why *rows;
	size_t count, capacity;
	struct bm_send_place *places;
	size_t place_count, place_capacity;
};

/* How many entries a send remembers of a kind, and goes through; btrfs_model/limits.py tells more. */
struct bm_send_limits {
	uint64_t name_cache, name_cache_kept;
	uint64_t dir_created_cache;
	uint64_t dir_utimes_cache;
	uint64_t backref_cache, backref_cache_roots;
	uint64_t clone_refs;
};

struct bm_send_args {
	const struct bm_forest *forest;
	struct bm_send_limits limits;		/* none is 0 */
	const struct bm_send_root *clone_roots; /* ascending by objectid */
	size_t clone_root_count;
	uint64_t send_root;
	const struct bm_send_root *parent; /* NULL: a full send */
	uint64_t behaviour;		   /* bits 1 << enum bm_toggle */
	uint32_t flags;			   /* enum bm_send_flag */
	uint32_t proto;
	uint64_t *commands; /* counted by number: an array of BM_SEND_COMMANDS */
	uint64_t *size;	    /* is added to; NULL without BM_SEND_SIZE_ONLY */
	uint64_t *work;	    /* counts by enum bm_counter are added to it; NULL: to the image's */
	struct bm_send_explained *explained; /* NULL: nobody asks why */
	struct bm_known *known;		     /* NULL: this send is alone */
	void *context;			     /* for the callbacks */
	/* Take `size` bytes of the stream; anything but 0 ends the send with BM_CALLBACK. */
	int (*write)(void *context, const uint8_t *data, size_t size);
	/*
	 * Decompress an extent into exactly `out_size` bytes; anything but 0 ends the send:
	 * BM_BAD_DATA where that does not come out, BM_CALLBACK where the callback failed.
	 */
	int (*decompress)(void *context, int compression, const uint8_t *data, size_t size,
			  uint8_t *out, size_t out_size);
};

/*
 * BTRFS_IOC_SEND: the stream goes to args->write. On failure what was sent before stays sent, and
 * args->explained has a row for each command of that.
 */
int bm_send(const struct bm_send_args *args, struct bm_fault *fault);
/*
 * The same of several sends of one image, which go on in turns, some inodes each: what one looked at is
 * still near when the next one comes to it. faults[i].code is what bm_send() returns for args[i].
 * BM_CALLBACK: one ended with that, and ended all.
 */
int bm_send_side_by_side(const struct bm_send_args *args, size_t count, struct bm_fault *faults);
void bm_send_explained_free(struct bm_send_explained *explained);
/*
 * Read the tree blocks that a full send reads, in its order, without the stream: 1, or 0 where only
 * a send can tell which they are. Of `args` everything is set as for bm_send(); `write` is not called.
 */
int bm_send_reads(const struct bm_send_args *args, struct bm_fault *fault);

#endif
