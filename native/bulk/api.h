/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Many changes in one call.
 *
 * Workloads make and remove files by the million, and a call from Python to C for each item takes
 * longer than the item. Here are loops over what writer/btree/api.h and writer/space/api.h do, with
 * the same outcome, and faults as there; they have no rule of their own.
 */
#ifndef BTRFS_MODEL_BULK_API_H
#define BTRFS_MODEL_BULK_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "stream/api.h"
#include "tree/api.h"
#include "writer/btree/api.h"
#include "writer/space/api.h"

/*
 * Items with ascending keys, in batches of as many as fit into an empty leaf, each inserted like
 * those of bm_writer_insert(): delayed directory items. Without BATCH_DELAYED_ITEMS it is one item,
 * and behind it those with consecutive offsets for which its leaf has room.
 */
int bm_writer_insert_batches(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
			     const uint32_t *sizes, size_t count, const uint8_t *data,
			     struct bm_fault *fault);

/*
 * Delete items with ascending keys, in batches of those that follow each other in a leaf
 * (btrfs_batch_delete_items()), `most` at most; returns how many keys were gone through. One that
 * is not there is a batch by itself.
 */
int64_t bm_writer_delete_batches(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
				 size_t count, size_t most, struct bm_fault *fault);

/*
 * What is named in a DIR_ITEM, XATTR_ITEM or INODE_REF is an entry of the item. The item is made with
 * its first entry; `data` is the whole entry. EEXIST: its name is there, EOVERFLOW: no leaf has room.
 */
int bm_writer_insert_entry(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
			   const uint8_t *data, uint32_t size, struct bm_fault *fault);
/*
 * The item goes with its last entry; index: what an INODE_REF says of the entry. 1: nothing has the
 * name, and nothing was changed.
 */
int bm_writer_delete_entry(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
			   const uint8_t *name, uint32_t size, uint64_t *index,
			   struct bm_fault *fault);

/* One of many changes. What is named in a DIR_ITEM or INODE_REF is an entry of the item. */
enum bm_writer_change_kind {
	BM_WRITER_INSERT, /* bm_writer_insert(): with all that follow up to one without `more` */
	BM_WRITER_INSERT_EXTENT, /* bm_writer_insert_extent(), nothing goes */
	BM_WRITER_INSERT_ENTRY,	 /* the same, or at the end of an item that has the key already */
	BM_WRITER_DELETE,	 /* the item; no payload */
	BM_WRITER_DELETE_ENTRY,	 /* payload: the name; the item goes with its last entry */
	BM_WRITER_UPDATE,	 /* bm_writer_update(): the first `size` bytes */
};
struct bm_writer_change {
	struct bm_key key;
	uint32_t size; /* of the payload */
	uint8_t kind;  /* enum bm_writer_change_kind */
	uint8_t more;  /* BM_WRITER_INSERT: the next one lies beside it */
	uint16_t pad;
};
/*
 * Many changes of a tree, one after the other; their payloads follow each other in data[]. Returns
 * how many were done; when that is less than `count`, the fault says what is wrong with the next.
 */
int64_t bm_writer_apply(struct bm_writer *writer, uint64_t tree,
			const struct bm_writer_change *changes, size_t count, const uint8_t *data,
			uint64_t size, struct bm_fault *fault);
/*
 * Calls of `each` changes. Behind the first `sure` of them there is room for the next only while
 * none made or copied a block; returns how many were made. Fails at a change that cannot be done.
 */
int64_t bm_writer_apply_calls(struct bm_writer *writer, uint64_t tree,
			      const struct bm_writer_change *changes, size_t each, size_t calls,
			      size_t sure, const uint8_t *data, uint64_t size,
			      struct bm_fault *fault);
/* An extent that a new file gets of another file. */
struct bm_cloned_extent {
	uint64_t start; /* where in the new file */
	struct btrfs_file_extent_item item;
};
/* Regular files that are made in a directory, one after the other: names that are not there. */
struct bm_new_files {
	uint64_t tree;
	uint64_t directory;
	uint64_t ino;	/* of the first; the others count on from it, and from */
	uint64_t index; /* its place in the directory */
	size_t count;
	size_t sure;	       /* of them, as for bm_writer_apply_calls() */
	const uint64_t *times; /* when each is made, nanoseconds */
	const uint8_t *item;   /* their inode item, but for the times */
	const uint8_t *names;  /* one behind the other, */
	uint64_t names_size;
	const uint32_t *name_sizes; /* each of so many bytes */
	const struct bm_cloned_extent *extents;
	const struct bm_span *clones; /* of the extents, what each file gets; NULL: nothing */
	size_t extents_count;
};
/*
 * btrfs_create_new_inode() for each: inode item and name side by side, then the DIR_ITEM; then
 * btrfs_clone() into it. The DIR_INDEX payloads, for which `entries` has sizeof(struct btrfs_dir_item) * count + names_size
 * bytes, are left to the caller. Returns how many were made.
 */
int64_t bm_writer_new_files(struct bm_writer *writer, const struct bm_new_files *files,
			    uint8_t *entries, struct bm_fault *fault);
/* An inode that is made under one name and gets another at once; the names and targets are bytes of
 * the data beside it. */
struct bm_new_inode {
	uint64_t directory; /* where it is made, */
	uint64_t index;	    /* its place there, */
	uint64_t to_directory;
	uint64_t to_index; /* and the same of its other name */
	uint64_t time;	   /* nanoseconds */
	uint64_t mode;
	uint64_t there;	     /* whether it was made, and has to get its other name only */
	struct bm_span made; /* the names */
	struct bm_span name;
	struct bm_span target; /* of a symbolic link, else empty */
};
enum { BM_NEW_INODE_TARGET = 4095 };
struct bm_new_inodes {
	uint64_t tree;
	uint64_t ino; /* of the first; the others count on from it */
	const struct bm_new_inode *inodes;
	size_t count;
	const uint8_t *item; /* their inode item, but for mode, size and times */
	const uint8_t *data;
	uint64_t size; /* of the data */
};
/*
 * btrfs_create_new_inode() and btrfs_rename() for each, up to one of which an entry would share its
 * item with another; how many. The DIR_INDEX items are left to the caller.
 */
int64_t bm_writer_new_inodes(struct bm_writer *writer, const struct bm_new_inodes *args,
			     struct bm_fault *fault);
/* Bytes in memory. */
struct bm_piece {
	const uint8_t *data;
	uint64_t size;
};
/* A file that has nothing on disk; where it is long a part of it, which follows the one before. */
struct bm_written_file {
	uint64_t ino;
	uint64_t offset; /* whole sectors */
	uint64_t size;	 /* of what is written there, */
	const struct bm_piece *pieces;
	uint64_t count;	  /* which are so many, */
	uint64_t in_item; /* whether it becomes an inline extent, of so many bytes at most: */
	uint64_t bytenr;  /* set: where it is, if not */
};
enum { BM_WRITTEN_INLINE = 4095 };
struct bm_written_files {
	uint64_t tree;
	uint64_t in_class; /* only where extents of a size class go */
	int file; /* the image itself: what is written there is in its memory; -1: no such */
	struct bm_written_file *files;
	size_t count;
};
/*
 * Write files back, one after the other, up to one for which there is no room in one piece; how many.
 */
int64_t bm_writer_write_files(struct bm_writer *writer, const struct bm_written_files *args,
			      struct bm_fault *fault);
/* Names of a directory that go. */
struct bm_unlinks {
	uint64_t tree;
	uint64_t directory;
	size_t count;
	const uint8_t *names; /* one behind the other, */
	uint64_t names_size;
	const uint32_t *name_sizes; /* each of so many bytes */
	const uint64_t *known; /* numbers of inodes that are more than the tree says, ascending */
	size_t known_count;
};
/*
 * btrfs_unlink() for each, up to one that is not the only name of an empty regular file with
 * nothing else to it; how many. The DIR_INDEX items, whose offsets are given, are left to the caller.
 */
int64_t bm_writer_unlink_files(struct bm_writer *writer, const struct bm_unlinks *unlinks,
			       uint64_t *indexes, struct bm_fault *fault);
/*
 * Insert copies of items that a scan found in other trees of the writer, one by one
 * (overwrite_item() into an empty place).
 */
int bm_writer_copy_each(struct bm_writer *writer, uint64_t tree, const struct bm_columns *columns,
			size_t count, struct bm_fault *fault);
/*
 * Log that files exist which this transaction made (copy_items() of LOG_INODE_EXISTS): of each the
 * inode item, in row rows[i] of the `capacity` that the columns have, and its name in the next row.
 */
int bm_writer_log_files(struct bm_writer *writer, uint64_t log, const struct bm_columns *columns,
			size_t capacity, const uint64_t *rows, size_t count,
			struct bm_fault *fault);

/* Extents of files, all of one size, in the order in which they are written. */
struct bm_file_extents {
	uint64_t tree; /* id of the writer's tree */
	uint64_t root; /* of the references */
	uint64_t ino;
	const uint64_t *inos;	 /* a file for each extent, which has nothing yet; NULL: `ino` */
	uint64_t length;	 /* of the file, bytes of each extent */
	uint64_t disk_num_bytes; /* on disk */
	uint32_t compression;
	uint32_t in_class;	 /* only where extents of that size class go */
	const uint64_t *offsets; /* in the file, holes all of them */
	size_t count;
	const uint64_t *known_offsets; /* extents that the file has, ascending, */
	const uint64_t *known_bytenr;  /* and where; 0: a hole, or inline */
	size_t known;
	const uint32_t *order;	/* all of them by offset: i < known, or known + index of offsets;
				* not looked at where there are `inos` */
	const uint8_t *sums;	/* checksums of the sectors of one extent; NULL: none */
	const uint32_t *finish; /* all are allocated first and then finished in this order; NULL:
				 * each is finished before the next is allocated */
	uint64_t kind;		/* of block groups, */
	struct bm_space_info
	    *levels; /* and how full they are after each, where there is no `finish`;
				       * NULL: not asked for */
};
/*
 * Allocate, insert, reference and checksum (insert_reserved_file_extent(), add_pending_csums()) one
 * extent after another. Returns how many were written and their addresses; fewer than wanted when
 * there is no room in one piece.
 */
int64_t bm_writer_file_extents(struct bm_writer *writer, const struct bm_file_extents *args,
			       uint64_t *bytenr, struct bm_fault *fault);

#endif
