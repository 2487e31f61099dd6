/* Posting and polling. The soft device is asked to report every request, and only those are passed on that the adapter
 * would report: siw would read the memory of a request without a report after later ones have completed (LIMITS.md),
 * which the driver knows of siw and cannot know here. */
#define _GNU_SOURCE
#include "zoo.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of requests: the mark, the pair, and which of its requests. Nothing else posts numbers that begin so. */
static const uint64_t MARK = 0xfffeULL << 48;
enum { PAIRS = 8192, BATCH = 64 };
static struct pair pairs[PAIRS];
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;

struct pair *take_pair(uint32_t depth) {
    pthread_mutex_lock(&taking);
    struct pair *pair = pairs;
    while (pair < pairs + PAIRS && pair->qp) pair++;
    if (pair == pairs + PAIRS) abort();
    /* Its numbers go on where they were: what is left of an earlier queue pair is known by them. */
    uint32_t places = 2;
    while (places < 2 * depth) places <<= 1;
    pthread_mutex_lock(&pair->lock);
    free(pair->sent);
    pair->sent = calloc(places, sizeof *pair->sent);
    if (!pair->sent) abort();
    pair->places = places;
    pair->has_failed = false;
    pair->qp = (struct ibv_qp *)pair;
    pthread_mutex_unlock(&pair->lock);
    pthread_mutex_unlock(&taking);
    return pair;
}

void give_pair(struct pair *pair) {
    pthread_mutex_lock(&pair->lock);
    memset(pair->sent, 0, pair->places * sizeof *pair->sent);
    pair->qp = NULL;
    pthread_mutex_unlock(&pair->lock);
}

static bool is_known(const struct profile *as, const struct ibv_send_wr *request) {
    switch (request->opcode) {
    case IBV_WR_BIND_MW:
    case IBV_WR_LOCAL_INV:
        return as->binds_windows;
    case IBV_WR_SEND_WITH_INV:
        return as->sends_invalidate;
    default:
        return true;
    }
}

static unsigned inline_bytes(const struct ibv_send_wr *request) {
    unsigned bytes = 0;
    for (int at = 0; at < request->num_sge; at++) bytes += request->sg_list[at].length;
    return request->send_flags & IBV_SEND_INLINE ? bytes : 0;
}

/* The provider's error for a request that it does not take; 0. */
static int refusal(const struct profile *as, const struct ibv_send_wr *request) {
    if (!is_known(as, request)) {
        record("post_send: opcode %d is none of the device's", request->opcode);
        return as->unknown_opcode;
    }
    if (as->send_sge && request->num_sge > (int)as->send_sge) return EINVAL;
    if (as->inline_max && !as->ignores_inline && inline_bytes(request) > as->inline_max) return EINVAL;
    return 0;
}

/* What the adapter makes of a request, for the soft device. */
static void translate(const struct profile *as, struct ibv_send_wr *request) {
    if (as->fills_fragment_zero && !request->num_sge && request->sg_list && request->sg_list->length &&
        request->opcode != IBV_WR_BIND_MW && request->opcode != IBV_WR_LOCAL_INV) {
        record("fault: a request of no piece has one of %u bytes in its list", request->sg_list->length);
        request->num_sge = 1;
    }
    if (as->ignores_inline) request->send_flags &= ~(unsigned)IBV_SEND_INLINE;
    request->send_flags |= IBV_SEND_SIGNALED;
}

/* cxgb4's way of posting a Write with the Send behind it at once, which looks at their pieces first. */
static void read_first_pieces(const struct ibv_send_wr *first) {
    static volatile uint32_t length __attribute__((unused));
    const struct ibv_send_wr *next = first->next;
    if (!next || next->next || first->opcode != IBV_WR_RDMA_WRITE) return;
    length = first->sg_list[0].length;
    if (next->opcode == IBV_WR_SEND || next->opcode == IBV_WR_SEND_WITH_INV) length = next->sg_list[0].length;
}

static uint64_t number_of(const struct pair *pair, uint32_t number) {
    return MARK | (uint64_t)(pair - pairs) << 32 | number;
}

/* Takes a request over into the chain for the soft device. */
static void note(struct pair *pair, struct ibv_send_wr *copy, const struct ibv_send_wr *request) {
    struct sent *place = &pair->sent[pair->next % pair->places];
    *place = (struct sent){request->wr_id, pair->next, true, request->send_flags & IBV_SEND_SIGNALED};
    *copy = *request;
    copy->wr_id = number_of(pair, pair->next++);
    copy->next = NULL;
    translate(profile(), copy);
}

/* Posts as much of the chain as a batch holds. Returns the number of requests taken, and the error of the next one. */
static int post_batch(struct pair *pair, struct ibv_send_wr *first, int *error) {
    struct ibv_send_wr chain[BATCH], *bad = NULL;
    int count = 0;
    for (struct ibv_send_wr *one = first; one && count < BATCH; one = one->next) {
        if ((*error = refusal(profile(), one))) break;
        note(pair, &chain[count], one);
        if (count) chain[count - 1].next = &chain[count];
        count++;
    }
    if (!count) return 0;
    int failed = dressed(pair->qp->context)->real.post_send(pair->qp, chain, &bad);
    if (!failed) return count;
    *error = failed;
    int taken = bad ? (int)(bad - chain) : count;
    pair->next -= (uint32_t)(count - taken);
    return taken;
}

static int post(struct pair *pair, struct ibv_send_wr *first, struct ibv_send_wr **bad) {
    const struct profile *as = profile();
    int error = 0;
    if (pair->has_failed && as->after_error) return *bad = first, as->after_error;
    if (as->reads_first_pieces) read_first_pieces(first);
    while (first && !error) {
        int taken = post_batch(pair, first, &error);
        while (taken-- > 0) first = first->next;
    }
    if (error) *bad = first;
    return error;
}

int zoo_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad) {
    struct pair *pair = qp->qp_context;
    pthread_mutex_lock(&pair->lock);
    int error = post(pair, first, bad);
    pthread_mutex_unlock(&pair->lock);
    return error;
}

/* Gives a completion of a request its own number; false if the adapter would not report it. */
static bool is_reported(struct ibv_wc *wc) {
    if (wc->wr_id >> 48 != MARK >> 48) return true;
    struct pair *pair = &pairs[wc->wr_id >> 32 & 0xffff];
    pthread_mutex_lock(&pair->lock);
    uint32_t number = (uint32_t)wc->wr_id;
    struct sent *place = pair->sent ? &pair->sent[number % pair->places] : NULL;
    bool is_its_own = pair->qp && place && place->is_posted && place->number == number;
    bool is_told = is_its_own && (wc->status != IBV_WC_SUCCESS || place->is_signalled);
    if (is_told) wc->wr_id = place->id;
    if (is_its_own && wc->status != IBV_WC_SUCCESS) pair->has_failed = true;
    pthread_mutex_unlock(&pair->lock);
    return is_told;
}

/* Only wr_id, status, qp_num and vendor_err mean something then. */
static void garble(struct ibv_wc *wc) {
    wc->opcode = (enum ibv_wc_opcode)0x7f;
    wc->byte_len = UINT32_MAX;
    wc->imm_data = UINT32_MAX;
    wc->wc_flags = UINT32_MAX;
}

/* Passes on what the adapter would report; false for the rest. rxe passes on the kernel's flag of "with invalidate",
 * which is another one than the library's. */
static bool pass_on(const struct dressed *device, struct ibv_wc *wc) {
    const struct profile *as = profile();
    if (!is_reported(wc)) return false;
    if (wc->status == IBV_WC_WR_FLUSH_ERR && as->flushes_silently) return false;
    if (wc->status != IBV_WC_SUCCESS && as->garbles_errors) garble(wc);
    if (wc->status == IBV_WC_SUCCESS && device->is_rxe && wc->wc_flags & IBV_WC_IP_CSUM_OK)
        wc->wc_flags = (wc->wc_flags & ~(unsigned)IBV_WC_IP_CSUM_OK) | IBV_WC_WITH_INV;
    return true;
}

int zoo_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *into) {
    struct dressed *device = dressed(cq->context);
    for (;;) {
        int found = device->real.poll_cq(cq, room, into), kept = 0;
        for (int at = 0; at < found; at++)
            if (pass_on(device, &into[at])) into[kept++] = into[at];
        if (found <= 0 || kept > 0) return found < 0 ? found : kept;
    }
}
