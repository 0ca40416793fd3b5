// SPDX-License-Identifier: GPL-2.0-only
/*
 * Inodes and names as the two trees have them, and who has taken whose name.
 *
 * What the receiver has follows from two things: in which of the two snapshots the inode is (by
 * number and generation, because numbers are used again in some), and whether its number is below
 * send_progress.
 *
 * Of two look-ups, get_...() fails with ENOENT where there is nothing and find_...() returns 1.
 */
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { XATTR_NAME_LIMIT = 255 };

int fs_path_add(struct send_ctx *sctx, struct fs_path *path, const char *name, size_t size)
{
	size_t slash = path->size ? 1 : 0;

	if (path->size + slash + size >= PATH_LIMIT)
		return send_errno(sctx, ENAMETOOLONG);
	if (slash)
		path->text[path->size++] = '/';
	memcpy(path->text + path->size, name, size);
	path->size += size;
	return BM_OK;
}

void fs_path_copy(struct fs_path *dest, const struct fs_path *from)
{
	memcpy(dest->text, from->text, from->size);
	dest->size = from->size;
}

int fs_path_prepend(struct send_ctx *sctx, struct fs_path *path, const struct fs_path *name)
{
	size_t slash = path->size ? 1 : 0;

	if (path->size + slash + name->size >= PATH_LIMIT)
		return send_errno(sctx, ENAMETOOLONG);
	memmove(path->text + name->size + slash, path->text, path->size);
	memcpy(path->text, name->text, name->size);
	if (slash)
		path->text[name->size] = '/';
	path->size += slash + name->size;
	return BM_OK;
}

int check_depth(struct send_ctx *sctx, int depth, const struct bm_root *root, uint64_t ino)
{
	if (depth <= PATH_LIMIT / 2)
		return BM_OK;
	return bm_fail(sctx->fault,
		       (struct bm_fault){.code = BM_LOOP, .tree = root->objectid, .found = ino});
}

int find_inode_item(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		    const uint8_t **found)
{
	struct bm_key key = {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	struct bm_known *known = sctx->args->known;
	const struct known_inode *inode = known ? known_inode(known, root, ino) : NULL;
	int ret;

	if (inode) {
		count_search(root);
		*found = inode->item;
		return !inode->exists;
	}
	ret = bm_search_slot(root, &key, &path, sctx->fault);
	if (ret < 0)
		return ret;
	*found = ret ? NULL : item_data(path.node[0], path.slot[0]);
	if (!ret && leaf_item(path.node[0], path.slot[0])->size < sizeof(struct btrfs_inode_item))
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, path.node[0], path.slot[0],
				     leaf_item(path.node[0], path.slot[0])->size,
				     sizeof(struct btrfs_inode_item));
	if (known)
		known_add_inode(known, root, ino, *found);
	return ret;
}

static struct known_inode *known_cur_inode(const struct send_ctx *sctx)
{
	struct bm_known *known = sctx->args->known;

	return known ? known_inode(known, &sctx->root, sctx->cur_ino) : NULL;
}

bool was_searched(struct send_ctx *sctx, enum known_search search)
{
	const struct known_inode *inode = known_cur_inode(sctx);

	if (!inode || !(inode->searched & search))
		return false;
	count_search(&sctx->root);
	return true;
}

void set_searched(struct send_ctx *sctx, enum known_search search)
{
	struct known_inode *inode = known_cur_inode(sctx);

	if (inode)
		inode->searched |= search;
}

int find_inode_info(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		    struct inode_info *info)
{
	const struct btrfs_inode_item *item;
	const uint8_t *found;
	int ret;

	COUNT(sctx->image, get_inode_info);
	ret = find_inode_item(sctx, root, ino, &found);
	if (ret)
		return ret;
	item = (const void *)found;
	*info = (struct inode_info){.size = item->size,
				    .generation = item->generation,
				    .rdev = item->rdev,
				    .flags = item->flags,
				    .mode = item->mode,
				    .uid = item->uid,
				    .gid = item->gid,
				    .nlink = item->nlink};
	return BM_OK;
}

int get_inode_info(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		   struct inode_info *info)
{
	int ret = find_inode_info(sctx, root, ino, info);

	return ret > 0 ? send_errno(sctx, ENOENT) : ret;
}

/* find_inode_info() of which no more is wanted. */
static int find_gen_and_links(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
			      uint64_t *gen, uint32_t *nlink)
{
	struct bm_known *known = sctx->args->known;
	const struct known_inode *inode = known ? known_inode(known, root, ino) : NULL;
	struct inode_info info = {0};
	int ret;

	if (inode) {
		COUNT(sctx->image, get_inode_info);
		count_search(root);
		*gen = inode->generation;
		*nlink = inode->nlink;
		return !inode->exists;
	}
	ret = find_inode_info(sctx, root, ino, &info);
	*gen = info.generation;
	*nlink = info.nlink;
	return ret;
}

int find_inode_gen(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *gen)
{
	const struct same_inode *same = &sctx->same_inodes[ino % SAME_INODES];
	uint32_t nlink;
	uint64_t found;
	int ret;

	COUNT(sctx->image, get_inode_gen);
	if (same->ino == ino && ino && !sctx->image->cache &&
	    (root == &sctx->root || root == &sctx->parent)) {
		COUNT(sctx->image, get_inode_info);
		count_search(root);
		*gen = same->gen;
		return BM_OK;
	}
	ret = find_gen_and_links(sctx, root, ino, &found, &nlink);
	if (!ret)
		*gen = found;
	return ret;
}

int get_inode_gen(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *gen)
{
	int ret = find_inode_gen(sctx, root, ino, gen);

	return ret > 0 ? send_errno(sctx, ENOENT) : ret;
}

int iterate_dir_item(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot, uint32_t *at,
		     const struct btrfs_dir_item **entry)
{
	uint32_t size = leaf_item(leaf, slot)->size, limit;
	const struct btrfs_dir_item *item = (const void *)(item_data(leaf, slot) + *at);

	if (*at >= size)
		return 0;
	if (size - *at < sizeof(*item))
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, leaf, slot, size, *at + sizeof(*item));
	if (size - *at - sizeof(*item) < (uint32_t)item->name_len + item->data_len)
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, leaf, slot, size,
				     *at + sizeof(*item) + item->name_len + item->data_len);
	limit = item->type == BTRFS_FT_XATTR ? XATTR_NAME_LIMIT : PATH_LIMIT;
	if (item->name_len > limit)
		return send_errno(sctx, ENAMETOOLONG);
	*at += sizeof(*item) + item->name_len + item->data_len;
	*entry = item;
	return 1;
}

int lookup_name(struct send_ctx *sctx, const struct bm_root *root, const struct bm_key *key,
		const char *name, size_t size, const struct btrfs_dir_item **entry)
{
	struct bm_path path = alloc_path_for_send(sctx);
	uint32_t at = 0;
	int ret;

	*entry = NULL;
	ret = bm_search_slot(root, key, &path, sctx->fault);
	if (ret)
		return ret < 0 ? ret : BM_OK;
	while ((ret = iterate_dir_item(sctx, path.node[0], path.slot[0], &at, entry)) > 0)
		if ((*entry)->name_len == size && !memcmp(*entry + 1, name, size))
			return BM_OK;
	*entry = NULL;
	return ret;
}

int iterate_inode_ref(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot, uint32_t *at,
		      struct ref_name *ref)
{
	const struct btrfs_item *item = leaf_item(leaf, slot);
	const uint8_t *data = item_data(leaf, slot) + *at;
	uint32_t left = item->size - *at, head;

	if (*at >= item->size)
		return 0;
	head = item->key.type == BTRFS_INODE_REF_KEY ? sizeof(struct btrfs_inode_ref)
						     : sizeof(struct btrfs_inode_extref);
	if (left < head)
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, leaf, slot, item->size, *at + head);
	if (item->key.type == BTRFS_INODE_REF_KEY) {
		ref->dir = item->key.offset;
		ref->size = ((const struct btrfs_inode_ref *)data)->name_len;
	} else {
		ref->dir = ((const struct btrfs_inode_extref *)data)->parent_objectid;
		ref->size = ((const struct btrfs_inode_extref *)data)->name_len;
	}
	if (left - head < ref->size)
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, leaf, slot, item->size,
				     *at + head + ref->size);
	ref->name = (const char *)data + head;
	*at += head + (uint32_t)ref->size;
	return 1;
}

int btrfs_get_next_valid_item(struct send_ctx *sctx, const struct bm_root *root,
			      struct bm_path *path)
{
	COUNT(sctx->image, btrfs_get_next_valid_item);
	if (path->slot[0] < block_header(path->node[0])->nritems)
		return 0;
	return bm_next_leaf(root, path, sctx->fault);
}

/* 1: an entry of the top directory has the name, in the snapshot or in its parent. */
static int is_name_taken(struct send_ctx *sctx, const char *name, size_t size)
{
	const struct bm_root *roots[] = {&sctx->root, has_parent(sctx) ? &sctx->parent : NULL};
	struct bm_key key = {.objectid = BTRFS_FIRST_FREE_OBJECTID,
			     .type = BTRFS_DIR_ITEM_KEY,
			     .offset = bm_crc32c(0xfffffffe, name, size)};

	for (int i = 0; i < 2 && roots[i]; i++) {
		const struct btrfs_dir_item *entry;

		COUNT(sctx->image, btrfs_lookup_dir_item);
		if (lookup_name(sctx, roots[i], &key, name, size, &entry) < 0)
			return sctx->fault->code;
		if (entry)
			return 1;
	}
	return 0;
}

/* A number in decimal digits; the end of it. */
static char *put_number(char *at, uint64_t number)
{
	char digits[20];
	size_t size = 0;

	do
		digits[sizeof(digits) - ++size] = (char)('0' + number % 10);
	while (number /= 10);
	memcpy(at, digits + sizeof(digits) - size, size);
	return at + size;
}

int gen_unique_name(struct send_ctx *sctx, uint64_t ino, uint64_t gen, struct fs_path *dest)
{
	for (uint64_t i = 0;; i++) {
		char name[72] = "o", *end = put_number(name + 1, ino);
		size_t size;
		int ret;

		/* a send makes so many of them that a formatter would show */
		*end = '-';
		end = put_number(end + 1, gen);
		*end = '-';
		end = put_number(end + 1, i);
		size = (size_t)(end - name);
		ret = is_name_taken(sctx, name, size);
		if (ret <= 0)
			return ret < 0 ? ret : fs_path_add(sctx, dest, name, size);
	}
}

/* The item of the first name of an inode; 1: there is none. */
static int find_first_item(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
			   const uint8_t **leaf, uint32_t *slot)
{
	struct bm_key key = {.objectid = ino, .type = BTRFS_INODE_REF_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	struct bm_known *known = sctx->args->known;
	struct known_inode *inode = known ? known_inode(known, root, ino) : NULL;
	const struct btrfs_disk_key *at;
	int ret;

	if (inode && inode->ref_leaf) {
		COUNT(root->image, btrfs_search_slot_for_read);
		count_search(root);
		*leaf = inode->ref_leaf;
		*slot = inode->ref_slot;
		return BM_OK;
	}
	ret = bm_search_slot_for_read(root, &key, 1, &path, sctx->fault);
	if (ret)
		return ret;
	*leaf = path.node[0];
	*slot = path.slot[0];
	at = &leaf_item(*leaf, *slot)->key;
	if (at->objectid != ino ||
	    (at->type != BTRFS_INODE_REF_KEY && at->type != BTRFS_INODE_EXTREF_KEY))
		return 1;
	/* at the start of a leaf it may have taken more than a search */
	if (inode && *slot) {
		inode->ref_leaf = *leaf;
		inode->ref_slot = *slot;
	}
	return BM_OK;
}

int find_first_ref(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *dir,
		   struct fs_path *name)
{
	const uint8_t *leaf;
	struct ref_name ref;
	uint32_t slot, at = 0;
	int ret = find_first_item(sctx, root, ino, &leaf, &slot);

	if (ret)
		return ret;
	ret = iterate_inode_ref(sctx, leaf, slot, &at, &ref);
	if (ret <= 0)
		return ret < 0 ? ret
			       : send_bad_item(sctx, BM_BAD_ITEM_SIZE, leaf, slot, 0,
					       sizeof(struct btrfs_inode_ref));
	*dir = ref.dir;
	return fs_path_add(sctx, name, ref.name, ref.size);
}

int get_first_ref(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *dir,
		  uint64_t *dir_gen, struct fs_path *name)
{
	int ret = find_first_ref(sctx, root, ino, dir, name);

	COUNT(sctx->image, get_first_ref);
	if (ret > 0)
		return send_errno(sctx, ENOENT);
	return ret || !dir_gen ? ret : get_inode_gen(sctx, root, *dir, dir_gen);
}

int is_first_ref(struct send_ctx *sctx, uint64_t ino, uint64_t dir, const char *name, size_t size)
{
	struct fs_path first;
	uint64_t first_dir;

	first.size = 0;
	if (get_first_ref(sctx, &sctx->parent, ino, &first_dir, NULL, &first) < 0)
		return sctx->fault->code;
	return first_dir == dir && first.size == size && !memcmp(first.text, name, size);
}

int get_inode_path(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		   struct fs_path *dest)
{
	struct fs_path name;
	int ret;

	dest->size = 0;
	for (int depth = 0; ino != BTRFS_FIRST_FREE_OBJECTID; depth++) {
		name.size = 0;
		if (check_depth(sctx, depth, root, ino) < 0)
			return sctx->fault->code;
		ret = find_first_ref(sctx, root, ino, &ino, &name);
		if (ret)
			return ret < 0 ? ret : send_errno(sctx, ENOENT);
		if (fs_path_prepend(sctx, dest, &name) < 0)
			return sctx->fault->code;
	}
	return BM_OK;
}

/* ------------------------------------------------------------------------------------ states -- */

/* The generation of an inode in one root; with links only, where such inodes count as absent. */
static int find_generation(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
			   bool *exists, uint64_t *gen)
{
	uint32_t nlink;
	int ret = find_gen_and_links(sctx, root, ino, gen, &nlink);

	if (ret < 0)
		return ret;
	*exists = !ret && (nlink || !TOGGLE(sctx, SEND_NLINK_ZERO));
	if (!*exists)
		*gen = 0;
	return BM_OK;
}

static int inode_state(struct send_ctx *sctx, uint64_t ino, uint64_t gen,
		       struct inode_generations *found)
{
	struct same_inode *same = &sctx->same_inodes[ino % SAME_INODES];
	bool processed = ino < sctx->send_progress;

	/* a search may read */
	if (same->ino == ino && same->gen == gen && ino && !sctx->image->cache) {
		COUNT(sctx->image, get_cur_inode_state);
		COUNT_N(sctx->image, get_inode_info, 2);
		count_search(&sctx->root);
		count_search(&sctx->parent);
		*found = (struct inode_generations){true, true, gen, gen};
		return INODE_NO_CHANGE;
	}

	*found = (struct inode_generations){0};
	COUNT(sctx->image, get_cur_inode_state);
	if (find_generation(sctx, &sctx->root, ino, &found->in_send, &found->send) < 0)
		return sctx->fault->code;
	if (has_parent(sctx) &&
	    find_generation(sctx, &sctx->parent, ino, &found->in_parent, &found->parent) < 0)
		return sctx->fault->code;
	if (found->in_send && found->in_parent && found->send == gen && found->parent == gen) {
		*same = (struct same_inode){ino, gen};
		return INODE_NO_CHANGE;
	}
	if (found->in_send && found->send == gen)
		return processed ? INODE_DID_CREATE : INODE_WILL_CREATE;
	if (found->in_parent && found->parent == gen)
		return processed ? INODE_DID_DELETE : INODE_WILL_DELETE;
	return send_errno(sctx, ENOENT);
}

int get_cur_inode_state(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	struct inode_generations found;

	return inode_state(sctx, ino, gen, &found);
}

int is_inode_existent(struct send_ctx *sctx, uint64_t ino, uint64_t gen,
		      struct inode_generations *found)
{
	int ret;

	COUNT(sctx->image, is_inode_existent);
	if (ino == BTRFS_FIRST_FREE_OBJECTID)
		return 1;
	ret = inode_state(sctx, ino, gen, found);
	if (ret < 0)
		return ret;
	return ret == INODE_NO_CHANGE || ret == INODE_DID_CREATE || ret == INODE_WILL_DELETE;
}

/*
 * Whether a directory is, in one root, the one that is meant. Without SEND_OVERWRITE_GEN_ONCE its
 * generation is searched once more.
 */
static int is_same_dir(struct send_ctx *sctx, const struct bm_root *root, const struct dir_ref *in,
		       uint64_t gen)
{
	int ret;

	if (in->dir == BTRFS_FIRST_FREE_OBJECTID)
		return 1;
	if (!TOGGLE(sctx, SEND_OVERWRITE_GEN_ONCE)) {
		ret = find_inode_gen(sctx, root, in->dir, &gen);
		if (ret)
			return ret < 0 ? ret : 0;
	}
	return gen == in->dir_gen;
}

/* The inode that an entry of a directory leads to; 1: there is no such entry, or a subvolume. */
static int lookup_dir_item_inode(struct send_ctx *sctx, const struct bm_root *root, uint64_t dir,
				 const char *name, size_t size, uint64_t *ino)
{
	struct bm_key key = {.objectid = dir,
			     .type = BTRFS_DIR_ITEM_KEY,
			     .offset = bm_crc32c(0xfffffffe, name, size)};
	const struct btrfs_dir_item *entry;
	int ret;

	COUNT(sctx->image, btrfs_lookup_dir_item);
	ret = lookup_name(sctx, root, &key, name, size, &entry);
	if (ret < 0)
		return ret;
	if (!entry || entry->location.type == BTRFS_ROOT_ITEM_KEY)
		return 1;
	*ino = entry->location.objectid;
	return BM_OK;
}

/* What is known of an inode of the snapshot, if that is its first name; or NULL. */
static struct known_inode *known_by_name(struct send_ctx *sctx, uint64_t ino, uint64_t dir,
					 const char *name, size_t size)
{
	struct bm_known *known = sctx->args->known;
	struct known_inode *inode = known ? known_inode(known, &sctx->root, ino) : NULL;
	uint64_t *work = sctx->image->work;
	struct ref_name first;
	const uint8_t *leaf;
	uint32_t slot, at = 0;
	int ret;

	if (!inode || !inode->exists)
		return NULL;
	sctx->image->work = sctx->image->ignored;
	ret = find_first_item(sctx, &sctx->root, ino, &leaf, &slot);
	sctx->image->work = work;
	if (ret || iterate_inode_ref(sctx, leaf, slot, &at, &first) <= 0 || first.dir != dir ||
	    first.size != size || memcmp(first.name, name, size) != 0)
		return NULL;
	return inode;
}

/* The same of a name of `ino`, which mostly leads to it. */
static int lookup_name_of_inode(struct send_ctx *sctx, uint64_t ino, uint64_t dir, const char *name,
				size_t size, uint64_t *found)
{
	struct known_inode *inode = known_by_name(sctx, ino, dir, name, size);
	int ret;

	if (inode && inode->leads_to) {
		COUNT(sctx->image, btrfs_lookup_dir_item);
		count_search(&sctx->root);
		*found = inode->leads_to;
		return BM_OK;
	}
	ret = lookup_dir_item_inode(sctx, &sctx->root, dir, name, size, found);
	if (inode && !ret)
		inode->leads_to = *found;
	return ret;
}

int will_overwrite_ref(struct send_ctx *sctx, const struct dir_ref *in, const char *name,
		       size_t size, struct overwritten *who)
{
	struct inode_generations found = {0};
	struct inode_info info = {0};
	uint64_t other;
	int ret;

	COUNT(sctx->image, will_overwrite_ref);
	if (!has_parent(sctx))
		return 0;
	ret = is_inode_existent(sctx, in->dir, in->dir_gen, &found);
	if (ret <= 0)
		return ret;
	ret = is_same_dir(sctx, &sctx->parent, in, found.parent);
	if (ret <= 0)
		return ret;
	ret = lookup_dir_item_inode(sctx, &sctx->parent, in->dir, name, size, &other);
	if (ret)
		return ret < 0 ? ret : 0;
	/* what was processed before has left the name already */
	if (other <= sctx->send_progress && !is_waiting_for_move(sctx, other))
		return 0;
	if (get_inode_info(sctx, &sctx->parent, other, &info) < 0)
		return sctx->fault->code;
	*who = (struct overwritten){.ino = other, .gen = info.generation, .mode = info.mode};
	return 1;
}

int did_overwrite_ref(struct send_ctx *sctx, const struct dir_ref *in, uint64_t ino, uint64_t gen,
		      const char *name, size_t size)
{
	bool late = TOGGLE(sctx, SEND_OVERWRITE_GEN_LATE);
	struct inode_generations found = {0};
	uint64_t other, other_gen = 0;
	int ret;

	COUNT(sctx->image, did_overwrite_ref);
	if (!has_parent(sctx))
		return 0;
	ret = is_inode_existent(sctx, in->dir, in->dir_gen, &found);
	if (ret <= 0)
		return ret;
	ret = is_same_dir(sctx, &sctx->root, in, found.send);
	if (ret <= 0)
		return ret;
	ret = lookup_name_of_inode(sctx, ino, in->dir, name, size, &other);
	if (ret)
		return ret < 0 ? ret : 0;
	/* the generation only where it decides */
	if (!late || other == ino) {
		if (get_inode_gen(sctx, &sctx->root, other, &other_gen) < 0)
			return sctx->fault->code;
		if (other == ino && other_gen == gen)
			return 0;
	}
	if (other < sctx->send_progress)
		return 1;
	/* the current inode may be the one that took the name */
	if (ino == sctx->cur_ino || other != sctx->cur_ino)
		return 0;
	if (!other_gen && get_inode_gen(sctx, &sctx->root, other, &other_gen) < 0)
		return sctx->fault->code;
	return other_gen == sctx->cur_inode_gen;
}

int did_overwrite_first_ref(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	struct fs_path name;
	struct dir_ref in;

	if (!has_parent(sctx))
		return 0;
	name.size = 0;
	if (get_first_ref(sctx, &sctx->parent, ino, &in.dir, &in.dir_gen, &name) < 0)
		return sctx->fault->code;
	return did_overwrite_ref(sctx, &in, ino, gen, name.text, name.size);
}
