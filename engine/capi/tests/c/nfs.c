/* A client of an NFS server: `nfs ADDRESS`, of a directory that is empty. It says "restart" and
   "remove" when the server is to be restarted and when "data" is to be removed, and goes on with
   the next line of its input. */
#include "program.h"

#include <poll.h>
#include <unistd.h>

static const uint64_t SECOND = 1000000000;
enum { BLOCK = 64 << 10, BLOCKS = 8, NOENT = 2, NOTDIR = 20, STALE = 70 };

static spinrpc_queue *queue;

/* Waits for the next answer, whose token must be one that is in flight. */
static spinrpc_answer *next(uint64_t *token) {
    spinrpc_status outcome;
    spinrpc_answer *answer;
    for (;;) {
        spinrpc_status taken = spinrpc_queue_next(queue, token, &outcome, &answer);
        if (taken == SPINRPC_STATUS_OK) {
            OK(outcome);
            return answer;
        }
        CHECK(taken == SPINRPC_STATUS_EMPTY);
        bool must_wait;
        OK(spinrpc_queue_arm(queue, &must_wait));
        if (must_wait) {
            struct pollfd watched = {.fd = spinrpc_queue_fd(queue), .events = POLLIN};
            CHECK(poll(&watched, 1, 120000) == 1);
        }
    }
}

static uint8_t byte_of(size_t at) {
    return (uint8_t)(at * 31 / 7);
}

/* A block of the file's content, for a write. */
static spinrpc_memory *content(spinrpc_slab *slab, size_t block) {
    spinrpc_memory *memory;
    OK(spinrpc_slab_take(slab, BLOCK, &memory));
    uint8_t *data = spinrpc_memory_data(memory);
    for (size_t at = 0; at < BLOCK; at++) {
        data[at] = byte_of(block * BLOCK + at);
    }
    return memory;
}

static bool wrote(spinrpc_nfs_file *file, size_t length) {
    uint64_t token;
    size_t written;
    bool is_stable;
    spinrpc_answer *answer = next(&token);
    OK(spinrpc_nfs_write_result(file, answer, length, &written, &is_stable));
    CHECK(written == length);
    return is_stable;
}

static spinrpc_status commit(spinrpc_nfs_file *file) {
    uint64_t token;
    OK(spinrpc_nfs_commit(file, queue, 99));
    spinrpc_answer *answer = next(&token);
    CHECK(token == 99);
    return spinrpc_nfs_commit_result(file, answer);
}

/* All blocks at once, to the last token. */
static void write_all(spinrpc_nfs_file *file, spinrpc_slab *slab) {
    for (size_t block = 0; block < BLOCKS; block++) {
        OK(spinrpc_nfs_write(file, block * BLOCK, content(slab, block), 0, queue, block));
    }
    for (size_t block = 0; block < BLOCKS; block++) {
        wrote(file, BLOCK);
    }
    /* What a write was given is free when its answer is taken. */
    CHECK(spinrpc_slab_available(slab) == BLOCKS);
}

/* Reads `length` bytes at `offset`; returns how many there were, and checks them. */
static size_t read_at(spinrpc_nfs *nfs, spinrpc_nfs_file *file, size_t offset, size_t length,
                      bool *is_end) {
    spinrpc_memory *memory;
    uint64_t token;
    OK(spinrpc_nfs_memory(nfs, length, &memory));
    OK(spinrpc_nfs_read(file, offset, memory, queue, offset));
    spinrpc_answer *answer = next(&token);
    CHECK(token == offset);
    OK(spinrpc_nfs_read_result(answer, length, &memory, is_end));
    size_t bytes = spinrpc_memory_length(memory);
    const uint8_t *data = spinrpc_memory_data(memory);
    for (size_t at = 0; at < bytes; at++) {
        CHECK(data[at] == byte_of(offset + at));
    }
    spinrpc_memory_free(memory);
    return bytes;
}

static void read_all(spinrpc_nfs *nfs, spinrpc_nfs_file *file, spinrpc_slab *slab) {
    const uint8_t *places[BLOCKS];
    bool is_end;
    for (size_t block = 0; block < BLOCKS; block++) {
        spinrpc_memory *memory;
        OK(spinrpc_slab_take(slab, BLOCK, &memory));
        places[block] = spinrpc_memory_data(memory);
        OK(spinrpc_nfs_read(file, block * BLOCK, memory, queue, block));
    }
    for (size_t count = 0; count < BLOCKS; count++) {
        spinrpc_memory *memory;
        uint64_t block;
        spinrpc_answer *answer = next(&block);
        OK(spinrpc_nfs_read_result(answer, BLOCK, &memory, &is_end));
        /* In the block that was passed. */
        const uint8_t *data = spinrpc_memory_data(memory);
        CHECK(block < BLOCKS && data == places[block] && spinrpc_memory_length(memory) == BLOCK);
        for (size_t at = 0; at < BLOCK; at++) {
            CHECK(data[at] == byte_of(block * BLOCK + at));
        }
        spinrpc_memory_free(memory);
    }
    CHECK(read_at(nfs, file, 0, 10, &is_end) == 10 && !is_end);
    CHECK(read_at(nfs, file, BLOCKS * BLOCK - 4, BLOCK, &is_end) == 4 && is_end);
    CHECK(read_at(nfs, file, BLOCKS * BLOCK, 1, &is_end) == 0 && is_end);
}

static void expect_errors(spinrpc_engine *engine, const char *address, spinrpc_nfs *nfs,
                          spinrpc_nfs_file *file) {
    spinrpc_nfs *no_nfs = NULL;
    spinrpc_nfs_file *none = NULL;
    spinrpc_memory *memory = NULL;
    size_t read_max, write_max, written;
    bool is_end;
    CHECK(spinrpc_nfs_open(nfs, "none", 0, 0, &none) == SPINRPC_STATUS_NFS);
    CHECK(spinrpc_nfs_last_error() == NOENT);
    CHECK(strstr(spinrpc_last_error_message(), "/data/none: NFS3ERR_NOENT") != NULL);
    CHECK(spinrpc_nfs_open(nfs, "none/", SPINRPC_NFS_CREATE, 0600, &none) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_nfs_last_error() == 0);
    CHECK(spinrpc_nfs_open(nfs, "none", SPINRPC_NFS_TRUNCATE, 0600, &none) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_nfs_mount(engine, "nothing", NULL, &no_nfs) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    char other[200];
    snprintf(other, sizeof other, "%.*s//other", (int)(strstr(address, "//") - address), address);
    CHECK(spinrpc_nfs_mount(engine, other, NULL, &no_nfs) == SPINRPC_STATUS_NFS);
    /* A directory below the export that is missing, and a file. */
    snprintf(other, sizeof other, "%s/none", address);
    CHECK(spinrpc_nfs_mount(engine, other, NULL, &no_nfs) == SPINRPC_STATUS_NFS);
    CHECK(spinrpc_nfs_last_error() == NOENT);
    snprintf(other, sizeof other, "%s/data", address);
    CHECK(spinrpc_nfs_mount(engine, other, NULL, &no_nfs) == SPINRPC_STATUS_NFS);
    CHECK(spinrpc_nfs_last_error() == NOTDIR);
    spinrpc_nfs_options wrong = {.flags = 2};
    CHECK(spinrpc_nfs_mount(engine, address, &wrong, &no_nfs) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    wrong = (spinrpc_nfs_options){.reserved = {1}};
    CHECK(spinrpc_nfs_mount(engine, address, &wrong, &no_nfs) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(none == NULL && no_nfs == NULL);
    /* Memory that is passed wrongly belongs to the library all the same. */
    OK(spinrpc_nfs_limits(nfs, &read_max, &write_max));
    CHECK(read_max >= BLOCK && write_max >= BLOCK);
    OK(spinrpc_nfs_memory(nfs, 1, &memory));
    OK(spinrpc_memory_set_length(memory, 0));
    CHECK(spinrpc_nfs_read(file, 0, memory, queue, 0) == SPINRPC_STATUS_INVALID_ARGUMENT);
    OK(spinrpc_nfs_memory(nfs, 1, &memory));
    CHECK(spinrpc_nfs_write(NULL, 0, memory, 0, queue, 0) == SPINRPC_STATUS_INVALID_ARGUMENT);
    OK(spinrpc_nfs_memory(nfs, 1, &memory));
    CHECK(spinrpc_nfs_write(file, 0, memory, 2, queue, 0) == SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_nfs_read(file, 0, NULL, queue, 0) == SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_nfs_commit(file, NULL, 0) == SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_nfs_read_result(NULL, 1, &memory, &is_end) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_nfs_write_result(file, NULL, 1, &written, &is_end) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_nfs_commit_result(file, NULL) == SPINRPC_STATUS_INVALID_ARGUMENT);
    spinrpc_slab *slab;
    OK(spinrpc_slab_new(engine, read_max + 1, 1, &slab));
    OK(spinrpc_slab_take(slab, read_max + 1, &memory));
    CHECK(spinrpc_nfs_read(file, 0, memory, queue, 0) == SPINRPC_STATUS_TOO_LARGE);
    CHECK(spinrpc_slab_available(slab) == 1);
    spinrpc_slab_free(slab);
}

/* An answer of one kind is none of another: it is never read beyond its end. */
static void mix_answers_up(spinrpc_nfs *nfs, spinrpc_nfs_file *file) {
    uint64_t token;
    spinrpc_memory *memory;
    bool is_end;
    OK(spinrpc_nfs_commit(file, queue, 0));
    CHECK(spinrpc_nfs_read_result(next(&token), BLOCK, &memory, &is_end) ==
          SPINRPC_STATUS_PROTOCOL);
    OK(spinrpc_nfs_memory(nfs, 100, &memory));
    OK(spinrpc_nfs_read(file, 0, memory, queue, 0));
    CHECK(spinrpc_nfs_read_result(next(&token), 99, &memory, &is_end) == SPINRPC_STATUS_PROTOCOL);
}

static void ask_for(const char *what) {
    puts(what);
    fflush(stdout);
    CHECK(getchar() == '\n');
}

/* What was not committed before the server has restarted is lost, as far as the client can know. */
static void lose_data(spinrpc_nfs_file *file, spinrpc_slab *slab) {
    OK(spinrpc_nfs_write(file, 0, content(slab, 0), 0, queue, 0));
    if (wrote(file, BLOCK)) {
        fprintf(stderr, "the server has no unstable writes\n");
        exit(1);
    }
    OK(commit(file));
    /* Also data whose result was asked for with a wrong length. */
    uint64_t token;
    size_t written;
    bool is_stable;
    OK(spinrpc_nfs_write(file, 0, content(slab, 0), 0, queue, 0));
    CHECK(spinrpc_nfs_write_result(file, next(&token), 0, &written, &is_stable) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    ask_for("restart");
    CHECK(commit(file) == SPINRPC_STATUS_DATA_LOST);
    OK(spinrpc_nfs_write(file, 0, content(slab, 0), SPINRPC_NFS_STABLE, queue, 0));
    CHECK(wrote(file, BLOCK));
    OK(commit(file));
}

int main(int count, char **arguments) {
    spinrpc_engine *engine;
    spinrpc_slab *slab;
    spinrpc_nfs *nfs;
    spinrpc_nfs_file *file, *same;
    spinrpc_nfs_attributes attributes;
    CHECK(count == 2);
    alarm(300);
    OK(spinrpc_engine_new("dev-vm", SETTINGS, &engine));
    OK(spinrpc_engine_start(engine));
    OK(spinrpc_queue_new(BLOCKS, &queue));
    OK(spinrpc_slab_new(engine, BLOCK, BLOCKS, &slab));
    const spinrpc_slab *lent[] = {slab};
    spinrpc_nfs_options options = {.timeout_ns = 60 * SECOND, .slabs = lent, .slab_count = 1};
    OK(spinrpc_nfs_mount(engine, arguments[1], &options, &nfs));
    OK(spinrpc_nfs_open(nfs, "data", SPINRPC_NFS_CREATE, 0600, &file));
    write_all(file, slab);
    OK(commit(file));
    OK(spinrpc_nfs_open(nfs, "/data", 0, 0, &same));
    OK(spinrpc_nfs_file_attributes(same, &attributes));
    CHECK(attributes.kind == 1 && attributes.size == BLOCKS * BLOCK);
    CHECK((attributes.mode & 0777) == 0600 && attributes.uid == geteuid());
    CHECK(attributes.mtime_ns > 1000000000 * SECOND);
    read_all(nfs, same, slab);
    spinrpc_nfs_file_free(same);
    expect_errors(engine, arguments[1], nfs, file);
    mix_answers_up(nfs, file);
    lose_data(file, slab);
    read_all(nfs, file, slab);
    OK(spinrpc_nfs_open(nfs, "empty", SPINRPC_NFS_CREATE, 0644, &same));
    OK(spinrpc_nfs_write(same, 0, content(slab, 0), 0, queue, 0));
    wrote(same, BLOCK);
    spinrpc_nfs_file_free(same);
    OK(spinrpc_nfs_open(nfs, "empty", SPINRPC_NFS_CREATE | SPINRPC_NFS_TRUNCATE, 0644, &same));
    OK(spinrpc_nfs_file_attributes(same, &attributes));
    CHECK(attributes.size == 0);
    ask_for("remove");
    CHECK(commit(file) == SPINRPC_STATUS_NFS && spinrpc_nfs_last_error() == STALE);
    CHECK(spinrpc_nfs_file_attributes(file, &attributes) == SPINRPC_STATUS_NFS);
    /* Files outlive the mount, and memory the call that it was passed with. */
    spinrpc_nfs_free(nfs);
    OK(spinrpc_nfs_write(same, 0, content(slab, 0), SPINRPC_NFS_STABLE, queue, 0));
    CHECK(wrote(same, BLOCK));
    spinrpc_nfs_file_free(file);
    spinrpc_slab_free(slab);
    spinrpc_nfs_file_free(same);
    spinrpc_queue_free(queue);
    OK(spinrpc_engine_free(engine));
    return 0;
}
