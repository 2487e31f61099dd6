/* A client: `client ADDRESS [quit]`. It makes calls in every way there is and checks the answers. */
#define _GNU_SOURCE /* memfd_create() */
#include "program.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint64_t SECOND = 1000000000;

/* Calls and waits; the results must be `length` bytes of XDR, `expected`. */
static void expect(spinrpc_client *client, uint32_t procedure, const uint8_t *arguments,
                   size_t arguments_length, const uint8_t *expected, size_t length) {
    spinrpc_answer *answer;
    const uint8_t *bytes;
    size_t bytes_length;
    OK(spinrpc_call_wait(client, procedure, arguments, arguments_length, NULL, &answer));
    OK(spinrpc_decode_rest(spinrpc_answer_results(answer), &bytes, &bytes_length));
    CHECK(bytes_length == length && (length == 0 || memcmp(bytes, expected, length) == 0));
    spinrpc_answer_free(answer);
}

static void call_and_wait(spinrpc_client *client) {
    uint8_t echoed[200], arguments[12], result[8];
    for (size_t at = 0; at < sizeof echoed; at++) {
        echoed[at] = (uint8_t)at;
    }
    expect(client, 0, NULL, 0, NULL, 0);
    expect(client, ECHO, echoed, sizeof echoed, echoed, sizeof echoed);
    put_u32(arguments, 0xffffffff);
    put_u64(arguments + 4, 1);
    put_u64(result, 0x100000000);
    expect(client, SUM, arguments, sizeof arguments, result, sizeof result);
    put_u32(arguments, 41);
    put_u32(result, 42);
    expect(client, LATER, arguments, 4, result, 4);
}

/* Calls that fail: each must say why. */
static void expect_errors(spinrpc_client *client) {
    spinrpc_answer *answer = NULL;
    uint8_t word[4] = {0};
    CHECK(spinrpc_call_wait(client, SUM, word, 4, NULL, &answer) ==
          SPINRPC_STATUS_GARBAGE_ARGUMENTS);
    CHECK(spinrpc_call_wait(client, DROP, NULL, 0, NULL, &answer) == SPINRPC_STATUS_SYSTEM_ERROR);
    CHECK(strstr(spinrpc_last_error_message(), "the server answered") != NULL);
    CHECK(spinrpc_call_wait(client, REJECT, NULL, 0, NULL, &answer) ==
          SPINRPC_STATUS_PROCEDURE_UNAVAILABLE);
    CHECK(spinrpc_call_wait(client, ECHO, word, 3, NULL, &answer) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_call_wait(NULL, ECHO, word, 4, NULL, &answer) == SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(strcmp(spinrpc_last_error_message(), "client is null") == 0);
    CHECK(answer == NULL);
}

/* Answers that callbacks have got. */
struct answers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    spinrpc_client *client;
    uint32_t sum;
    unsigned got;
};

/* Runs on the core. Each number that is not zero starts a call with the next lower one. */
static void on_answer(void *user_data, spinrpc_status status, spinrpc_decoder *results) {
    struct answers *answers = user_data;
    spinrpc_answer *answer;
    uint32_t number;
    OK(status);
    OK(spinrpc_decode_u32(results, &number));
    OK(spinrpc_decode_finish(results));
    CHECK(spinrpc_call_wait(answers->client, 0, NULL, 0, NULL, &answer) ==
          SPINRPC_STATUS_INVALID_STATE);
    if (number > 0) {
        uint8_t word[4];
        put_u32(word, number - 1);
        OK(spinrpc_call(answers->client, ECHO, word, sizeof word, NULL, on_answer, answers));
    }
    pthread_mutex_lock(&answers->lock);
    answers->sum += number;
    answers->got++;
    pthread_cond_signal(&answers->changed);
    pthread_mutex_unlock(&answers->lock);
}

static void call_back(spinrpc_client *client) {
    struct answers answers = {.lock = PTHREAD_MUTEX_INITIALIZER,
                              .changed = PTHREAD_COND_INITIALIZER,
                              .client = client};
    uint8_t word[4];
    for (uint32_t number = 3; number <= 5; number++) {
        put_u32(word, number);
        OK(spinrpc_call(client, ECHO, word, sizeof word, NULL, on_answer, &answers));
    }
    pthread_mutex_lock(&answers.lock);
    while (answers.got < 4 + 5 + 6) {
        pthread_cond_wait(&answers.changed, &answers.lock);
    }
    pthread_mutex_unlock(&answers.lock);
    CHECK(answers.sum == 6 + 10 + 15);
}

/* Takes the answer that is next, which may be waited for. */
static spinrpc_status next(spinrpc_queue *queue, uint64_t *token, spinrpc_answer **answer) {
    spinrpc_status outcome;
    for (;;) {
        spinrpc_status taken = spinrpc_queue_next(queue, token, &outcome, answer);
        if (taken == SPINRPC_STATUS_OK) {
            return outcome;
        }
        CHECK(taken == SPINRPC_STATUS_EMPTY);
        bool must_wait;
        OK(spinrpc_queue_arm(queue, &must_wait));
        if (must_wait) {
            struct pollfd watched = {.fd = spinrpc_queue_fd(queue), .events = POLLIN};
            CHECK(poll(&watched, 1, 60000) == 1);
        }
    }
}

static void call_by_queue(spinrpc_client *client) {
    enum { CALLS = 8 };
    spinrpc_queue *queue;
    uint64_t token, tokens = 0;
    uint8_t word[4];
    OK(spinrpc_queue_new(CALLS, &queue));
    for (uint32_t call = 0; call < CALLS - 1; call++) {
        put_u32(word, call);
        OK(spinrpc_call_queued(client, LATER, word, sizeof word, NULL, queue, call));
    }
    OK(spinrpc_call_queued(client, DROP, NULL, 0, NULL, queue, CALLS - 1));
    CHECK(spinrpc_call_queued(client, 0, NULL, 0, NULL, queue, 0) == SPINRPC_STATUS_AGAIN);
    for (int call = 0; call < CALLS; call++) {
        spinrpc_answer *answer;
        spinrpc_status outcome = next(queue, &token, &answer);
        if (token == CALLS - 1) {
            CHECK(outcome == SPINRPC_STATUS_SYSTEM_ERROR && answer == NULL);
        } else {
            uint32_t number;
            OK(outcome);
            OK(spinrpc_decode_u32(spinrpc_answer_results(answer), &number));
            CHECK(number == token + 1);
            spinrpc_answer_free(answer);
        }
        tokens |= 1u << token;
    }
    CHECK(tokens == (1u << CALLS) - 1);
    /* The answer of this one is not taken. */
    OK(spinrpc_call_queued(client, 0, NULL, 0, NULL, queue, 0));
    spinrpc_queue_free(queue);
}

/* Data that are placed directly: in registered memory, there and back. */
static void place_data(spinrpc_client *client, size_t length, spinrpc_memory *argument,
                       spinrpc_memory *result) {
    spinrpc_memory *reversed;
    const uint8_t *bytes;
    size_t bytes_length;
    uint32_t number;
    spinrpc_answer *answer;
    CHECK(spinrpc_memory_capacity(argument) >= length);
    CHECK(spinrpc_memory_set_length(argument, spinrpc_memory_capacity(argument) + 1) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    uint8_t *data = spinrpc_memory_data(argument);
    for (size_t at = 0; at < length; at++) {
        data[at] = (uint8_t)(at % 251);
    }
    spinrpc_item item = {.memory = argument, .at = 0};
    spinrpc_call_options options = {.deadline_ns = 60 * SECOND,
                                    .items = &item,
                                    .item_count = 1,
                                    .results = &result,
                                    .result_count = 1};
    OK(spinrpc_call_wait(client, REVERSE, NULL, 0, &options, &answer));
    spinrpc_decoder *results = spinrpc_answer_results(answer);
    OK(spinrpc_decode_u32(results, &number));
    CHECK(number == length);
    OK(spinrpc_decode_data(results, length, &bytes, &bytes_length, &reversed));
    OK(spinrpc_decode_finish(results));
    spinrpc_answer_free(answer);
    CHECK(reversed != NULL && bytes_length == length);
    CHECK(spinrpc_memory_length(reversed) == length && spinrpc_memory_data(reversed) == bytes);
    for (size_t at = 0; at < length; at++) {
        CHECK(bytes[at] == (uint8_t)((length - 1 - at) % 251));
    }
    spinrpc_memory_free(reversed);
}

static void place_in_registered_memory(spinrpc_client *client, size_t length) {
    spinrpc_memory *argument, *result;
    OK(spinrpc_client_memory(client, length, &argument));
    OK(spinrpc_client_memory(client, length, &result));
    place_data(client, length, argument, result);
}

/* A slab of two blocks out of a memfd of the program's own. */
static spinrpc_slab *adopt_memfd(void) {
    spinrpc_slab *slab;
    int unsealed = memfd_create("unsealed", MFD_CLOEXEC);
    int memfd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(unsealed >= 0 && memfd >= 0);
    CHECK(ftruncate(unsealed, DATA_MAX) == 0 && ftruncate(memfd, 2 * DATA_MAX) == 0);
    CHECK(spinrpc_slab_from_memfd(unsealed, DATA_MAX, 1, &slab) != SPINRPC_STATUS_OK);
    CHECK(spinrpc_slab_from_memfd(memfd, DATA_MAX, 1, &slab) ==
          SPINRPC_STATUS_INVALID_ARGUMENT);
    OK(spinrpc_slab_from_memfd(memfd, DATA_MAX, 2, &slab));
    CHECK(close(unsealed) == 0 && close(memfd) == 0);
    return slab;
}

/* Arguments and results in blocks of slabs, of which one is lent. */
static void place_in_slabs(spinrpc_client *client, spinrpc_slab *slabs[2]) {
    static const size_t lengths[] = {3, 5000, DATA_MAX};
    for (int round = 0; round < 6; round++) {
        size_t length = lengths[round / 2];
        spinrpc_memory *argument, *result, *none = NULL;
        OK(spinrpc_slab_take(slabs[round % 2], length, &argument));
        OK(spinrpc_slab_take(slabs[1 - round % 2], length, &result));
        CHECK(spinrpc_slab_take(slabs[0], DATA_MAX + 1, &none) == SPINRPC_STATUS_NO_MEMORY);
        CHECK(none == NULL && spinrpc_slab_available(slabs[0]) == 1);
        CHECK((uintptr_t)spinrpc_memory_data(argument) % 4096 == 0);
        place_data(client, length, argument, result);
    }
    /* What a call was given is free when its answer is. */
    CHECK(spinrpc_slab_available(slabs[0]) == 2 && spinrpc_slab_available(slabs[1]) == 2);
}

/* Blocks that are passed belong to the library, although the call is refused. */
static void pass_memory_wrongly(spinrpc_client *client) {
    spinrpc_memory *memory;
    spinrpc_answer *answer;
    for (int round = 0; round < 100; round++) {
        OK(spinrpc_client_memory(client, DATA_MAX, &memory));
        spinrpc_item item = {.memory = memory, .at = 4};
        spinrpc_call_options options = {.items = &item, .item_count = 1};
        CHECK(spinrpc_call_wait(client, REVERSE, NULL, 0, &options, &answer) ==
              SPINRPC_STATUS_INVALID_ARGUMENT);
    }
}

static void expect_misuse_told(spinrpc_client *client) {
    uint8_t words[20];
    put_u32(words, SPINRPC_STATUS_INVALID_STATE);
    put_u32(words + 4, SPINRPC_STATUS_INVALID_ARGUMENT);
    put_u32(words + 8, SPINRPC_STATUS_INVALID_ARGUMENT);
    put_u32(words + 12, SPINRPC_STATUS_INVALID_ARGUMENT);
    put_u32(words + 16, SPINRPC_STATUS_OK);
    expect(client, MISUSE, NULL, 0, words, sizeof words);
    put_u32(words + 16, SPINRPC_STATUS_INVALID_STATE);
    expect(client, MISUSE, NULL, 0, words, sizeof words);
}

/* Requests that the server defers and answers in other ways. */
static void expect_other_answers(spinrpc_client *client) {
    static const uint8_t data[8] = {0, 0, 0, 4, 'd', 'a', 't', 'a'};
    uint8_t word[4];
    spinrpc_answer *none;
    put_u32(word, FREED);
    CHECK(spinrpc_call_wait(client, LATER, word, 4, NULL, &none) == SPINRPC_STATUS_SYSTEM_ERROR);
    put_u32(word, REJECTED);
    CHECK(spinrpc_call_wait(client, LATER, word, 4, NULL, &none) ==
          SPINRPC_STATUS_GARBAGE_ARGUMENTS);
    put_u32(word, DATA);
    expect(client, LATER, word, 4, data, sizeof data);
}

/* A handshake has five seconds, which a program under valgrind may miss: then the library tries again. */
static spinrpc_client *connect_to(spinrpc_engine *engine, const char *address, uint32_t version,
                                  const spinrpc_slab *slab, spinrpc_status expected) {
    spinrpc_client *client;
    spinrpc_connect_options options = {.slabs = &slab,
                                       .slab_count = slab != NULL,
                                       .flags = SPINRPC_CONNECT_RECONNECT |
                                                SPINRPC_CONNECT_RETRY_FIRST};
    OK(spinrpc_client_connect(engine, address, PROGRAM, version, &options, &client));
    CHECK(spinrpc_client_wait_up(client, 60 * SECOND) == expected);
    return client;
}

/* Counts lines of the log, on a thread of the library that may block. */
static void on_line(void *user_data, spinrpc_log_level level, const char *target,
                    const char *text) {
    CHECK(level >= SPINRPC_LOG_LEVEL_ERROR && level <= SPINRPC_LOG_LEVEL_INFO);
    CHECK(strncmp(target, "spinrpc", 7) == 0 && strlen(text) > 0 && strlen(text) < 1024);
    atomic_fetch_add((atomic_uint *)user_data, 1);
}

static void set_log(atomic_uint *lines) {
    CHECK(spinrpc_set_log(NULL, lines, SPINRPC_LOG_LEVEL_INFO) == SPINRPC_STATUS_INVALID_ARGUMENT);
    CHECK(spinrpc_set_log(on_line, lines, 0) == SPINRPC_STATUS_INVALID_ARGUMENT);
    OK(spinrpc_set_log(on_line, lines, SPINRPC_LOG_LEVEL_INFO));
    CHECK(spinrpc_set_log(on_line, lines, SPINRPC_LOG_LEVEL_INFO) == SPINRPC_STATUS_INVALID_STATE);
}

int main(int count, char **arguments) {
    static atomic_uint lines;
    spinrpc_engine *engine;
    spinrpc_client *client;
    CHECK(count == 2 || (count == 3 && strcmp(arguments[2], "quit") == 0));
    alarm(300);
    set_log(&lines);
    CHECK(spinrpc_engine_new("dev-vm", "poll.mode=fast", &engine) == SPINRPC_STATUS_CONFIG);
    CHECK(strstr(spinrpc_last_error_message(), "poll.mode") != NULL);
    OK(spinrpc_engine_new("dev-vm", SETTINGS, &engine));
    OK(spinrpc_engine_start(engine));
    CHECK(spinrpc_engine_start(engine) == SPINRPC_STATUS_INVALID_STATE);
    spinrpc_slab *slabs[] = {adopt_memfd(), NULL};
    OK(spinrpc_slab_new(engine, DATA_MAX, 2, &slabs[1]));
    client = connect_to(engine, arguments[1], VERSION, slabs[0], SPINRPC_STATUS_OK);
    spinrpc_client_free(
        connect_to(engine, arguments[1], VERSION + 1, NULL, SPINRPC_STATUS_VERSION_MISMATCH));

    call_and_wait(client);
    expect_errors(client);
    call_back(client);
    call_by_queue(client);
    place_in_registered_memory(client, 3);
    place_in_registered_memory(client, DATA_MAX);
    place_in_slabs(client, slabs);
    pass_memory_wrongly(client);
    if (count == 3) {
        expect_other_answers(client);
        expect_misuse_told(client);
        expect(client, QUIT, NULL, 0, NULL, 0);
    }
    spinrpc_slab_free(slabs[0]);
    spinrpc_client_free(client);
    OK(spinrpc_engine_free(engine));
    /* One connection was refused, and the end of an engine waits for the log. */
    CHECK(atomic_load(&lines) > 0);
    spinrpc_slab_free(slabs[1]);
    return 0;
}
