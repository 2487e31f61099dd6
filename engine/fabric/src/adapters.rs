//! Facts about RDMA adapters and their drivers in rdma-core that a device does not report itself, or reports wrongly.
//!
//! One table for the driver and for `spintune doctor`. Each fact was read in the source of rdma-core
//! 65 and of Linux 6.12; the guide's page on hosts says which of them have been observed.

/// Use of memory windows of type 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Not possible, whatever the kernel's flags say.
    Never,
    /// Only if `verbs.registration` asks for them.
    OnRequest,
    /// Used where the device reports them, after a trial.
    Trusted,
}

/// An error of a driver in rdma-core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// First release of rdma-core with it.
    pub since: u32,
    /// First release without it.
    pub until: u32,
    /// Consequence, and the commit of rdma-core that ends it.
    pub effect: &'static str,
    /// Data copied into work requests arrive corrupted.
    pub corrupts_inline: bool,
}

impl Fault {
    const fn new(since: u32, until: u32, effect: &'static str) -> Self {
        Self { since, until, effect, corrupts_inline: false }
    }

    /// Returns whether a release of rdma-core has it.
    #[must_use]
    pub const fn is_in(&self, release: u32) -> bool {
        self.since <= release && release < self.until
    }
}

/// The adapters of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adapter {
    /// The driver's name in rdma-core.
    pub name: &'static str,
    /// Vendor number that the devices report; 0 if none is reserved for the driver.
    pub vendor_id: u32,
    /// Kernel drivers of the PCI function, by which devices are known that report no vendor.
    pub drivers: &'static [&'static str],
    /// Use of memory windows.
    pub windows: Windows,
    /// Inline data are copied when a request is posted. A driver without that takes the request
    /// and reads the memory later, by its key.
    pub copies_inline: bool,
    /// Known errors.
    pub faults: &'static [Fault],
    /// A thread domain leaves out only locks that nothing else needs. With drivers for which that is false, the control
    /// thread would flush a queue pair while its core posts to it.
    pub allows_thread_domain: bool,
    /// A request with a source of this many bytes or more must be signalled: its memory is still
    /// read after later requests have completed.
    pub signal_from_bytes: u32,
    /// The driver passes on the kernel's completion flag for "with invalidate", which has another
    /// value than that of verbs.
    pub has_kernel_flags: bool,
    /// The driver in rdma-core takes a completion queue whose mapping begins at 576 KiB for one that the kernel did
    /// not make.
    pub has_unusable_place: bool,
}

impl Adapter {
    const fn new(name: &'static str, vendor_id: u32, drivers: &'static [&'static str]) -> Self {
        Self {
            name,
            vendor_id,
            drivers,
            windows: Windows::Never,
            copies_inline: true,
            faults: &[],
            allows_thread_domain: true,
            // Other devices, those of iWARP among them, keep the contract of verbs: they copy or
            // hold data that they may have to send again.
            signal_from_bytes: u32::MAX,
            has_kernel_flags: false,
            has_unusable_place: false,
        }
    }

    /// The adapter with this vendor number, or with this kernel driver; [`UNKNOWN`] if the table has neither. A soft device
    /// is known by its number: before Linux 5.11 its driver is that of the adapter below it.
    pub fn find(vendor_id: u32, driver: Option<&str>) -> &'static Self {
        let by_vendor = ADAPTERS.iter().find(|adapter| adapter.vendor_id == vendor_id);
        let soft = by_vendor.filter(|adapter| adapter.is_soft());
        soft.or_else(|| driver.and_then(Self::of_driver)).or(by_vendor).unwrap_or(&UNKNOWN)
    }

    /// Returns whether the kernel imitates it over a network interface.
    fn is_soft(&self) -> bool {
        matches!(self.name, "siw" | "rxe")
    }

    /// The adapter with this kernel driver.
    #[must_use]
    pub fn of_driver(driver: &str) -> Option<&'static Self> {
        ADAPTERS.iter().find(|adapter| adapter.drivers.contains(&driver))
    }

    /// Returns whether data can be copied into work requests, by the release of rdma-core. One that
    /// is not known may have any error.
    #[must_use]
    pub fn is_inline_usable(&self, release: Option<u32>) -> bool {
        let is_in = |fault: &Fault| release.is_none_or(|release| fault.is_in(release));
        self.copies_inline && !self.faults.iter().any(|fault| fault.corrupts_inline && is_in(fault))
    }
}

/// An adapter that the table does not have.
pub static UNKNOWN: Adapter = Adapter::new("unknown", 0, &[]);

/// The adapters that are known.
pub static ADAPTERS: &[Adapter] = &[
    Adapter {
        // Also those of mlx4: both report the same number, and both have working windows.
        windows: Windows::Trusted,
        ..Adapter::new("mlx5", 0x02c9, &["mlx5_core", "mlx4_core"])
    },
    Adapter {
        // Generation 3 only: the others report no windows of type 2.
        windows: Windows::Trusted,
        ..Adapter::new("irdma", 0x8086, &["ice", "i40e", "idpf", "irdma"])
    },
    Adapter {
        windows: Windows::Trusted,
        allows_thread_domain: false,
        ..Adapter::new("ionic", 0x1dd8, &["ionic"])
    },
    Adapter {
        // The kernel reports windows; the driver in rdma-core neither allocates nor binds them.
        faults: &[
            Fault {
                corrupts_inline: true,
                ..Fault::new(47, 57, "inline data arrive corrupted (9558f227b); inline is off")
            },
            Fault::new(0, 50, "an empty request in a chain has the length of another (68f59cd6b)"),
        ],
        ..Adapter::new("bnxt_re", 0x14e4, &["bnxt_en", "bnxt_re"])
    },
    Adapter::new("erdma", 0x1ded, &["erdma"]),
    Adapter {
        copies_inline: false,
        faults: &[Fault::new(
            53,
            57,
            "receives and Reads without a piece of memory fail (b8e99f551)",
        )],
        ..Adapter::new("mana", 0x1414, &["mana"])
    },
    Adapter {
        faults: &[Fault::new(
            39,
            61,
            "requests have fields of earlier ones when the send queue wraps around (15adbcf23)",
        )],
        allows_thread_domain: false,
        ..Adapter::new("hns", 0x19e5, &["hns3", "hns_roce"])
    },
    Adapter::new("cxgb4", 0x1425, &["cxgb4"]),
    Adapter::new("qedr", 0x1077, &["qede"]),
    Adapter {
        // The kernel checks the right and the region of a window, but not its bounds: a peer with a
        // key reaches the whole region that the window lies in. It also loses count of the window's
        // users: a queue pair that had bound some is not destroyed (`rxe_destroy_qp: cleanup
        // failed`, Linux 6.12), and its kernel has crashed from it.
        windows: Windows::OnRequest,
        has_kernel_flags: true,
        ..Adapter::new("rxe", 0x00ff_ffff, &["rdma_rxe"])
    },
    Adapter {
        // Pages that are longer than the smallest of any architecture are safe as well.
        signal_from_bytes: 4096,
        has_unusable_place: true,
        ..Adapter::new("siw", 0x0062_6d74, &["siw"])
    },
];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_known_by_their_vendor_or_by_their_kernel_driver() {
        let name = |vendor, driver| Adapter::find(vendor, driver).name;
        assert_eq!(name(0x14e4, None), "bnxt_re");
        assert_eq!(name(0, Some("mana")), "mana", "old kernels of mana report no vendor");
        assert_eq!(name(0x02c9, Some("mlx4_core")), "mlx5");
        assert_eq!(name(0, None), "unknown");
        assert_eq!(name(0x1d0f, Some("efa")), "unknown");
        assert_eq!(
            name(0x0062_6d74, Some("mlx5_core")),
            "siw",
            "before Linux 5.11, over an adapter"
        );
    }

    #[test]
    fn only_adapters_of_the_list_are_trusted_with_windows() {
        let trusted = ADAPTERS.iter().filter(|adapter| adapter.windows == Windows::Trusted);
        let trusted: Vec<_> = trusted.map(|adapter| adapter.name).collect();
        assert_eq!(trusted, ["mlx5", "irdma", "ionic"]);
        assert_eq!(UNKNOWN.windows, Windows::Never);
    }

    /// Both flush a queue pair in ibv_modify_qp(3), under locks that a thread domain takes away.
    #[test]
    fn drivers_that_flush_in_the_callers_thread_keep_their_locks() {
        let locked = ADAPTERS.iter().filter(|adapter| !adapter.allows_thread_domain);
        assert_eq!(locked.map(|adapter| adapter.name).collect::<Vec<_>>(), ["ionic", "hns"]);
    }

    #[test]
    fn inline_is_off_where_it_is_ignored_or_corrupts() {
        let usable = |name: &str, release| {
            let adapter = ADAPTERS.iter().find(|adapter| adapter.name == name);
            adapter.is_some_and(|adapter| adapter.is_inline_usable(release))
        };
        assert!(!usable("mana", Some(65)) && !usable("mana", None));
        for (release, expected) in [(46, true), (47, false), (56, false), (57, true)] {
            assert_eq!(usable("bnxt_re", Some(release)), expected, "{release}");
        }
        assert!(!usable("bnxt_re", None), "a release that is not known may be one of these");
        assert!(usable("mlx5", None) && usable("hns", Some(60)));
    }

    #[test]
    fn a_release_has_the_faults_that_are_not_mended_in_it() {
        let of = |name: &str, release| {
            let adapter = ADAPTERS.iter().find(|adapter| adapter.name == name).unwrap_or(&UNKNOWN);
            adapter.faults.iter().filter(|fault| fault.is_in(release)).count()
        };
        assert_eq!([44, 48, 50, 57].map(|release| of("bnxt_re", release)), [1, 2, 1, 0]);
        assert_eq!([38, 39, 60, 61].map(|release| of("hns", release)), [0, 1, 1, 0]);
    }
}
