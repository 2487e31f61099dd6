/* The connection manager: options of connections, and its events. */
#define _GNU_SOURCE
#include "zoo.h"
#include <errno.h>
#include <stdlib.h>

/* Ids that something is known of. */
enum trait { OTHER_CLASS = 1, MOVED = 2, ACCEPTING = 4, NOTIFIED = 8 };
static struct known {
    struct rdma_cm_id *id;
    unsigned traits;
} known[4096];
static pthread_mutex_t knowing = PTHREAD_MUTEX_INITIALIZER;

/* Adds traits to an id, and returns all of them; `fresh` for an id that is made or goes, which has none. */
static unsigned traits(struct rdma_cm_id *id, unsigned more, bool fresh) {
    struct known *place = NULL;
    pthread_mutex_lock(&knowing);
    for (struct known *one = known; one < known + 4096; one++) {
        if (one->id == id) place = one;
        if (one->id == id) break;
        if (!one->id && !place) place = one;
    }
    if (!place) abort();
    if (fresh || place->id != id) place->traits = 0;
    place->traits |= more;
    place->id = place->traits ? id : NULL;
    unsigned all = place->traits;
    pthread_mutex_unlock(&knowing);
    return all;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int option, void *value, size_t bytes) {
    if (level == RDMA_OPTION_ID && option == RDMA_OPTION_ID_TOS) {
        record("type of service %u", *(uint8_t *)value);
        traits(id, OTHER_CLASS, false);
    }
    return REAL(rdma_set_option)(id, level, option, value, bytes);
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *parameters) {
    if (profile()->carries_one_class && traits(id, 0, false) & OTHER_CLASS) {
        record("fault: a connection outside of the operator's class of traffic");
        errno = ETIMEDOUT;
        return -1;
    }
    return REAL(rdma_connect)(id, parameters);
}

int rdma_destroy_id(struct rdma_cm_id *id) {
    traits(id, 0, true);
    return REAL(rdma_destroy_id)(id);
}

int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event) {
    if (event == IBV_EVENT_COMM_EST) traits(id, NOTIFIED, false);
    return REAL(rdma_notify)(id, event);
}

/* Our own event that comes next, and the one that was shown. One channel at a time is the only one of a process here. */
static struct rdma_cm_event *pending, *shown;

static void move_listener(struct rdma_cm_id *listener) {
    record("ADDR_CHANGE at a listener");
    traits(listener, MOVED, false);
    pending = calloc(1, sizeof *pending);
    if (!pending) abort();
    pending->id = listener;
    pending->event = RDMA_CM_EVENT_ADDR_CHANGE;
}

/* True if the program is not to see it; then it is given back. */
static bool is_lost(struct rdma_cm_event *event) {
    struct rdma_cm_id *request = NULL;
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        traits(event->id, ACCEPTING, true);
        unsigned listener = traits(event->listen_id, 0, false);
        if (profile()->moves_listeners && !listener) return move_listener(event->listen_id), false;
        if (!(listener & MOVED)) return false;
        record("fault: a connection request at the address of before");
        request = event->id;
    } else if (event->event != RDMA_CM_EVENT_ESTABLISHED || !profile()->loses_established ||
               (traits(event->id, 0, false) & (ACCEPTING | NOTIFIED)) != ACCEPTING) {
        return false;
    } else {
        record("ESTABLISHED is lost");
    }
    REAL(rdma_ack_cm_event)(event);
    if (request) rdma_destroy_id(request);
    return true;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event) {
    if (pending && pending->id->channel == channel) {
        *event = shown = pending;
        pending = NULL;
        return 0;
    }
    for (;;) {
        int result = REAL(rdma_get_cm_event)(channel, event);
        if (result || !is_lost(*event)) return result;
    }
}

/* The kernel's events have a buffer around them, ours have none. */
int rdma_ack_cm_event(struct rdma_cm_event *event) {
    if (event != shown) return REAL(rdma_ack_cm_event)(event);
    free(shown);
    shown = NULL;
    return 0;
}
