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

macro_rules! profiles {
    ($($name:literal)+) => {
        &[$(Shipped { name: $name, toml: include_str!(concat!("../profiles/", $name, ".toml")) }),+]
    };
}

/// All shipped profiles, ordered by name.
pub fn shipped() -> &'static [Shipped] {
    profiles! {
        "base"
        "dev-vm"
        "hosts/two-socket-mlx5"
        "hosts/vm-2-vcpus"
        "latency"
        "shm-local"
        "throughput"
        "verbs-mlx5"
        "verbs-rxe"
        "verbs-siw"
    }
}

pub(crate) fn find(name: &str) -> Option<&'static Shipped> {
    shipped().iter().find(|profile| profile.name == name)
}
