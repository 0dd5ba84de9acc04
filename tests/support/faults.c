// Makes system calls that change one folder fail, one at a time: preloaded into a process (LD_PRELOAD).
//
// `faults_arm` names the folder and which call is to fail, and how. Calls are counted from 0 and written
// to a log, one in a line: the call, a space, the path. Only what goes through the C library is seen:
// Python, HDF5, LMDB and LLVM all do.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum Kind { COUNT, FAIL, FAIL_FROM_THEN_ON, SHORT, KILL };
enum Answer { GO_ON, FAILED, HALF };

static char folder[PATH_MAX];
static size_t folder_size;
static int log_file = -1, kind, number;
static long at, seen;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

// Calls that a full disk refuses; what frees room, or needs none, it does not.
static const char *const NEED_ROOM = " open write write_through fsync ftruncate mkdir ";

void faults_arm(const char *where, const char *log, long which, int how, int error) {
    snprintf(folder, sizeof folder, "%s", where);
    folder_size = strlen(folder);
    log_file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    at = which, kind = how, number = error, seen = 0;
}

static int is_one_of(const char *names, const char *call) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, " %s ", call);
    return strstr(names, wanted) != NULL;
}

static int refused(const char *call, long index) {
    if (kind == FAIL) return index == at;
    if (kind != FAIL_FROM_THEN_ON || index < at || !strcmp(call, "close")) return 0;
    return (number != ENOSPC && number != EDQUOT) || is_one_of(NEED_ROOM, call);
}

// Count a call on a path, and say what becomes of it.
static enum Answer met(const char *call, const char *path) {
    if (!folder_size || strncmp(path, folder, folder_size)) return GO_ON;
    if (path[folder_size] && path[folder_size] != '/') return GO_ON;
    pthread_mutex_lock(&turn);
    long index = seen++;
    char line[PATH_MAX + 64];
    int size = snprintf(line, sizeof line, "%s %s\n", call, path);
    syscall(SYS_write, log_file, line, size);
    if (kind == KILL && index == at) syscall(SYS_kill, getpid(), SIGKILL);
    pthread_mutex_unlock(&turn);
    if (kind == SHORT && index == at) return HALF;
    if (!refused(call, index)) return GO_ON;
    errno = number;
    return FAILED;
}

static enum Answer met_file(const char *call, int file) {
    char link[64], path[PATH_MAX];
    if (!folder_size || file == log_file) return GO_ON;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return GO_ON;
    path[size] = 0;
    return met(call, path);
}

// Count a call on a name, which may be relative to an open folder.
static enum Answer met_name(const char *call, int base, const char *name) {
    char link[64] = "/proc/self/cwd", path[2 * PATH_MAX];
    if (!folder_size || !name) return GO_ON;
    if (name[0] == '/') return met(call, name);
    int before = errno;
    if (base != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", base);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    errno = before;
    if (size < 0) return GO_ON;
    snprintf(path + size, sizeof path - size, "/%s", name);
    return met(call, path);
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

#define FILE_CALL(label, type, name, params, ...)       \
    type name params {                                  \
        if (met_file(label, file) == FAILED) return -1; \
        return REAL(name)(__VA_ARGS__);                 \
    }

#define NAME_CALL(label, name, params, base, path, ...)       \
    int name params {                                         \
        if (met_name(label, base, path) == FAILED) return -1; \
        return REAL(name)(__VA_ARGS__);                       \
    }

#define OPEN_CALL(name, params, base, path, before)                       \
    int name params {                                                     \
        mode_t mode = 0;                                                  \
        if (flags & (O_CREAT | __O_TMPFILE)) {                            \
            va_list rest;                                                 \
            va_start(rest, flags);                                        \
            mode = va_arg(rest, mode_t);                                  \
            va_end(rest);                                                 \
        }                                                                 \
        int changes = (flags & (O_ACCMODE | O_CREAT | O_DIRECTORY)) != 0; \
        if (changes && met_name("open", base, path) == FAILED) return -1; \
        return REAL(name) before;                                         \
    }

OPEN_CALL(open, (const char *path, int flags, ...), AT_FDCWD, path, (path, flags, mode))
OPEN_CALL(open64, (const char *path, int flags, ...), AT_FDCWD, path, (path, flags, mode))
OPEN_CALL(openat, (int base, const char *path, int flags, ...), base, path, (base, path, flags, mode))
OPEN_CALL(openat64, (int base, const char *path, int flags, ...), base, path, (base, path, flags, mode))

NAME_CALL("open", creat, (const char *path, mode_t mode), AT_FDCWD, path, path, mode)
NAME_CALL("mkdir", mkdir, (const char *path, mode_t mode), AT_FDCWD, path, path, mode)
NAME_CALL("unlink", unlink, (const char *path), AT_FDCWD, path, path)
NAME_CALL("unlink", unlinkat, (int base, const char *path, int flags), base, path, base, path, flags)
NAME_CALL("unlink", rmdir, (const char *path), AT_FDCWD, path, path)
NAME_CALL("chmod", chmod, (const char *path, mode_t mode), AT_FDCWD, path, path, mode)
NAME_CALL("ftruncate", truncate, (const char *path, off_t size), AT_FDCWD, path, path, size)
NAME_CALL("rename", rename, (const char *from, const char *to), AT_FDCWD, to, from, to)
NAME_CALL("rename", renameat, (int a, const char *from, int b, const char *to), b, to, a, from, b, to)
NAME_CALL("rename", renameat2, (int a, const char *from, int b, const char *to, unsigned flags), b, to, a, from, b, to, flags)
NAME_CALL("link", link, (const char *from, const char *to), AT_FDCWD, to, from, to)
NAME_CALL("link", symlink, (const char *from, const char *to), AT_FDCWD, to, from, to)

FILE_CALL("chmod", int, fchmod, (int file, mode_t mode), file, mode)
FILE_CALL("ftruncate", int, ftruncate, (int file, off_t size), file, size)
FILE_CALL("ftruncate", int, ftruncate64, (int file, off64_t size), file, size)

// Nothing loses power here, so nothing waits for the disk.
#define SYNC_CALL(name)                                            \
    int name(int file) {                                           \
        if (met_file("fsync", file) == FAILED) return -1;          \
        return folder_size ? 0 : REAL(name)(file);                 \
    }

SYNC_CALL(fsync)
SYNC_CALL(fdatasync)

int close(int file) {
    int writable = (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY;  // else there is nothing to lose
    enum Answer answer = writable ? met_file("close", file) : GO_ON;
    int error = errno, done = REAL(close)(file);  // the file is closed even where that fails
    if (answer != FAILED) return done;
    errno = error;
    return -1;
}

int msync(void *from, size_t size, int flags) {
    enum Answer answer = folder_size ? met("fsync", folder) : GO_ON;  // of whichever file is mapped there
    if (answer == FAILED) return -1;
    return folder_size ? 0 : REAL(msync)(from, size, flags);
}

#define WRITE_CALL(name, params, ...)                                \
    ssize_t name params {                                            \
        int through = fcntl(file, F_GETFL) & (O_SYNC | O_DSYNC);     \
        const char *call = through ? "write_through" : "write";      \
        enum Answer answer = met_file(call, file);                   \
        if (answer == FAILED) return -1;                             \
        if (answer == HALF && size > 1) size /= 2;                   \
        return REAL(name)(__VA_ARGS__);                              \
    }

WRITE_CALL(write, (int file, const void *from, size_t size), file, from, size)
WRITE_CALL(pwrite, (int file, const void *from, size_t size, off_t place), file, from, size, place)
WRITE_CALL(pwrite64, (int file, const void *from, size_t size, off64_t place), file, from, size, place)
WRITE_CALL(writev, (int file, const struct iovec *parts, int size), file, parts, size)
WRITE_CALL(pwritev, (int file, const struct iovec *parts, int size, off_t place), file, parts, size, place)
WRITE_CALL(pwritev64, (int file, const struct iovec *parts, int size, off64_t place), file, parts, size, place)
