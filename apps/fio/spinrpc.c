/* An engine for fio: files of NFS servers, by the client in libspinrpc. README.md says how to build and to use it.
 *
 * Each job has an engine of spinrpc with one core, and a mount. Buffers of fio are blocks of registered memory: a call takes
 * the block over, a read gives it back, and after a write the job takes another one. */
#include "fio.h"
#include "optgroup.h"

#include <poll.h>
#include <spinrpc.h>

/* Calls that a core takes at a time (of handles), and the commit of a file that is closed. */
enum { CALLS_MAX = 1024, DEPTH_MAX = CALLS_MAX - 1 };

extern struct ioengine_ops ioengine;

struct options {
    void *pad; /* fio takes an option at offset 0 for a missing one */
    char *url;
    char *profile;
    char *settings;
};

struct job {
    spinrpc_engine *engine;
    spinrpc_nfs *nfs;
    spinrpc_queue *queue;
    /* For commits of files that are closed. */
    spinrpc_queue *closing;
    /* By the number of the io_u; NULL while a call has it. */
    spinrpc_memory **blocks;
    struct io_u **events;
};

struct opened {
    spinrpc_nfs_file *file;
    /* The server has accepted data since the last commit, and may lose them. */
    bool is_unstable;
};

static struct fio_option options[] = {
    {
        .name = "url",
        .lname = "Server and directory",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, url),
        .help = "rdma://HOST/EXPORT, iwarp://HOST/EXPORT or shm:NAME//EXPORT",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "profile_of_engine",
        .lname = "Profile of the engine",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, profile),
        .help = "Name or file of a profile, as for spintune",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "settings",
        .lname = "Settings of the engine",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, settings),
        .help = "KEY=VALUE;KEY=VALUE, over the profile",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = NULL,
    },
};

static int fail(struct thread_data *td, int error, const char *what) {
    log_err("spinrpc: %s: %s\n", what, spinrpc_last_error_message());
    td_verror(td, error, what);
    return 1;
}

/* Bytes of the core's memory for one block of that length: a sixteenth of it is cut into blocks of 8 KiB, an eighth into
 * those of 128 KiB, and the rest into longer ones. */
static unsigned long long share_of(unsigned long long block) {
    return block <= 8 << 10     ? 16 * (8 << 10)
           : block <= 128 << 10 ? 8 * (128 << 10)
                                : 5 * (max(block, 1ULL << 20) + (64 << 10)) / 4;
}

/* The driver of the address, and memory for all blocks twice: those of fio, and those in flight. False if `text` is too short. */
static bool settings_of(struct thread_data *td, char *text, size_t bytes) {
    const struct options *options = td->eo;
    unsigned long long block = td_max_bs(td), depth = td->o.iodepth;
    unsigned long long mib = (2 * depth * (block + 4096)) / (1 << 20) + 8;
    unsigned long long core_mib = 2 * depth * share_of(block) / (1 << 20) + 8;
    const char *driver = strncmp(options->url, "rdma://", 7) == 0    ? "fabric.driver=verbs\n"
                         : strncmp(options->url, "iwarp://", 8) == 0 ? "fabric.driver=iwarp\n"
                                                                     : "";
    unsigned long long most = max(block, 1ULL << 20);
    int length = snprintf(
        text, bytes,
        "cores.max=1\ncores.list=any\nmem.arena_mib=%llu\nmem.conn_arena_mib=%llu\nrpc.credits=%llu\n"
        "rpc.max_read_bytes=%llu\nrpc.max_write_bytes=%llu\n%s%s",
        core_mib, mib, min(depth + 4, 1024ULL), most, most, driver, options->settings ? options->settings : "");
    for (char *at = text; *at != '\0'; at++) {
        *at = *at == ';' ? '\n' : *at;
    }
    return length >= 0 && (size_t)length < bytes;
}

static int init(struct thread_data *td) {
    const struct options *options = td->eo;
    char settings[4096];
    if (td->io_ops != &ioengine) {
        fprintf(stderr, "spinrpc: this fio is not that whose headers the engine was built with\n");
        return 1;
    }
    if (!options->url) {
        log_err("spinrpc: option url is missing\n");
        td_verror(td, EINVAL, "url");
        return 1;
    }
    if (td->o.iodepth > DEPTH_MAX) {
        log_err("spinrpc: iodepth is %u, and may be %u\n", td->o.iodepth, DEPTH_MAX);
        td_verror(td, EINVAL, "iodepth");
        return 1;
    }
    struct job *job = calloc(1, sizeof *job);
    td->io_ops_data = job;
    if (!job || !(job->events = calloc(td->o.iodepth, sizeof *job->events)) ||
        !(job->blocks = calloc(td->o.iodepth, sizeof *job->blocks))) {
        td_verror(td, ENOMEM, "calloc");
        return 1;
    }
    if (!settings_of(td, settings, sizeof settings)) {
        log_err("spinrpc: option settings is longer than the %zu bytes that it may have\n", sizeof settings);
        td_verror(td, EINVAL, "settings");
        return 1;
    }
    if (spinrpc_engine_new(options->profile, settings, &job->engine) != SPINRPC_STATUS_OK ||
        spinrpc_engine_start(job->engine) != SPINRPC_STATUS_OK ||
        spinrpc_queue_new(td->o.iodepth + 1, &job->queue) != SPINRPC_STATUS_OK ||
        spinrpc_queue_new(1, &job->closing) != SPINRPC_STATUS_OK) {
        return fail(td, EINVAL, "engine");
    }
    if (spinrpc_nfs_mount(job->engine, options->url, NULL, &job->nfs) != SPINRPC_STATUS_OK) {
        return fail(td, ENOTCONN, options->url);
    }
    return 0;
}

/* Has the io_u's buffer in a block: another one if a call has kept the last. */
static int own_block(struct thread_data *td, struct io_u *io_u) {
    struct job *job = td->io_ops_data;
    spinrpc_memory **block = &job->blocks[io_u->index];
    if (!*block) {
        if (spinrpc_nfs_memory(job->nfs, td_max_bs(td), block) != SPINRPC_STATUS_OK) {
            return fail(td, ENOMEM, "memory");
        }
        io_u->buf_filled_len = 0;
    }
    io_u->buf = spinrpc_memory_data(*block);
    return 0;
}

/* fio has allocated and filled buffers; jobs without data have none. */
static int post_init(struct thread_data *td) {
    struct io_u *io_u;
    int number;
    io_u_qiter(&td->io_u_all, io_u, number) {
        const void *filled = io_u->buf;
        if (filled) {
            if (own_block(td, io_u)) {
                return 1;
            }
            memcpy(io_u->buf, filled, td_max_bs(td));
        }
    }
    return 0;
}

/* The memory that a call is given: the block of the io_u, or another one for the rest of a read that was short, which fio
 * asks for in the middle of the buffer. NULL, which calls refuse, if there is none. */
static spinrpc_memory *passed(struct job *job, struct io_u *io_u) {
    spinrpc_memory **block = &job->blocks[io_u->index], *memory = *block;
    if (!memory) {
        return NULL;
    }
    if (io_u->xfer_buf != spinrpc_memory_data(memory)) {
        if (io_u->ddir != DDIR_READ) {
            return NULL;
        }
        return spinrpc_nfs_memory(job->nfs, io_u->xfer_buflen, &memory) == SPINRPC_STATUS_OK ? memory : NULL;
    }
    *block = NULL;
    spinrpc_memory_set_length(memory, io_u->xfer_buflen);
    return memory;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u) {
    struct job *job = td->io_ops_data;
    struct opened *opened = FILE_ENG_DATA(io_u->file);
    spinrpc_status status;
    fio_ro_check(td, io_u);
    if (io_u->ddir == DDIR_READ) {
        status = spinrpc_nfs_read(opened->file, io_u->offset, passed(job, io_u), job->queue, io_u->index);
    } else if (io_u->ddir == DDIR_WRITE) {
        uint32_t flags = td->o.sync_io ? SPINRPC_NFS_STABLE : 0;
        status = spinrpc_nfs_write(opened->file, io_u->offset, passed(job, io_u), flags, job->queue,
                                   io_u->index);
    } else if (ddir_sync(io_u->ddir)) {
        status = spinrpc_nfs_commit(opened->file, job->queue, io_u->index);
        /* Data of writes that end from now on need another one. */
        opened->is_unstable &= status != SPINRPC_STATUS_OK;
    } else {
        io_u->error = EOPNOTSUPP;
        return FIO_Q_COMPLETED;
    }
    if (status != SPINRPC_STATUS_OK) {
        io_u->error = EIO;
        fail(td, io_u->error, "call");
        if (io_u->buf) {
            own_block(td, io_u);
        }
        return FIO_Q_COMPLETED;
    }
    return FIO_Q_QUEUED;
}

/* Numbers of NFS are those of Unix, as far as there are such. */
static int error_of(spinrpc_status status) {
    uint32_t number = spinrpc_nfs_last_error();
    if (status != SPINRPC_STATUS_NFS) {
        return status == SPINRPC_STATUS_TIMED_OUT ? ETIMEDOUT : EIO;
    }
    return number == 63   ? ENAMETOOLONG
           : number == 69 ? EDQUOT
           : number == 70 ? ESTALE
           : number < 32  ? (int)number
                          : EIO;
}

/* Takes what was read. */
static void keep(struct job *job, struct io_u *io_u, spinrpc_memory *memory) {
    spinrpc_memory **block = &job->blocks[io_u->index];
    if (*block == NULL) {
        *block = memory;
    } else if (memory) {
        memcpy(io_u->xfer_buf, spinrpc_memory_data(memory), spinrpc_memory_length(memory));
        spinrpc_memory_free(memory);
    }
}

static void end(struct thread_data *td, struct io_u *io_u, spinrpc_status status,
                spinrpc_answer *answer) {
    struct job *job = td->io_ops_data;
    struct opened *opened = FILE_ENG_DATA(io_u->file);
    size_t bytes = io_u->xfer_buflen;
    bool is_end = false, is_stable = true;
    io_u->error = 0;
    io_u->resid = 0;
    if (status != SPINRPC_STATUS_OK) {
        /* There is no answer. */
    } else if (io_u->ddir == DDIR_READ) {
        spinrpc_memory *memory = NULL;
        status = spinrpc_nfs_read_result(answer, bytes, &memory, &is_end);
        bytes = spinrpc_memory_length(memory);
        keep(job, io_u, memory);
    } else if (io_u->ddir == DDIR_WRITE) {
        status = spinrpc_nfs_write_result(opened->file, answer, io_u->xfer_buflen, &bytes, &is_stable);
        opened->is_unstable |= !is_stable;
    } else {
        status = spinrpc_nfs_commit_result(opened->file, answer);
    }
    if (status != SPINRPC_STATUS_OK) {
        io_u->error = error_of(status);
        log_err("spinrpc: %s: %s\n", io_ddir_name(io_u->ddir), spinrpc_last_error_message());
    } else if (io_u->ddir == DDIR_READ && is_end && bytes < io_u->xfer_buflen) {
        /* fio would take what the buffer has had before for the rest. */
        io_u->error = EIO;
        log_err("spinrpc: read: the file ends at %llu\n", io_u->offset + bytes);
    } else if (io_u->ddir == DDIR_READ) {
        io_u->resid = io_u->xfer_buflen - bytes;
    } else if (!is_stable && td->o.sync_io) {
        io_u->error = EIO;
        log_err("spinrpc: write: the server has not put the data on stable storage\n");
    } else if (io_u->ddir == DDIR_WRITE && bytes < io_u->xfer_buflen) {
        /* The block with the rest has gone. */
        io_u->error = EIO;
        log_err("spinrpc: write: the server has taken %zu bytes of %llu\n", bytes, io_u->xfer_buflen);
    }
    if (io_u->error && ddir_sync(io_u->ddir)) {
        /* fio does not look at these. */
        td_verror(td, io_u->error, "commit");
    }
    if (io_u->buf && own_block(td, io_u)) {
        io_u->error = ENOMEM;
    }
}

/* Waits for an answer: 0 if none came in time, a negative error, or 1, also if there may be one. */
static int wait_at(spinrpc_queue *queue, int at_most_ms) {
    bool must_wait;
    if (spinrpc_queue_arm(queue, &must_wait) != SPINRPC_STATUS_OK) {
        return -EIO;
    }
    if (!must_wait) {
        return 1;
    }
    struct pollfd watched = {.fd = spinrpc_queue_fd(queue), .events = POLLIN};
    int ready = poll(&watched, 1, at_most_ms);
    return ready < 0 && errno == EINTR ? 1 : ready < 0 ? -errno : ready;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max,
                     const struct timespec *at_most) {
    struct job *job = td->io_ops_data;
    int at_most_ms = at_most ? at_most->tv_sec * 1000 + at_most->tv_nsec / 1000000 : -1;
    unsigned int count = 0;
    for (;;) {
        spinrpc_answer *answer;
        spinrpc_status outcome;
        uint64_t number;
        while (count < max && spinrpc_queue_next(job->queue, &number, &outcome, &answer) ==
                                  SPINRPC_STATUS_OK) {
            struct io_u *io_u = td->io_u_all.io_us[number];
            end(td, io_u, outcome, answer);
            job->events[count++] = io_u;
        }
        if (count >= min || count >= max) {
            return count;
        }
        int ready = wait_at(job->queue, at_most_ms);
        if (ready <= 0) {
            return ready == 0 || count > 0 ? (int)count : ready;
        }
    }
}

static struct io_u *event(struct thread_data *td, int number) {
    struct job *job = td->io_ops_data;
    return job->events[number];
}

static int open_file(struct thread_data *td, struct fio_file *f) {
    struct job *job = td->io_ops_data;
    uint32_t flags = td_write(td) && td->o.allow_create ? SPINRPC_NFS_CREATE : 0;
    struct opened *opened = calloc(1, sizeof *opened);
    if (!opened) {
        td_verror(td, ENOMEM, "calloc");
        return 1;
    }
    spinrpc_status status = spinrpc_nfs_open(job->nfs, f->file_name, flags, 0644, &opened->file);
    if (status != SPINRPC_STATUS_OK) {
        free(opened);
        return fail(td, error_of(status), f->file_name);
    }
    FILE_SET_ENG_DATA(f, opened);
    return 0;
}

/* Only the file knows if the server has lost something meanwhile. */
static spinrpc_status commit_now(struct job *job, const struct opened *opened) {
    spinrpc_status outcome, status = spinrpc_nfs_commit(opened->file, job->closing, 0);
    spinrpc_answer *answer;
    uint64_t token;
    if (status != SPINRPC_STATUS_OK) {
        return status;
    }
    while (spinrpc_queue_next(job->closing, &token, &outcome, &answer) != SPINRPC_STATUS_OK) {
        if (wait_at(job->closing, -1) < 0) {
            return SPINRPC_STATUS_ENGINE;
        }
    }
    return outcome == SPINRPC_STATUS_OK ? spinrpc_nfs_commit_result(opened->file, answer) : outcome;
}

static int close_file(struct thread_data *td, struct fio_file *f) {
    struct opened *opened = FILE_ENG_DATA(f);
    spinrpc_status status =
        opened->is_unstable ? commit_now(td->io_ops_data, opened) : SPINRPC_STATUS_OK;
    spinrpc_nfs_file_free(opened->file);
    free(opened);
    FILE_SET_ENG_DATA(f, NULL);
    return status == SPINRPC_STATUS_OK ? 0 : fail(td, error_of(status), "commit");
}

/* Without it fio would unlink a file of that name here. */
static int unlink_file(struct thread_data *td, struct fio_file *f) {
    (void)td;
    (void)f;
    return EOPNOTSUPP;
}

static void cleanup(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (!job) {
        return;
    }
    for (unsigned int number = 0; job->blocks && number < td->o.iodepth; number++) {
        spinrpc_memory_free(job->blocks[number]);
    }
    spinrpc_nfs_free(job->nfs);
    spinrpc_queue_free(job->queue);
    spinrpc_queue_free(job->closing);
    spinrpc_engine_free(job->engine);
    free(job->blocks);
    free(job->events);
    free(job);
    td->io_ops_data = NULL;
}

/* fio finds it by this name. */
struct ioengine_ops ioengine = {
    .name = "spinrpc",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL,
    .init = init,
    .post_init = post_init,
    .queue = queue,
    .getevents = getevents,
    .event = event,
    .cleanup = cleanup,
    .open_file = open_file,
    .close_file = close_file,
    .unlink_file = unlink_file,
    .options = options,
    .option_struct_size = sizeof(struct options),
};
