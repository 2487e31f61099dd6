//! The unit for systemd.

use std::path::Path;

#[test]
fn the_unit_reloads_by_the_program_and_waits_for_names_of_users() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("spin-nfsd.service");
    let text = std::fs::read_to_string(&unit).unwrap();
    for line in
        ["Type=notify", "ExecReload=/usr/local/bin/spin-nfsd reload --config /etc/spin-nfsd.toml"]
    {
        assert!(text.lines().any(|other| other == line), "{line}");
    }
    let after = text.lines().find(|line| line.starts_with("After=")).unwrap_or_default();
    assert!(after.contains("nss-user-lookup.target"), "{after}");
}
