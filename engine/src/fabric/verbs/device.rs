//! The RDMA devices of this host, and what each of them can do.

/// What a device can do, as its driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCaps {
    /// It speaks iWARP (RDMA over TCP), not InfiniBand or RoCE.
    pub is_iwarp: bool,
    /// Work requests of one queue.
    pub work_requests_max: u32,
    /// Pieces of memory one work request takes.
    pub sge_max: u32,
    /// Pieces of memory one RDMA Read takes.
    pub read_sge_max: u32,
    /// Entries of one completion queue.
    pub cq_entries_max: u32,
    /// RDMA Reads that may be outstanding at this side of a connection.
    pub reads_in_max: u8,
    /// RDMA Reads that may be outstanding from this side of a connection.
    pub reads_out_max: u8,
    /// Longest message, in bytes.
    pub message_bytes_max: u32,
    /// Memory regions.
    pub regions_max: u32,
    /// Longest memory region, in bytes.
    pub region_bytes_max: u64,
    /// Memory windows; zero if it has none of type 2.
    pub windows_max: u32,
    /// Send With Invalidate and local invalidation.
    pub has_invalidate: bool,
}
