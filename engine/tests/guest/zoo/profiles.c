/* The adapters. Sources: K is Linux 6.12, drivers/infiniband/hw/; P is rdma-core v65-dev (691953d8), providers/. What a line
 * says without one is the worst that verbs allow, and holds for all. */
#include "zoo.h"
#include <errno.h>

enum { GIVES_WINDOWS = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS };

const struct profile profiles[] = {
    {
        .name = "mlx5",
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x02c9, .part_id = 4125,
        .flags = GIVES_WINDOWS,                                 /* K mlx5/main.c, mlx5_ib_query_device: imaicl */
        .max_sge = 30, .max_sge_rd = 30, .vectors = 8,          /* K mlx5/main.c: MLX5_MAX_SGE_RD */
        .allocates_windows = true, .binds_windows = true, .sends_invalidate = true, /* P mlx5/mlx5.c, mlx5_ctx_common_ops */
        .garbles_errors = true,                                 /* P mlx5/cq.c, mlx5_handle_error_cqe: no opcode, no length */
        .repeats_events = true,
        .carries_one_class = true,                              /* K core/cma.c: tos_set ? tos : default_roce_tos */
        .command_us = 100,
    },
    {
        .name = "mlx5-bond", /* Two ports in a bond, of which the active one changes: ADDR_CHANGE at every id (K core/cma.c) */
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x02c9, .part_id = 4125,
        .flags = GIVES_WINDOWS,
        .max_sge = 30, .max_sge_rd = 30, .vectors = 8,
        .allocates_windows = true, .binds_windows = true, .sends_invalidate = true,
        .moves_listeners = true,                                /* kernel svcrdma listens again since 2024 */
    },
    {
        .name = "closed", /* A container that was given one device of two */
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x02c9, .part_id = 4125,
        .flags = GIVES_WINDOWS,
        .max_sge = 30, .max_sge_rd = 30,
        .allocates_windows = true, .binds_windows = true, .sends_invalidate = true,
        .closed_device = "closed0",                             /* P ../libibverbs/device.c, verbs_open_device: EACCES */
    },
    {
        .name = "cgroup", /* A container with a limit in rdma.max */
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x02c9, .part_id = 4125,
        .flags = GIVES_WINDOWS,
        .max_sge = 30, .max_sge_rd = 30,
        .allocates_windows = true, .binds_windows = true, .sends_invalidate = true,
        .region_quota = 1,                                      /* K ../../kernel/cgroup/rdma.c: -EAGAIN */
    },
    {
        .name = "lost-rtu", /* bnxt_re, irdma and mana raise no COMM_EST (K), and the last message of the handshake is lost */
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x8086, .part_id = 0x1592,
        .flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        .loses_established = true,
    },
    {
        .name = "irdma-roce",
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x8086, .part_id = 0x1592,
        .flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS, /* K irdma/verbs.c, irdma_query_device */
        .max_sge = 13, .max_sge_rd = 13, .send_sge = 13, .recv_sge = 13, /* K irdma/user.h: IRDMA_MAX_WQ_FRAGMENT_COUNT */
        .inline_max = 101,                                      /* P irdma/user.h; EINVAL beyond: P irdma/uverbs.c */
        .vectors = 8,
        .allocates_windows = true, .binds_windows = true, .sends_invalidate = true, /* P irdma/uverbs.c, irdma_upost_send */
        .fills_fragment_zero = true,                            /* P irdma/uk.c, irdma_uk_rdma_write; before 7bc6e3b49 Send, too */
        .garbles_errors = true,
    },
    {
        .name = "irdma-iwarp",
        .below = IBV_TRANSPORT_IWARP,
        .vendor_id = 0x8086, .part_id = 0x1592,
        .flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS, /* as above */
        .max_sge = 13, .recv_sge = 13,
        .inline_max = 101,
        .vectors = 8,
        .sends_invalidate = true,
        .fills_fragment_zero = true,
        .garbles_errors = true,
    },
    {
        .name = "bnxt_re",
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x14e4, .part_id = 0x1750,
        .flags = GIVES_WINDOWS,                                 /* K bnxt_re/ib_verbs.c, bnxt_re_query_device */
        .max_sge = 6, .max_sge_rd = 6, .send_sge = 6, .recv_sge = 6, /* K bnxt_re/qplib_sp.c: max_qp_sges of static requests */
        .inline_max = 96,                                       /* P bnxt_re/bnxt_re-abi.h: BNXT_RE_MAX_INLINE_SIZE */
        .rounds_queues = true,
        .vectors = 8,
        /* P bnxt_re/main.c, bnxt_re_cntx_ops: no alloc_mw; verbs.c, bnxt_re_post_send: -EINVAL for BIND_MW and LOCAL_INV */
        .unknown_opcode = -EINVAL, .sends_invalidate = true,
    },
    {
        .name = "erdma",
        .below = IBV_TRANSPORT_IWARP,
        .vendor_id = 0x1ded, .part_id = 0x107f,
        .flags = IBV_DEVICE_MEM_MGT_EXTENSIONS,                 /* K erdma/erdma_verbs.c, erdma_query_device */
        .max_sge = 1, .send_sge = 6, .recv_sge = 1,             /* K erdma/erdma_verbs.h: ERDMA_MAX_SEND_SGE, _RECV_SGE */
        .inline_max = 96,                                       /* K erdma/erdma_verbs.c, erdma_qp_validate_cap: EINVAL */
        .max_msg_sz = UINT32_MAX,                               /* K erdma/erdma_verbs.c, erdma_query_port */
        .rounds_queues = true,
        .vectors = 8,
        .sends_invalidate = true,
        .unknown_opcode = -EINVAL, .after_error = -EIO,         /* P erdma/erdma_verbs.c, erdma_post_send */
        .flushes_silently = true,                               /* before K 6.2 nothing was flushed that was posted late */
    },
    {
        .name = "mana",
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x1414, .part_id = 0x00ba,
        .flags = GIVES_WINDOWS,                                 /* what a kernel that allocates windows may say */
        .vectors = 8,
        .ignores_inline = true,                                 /* P mana/wr.c: IBV_SEND_INLINE is not in it */
        .allocates_windows = true,                              /* P mana/mana.c (4c1aee0a7) */
        .unknown_opcode = EINVAL,                               /* P mana/wr.c, is_opcode_supported: no SEND_WITH_INV, too */
        .after_error = EINVAL,                                  /* P mana/wr.c, mana_ib_post_send */
        .garbles_errors = true,
    },
    {
        .name = "cxgb4",
        .below = IBV_TRANSPORT_IWARP,
        .vendor_id = 0x1425, .part_id = 0x6401,
        .flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS, /* K cxgb4/provider.c, c4iw_query_device */
        .max_sge = 4, .recv_sge = 4,                            /* K cxgb4/t4.h: T4_MAX_RECV_SGE */
        .vectors = 8,
        .sends_invalidate = true,
        .unknown_opcode = -EINVAL, .after_error = -EINVAL,      /* P cxgb4/qp.c, c4iw_post_send: t4_wq_in_error */
        .reads_first_pieces = true,                             /* P cxgb4/qp.c: "write_cmpl" */
    },
    {
        .name = "hns",
        .below = IBV_TRANSPORT_IB,
        .vendor_id = 0x19e5, .part_id = 0xa222,
        .flags = IBV_DEVICE_MEM_MGT_EXTENSIONS,                 /* K hns/hns_roce_main.c, hns_roce_query_device: HIP09 */
        .vectors = 8,
        .inline_max = 32, .clamps_inline = true,                /* K hns/hns_roce_qp.c, get_max_inline_data; 32 of HIP08 */
        .rounds_queues = true,
        .sends_invalidate = true,                               /* P hns/hns_roce_u_hw_v2.c, check_rc_opcode */
        .unknown_opcode = EINVAL,
        .forks_badly = true,                                    /* kernels 5.4 and 5.10, which these hosts have: no copy on fork */
    },
    {.name = NULL},
};
