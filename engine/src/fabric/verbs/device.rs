//! The RDMA devices of this host, and their capabilities.

use super::super::FabricError;
use super::config::{Registration, VerbsConfig};
use super::objects::with_error;
use rdma_sys::*;
use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

/// The binding has no name for it.
const LINK_LAYER_ETHERNET: u8 = 2;

/// Remedy for a host without a device, for errors.
pub(super) const NO_DEVICE_REMEDY: &str = "load the driver of the RDMA adapter, or make a soft \
     device: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0";

/// An RDMA device of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name, as `rdma link` shows it.
    pub name: String,
    /// Its capabilities.
    pub caps: DeviceCaps,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// A port of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Counted from 1.
    pub number: u8,
    /// Messages can pass.
    pub is_active: bool,
    /// Longest packet payload, in bytes (MTU).
    pub mtu_bytes: u32,
    /// The link is Ethernet (RoCE, iWARP), not InfiniBand.
    pub is_ethernet: bool,
}

/// Vendor number of rxe.
const RXE_VENDOR: u32 = 0x00ff_ffff;

/// Completion flag of rxe for "with invalidate": it passes on the kernel's flag, which has another
/// value. With other drivers that flag is a hint about checksums, and there is not a key.
const RXE_WITH_INV: u32 = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;

/// The flags of a completion of which one says that a key of ours was invalidated.
const fn invalidated_flags(vendor_id: u32) -> u32 {
    match vendor_id {
        RXE_VENDOR => ibv_wc_flags::IBV_WC_WITH_INV.0 | RXE_WITH_INV,
        _ => ibv_wc_flags::IBV_WC_WITH_INV.0,
    }
}

/// Vendor number of siw ("bmt"). Its device can have any name.
const SIW_VENDOR: u32 = 0x0062_6d74;

/// The smallest page of any architecture: siw decides by the page of this host, which is as long or longer.
const PAGE_BYTES: u32 = 4096;

/// Source bytes from which on a request must be signalled; see `send_queue`. Other devices, those
/// of iWARP among them, keep the contract of verbs: they copy or hold data that they may have to
/// send again.
const fn signal_from_bytes(vendor_id: u32) -> u32 {
    match vendor_id {
        SIW_VENDOR => PAGE_BYTES,
        _ => u32::MAX,
    }
}

/// Capabilities of a device, as its driver reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCaps {
    /// Number of its vendor: as a rule, the IEEE number.
    pub vendor_id: u32,
    /// True for iWARP (RDMA over TCP), false for InfiniBand and RoCE.
    pub is_iwarp: bool,
    /// Work requests of one queue.
    pub work_requests_max: u32,
    /// Pieces of memory one work request takes.
    pub sge_max: u32,
    /// Pieces of memory one RDMA Read takes.
    pub read_sge_max: u32,
    /// Entries of one completion queue.
    pub cq_entries_max: u32,
    /// Flags in a completion when a key of this side was invalidated, as its driver sets them.
    pub(super) invalidated_flags: u32,
    /// A request with a source of this many bytes or more must be signalled, or its memory is still read
    /// after later requests have completed.
    pub(super) signal_from_bytes: u32,
    /// RDMA Reads that may be outstanding at this side of a connection.
    pub reads_in_max: u8,
    /// RDMA Reads that may be outstanding from this side of a connection.
    pub reads_out_max: u8,
    /// Longest message, in bytes: the least of its ports.
    pub message_bytes_max: u32,
    /// Memory regions.
    pub regions_max: u32,
    /// Longest memory region, in bytes.
    pub region_bytes_max: u64,
    /// Memory windows of type 2; zero if it has none.
    pub windows_max: u32,
    /// Send With Invalidate and local invalidation.
    pub has_invalidate: bool,
}

/// The RDMA devices of this host; empty without a device, a driver, or support in the kernel.
///
/// Opens each of them (system calls); does not wait for any peer.
///
/// # Errors
/// [`FabricError`] if devices exist and do not report their capabilities.
pub fn devices() -> Result<Vec<DeviceInfo>, FabricError> {
    let mut count = 0;
    // SAFETY: the result has a place.
    let list = unsafe { ibv_get_device_list(&mut count) };
    if list.is_null() {
        return Ok(Vec::new());
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the library vouches for as many devices, until the list is given back.
    let infos = unsafe { std::slice::from_raw_parts(list, count) }
        .iter()
        // SAFETY: as above.
        .map(|device| unsafe { DeviceInfo::of(*device) })
        .collect();
    // SAFETY: it is not used any more.
    unsafe { ibv_free_device_list(list) };
    infos
}

impl DeviceInfo {
    /// # Safety
    /// A device of a list that was not given back yet.
    unsafe fn of(device: *mut ibv_device) -> Result<Self, FabricError> {
        // SAFETY: the caller vouches for the device, whose name ends with a zero byte.
        let name = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
        let name = name.to_string_lossy().into_owned();
        // SAFETY: the caller vouches for the device.
        let Some(context) = NonNull::new(unsafe { ibv_open_device(device) }) else {
            return Err(with_error(&format!("open device {name}"), io::Error::last_os_error()));
        };
        // SAFETY: the context is open until the end.
        let info = unsafe { DeviceCaps::of(context) }.map(|caps| {
            // SAFETY: as above.
            let ports = unsafe { ports(context) };
            Self { name, caps, ports }
        });
        // SAFETY: nothing was made with it.
        unsafe { ibv_close_device(context.as_ptr()) };
        info
    }
}

impl DeviceCaps {
    /// Asks an open device (system call).
    ///
    /// # Safety
    /// The context is open.
    pub(super) unsafe fn of(context: NonNull<ibv_context>) -> Result<Self, FabricError> {
        // SAFETY: a structure of integers.
        let mut said: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, the result has a place.
        let error = unsafe { ibv_query_device(context.as_ptr(), &mut said) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error.abs());
            return Err(with_error("ask a device what it can do", error));
        }
        let has = |flag: ibv_device_cap_flags| said.device_cap_flags & flag.0 != 0;
        let has_windows = has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A)
            || has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B);
        // SAFETY: the context is open, and has a device.
        let device = unsafe { &*context.as_ref().device };
        Ok(Self {
            vendor_id: said.vendor_id,
            is_iwarp: device.transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP,
            work_requests_max: said.max_qp_wr.unsigned_abs(),
            sge_max: said.max_sge.unsigned_abs(),
            read_sge_max: said.max_sge_rd.unsigned_abs(),
            cq_entries_max: said.max_cqe.unsigned_abs(),
            invalidated_flags: invalidated_flags(said.vendor_id),
            signal_from_bytes: signal_from_bytes(said.vendor_id),
            reads_in_max: u8::try_from(said.max_qp_rd_atom).unwrap_or(u8::MAX),
            reads_out_max: u8::try_from(said.max_qp_init_rd_atom).unwrap_or(u8::MAX),
            // SAFETY: the context is open.
            message_bytes_max: unsafe { message_bytes_max(context, said.phys_port_cnt) },
            regions_max: said.max_mr.unsigned_abs(),
            region_bytes_max: said.max_mr_size,
            windows_max: if has_windows { said.max_mw.unsigned_abs() } else { 0 },
            has_invalidate: has(ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS),
        })
    }

    /// Capabilities common to some devices; `None` for an empty list.
    pub(super) fn common(devices: &[DeviceInfo]) -> Option<Self> {
        let all = devices.iter().map(|device| device.caps);
        all.reduce(|one, other| Self {
            vendor_id: one.vendor_id,
            is_iwarp: one.is_iwarp || other.is_iwarp,
            work_requests_max: one.work_requests_max.min(other.work_requests_max),
            sge_max: one.sge_max.min(other.sge_max),
            read_sge_max: one.read_sge_max.min(other.read_sge_max),
            cq_entries_max: one.cq_entries_max.min(other.cq_entries_max),
            invalidated_flags: one.invalidated_flags & other.invalidated_flags,
            signal_from_bytes: one.signal_from_bytes.min(other.signal_from_bytes),
            reads_in_max: one.reads_in_max.min(other.reads_in_max),
            reads_out_max: one.reads_out_max.min(other.reads_out_max),
            message_bytes_max: one.message_bytes_max.min(other.message_bytes_max),
            regions_max: one.regions_max.min(other.regions_max),
            region_bytes_max: one.region_bytes_max.min(other.region_bytes_max),
            windows_max: one.windows_max.min(other.windows_max),
            has_invalidate: one.has_invalidate && other.has_invalidate,
        })
    }

    /// The way in which memory is made accessible over this device: `wanted`, with `Auto` resolved.
    /// Never the windows of rxe. Its driver checks the right and the region of a window, but not
    /// its bounds: a peer with a key reaches the whole region that the window lies in. It also
    /// loses count of the window's users: a queue pair that had bound some is not destroyed
    /// (`rxe_destroy_qp: cleanup failed`, Linux 6.12), and its kernel has crashed from it.
    pub(super) fn registration(&self, wanted: Registration) -> Registration {
        let has_windows = self.windows_max > 0 && self.has_invalidate;
        match wanted {
            Registration::Auto if has_windows && self.vendor_id != RXE_VENDOR => {
                Registration::Window
            }
            Registration::Auto => Registration::Buffer,
            wanted => wanted,
        }
    }
}

/// True if memory is made accessible by windows over all of some devices.
pub(super) fn all_take_windows(devices: &[DeviceInfo], wanted: Registration) -> bool {
    devices.iter().all(|device| device.caps.registration(wanted) == Registration::Window)
}

/// The devices that connections may use by the configuration.
pub(super) fn usable(config: &VerbsConfig) -> Result<Vec<DeviceInfo>, FabricError> {
    let failed = |reason| FabricError { op: "start the verbs fabric".into(), reason, source: None };
    let mut found = devices()?;
    if found.is_empty() {
        let reason = format!("this host has no RDMA device; {NO_DEVICE_REMEDY}");
        return Err(failed(reason));
    }
    if let Some(wanted) = &config.device {
        let names: Vec<_> = found.iter().map(|device| device.name.clone()).collect();
        found.retain(|device| device.name == *wanted);
        if found.is_empty() {
            let names = names.join(", ");
            return Err(failed(format!("cannot find device \"{wanted}\"; this host has: {names}")));
        }
    }
    Ok(found)
}

/// # Safety
/// The context is open.
unsafe fn message_bytes_max(context: NonNull<ibv_context>, ports: u8) -> u32 {
    // SAFETY: the caller vouches for the context.
    let said = (1..=ports).filter_map(|port| unsafe { port_attributes(context, port) });
    said.map(|port| port.max_msg_sz).filter(|bytes| *bytes > 0).min().unwrap_or(u32::MAX)
}

/// # Safety
/// The context is open.
unsafe fn ports(context: NonNull<ibv_context>) -> Vec<PortInfo> {
    let describe = |number| {
        // SAFETY: the caller vouches for the context.
        let port = unsafe { port_attributes(context, number) }?;
        Some(PortInfo {
            number,
            is_active: port.state == ibv_port_state::IBV_PORT_ACTIVE,
            mtu_bytes: 128 << port.active_mtu.min(5),
            is_ethernet: port.link_layer == LINK_LAYER_ETHERNET,
        })
    };
    // A device without a port of this number reports an error.
    (1..=u8::MAX).map_while(describe).collect()
}

/// The classic attributes of a port: the binding's call leaves newer ones as they were, zero.
///
/// # Safety
/// The context is open.
unsafe fn port_attributes(context: NonNull<ibv_context>, port: u8) -> Option<ibv_port_attr> {
    // SAFETY: a structure of integers.
    let mut said: ibv_port_attr = unsafe { std::mem::zeroed() };
    let place = (&raw mut said).cast();
    // SAFETY: the caller vouches for the context; the older structure is a prefix of the newer.
    let error = unsafe { ibv_query_port(context.as_ptr(), port, place) };
    (error == 0).then_some(said)
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn caps() -> DeviceCaps {
        DeviceCaps {
            vendor_id: 0,
            is_iwarp: false,
            work_requests_max: 100,
            sge_max: 4,
            read_sge_max: 4,
            cq_entries_max: 1000,
            invalidated_flags: invalidated_flags(0),
            signal_from_bytes: signal_from_bytes(0),
            reads_in_max: 16,
            reads_out_max: 16,
            message_bytes_max: 1 << 30,
            regions_max: 64,
            region_bytes_max: 1 << 40,
            windows_max: 64,
            has_invalidate: true,
        }
    }

    #[test]
    fn windows_are_taken_where_there_are_any_that_can_be_relied_on() {
        let auto = |caps: DeviceCaps| caps.registration(Registration::Auto);
        assert_eq!(auto(caps()), Registration::Window);
        assert_eq!(auto(DeviceCaps { windows_max: 0, ..caps() }), Registration::Buffer);
        assert_eq!(auto(DeviceCaps { has_invalidate: false, ..caps() }), Registration::Buffer);
        let rxe = DeviceCaps { vendor_id: RXE_VENDOR, ..caps() };
        assert_eq!(auto(rxe), Registration::Buffer);
        assert_eq!(rxe.registration(Registration::Window), Registration::Window);
    }

    #[test]
    fn only_rxe_says_that_a_key_is_dead_by_a_hint_about_checksums() {
        let hint = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
        assert_eq!(invalidated_flags(0x02c9) & hint, 0);
        assert_eq!(invalidated_flags(RXE_VENDOR) & hint, hint);
    }

    #[test]
    fn siw_has_every_request_signalled_that_it_would_not_copy() {
        assert_eq!(signal_from_bytes(SIW_VENDOR), 4096);
        // Chelsio, iWARP; Intel, iWARP and RoCE; Mellanox; rxe.
        for vendor in [0x1425, 0x8086, 0x02c9, RXE_VENDOR] {
            assert_eq!(signal_from_bytes(vendor), u32::MAX);
        }
    }

    #[test]
    fn of_several_devices_counts_what_the_least_can_do() {
        let device = |caps| DeviceInfo { name: "device".into(), caps, ports: Vec::new() };
        let lesser = DeviceCaps { is_iwarp: true, sge_max: 2, windows_max: 0, ..caps() };
        assert_eq!(DeviceCaps::common(&[device(caps()), device(lesser)]), Some(lesser));
        assert_eq!(DeviceCaps::common(&[]), None);
    }

    #[test]
    fn one_device_that_does_without_windows_is_enough_wherever_it_stands() {
        let device = |caps| DeviceInfo { name: "device".into(), caps, ports: Vec::new() };
        let (able, rxe) = (caps(), DeviceCaps { vendor_id: RXE_VENDOR, ..caps() });
        for both in [[able, rxe], [rxe, able]] {
            assert!(!all_take_windows(&both.map(device), Registration::Auto), "{both:?}");
        }
        assert!(all_take_windows(&[able, able].map(device), Registration::Auto));
        assert!(all_take_windows(&[rxe, able].map(device), Registration::Window));
    }

    #[test]
    fn windows_are_used_where_the_device_has_them_and_where_they_are_wanted() {
        let without = DeviceCaps { windows_max: 0, ..caps() };
        assert_eq!(caps().registration(Registration::Auto), Registration::Window);
        assert_eq!(without.registration(Registration::Auto), Registration::Buffer);
        assert_eq!(caps().registration(Registration::Pool), Registration::Pool);
    }
}
