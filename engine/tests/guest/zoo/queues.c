/* Completion queues and queue pairs: what they may ask for, and what they get. */
#define _GNU_SOURCE
#include "zoo.h"
#include <errno.h>

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context, struct ibv_comp_channel *channel,
                             int vector) {
    struct dressed *device = dressed(context);
    if (!device) return REAL(ibv_create_cq)(context, entries, cq_context, channel, vector);
    command("make a completion queue");
    record("vector %d of %d for a completion queue", vector, context->num_comp_vectors);
    if (vector >= context->num_comp_vectors) return errno = EINVAL, NULL;
    int ours = swap_async_fd(context, device->real_async_fd);
    struct ibv_cq *cq = REAL(ibv_create_cq)(context, entries, cq_context, channel, vector % device->real_vectors);
    swap_async_fd(context, ours);
    return cq;
}

/* An event more than there was, which the channel knows nothing of: the queue was reported already. */
static atomic_uint extra_events;
static _Thread_local struct ibv_cq *repeated;

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    if (repeated && profile()->repeats_events) {
        *cq = repeated;
        *cq_context = repeated->cq_context;
        repeated = NULL;
        atomic_fetch_add(&extra_events, 1);
        return 0;
    }
    int result = REAL(ibv_get_cq_event)(channel, cq, cq_context);
    if (!result && dressed((*cq)->context)) repeated = *cq;
    return result;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) {
    unsigned extra = atomic_load(&extra_events);
    while (count > 0 && extra > 0)
        if (atomic_compare_exchange_weak(&extra_events, &extra, extra - 1)) extra--, count--;
    REAL(ibv_ack_cq_events)(cq, count);
}

/* The name of a capability that is beyond the device; NULL if there is none. */
static const char *beyond(const struct profile *as, const struct ibv_qp_cap *asked) {
    if (as->send_sge && asked->max_send_sge > as->send_sge) return "max_send_sge";
    if (as->recv_sge && asked->max_recv_sge > as->recv_sge) return "max_recv_sge";
    if (as->inline_max && asked->max_inline_data > as->inline_max && !as->clamps_inline) return "max_inline_data";
    return NULL;
}

static uint32_t power_of_two(uint32_t least) {
    uint32_t power = 1;
    while (power < least) power <<= 1;
    return power;
}

/* What the soft device is asked for. */
static struct ibv_qp_cap wanted(const struct profile *as, struct ibv_qp_cap asked) {
    if (as->clamps_inline && asked.max_inline_data > as->inline_max) asked.max_inline_data = as->inline_max;
    if (as->ignores_inline) asked.max_inline_data = 0;
    if (as->rounds_queues) {
        asked.max_send_wr = power_of_two(asked.max_send_wr);
        asked.max_recv_wr = power_of_two(asked.max_recv_wr);
    }
    return asked;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    struct dressed *device = dressed(pd->context);
    const struct profile *as = profile();
    if (!device) return REAL(ibv_create_qp)(pd, attributes);
    command("make a queue pair");
    const char *refused = beyond(as, &attributes->cap);
    if (refused) {
        record("no queue pair: %s is beyond the device", refused);
        errno = EINVAL;
        return NULL;
    }
    uint32_t asked = attributes->cap.max_inline_data;
    attributes->cap = wanted(as, attributes->cap);
    int ours = swap_async_fd(pd->context, device->real_async_fd);
    struct ibv_qp *qp = REAL(ibv_create_qp)(pd, attributes);
    swap_async_fd(pd->context, ours);
    if (!qp) return NULL;
    if (as->ignores_inline) attributes->cap.max_inline_data = asked;
    if (as->inline_max && attributes->cap.max_inline_data > as->inline_max)
        attributes->cap.max_inline_data = as->inline_max;
    struct pair *pair = take_pair(attributes->cap.max_send_wr);
    pair->qp = qp;
    qp->qp_context = pair;
    return qp;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    struct pair *pair = dressed(qp->context) ? qp->qp_context : NULL;
    if (pair) command("destroy a queue pair");
    int error = REAL(ibv_destroy_qp)(qp);
    if (pair && !error) give_pair(pair);
    return error;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    struct pair *pair = dressed(qp->context) ? qp->qp_context : NULL;
    if (!pair) return REAL(ibv_modify_qp)(qp, attributes, mask);
    command("modify a queue pair");
    if (mask & IBV_QP_STATE && attributes->qp_state == IBV_QPS_ERR) {
        pthread_mutex_lock(&pair->lock);
        pair->has_failed = true;
        pthread_mutex_unlock(&pair->lock);
    }
    return REAL(ibv_modify_qp)(qp, attributes, mask);
}
