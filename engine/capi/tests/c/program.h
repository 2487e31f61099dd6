/* The program that server.c and interface.rs serve, and that client.c and interface.rs call. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "spinrpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROGRAM = 0x20000001, VERSION = 1 };

enum procedure {
    ECHO = 1,     /* returns its arguments, whatever they are */
    SUM = 2,      /* unsigned int, unsigned hyper -> unsigned hyper */
    LATER = 3,    /* unsigned int -> one more, from another thread */
    REVERSE = 4,  /* opaque<> -> unsigned int length, opaque<> with its bytes in reverse order */
    DROP = 5,     /* the server does not answer */
    REJECT = 6,   /* PROC_UNAVAIL */
    MISUSE = 7,   /* statuses of functions that the server misuses: only of server.c */
    QUIT = 8      /* the server ends */
};

enum { DATA_MAX = 1 << 20 };

/* Numbers that server.c answers otherwise in LATER: not at all, with GARBAGE_ARGS, and with opaque<> "data". */
#define FREED 0xffffffff
#define REJECTED 0xfffffffe
#define DATA 0xfffffffd

/* One core, which sleeps when it is idle. */
#define SETTINGS "poll.mode=sleep\ncores.max=1\nstats.export=none"

/* Ends the program unless `condition` holds. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                     \
                    spinrpc_last_error_message());                                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define OK(call) CHECK((call) == SPINRPC_STATUS_OK)

static inline void put_u32(uint8_t *at, uint32_t value) {
    for (int byte = 0; byte < 4; byte++) {
        at[byte] = (uint8_t)(value >> (24 - 8 * byte));
    }
}

static inline void put_u64(uint8_t *at, uint64_t value) {
    put_u32(at, (uint32_t)(value >> 32));
    put_u32(at + 4, (uint32_t)value);
}

#endif
