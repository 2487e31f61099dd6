/* Listing, opening and asking devices, their asynchronous events, and what goes for a whole process. */
#define _GNU_SOURCE
#include "zoo.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Devices that are open at a time, those of librdmacm and our own. */
static struct dressed open_devices[64];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

struct dressed *dressed(struct ibv_context *context) {
    for (struct dressed *one = open_devices; one < open_devices + 64; one++)
        if (atomic_load_explicit(&one->context, memory_order_acquire) == context) return one;
    return NULL;
}

static bool is_closed(struct ibv_device *device) {
    return profile()->closed_device && !strcmp(device->name, profile()->closed_device);
}

/* The other soft device is not shown: with a healthy one beside it an adapter is only half tested. */
static bool is_shown(struct ibv_device *device) {
    return device->transport_type == profile()->below || is_closed(device);
}

/* A list of the devices that are shown; in front of it the library's own, which is given back with it. */
struct ibv_device **ibv_get_device_list(int *count) {
    int all = 0, shown = 0;
    struct ibv_device **list = REAL(ibv_get_device_list)(&all);
    if (!list) return NULL;
    struct ibv_device **ours = calloc((size_t)all + 2, sizeof *ours);
    if (!ours) abort();
    ours[0] = (struct ibv_device *)list;
    for (int at = 0; at < all; at++)
        if (is_shown(list[at])) ours[++shown] = list[at];
    if (count) *count = shown;
    return ours + 1;
}

void ibv_free_device_list(struct ibv_device **list) {
    REAL(ibv_free_device_list)((struct ibv_device **)list[-1]);
    free(list - 1);
}

/* libsiw (rdma-core up to 64) takes a queue whose mapping begins at 576 KiB for one that the kernel did not make. The
 * driver knows siw by its vendor number and makes a queue that lies across that place; here it cannot know it. */
static void keep_siw_away(struct dressed *device, struct ibv_context *context) {
    if (context->device->transport_type == IBV_TRANSPORT_IWARP)
        device->keeper = REAL(ibv_create_cq)(context, 1 << 15, NULL, NULL, 0);
}

/* One descriptor for the device's events and for the pipe that has it fail. */
static void watch_failure(struct dressed *device, struct ibv_context *context) {
    const char *pipe = getenv("SPINRPC_ZOO_FATAL");
    device->real_async_fd = context->async_fd;
    device->trigger = pipe ? open(pipe, O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
    if (device->trigger < 0) return;
    context->async_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event readable = {.events = EPOLLIN};
    epoll_ctl(context->async_fd, EPOLL_CTL_ADD, device->trigger, &readable);
    epoll_ctl(context->async_fd, EPOLL_CTL_ADD, device->real_async_fd, &readable);
    fcntl(device->real_async_fd, F_SETFL, fcntl(device->real_async_fd, F_GETFL) | O_NONBLOCK);
}

int swap_async_fd(struct ibv_context *context, int fd) {
    int before = context->async_fd;
    context->async_fd = fd;
    return before;
}

static void dress(struct ibv_context *context) {
    const struct profile *as = profile();
    pthread_mutex_lock(&opening);
    struct dressed *device = dressed(NULL);
    if (!device) abort();
    struct ibv_device_attr said;
    device->is_rxe = !REAL(ibv_query_device)(context, &said) && said.vendor_id == RXE_VENDOR;
    device->real = context->ops;
    device->real_vectors = context->num_comp_vectors;
    keep_siw_away(device, context);
    watch_failure(device, context);
    context->ops.post_send = zoo_post_send;
    context->ops.poll_cq = zoo_poll_cq;
    context->ops.alloc_mw = as->allocates_windows ? zoo_alloc_mw : NULL;
    context->ops.dealloc_mw = as->allocates_windows ? zoo_dealloc_mw : NULL;
    if (as->vectors) context->num_comp_vectors = as->vectors;
    atomic_store_explicit(&device->context, context, memory_order_release);
    pthread_mutex_unlock(&opening);
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    if (is_closed(device)) {
        record("cannot be opened: %s", device->name);
        errno = EACCES;
        return NULL;
    }
    struct ibv_context *context = REAL(ibv_open_device)(device);
    if (context && device->transport_type == profile()->below) dress(context);
    return context;
}

int ibv_close_device(struct ibv_context *context) {
    struct dressed *device = dressed(context);
    if (!device) return REAL(ibv_close_device)(context);
    if (device->keeper) REAL(ibv_destroy_cq)(device->keeper);
    device->keeper = NULL;
    if (device->trigger >= 0) {
        close(context->async_fd);
        close(device->trigger);
        context->async_fd = device->real_async_fd;
    }
    atomic_store(&device->context, NULL);
    return REAL(ibv_close_device)(context);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *said) {
    const struct profile *as = profile();
    int error = REAL(ibv_query_device)(context, said);
    if (error || !dressed(context)) return error;
    said->vendor_id = as->vendor_id;
    said->vendor_part_id = as->part_id;
    said->device_cap_flags = (said->device_cap_flags & ~(unsigned)WINDOW_FLAGS) | as->flags;
    if (as->max_sge) said->max_sge = as->max_sge;
    if (as->max_sge_rd) said->max_sge_rd = as->max_sge_rd;
    if (as->max_qp_rd_atom) said->max_qp_rd_atom = said->max_qp_init_rd_atom = as->max_qp_rd_atom;
    /* The flags say nothing of windows on a soft device that has none. */
    if (as->flags & IBV_DEVICE_MEM_WINDOW && !said->max_mw) said->max_mw = 8192;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *said) {
    int (*below)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *) = real("ibv_query_port");
    int error = below(context, port, said);
    /* The old structure is a prefix of the new one. */
    if (!error && dressed(context) && profile()->max_msg_sz)
        ((struct ibv_port_attr *)said)->max_msg_sz = profile()->max_msg_sz;
    return error;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    struct dressed *device = dressed(context);
    char byte;
    if (!device || device->trigger < 0) return REAL(ibv_get_async_event)(context, event);
    if (read(device->trigger, &byte, 1) == 1) {
        record("fails: IBV_EVENT_DEVICE_FATAL");
        event->event_type = IBV_EVENT_DEVICE_FATAL;
        return 0;
    }
    int ours = swap_async_fd(context, device->real_async_fd);
    int result = REAL(ibv_get_async_event)(context, event);
    swap_async_fd(context, ours);
    return result;
}
