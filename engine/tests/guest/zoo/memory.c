/* Memory: regions and windows, and what a fork does to them. */
#define _GNU_SOURCE
#include "zoo.h"
#include <errno.h>

static atomic_bool is_fork_safe;
static atomic_int regions;

int ibv_fork_init(void) {
    if (atomic_load(&regions) > 0) record("fault: ibv_fork_init after the first registration");
    atomic_store(&is_fork_safe, true);
    return REAL(ibv_fork_init)();
}

enum ibv_fork_status ibv_is_fork_initialized(void) {
    if (!profile()->forks_badly) return REAL(ibv_is_fork_initialized)();
    return atomic_load(&is_fork_safe) ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

/* On such a kernel a child of the program would write into what the device is told to read: better no registration. */
static bool is_refused(void) {
    if (profile()->forks_badly && !atomic_load(&is_fork_safe)) {
        record("fault: memory is registered before ibv_fork_init");
        errno = EINVAL;
        return true;
    }
    int quota = profile()->region_quota;
    if (quota && atomic_load(&regions) >= quota) {
        record("quota: no more than %d memory regions", quota);
        errno = EAGAIN;
        return true;
    }
    return false;
}

/* With the newer function, which the other one is a case of. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *first, size_t bytes, uint64_t at, unsigned access) {
    if (!dressed(pd->context)) return REAL(ibv_reg_mr_iova2)(pd, first, bytes, at, access);
    command("register memory");
    if (is_refused()) return NULL;
    struct ibv_mr *region = REAL(ibv_reg_mr_iova2)(pd, first, bytes, at, access);
    if (region) atomic_fetch_add(&regions, 1);
    return region;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *first, size_t bytes, int access) {
    return ibv_reg_mr_iova2(pd, first, bytes, (uintptr_t)first, (unsigned)access);
}

int ibv_dereg_mr(struct ibv_mr *region) {
    bool counts = dressed(region->context);
    if (counts) command("deregister memory");
    int error = REAL(ibv_dereg_mr)(region);
    if (counts && !error) atomic_fetch_sub(&regions, 1);
    return error;
}

struct ibv_mw *zoo_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    command("allocate a window");
    struct ibv_mw *(*below)(struct ibv_pd *, enum ibv_mw_type) = dressed(pd->context)->real.alloc_mw;
    if (below) return below(pd, type);
    errno = EOPNOTSUPP;
    return NULL;
}

int zoo_dealloc_mw(struct ibv_mw *window) {
    command("free a window");
    return dressed(window->context)->real.dealloc_mw(window);
}
