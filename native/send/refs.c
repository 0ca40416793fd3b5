// SPDX-License-Identifier: GPL-2.0-only
/*
 * Names: recorded while the items of an inode go by, made and unmade when they are complete.
 *
 * A new inode's first name is a rename from the orphan name, further ones are links. A parent
 * directory that the receiver does not have yet, because its number is higher, is created first.
 * Where an inode that is still to be processed has the name in the parent snapshot, that one is
 * moved out of the way: to its orphan name if it was its first name, otherwise by an unlink.
 */
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ processing -- */

/* What process_recorded_refs() finds out on its way. */
struct progress {
	struct fs_path valid_path; /* under which the receiver has the inode */
	struct dir_refs check_dirs;
	bool is_orphan, can_rename, orphanized_dir, orphanized_ancestor;
	bool *pending_move;
};

/* Give an inode its orphan name. */
static int orphanize_inode(struct send_ctx *sctx, uint64_t ino, uint64_t gen,
			   const struct fs_path *path)
{
	struct fs_path orphan;

	orphan.size = 0;
	if (gen_unique_name(sctx, ino, gen, &orphan) < 0 || send_rename(sctx, path, &orphan) < 0)
		return sctx->fault->code;
	if (ino == sctx->cur_ino && gen == sctx->cur_inode_gen && TOGGLE(sctx, SEND_CUR_INODE_PATH))
		fs_path_copy(&sctx->cur_inode_path, &orphan);
	return BM_OK;
}

/* Move the inode away that has its first name at `path`. */
static int orphanize_overwritten(struct send_ctx *sctx, struct progress *p,
				 const struct fs_path *path, const struct overwritten *who)
{
	struct waiting_dir_move *waiting;
	int ret;

	if (orphanize_inode(sctx, who->ino, who->gen, path) < 0)
		return sctx->fault->code;
	if (is_type(who->mode, MODE_DIR))
		p->orphanized_dir = true;
	/* its own rename, if it waits for one, starts from the orphan name now */
	waiting = get_waiting_dir_move(sctx, who->ino);
	/* one descent instead of two */
	if (waiting && !TOGGLE(sctx, SEND_WAITING_ONCE))
		waiting = get_waiting_dir_move(sctx, who->ino);
	if (waiting)
		waiting->orphanized = true;
	name_cache_delete(sctx, who->ino, who->gen);
	ret = is_ancestor(sctx, who->ino, who->gen, sctx->cur_ino);
	if (ret > 0) {
		p->orphanized_ancestor = true;
		sctx->cur_inode_path.size = 0;
		ret = get_cur_path(sctx, sctx->cur_ino, sctx->cur_inode_gen, &p->valid_path);
	}
	return ret;
}

/* Make sure that no inode still to be processed has the name. */
static int clear_name(struct send_ctx *sctx, struct progress *p, struct recorded_ref *ref)
{
	struct overwritten who;
	struct fs_path path;
	bool recompute;
	int ret;

	ret = will_overwrite_ref(sctx, &ref->in, ref_name(ref), ref->name_size, &who);
	if (ret <= 0)
		return ret;
	ret = is_first_ref(sctx, who.ino, ref->in.dir, ref_name(ref), ref->name_size);
	if (ret < 0)
		return ret;
	/* the path may go through a directory just moved away */
	recompute = ret ? TOGGLE(sctx, SEND_RECOMPUTE_REF_PATH) : TOGGLE(sctx, SEND_UNLINK_PATH);
	if (p->orphanized_dir && recompute && update_ref_path(sctx, ref) < 0)
		return sctx->fault->code;
	ref_path(ref, &path);
	because(sctx, BM_SEND_NAME_IN_THE_WAY, who.ino, ref->in.item);
	if (ret)
		return orphanize_overwritten(sctx, p, &path, &who);
	because_of_rule(sctx, BM_SEND_LINK_IN_THE_WAY);
	return send_unlink(sctx, &path);
}

/* The names in directories that the receiver has: all are cleared before the first is made. */
static int clear_names(struct send_ctx *sctx, struct progress *p)
{
	for (size_t i = 0; i < sctx->new_refs.count; i++) {
		struct recorded_ref *ref = &sctx->new_refs.rows[i];
		int ret = get_cur_inode_state(sctx, ref->in.dir, ref->in.dir_gen);

		if (ret < 0 || (ret != INODE_WILL_CREATE && clear_name(sctx, p, ref) < 0))
			return sctx->fault->code;
	}
	return BM_OK;
}

static bool earlier_ref_has_dir(const struct recorded_refs *refs, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (refs->rows[i].in.dir == refs->rows[index].in.dir)
			return true;
	return false;
}

/* A parent directory with a higher number is created before its turn. */
static int create_parent_if_needed(struct send_ctx *sctx, size_t index)
{
	const struct dir_ref *in = &sctx->new_refs.rows[index].in;
	int ret = get_cur_inode_state(sctx, in->dir, in->dir_gen);

	if (ret != INODE_WILL_CREATE)
		return ret < 0 ? ret : BM_OK;
	if (earlier_ref_has_dir(&sctx->new_refs, index))
		return BM_OK;
	ret = did_create_dir(sctx, in->dir);
	if (ret)
		return ret < 0 ? ret : BM_OK;
	because(sctx, BM_SEND_PARENT_EARLY, in->dir, in->item);
	ret = send_create_inode(sctx, in->dir);
	return ret < 0 ? ret : cache_dir_created(sctx, in->dir);
}

/* Whether a directory has to wait for the move of another one before it can go to `ref`. */
static int wait_if_needed(struct send_ctx *sctx, struct progress *p, const struct recorded_ref *ref)
{
	int ret;

	if (!is_type(sctx->cur_inode_mode, MODE_DIR) || !has_parent(sctx))
		return BM_OK;
	ret = wait_for_dest_dir_move(sctx, ref, p->is_orphan);
	if (ret > 0)
		p->can_rename = false;
	if (!ret && p->can_rename)
		ret = wait_for_parent_move(sctx, ref, p->is_orphan);
	if (ret < 0)
		return ret;
	if (ret) {
		p->can_rename = false;
		*p->pending_move = true;
	}
	return BM_OK;
}

static int rename_current_inode(struct send_ctx *sctx, struct progress *p,
				const struct fs_path *full_path)
{
	int ret = send_rename(sctx, &p->valid_path, full_path);

	if (TOGGLE(sctx, SEND_CUR_INODE_PATH))
		fs_path_copy(&sctx->cur_inode_path, full_path);
	fs_path_copy(&p->valid_path, full_path);
	p->is_orphan = false;
	return ret;
}

/* Make a new name of the current inode: by a rename, if it `moves`, or a link. */
static int make_name(struct send_ctx *sctx, struct progress *p, struct recorded_ref *ref)
{
	bool moves = p->is_orphan || is_type(sctx->cur_inode_mode, MODE_DIR);
	enum bm_send_cause cause = BM_SEND_NAME_ADDED;
	struct fs_path full_path;

	if (!moves && p->orphanized_dir && update_ref_path(sctx, ref) < 0)
		return sctx->fault->code;
	if (moves && !p->is_orphan)
		cause = BM_SEND_DIR_MOVED;
	else if (moves)
		cause = sctx->cur_inode_new ? BM_SEND_FIRST_NAME : BM_SEND_NAME_AFTER_ORPHAN;
	because(sctx, cause, sctx->cur_ino, ref->in.item);
	ref_path(ref, &full_path);
	if (moves)
		return rename_current_inode(sctx, p, &full_path);
	return send_link(sctx, &full_path, &p->valid_path);
}

static int make_new_names(struct send_ctx *sctx, struct progress *p)
{
	/* without it each is cleared when it is its turn */
	bool clear_first = TOGGLE(sctx, SEND_ORPHANIZE_FIRST);

	if (clear_first && clear_names(sctx, p) < 0)
		return sctx->fault->code;
	for (size_t i = 0; i < sctx->new_refs.count; i++) {
		struct recorded_ref *ref = &sctx->new_refs.rows[i];
		int ret = BM_OK;

		if (create_parent_if_needed(sctx, i) < 0 ||
		    (!clear_first && clear_name(sctx, p, ref) < 0) ||
		    wait_if_needed(sctx, p, ref) < 0)
			return sctx->fault->code;
		if (p->can_rename)
			ret = make_name(sctx, p, ref);
		if (ret < 0 || add_dir_ref(sctx, &p->check_dirs, &ref->in) < 0)
			return sctx->fault->code;
	}
	return BM_OK;
}

/* A directory that the snapshot does not have any more: gone, or on its orphan name until then. */
static int remove_dir(struct send_ctx *sctx, struct progress *p)
{
	int ret = can_rmdir(sctx, sctx->cur_ino, sctx->cur_inode_gen);

	because_inode(sctx, ret > 0 ? BM_SEND_DIR_REMOVED : BM_SEND_DIR_NOT_EMPTY);
	if (ret > 0)
		ret = send_rmdir(sctx, &p->valid_path);
	else if (!ret && !p->is_orphan)
		ret = orphanize_inode(sctx, sctx->cur_ino, sctx->cur_inode_gen, &p->valid_path);
	for (size_t i = 0; ret >= 0 && i < sctx->deleted_refs.count; i++)
		ret = add_dir_ref(sctx, &p->check_dirs, &sctx->deleted_refs.rows[i].in);
	return ret < 0 ? ret : BM_OK;
}

/* Unlink the names of a file that the snapshot does not have any more. */
static int unlink_deleted_names(struct send_ctx *sctx, struct progress *p)
{
	struct fs_path path;

	for (size_t i = 0; i < sctx->deleted_refs.count; i++) {
		struct recorded_ref *ref = &sctx->deleted_refs.rows[i];
		int ret = did_overwrite_ref(sctx, &ref->in, sctx->cur_ino, sctx->cur_inode_gen,
					    ref_name(ref), ref->name_size);

		if (!ret) {
			if (p->orphanized_ancestor && update_ref_path(sctx, ref) < 0)
				return sctx->fault->code;
			ref_path(ref, &path);
			because(sctx, BM_SEND_NAME_REMOVED, sctx->cur_ino, ref->in.item);
			ret = send_unlink(sctx, &path);
			/* is_current_inode_path(): compared as far as the remembered path goes */
			if (path.size >= sctx->cur_inode_path.size &&
			    !memcmp(path.text, sctx->cur_inode_path.text,
				    sctx->cur_inode_path.size))
				sctx->cur_inode_path.size = 0;
		}
		if (ret < 0 || add_dir_ref(sctx, &p->check_dirs, &ref->in) < 0)
			return sctx->fault->code;
	}
	/* an earlier inode took its first name, and it has no other */
	because_inode(sctx, BM_SEND_ORPHAN_REMOVED);
	return p->is_orphan ? send_unlink(sctx, &p->valid_path) : BM_OK;
}

static bool seen_before(const struct dir_refs *refs, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (refs->rows[i].dir == refs->rows[index].dir &&
		    refs->rows[i].dir_gen == refs->rows[index].dir_gen)
			return true;
	return false;
}

/* The directories in which the inode had or has names: their times, or their removal. */
static int finish_check_dirs(struct send_ctx *sctx, struct progress *p)
{
	bool unique = TOGGLE(sctx, SEND_CHECK_DIRS_UNIQUE);
	uint64_t last_removed = 0;

	for (size_t i = 0; i < p->check_dirs.count; i++) {
		const struct dir_ref *in = &p->check_dirs.rows[i];
		int ret;

		/* a directory with a higher number has its own turn */
		if ((unique && seen_before(&p->check_dirs, i)) || in->dir > sctx->cur_ino)
			continue;
		ret = get_cur_inode_state(sctx, in->dir, in->dir_gen);
		if (ret == INODE_DID_CREATE || ret == INODE_NO_CHANGE) {
			because(sctx, BM_SEND_TIMES_ENTRY, in->dir, in->item);
			ret = cache_dir_utimes(sctx, in->dir, in->dir_gen);
		} else if (ret == INODE_DID_DELETE && (unique || in->dir != last_removed)) {
			ret = rmdir_if_possible(sctx, in->dir, in->dir_gen, BM_SEND_DIR_EMPTIED,
						in->item);
			if (ret > 0)
				last_removed = in->dir;
		}
		if (ret < 0)
			return ret;
	}
	return BM_OK;
}

static int process_refs(struct send_ctx *sctx, struct progress *p)
{
	bool is_dir = is_type(sctx->cur_inode_mode, MODE_DIR);
	int ret;

	if (!sctx->cur_inode_new) {
		ret = did_overwrite_first_ref(sctx, sctx->cur_ino, sctx->cur_inode_gen);
		if (ret < 0)
			return ret;
		p->is_orphan = ret;
	}
	if (p->is_orphan)
		ret = gen_unique_name(sctx, sctx->cur_ino, sctx->cur_inode_gen, &p->valid_path);
	else
		ret = get_cur_path(sctx, sctx->cur_ino, sctx->cur_inode_gen, &p->valid_path);
	if (ret < 0 || make_new_names(sctx, p) < 0)
		return sctx->fault->code;
	if (is_dir && sctx->cur_inode_deleted)
		ret = remove_dir(sctx, p);
	else if (is_dir && sctx->deleted_refs.count)
		ret = add_dir_ref(sctx, &p->check_dirs, &sctx->deleted_refs.rows[0].in);
	else if (!is_dir)
		ret = unlink_deleted_names(sctx, p);
	return ret < 0 ? ret : finish_check_dirs(sctx, p);
}

int process_recorded_refs(struct send_ctx *sctx, bool *pending_move)
{
	struct progress p;
	int ret;

	COUNT(sctx->image, process_recorded_refs);
	/* the text of a path takes longer to clear than a name to make */
	p.valid_path.size = 0;
	p.check_dirs = (struct dir_refs){0};
	p.is_orphan = p.can_rename = true;
	p.orphanized_dir = p.orphanized_ancestor = false;
	p.pending_move = pending_move;
	if (sctx->cur_ino <= BTRFS_FIRST_FREE_OBJECTID)
		ret = send_errno(sctx, EINVAL);
	else
		ret = process_refs(sctx, &p);
	free(p.check_dirs.rows);
	free_recorded_refs(&sctx->new_refs);
	free_recorded_refs(&sctx->deleted_refs);
	return ret;
}

int process_all_refs(struct send_ctx *sctx, enum bm_change change)
{
	bool pending_move = false;

	if (record_all_refs(sctx, change) < 0)
		return sctx->fault->code;
	/* the inode is created again, so nothing has to wait */
	return process_recorded_refs(sctx, &pending_move);
}
