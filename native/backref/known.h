/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What sends of one image remember for each other; see known.c. Not part of the interface.
 */
#ifndef BTRFS_MODEL_KNOWN_H
#define BTRFS_MODEL_KNOWN_H

#include "backref/backref.h"

/* 1 where it is known: *item is that of the inode, or NULL; the work of the search is counted. */
int known_inode(const struct bm_known *known, const struct bm_root *root, uint64_t ino,
		const uint8_t **item);
void known_add_inode(struct bm_known *known, const struct bm_root *root, uint64_t ino,
		     const uint8_t *item);

struct known_leaf;
/* The trees that reach a leaf, in the kernel's order; NULL: that is not known. */
const struct known_leaf *known_leaf(const struct bm_known *known, uint64_t leaf,
				    const uint64_t **roots, size_t *count);
/* Count the work of the walk that told them. */
int known_leaf_work(const struct known_leaf *leaf, const struct bm_forest *forest, int restart,
		    struct bm_fault *fault);
/* A walk that tells them begins, comes to a tree, ends, and is remembered. */
void known_begin(struct bm_known *known, struct bm_image *image);
int known_visit(struct bm_known *known, const struct bm_forest *forest, uint64_t id, int restart,
		const struct bm_root **root, struct bm_fault *fault);
void known_end(struct bm_known *known, struct bm_image *image);
void known_add_leaf(struct bm_known *known, uint64_t leaf, const uint64_t *roots, size_t count);

#endif
