//! The RDMA devices of this host, and their capabilities.

use super::super::FabricError;
use super::super::adapters::{Adapter, Windows};
use super::config::{Registration, VerbsConfig};
use super::objects::{checked, with_error};
use super::window_probe::{self, Tried};
use crate::sys::journal::event;
use rdma_sys::*;
use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Once;

/// The binding has no name for it.
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

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
}

/// Completion flag of rxe for "with invalidate": it passes on the kernel's flag, which has another
/// value. With other drivers that flag is a hint about checksums, and there is not a key.
const KERNEL_WITH_INV: u32 = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;

/// Capabilities of a device, as its driver reports them and as far as they can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCaps {
    /// Facts about it that it does not report.
    pub adapter: &'static Adapter,
    /// True for iWARP (RDMA over TCP), false for InfiniBand and RoCE.
    pub is_iwarp: bool,
    /// Work requests of one queue.
    pub work_requests_max: u32,
    /// Pieces of memory one RDMA Read takes.
    pub read_sge_max: u32,
    /// Entries of one completion queue.
    pub cq_entries_max: u32,
    /// Longest message that can be copied into a work request, as far as that is known in advance.
    pub inline_bytes_max: u32,
    /// RDMA Reads that may be outstanding at this side of a connection.
    pub reads_in_max: u8,
    /// RDMA Reads that may be outstanding from this side of a connection.
    pub reads_out_max: u8,
    /// Memory regions.
    pub regions_max: u32,
    /// Memory windows of type 2; zero if it has none, or its driver cannot bind them.
    pub windows_max: u32,
    /// A window was bound and invalidated when the device was looked at. Without that, windows are used only if
    /// `verbs.registration` asks for them.
    pub windows_proved: bool,
    /// Send With Invalidate and local invalidation.
    pub has_invalidate: bool,
    /// Interrupts for completions; each core takes one, as far as there are as many.
    pub interrupts: u32,
}

/// The RDMA devices of this host; empty without a device, a driver, or support in the kernel. Those that cannot be
/// opened, as in a container, or that connections cannot use, are left out with a warning.
///
/// Opens each of them (system calls); does not wait for any peer.
///
/// # Errors
/// [`FabricError`] if there are devices and none of them can be used.
pub fn devices() -> Result<Vec<DeviceInfo>, FabricError> {
    Found::look(None).usable()
}

#[derive(Debug, Default)]
struct Found {
    names: Vec<String>,
    opened: Vec<DeviceInfo>,
    failed: Vec<(String, FabricError)>,
}

impl Found {
    fn look(wanted: Option<&str>) -> Self {
        prepare_for_fork();
        let (mut found, mut count) = (Self::default(), 0);
        // SAFETY: the result has a place.
        let list = unsafe { ibv_get_device_list(&mut count) };
        if list.is_null() {
            return found;
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the library vouches for as many devices, until the list is given back.
        for device in unsafe { std::slice::from_raw_parts(list, count) } {
            // SAFETY: as above; the name ends with a zero byte.
            let name = unsafe { CStr::from_ptr(ibv_get_device_name(*device)) };
            let name = name.to_string_lossy().into_owned();
            // SAFETY: as above.
            found.take(name, wanted, |name| unsafe { DeviceInfo::of(*device, name) });
        }
        // SAFETY: it is not used any more.
        unsafe { ibv_free_device_list(list) };
        found
    }

    fn take(
        &mut self,
        name: String,
        wanted: Option<&str>,
        open: impl FnOnce(&str) -> Result<DeviceInfo, FabricError>,
    ) {
        if wanted.is_none_or(|wanted| wanted == name) {
            match open(&name) {
                Ok(info) => self.opened.push(info),
                Err(error) => self.failed.push((name.clone(), error)),
            }
        }
        self.names.push(name);
    }

    /// The devices that were opened. An error only if there are others, and no such.
    fn usable(self) -> Result<Vec<DeviceInfo>, FabricError> {
        for (name, error) in &self.failed {
            event!(WARN, %name, %error, "an RDMA device is left out");
        }
        match self.failed.into_iter().next() {
            Some((_, error)) if self.opened.is_empty() => Err(error),
            _ => Ok(self.opened),
        }
    }
}

impl DeviceInfo {
    /// # Safety
    /// A device of a list that was not given back yet.
    unsafe fn of(device: *mut ibv_device, name: &str) -> Result<Self, FabricError> {
        // SAFETY: the caller vouches for the device.
        let transport = unsafe { (*device).transport_type };
        if !CONNECTED.contains(&transport) {
            let op = format!("use device {name}");
            return Err(FabricError::because(&op, "it takes no connections", None));
        }
        // SAFETY: the caller vouches for the device.
        let Some(context) = NonNull::new(unsafe { ibv_open_device(device) }) else {
            return Err(with_error(&format!("open device {name}"), io::Error::last_os_error()));
        };
        // SAFETY: the context is open until the end.
        let caps = unsafe { DeviceCaps::of(context) };
        // SAFETY: nothing was made with it.
        unsafe { ibv_close_device(context.as_ptr()) };
        Ok(Self { name: name.to_owned(), caps: caps? })
    }
}

/// Transports that rdma_cm makes connections over. That of EFA and usNIC is not among them.
const CONNECTED: [ibv_transport_type::Type; 2] =
    [ibv_transport_type::IBV_TRANSPORT_IB, ibv_transport_type::IBV_TRANSPORT_IWARP];

impl DeviceCaps {
    /// Asks an open device (system call).
    ///
    /// # Safety
    /// The context is open.
    pub(super) unsafe fn of(context: NonNull<ibv_context>) -> Result<Self, FabricError> {
        // SAFETY: a structure of integers.
        let mut said: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, the result has a place.
        checked(unsafe { ibv_query_device(context.as_ptr(), &mut said) })
            .map_err(|error| with_error("ask a device what it can do", error))?;
        let has = |flag: ibv_device_cap_flags| said.device_cap_flags & flag.0 != 0;
        let has_windows = has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A)
            || has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B);
        // SAFETY: the context is open, and has a device.
        let device = unsafe { &*context.as_ref().device };
        let adapter = Adapter::find(said.vendor_id, driver(device).as_deref());
        let inline_bytes_max = if adapter.is_inline_usable(release()) { u32::MAX } else { 0 };
        let caps = Self {
            adapter,
            is_iwarp: device.transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP,
            work_requests_max: said.max_qp_wr.unsigned_abs(),
            read_sge_max: said.max_sge_rd.unsigned_abs(),
            cq_entries_max: said.max_cqe.unsigned_abs(),
            inline_bytes_max,
            reads_in_max: u8::try_from(said.max_qp_rd_atom).unwrap_or(u8::MAX),
            reads_out_max: u8::try_from(said.max_qp_init_rd_atom).unwrap_or(u8::MAX),
            regions_max: said.max_mr.unsigned_abs(),
            windows_max: if has_windows { said.max_mw.unsigned_abs() } else { 0 },
            windows_proved: false,
            has_invalidate: has(ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS),
            // SAFETY: the context is open.
            interrupts: unsafe { context.as_ref().num_comp_vectors }.unsigned_abs(),
        };
        // SAFETY: the context is open.
        Ok(caps.with_windows_that_work(|| unsafe { window_probe::windows(context) }))
    }

    /// Leaves out windows that the driver cannot use: a kernel reports what the adapter can do, whether or not the
    /// driver in rdma-core has the operations for it (that of bnxt_re has none).
    fn with_windows_that_work(self, trial: impl FnOnce() -> Result<Tried, String>) -> Self {
        let without = Self { windows_max: 0, ..self };
        let adapter = self.adapter.name;
        match self.adapter.windows {
            _ if self.windows_max == 0 || !self.has_invalidate => without,
            Windows::Never => without,
            Windows::OnRequest => self,
            Windows::Trusted => match trial() {
                Ok(Tried::Works) => Self { windows_proved: true, ..self },
                Ok(Tried::Not(reason)) => {
                    event!(WARN, %adapter, %reason, "memory windows were not tried, and are used on request only");
                    self
                }
                Err(reason) => {
                    event!(WARN, %adapter, %reason, "memory windows do not work, and are not used");
                    without
                }
            },
        }
    }

    pub(super) fn invalidated_flags(&self) -> u32 {
        let kernel = if self.adapter.has_kernel_flags { KERNEL_WITH_INV } else { 0 };
        ibv_wc_flags::IBV_WC_WITH_INV.0 | kernel
    }

    pub(super) fn registration(&self, wanted: Registration) -> Registration {
        match wanted {
            Registration::Auto if self.windows_proved => Registration::Window,
            Registration::Auto => Registration::Buffer,
            wanted => wanted,
        }
    }
}

pub(super) fn all_take_windows(devices: &[DeviceInfo], wanted: Registration) -> bool {
    devices.iter().all(|device| device.caps.registration(wanted) == Registration::Window)
}

pub(super) fn usable(config: &VerbsConfig) -> Result<Vec<DeviceInfo>, FabricError> {
    Found::look(config.device.as_deref()).chosen(config.device.as_deref())
}

/// Once per process, before its first registration: has the library keep registered memory, and queues of its drivers,
/// out of child processes, if the kernel does not copy pinned pages at a fork (before Linux 5.12). There, the parent
/// would go on with copies that the device does not know of.
fn prepare_for_fork() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        if is_fork_safe() {
            return;
        }
        // SAFETY: no arguments.
        if let Err(error) = checked(unsafe { ibv_fork_init() }) {
            event!(WARN, %error, "memory of RDMA devices is not safe in a process that forks");
        }
    });
}

/// Looked up at run time: rdma-core has the function since version 35.
fn is_fork_safe() -> bool {
    type Status = unsafe extern "C" fn() -> ibv_fork_status;
    // SAFETY: a name that ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ibv_is_fork_initialized".as_ptr()) };
    // SAFETY: it is null, or the function of that name.
    let status = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<Status>>(found) };
    // SAFETY: no arguments.
    status.is_some_and(|status| unsafe { status() } == IBV_FORK_UNNEEDED)
}

impl Found {
    fn chosen(self, wanted: Option<&str>) -> Result<Vec<DeviceInfo>, FabricError> {
        let failed = |reason: String| FabricError::because("start the verbs fabric", reason, None);
        if self.names.is_empty() {
            return Err(failed(format!("this host has no RDMA device; {NO_DEVICE_REMEDY}")));
        }
        if let Some(wanted) = wanted.filter(|wanted| !self.names.iter().any(|name| name == wanted))
        {
            let names = self.names.join(", ");
            return Err(failed(format!("cannot find device \"{wanted}\"; this host has: {names}")));
        }
        self.usable()
    }
}

/// `None` for a device in software.
fn driver(device: &ibv_device) -> Option<String> {
    // SAFETY: an array of characters in the device, which the library ends with a zero byte.
    let path = unsafe { CStr::from_ptr(device.ibdev_path.as_ptr()) };
    let link = std::fs::read_link(format!("{}/device/driver", path.to_str().ok()?)).ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

/// Of rdma-core; `None` if the name of the library's file does not tell.
fn release() -> Option<u32> {
    // SAFETY: a structure of pointers and integers, for which zero is a value.
    let mut said: libc::Dl_info = unsafe { std::mem::zeroed() };
    let function = ibv_wc_status_str as *const std::ffi::c_void;
    // SAFETY: the function is of the library, and the result has a place.
    if unsafe { libc::dladdr(function, &mut said) } == 0 || said.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader vouches for the name, which ends with a zero byte.
    let path = unsafe { CStr::from_ptr(said.dli_fname) }.to_str().ok()?;
    let file = std::fs::canonicalize(path).ok()?;
    release_in(file.file_name()?.to_str()?)
}

/// Of a name such as `libibverbs.so.1.14.44.0`.
fn release_in(file: &str) -> Option<u32> {
    let (_, version) = file.split_once(".so.")?;
    version.split('.').nth(2)?.parse().ok()
}

/// The classic attributes of a port: the binding's call leaves newer ones as they were, zero.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn port_attributes(
    context: NonNull<ibv_context>,
    port: u8,
) -> Option<ibv_port_attr> {
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

    const RXE_VENDOR: u32 = 0x00ff_ffff;
    const MELLANOX: u32 = 0x02c9;

    pub(in super::super) fn caps() -> DeviceCaps {
        of_vendor(MELLANOX)
    }

    fn of_vendor(vendor_id: u32) -> DeviceCaps {
        DeviceCaps {
            adapter: Adapter::find(vendor_id, None),
            is_iwarp: false,
            work_requests_max: 100,
            read_sge_max: 4,
            cq_entries_max: 1000,
            inline_bytes_max: u32::MAX,
            reads_in_max: 16,
            reads_out_max: 16,
            regions_max: 1 << 20,
            windows_max: 1 << 20,
            windows_proved: Adapter::find(vendor_id, None).windows == Windows::Trusted,
            has_invalidate: true,
            interrupts: 8,
        }
    }

    fn named(name: &str) -> DeviceInfo {
        DeviceInfo { name: name.into(), caps: caps() }
    }

    fn closed(name: &str) -> Result<DeviceInfo, FabricError> {
        Err(with_error(&format!("open device {name}"), io::ErrorKind::PermissionDenied.into()))
    }

    /// Have one device that cannot be opened, and one that can. Expect the latter whether or not it
    /// is named, and an error only if the former is.
    #[test]
    fn a_device_that_cannot_be_opened_is_in_the_way_of_no_other() {
        let look = |wanted: Option<&str>| {
            let mut found = Found::default();
            found.take("efa_0".into(), wanted, closed);
            found.take("mlx5_0".into(), wanted, |name| Ok(named(name)));
            let chosen = found.chosen(wanted);
            chosen.map(|all| all.into_iter().map(|device| device.name).collect::<Vec<_>>())
        };
        assert_eq!(look(None).unwrap(), ["mlx5_0"]);
        assert_eq!(look(Some("mlx5_0")).unwrap(), ["mlx5_0"]);
        let error = look(Some("efa_0")).unwrap_err().to_string();
        assert!(error.starts_with("open device efa_0: "), "{error}");
        let error = look(Some("mlx5_9")).unwrap_err().to_string();
        assert!(error.contains("\"mlx5_9\"; this host has: efa_0, mlx5_0"), "{error}");
    }

    #[test]
    fn a_device_that_is_not_wanted_is_not_opened() {
        let mut found = Found::default();
        found.take("mlx5_0".into(), Some("mlx5_1"), |_| unreachable!("it is not opened"));
        assert_eq!((found.names.len(), found.opened.len()), (1, 0));
    }

    /// Have the kernel report windows. Expect them where the driver is trusted with them and the
    /// trial goes well, and on rxe on request.
    #[test]
    fn windows_are_those_that_the_driver_can_use() {
        let found = |vendor, trial: Result<Tried, String>| {
            let unproved = DeviceCaps { windows_proved: false, ..of_vendor(vendor) };
            let caps = unproved.with_windows_that_work(|| trial);
            (caps.registration(Registration::Auto), caps.windows_max > 0)
        };
        assert_eq!(found(MELLANOX, Ok(Tried::Works)), (Registration::Window, true));
        let untried = Ok(Tried::Not("no port is active"));
        assert_eq!(found(MELLANOX, untried), (Registration::Buffer, true), "on request only");
        assert_eq!(found(MELLANOX, Err("refused".into())), (Registration::Buffer, false));
        for unable in [0x14e4, 0x1414, 0x1234] {
            assert_eq!(
                found(unable, Ok(Tried::Works)),
                (Registration::Buffer, false),
                "{unable:#x}"
            );
        }
        assert_eq!(found(RXE_VENDOR, Err("not tried".into())), (Registration::Buffer, true));
    }

    #[test]
    fn windows_are_not_tried_where_there_are_none() {
        for without in [
            DeviceCaps { windows_max: 0, ..caps() },
            DeviceCaps { has_invalidate: false, ..caps() },
        ] {
            let unproved = DeviceCaps { windows_proved: false, ..without };
            let caps = unproved.with_windows_that_work(|| unreachable!("there are none"));
            assert_eq!(caps.registration(Registration::Auto), Registration::Buffer);
        }
        assert_eq!(caps().registration(Registration::Pool), Registration::Pool);
        assert_eq!(of_vendor(RXE_VENDOR).registration(Registration::Window), Registration::Window);
    }

    #[test]
    fn only_rxe_says_that_a_key_is_dead_by_a_hint_about_checksums() {
        let hint = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
        assert_eq!(caps().invalidated_flags() & hint, 0);
        assert_eq!(of_vendor(RXE_VENDOR).invalidated_flags() & hint, hint);
    }

    #[test]
    fn one_device_that_does_without_windows_is_enough_wherever_it_stands() {
        let device = |caps| DeviceInfo { name: "device".into(), caps };
        let (able, rxe) = (caps(), of_vendor(RXE_VENDOR));
        for both in [[able, rxe], [rxe, able]] {
            assert!(!all_take_windows(&both.map(device), Registration::Auto), "{both:?}");
        }
        assert!(all_take_windows(&[able, able].map(device), Registration::Auto));
        assert!(all_take_windows(&[rxe, able].map(device), Registration::Window));
    }

    /// Prepare. Expect that either the kernel or the library keeps memory safe in a process that forks.
    #[test]
    fn registered_memory_outlives_a_fork() {
        prepare_for_fork();
        // SAFETY: no arguments.
        let status = unsafe { ibv_is_fork_initialized() };
        assert_ne!(status, IBV_FORK_DISABLED);
        assert_eq!(status == IBV_FORK_UNNEEDED, is_fork_safe());
    }

    #[test]
    fn the_release_of_rdma_core_is_in_the_name_of_its_library() {
        assert_eq!(release_in("libibverbs.so.1.14.44.0"), Some(44));
        assert_eq!(release_in("libibverbs.so.1"), None);
        assert_eq!(release_in("zoo.so"), None);
        assert!(release().is_some_and(|release| release >= 28), "{:?}", release());
    }
}
