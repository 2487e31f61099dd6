//! The profiles that are part of the program.

/// A profile that is part of the program.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Shipped {
    /// Name, for `include` and `--profile`.
    pub name: &'static str,
    /// TOML text.
    pub toml: &'static str,
}

impl Shipped {
    /// Returns whether it is an example for one host, with CPUs and devices that others do not
    /// have: to copy, not to run with.
    pub fn is_example(&self) -> bool {
        self.name.starts_with("hosts/")
    }
}

/// All shipped profiles, ordered by name.
pub fn shipped() -> &'static [Shipped] {
    &[
        Shipped { name: "base", toml: include_str!("../profiles/base.toml") },
        Shipped { name: "dev-vm", toml: include_str!("../profiles/dev-vm.toml") },
        Shipped {
            name: "hosts/two-socket-mlx5",
            toml: include_str!("../profiles/hosts/two-socket-mlx5.toml"),
        },
        Shipped {
            name: "hosts/vm-2-vcpus",
            toml: include_str!("../profiles/hosts/vm-2-vcpus.toml"),
        },
        Shipped { name: "latency", toml: include_str!("../profiles/latency.toml") },
        Shipped { name: "shm-local", toml: include_str!("../profiles/shm-local.toml") },
        Shipped { name: "throughput", toml: include_str!("../profiles/throughput.toml") },
        Shipped { name: "verbs-mlx5", toml: include_str!("../profiles/verbs-mlx5.toml") },
        Shipped { name: "verbs-rxe", toml: include_str!("../profiles/verbs-rxe.toml") },
        Shipped { name: "verbs-siw", toml: include_str!("../profiles/verbs-siw.toml") },
    ]
}

pub(crate) fn find(name: &str) -> Option<&'static Shipped> {
    shipped().iter().find(|profile| profile.name == name)
}
