/* The zoo: soft devices in the skin of real adapters. See README.md of this folder. */
#pragma once
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* verbs.h replaces some functions by macros; what is interposed are the functions. */
#undef ibv_get_device_list
#undef ibv_reg_mr
#undef ibv_query_port

/* An adapter, as far as it differs from the soft device below it. What is zero or false does not differ. */
struct profile {
    const char *name;
    /* The soft device that is dressed up: siw for IBV_TRANSPORT_IWARP, rxe for IBV_TRANSPORT_IB. */
    enum ibv_transport_type below;

    /* What the kernel and the provider say of it. */
    uint32_t vendor_id, part_id;
    /* The flags of memory windows and of invalidation (WINDOW_FLAGS); all others are those of the soft device. */
    unsigned flags;
    int max_sge, max_sge_rd, max_qp_rd_atom;
    uint32_t max_msg_sz;
    int vectors;

    /* Queue pairs. */
    uint32_t send_sge, recv_sge, inline_max;
    /* More inline bytes than there are: taken down to what there is, in the place of EINVAL. */
    bool clamps_inline;
    /* Any number of inline bytes is accepted, and then the flag has no effect. */
    bool ignores_inline;
    bool rounds_queues;

    /* Windows can be allocated, and bound and invalidated. */
    bool allocates_windows, binds_windows, sends_invalidate;
    /* Error numbers of post_send as the provider returns them: for an opcode that it does not know; after the error state. */
    int unknown_opcode, after_error;
    /* Fragment 0 is taken from sg_list whatever num_sge says. */
    bool fills_fragment_zero;
    /* sg_list[0] of a Write, and of the Send behind it, is read whatever num_sge says. */
    bool reads_first_pieces;

    /* What is not successful has no more than the four fields that ibv_poll_cq(3) promises. */
    bool garbles_errors;
    /* No request is reported as flushed. */
    bool flushes_silently;
    /* One report too many of each completion channel's event. */
    bool repeats_events;

    /* The network carries the operator's class of traffic only: a connection of another type of service gets nowhere. */
    bool carries_one_class;
    /* After its first connection request a listener hears ADDR_CHANGE, and nothing more. */
    bool moves_listeners;
    /* An accepting side hears of ESTABLISHED only when it says that a message has come. */
    bool loses_established;

    /* The kernel does not copy pinned pages for a child, so that ibv_fork_init(3) is needed. */
    bool forks_badly;
    /* Memory regions of a process, beyond which registering fails with EAGAIN, as by the rdma cgroup. */
    int region_quota;
    /* A device of this name is listed and cannot be opened. */
    const char *closed_device;
    /* A command to the device, in microseconds. */
    unsigned command_us;
};

enum { WINDOW_FLAGS = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                      IBV_DEVICE_MEM_MGT_EXTENSIONS };

/* Vendor numbers of the soft devices. */
enum { SIW_VENDOR = 0x626d74, RXE_VENDOR = 0xffffff };

extern const struct profile profiles[];

/* The profile that SPINRPC_ZOO names; ends the process when there is none of that name. */
const struct profile *profile(void);

/* An open device in its skin; what the soft device's driver had in the place of what is ours. */
struct dressed {
    _Atomic(struct ibv_context *) context;
    struct ibv_context_ops real;
    int real_vectors, real_async_fd, trigger;
    bool is_rxe;
    struct ibv_cq *keeper;
};

/* NULL for a device that is not dressed up. */
struct dressed *dressed(struct ibv_context *context);

/* A queue pair, found by its qp_context. */
struct pair {
    pthread_mutex_t lock;
    struct ibv_qp *qp;
    /* Requests by their number, the low 32 bits of which the soft device is given. */
    struct sent {
        uint64_t id;
        uint32_t number;
        bool is_posted, is_signalled;
    } *sent;
    uint32_t places, next;
    bool has_failed;
};

/* devices.c: the descriptor of the device's events, put in the place of ours; the libraries pass it to the kernel. Returns what
 * was there, to be put back. */
int swap_async_fd(struct ibv_context *context, int fd);

/* posting.c: operations of a context. */
int zoo_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad);
int zoo_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *into);
struct pair *take_pair(uint32_t depth);
void give_pair(struct pair *pair);

/* memory.c: operations of a context. */
struct ibv_mw *zoo_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int zoo_dealloc_mw(struct ibv_mw *mw);

/* record.c */
/* Adds a line to the file that SPINRPC_ZOO_LOG names. */
__attribute__((format(printf, 1, 2))) void record(const char *format, ...);
/* A command to the device: takes its time. */
void command(const char *what);
/* The function of the library below. */
void *real(const char *name);
#define REAL(function) ((__typeof__(&function))real(#function))
