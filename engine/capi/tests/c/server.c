/* A server: `server ADDRESS`. It prints "ready" when it can be called, and ends after a call of QUIT. */
#define _POSIX_C_SOURCE 200809L
#include "program.h"

#include <pthread.h>
#include <unistd.h>

enum { LATER_MAX = 64 };

/* What the handler, the worker and main() share. */
struct server {
    spinrpc_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_over;
    size_t waiting;
    struct {
        spinrpc_deferred *deferred;
        uint32_t number;
    } later[LATER_MAX];
    /* Lent to clients: for results of REVERSE, as long as it has free blocks. */
    spinrpc_slab *slab;
    /* Of a second answer, in MISUSE. */
    spinrpc_status second;
};

static void garbage(spinrpc_request *request) {
    OK(spinrpc_request_reject(request, SPINRPC_REJECTION_GARBAGE_ARGUMENTS));
}

static void echo(spinrpc_request *request, spinrpc_decoder *arguments) {
    const uint8_t *bytes;
    size_t length;
    if (spinrpc_decode_rest(arguments, &bytes, &length) != SPINRPC_STATUS_OK) {
        garbage(request);
        return;
    }
    OK(spinrpc_request_reply(request, bytes, length, NULL, 0));
}

static void sum(spinrpc_request *request, spinrpc_decoder *arguments) {
    uint32_t one;
    uint64_t other;
    uint8_t result[8];
    if (spinrpc_decode_u32(arguments, &one) != SPINRPC_STATUS_OK ||
        spinrpc_decode_u64(arguments, &other) != SPINRPC_STATUS_OK ||
        spinrpc_decode_finish(arguments) != SPINRPC_STATUS_OK) {
        garbage(request);
        return;
    }
    put_u64(result, one + other);
    OK(spinrpc_request_reply(request, result, sizeof result, NULL, 0));
}

static void later(struct server *server, spinrpc_request *request, spinrpc_decoder *arguments) {
    uint32_t number;
    if (spinrpc_decode_u32(arguments, &number) != SPINRPC_STATUS_OK) {
        garbage(request);
        return;
    }
    pthread_mutex_lock(&server->lock);
    CHECK(server->waiting < LATER_MAX);
    server->later[server->waiting].number = number;
    OK(spinrpc_request_defer(request, &server->later[server->waiting].deferred));
    server->waiting++;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

/* Answers a deferred request, on the worker's thread. */
static void answer(spinrpc_deferred *deferred, uint32_t number) {
    uint8_t result[4];
    if (number == FREED) {
        spinrpc_deferred_free(deferred);
    } else if (number == REJECTED) {
        OK(spinrpc_deferred_reject(deferred, SPINRPC_REJECTION_GARBAGE_ARGUMENTS));
    } else if (number == DATA) {
        spinrpc_item item = {.memory = NULL, .at = 0};
        OK(spinrpc_deferred_memory(deferred, 4, &item.memory));
        memcpy(spinrpc_memory_data(item.memory), "data", 4);
        OK(spinrpc_deferred_reply(deferred, NULL, 0, &item, 1));
    } else {
        put_u32(result, number + 1);
        OK(spinrpc_deferred_reply(deferred, result, sizeof result, NULL, 0));
    }
}

static void *worker(void *data) {
    struct server *server = data;
    pthread_mutex_lock(&server->lock);
    while (!server->is_over) {
        while (server->waiting > 0) {
            server->waiting--;
            answer(server->later[server->waiting].deferred, server->later[server->waiting].number);
        }
        pthread_cond_wait(&server->changed, &server->lock);
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

static void reverse(struct server *server, spinrpc_request *request, spinrpc_decoder *arguments) {
    const uint8_t *bytes;
    size_t length;
    spinrpc_memory *from, *memory;
    if (spinrpc_decode_data(arguments, DATA_MAX, &bytes, &length, &from) != SPINRPC_STATUS_OK) {
        garbage(request);
        return;
    }
    if (spinrpc_slab_take(server->slab, length, &memory) != SPINRPC_STATUS_OK) {
        OK(spinrpc_request_memory(request, length, &memory));
    }
    CHECK(spinrpc_memory_length(memory) == length);
    uint8_t *into = spinrpc_memory_data(memory);
    for (size_t at = 0; at < length; at++) {
        into[at] = bytes[length - 1 - at];
    }
    spinrpc_memory_free(from);
    uint8_t word[4];
    put_u32(word, (uint32_t)length);
    spinrpc_item item = {.memory = memory, .at = sizeof word};
    OK(spinrpc_request_reply(request, word, sizeof word, &item, 1));
}

/* Returns what the library says of mistakes. */
static void misuse(struct server *server, spinrpc_request *request) {
    uint8_t words[20];
    put_u32(words, spinrpc_engine_join(server->engine));
    put_u32(words + 4, spinrpc_request_reject(request, 77));
    put_u32(words + 8, spinrpc_request_reply(request, words, 3, NULL, 0));
    put_u32(words + 12, spinrpc_engine_serve(server->engine, 1, 1, NULL, NULL));
    put_u32(words + 16, server->second);
    OK(spinrpc_request_reply(request, words, sizeof words, NULL, 0));
    server->second = spinrpc_request_reply(request, words, sizeof words, NULL, 0);
}

static void quit(struct server *server, spinrpc_request *request) {
    OK(spinrpc_request_reply(request, NULL, 0, NULL, 0));
    pthread_mutex_lock(&server->lock);
    server->is_over = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void handle(void *user_data, spinrpc_request *request, uint32_t procedure,
                   spinrpc_decoder *arguments) {
    struct server *server = user_data;
    switch (procedure) {
    case 0: OK(spinrpc_request_reply(request, NULL, 0, NULL, 0)); break;
    case ECHO: echo(request, arguments); break;
    case SUM: sum(request, arguments); break;
    case LATER: later(server, request, arguments); break;
    case REVERSE: reverse(server, request, arguments); break;
    case DROP: break;
    case MISUSE: misuse(server, request); break;
    case QUIT: quit(server, request); break;
    default:
        OK(spinrpc_request_reject(request, SPINRPC_REJECTION_PROCEDURE_UNAVAILABLE));
    }
}

int main(int count, char **arguments) {
    struct server server = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    size_t unfinished;
    CHECK(count == 2);
    alarm(300);
    OK(spinrpc_engine_new("dev-vm", SETTINGS, &server.engine));
    OK(spinrpc_engine_serve(server.engine, PROGRAM, VERSION, handle, &server));
    OK(spinrpc_slab_new(server.engine, DATA_MAX, 2, &server.slab));
    const spinrpc_slab *slabs[] = {server.slab};
    spinrpc_listen_options options = {.slabs = slabs, .slab_count = 1};
    OK(spinrpc_engine_listen(server.engine, arguments[1], &options));
    OK(spinrpc_engine_start(server.engine));
    CHECK(pthread_create(&thread, NULL, worker, &server) == 0);
    CHECK(puts("ready") >= 0 && fflush(stdout) == 0);

    pthread_mutex_lock(&server.lock);
    while (!server.is_over) {
        pthread_cond_wait(&server.changed, &server.lock);
    }
    pthread_mutex_unlock(&server.lock);
    OK(spinrpc_engine_drain(server.engine, 10000000000, &unfinished));
    CHECK(unfinished == 0);
    OK(spinrpc_engine_join(server.engine));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(spinrpc_slab_available(server.slab) == 2);
    OK(spinrpc_engine_free(server.engine));
    spinrpc_slab_free(server.slab);
    return 0;
}
