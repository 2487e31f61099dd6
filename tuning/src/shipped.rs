//! The profiles that are part of the program.

/// A profile that needs no file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Shipped {
    /// Its name, for `include` and `--profile`.
    pub name: &'static str,
    /// Its text.
    pub toml: &'static str,
}

/// All shipped profiles.
pub fn shipped() -> &'static [Shipped] {
    &[
        Shipped { name: "base", toml: include_str!("../profiles/base.toml") },
        Shipped { name: "dev-vm", toml: include_str!("../profiles/dev-vm.toml") },
        Shipped { name: "latency", toml: include_str!("../profiles/latency.toml") },
        Shipped { name: "throughput", toml: include_str!("../profiles/throughput.toml") },
        Shipped { name: "verbs-mlx5", toml: include_str!("../profiles/verbs-mlx5.toml") },
        Shipped { name: "verbs-rxe", toml: include_str!("../profiles/verbs-rxe.toml") },
        Shipped { name: "verbs-siw", toml: include_str!("../profiles/verbs-siw.toml") },
    ]
}

pub(crate) fn find(name: &str) -> Option<&'static Shipped> {
    shipped().iter().find(|profile| profile.name == name)
}
