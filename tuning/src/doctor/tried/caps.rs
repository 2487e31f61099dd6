//! Capabilities of RDMA devices, from rdma-core.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    pub device: String,
    /// Work requests in one queue.
    pub work_requests: u64,
    /// Outgoing RDMA Reads in flight per connection.
    pub reads_out: u64,
    /// Incoming RDMA Reads in flight per connection.
    pub reads_in: u64,
    /// Memory windows of type 2.
    pub memory_windows: u64,
    /// Interrupts for completions.
    pub interrupts: u64,
}

#[cfg(not(feature = "verbs"))]
pub(super) fn ask() -> Option<Result<Vec<Caps>, String>> {
    None
}

#[cfg(feature = "verbs")]
pub(super) fn ask() -> Option<Result<Vec<Caps>, String>> {
    let devices = spinrpc::fabric::verbs::devices().map_err(|error| error.to_string());
    Some(devices.map(|devices| devices.into_iter().map(Caps::of).collect()))
}

#[cfg(feature = "verbs")]
impl Caps {
    fn of(info: spinrpc::fabric::verbs::DeviceInfo) -> Self {
        let caps = info.caps;
        Self {
            device: info.name,
            work_requests: caps.work_requests_max.into(),
            reads_out: caps.reads_out_max.into(),
            reads_in: caps.reads_in_max.into(),
            memory_windows: caps.windows_max.into(),
            interrupts: caps.interrupts.into(),
        }
    }
}
