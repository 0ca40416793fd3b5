/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * User-Mode Linux on processors with AMX: put in front of the C library by LD_PRELOAD.
 *
 * A guest's kernel sets the registers of its processes with PTRACE_SETREGSET, NT_X86_XSTATE, from
 * a buffer of a fixed size (2696 bytes, up to AVX-512). A machine whose processor has more state
 * takes nothing but all of it, and says EFAULT. Here the state is read, the part that the guest
 * knows is put over it, and all of it is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long (*ptrace_function)(int request, int pid, void *addr, void *data);

static ptrace_function libc_ptrace;
/* not on the stack: that of the guest's kernel is small; one thread of it calls ptrace */
static unsigned char state[1 << 15] __attribute__((aligned(64)));

__attribute__((constructor)) static void find_ptrace(void)
{
	libc_ptrace = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
}

static long set_whole_state(int pid, void *kind, const struct iovec *part)
{
	struct iovec whole = {state, sizeof(state)};

	if (libc_ptrace(PTRACE_GETREGSET, pid, kind, &whole))
		return -1;
	if (part->iov_len >= whole.iov_len) {
		errno = EFAULT;
		return -1;
	}
	memcpy(state, part->iov_base, part->iov_len);
	return libc_ptrace(PTRACE_SETREGSET, pid, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	int pid;
	void *addr, *data;
	long ret;

	va_start(arguments, request);
	pid = va_arg(arguments, int);
	addr = va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	ret = libc_ptrace(request, pid, addr, data);
	if (ret && errno == EFAULT && request == PTRACE_SETREGSET && addr == (void *)NT_X86_XSTATE)
		return set_whole_state(pid, addr, data);
	return ret;
}
