//! The check of spintune doctor that asks a KDC for its time.

use crate::AES256;
use crate::realm::in_realm;
use spinrpc_tuning::doctor::Tried;
use spinrpc_tuning::host::HostFacts;

#[test]
fn a_kdc_tells_its_time_without_a_ticket() {
    in_realm("clock::a_kdc_tells_its_time_without_a_ticket", AES256, |home| {
        let configuration = std::fs::read_to_string(home.path("krb5.conf")).unwrap();
        let kdc = configuration.lines().find_map(|line| line.trim().strip_prefix("kdc = "));
        let kdc = kdc.unwrap();
        // A KDC of one realm answers for others as well.
        for realm in ["SPIN.TEST", "ANOTHER.TEST"] {
            let mut facts = HostFacts::default();
            facts.kerberos.realm = Some(realm.to_owned());
            let asked = Tried::default().with_kdc(&facts, kdc).kdc.unwrap();
            let clock = asked.unwrap();
            assert_eq!(clock.kdc, kdc);
            // The KDC runs on this host, and tells whole seconds. The rest is for a busy machine.
            assert!(clock.ahead_seconds.abs() <= 10, "{realm}: {clock:?}");
        }
        let unconfigured = Tried::default().with_kdc(&HostFacts::default(), kdc);
        assert!(unconfigured.kdc.unwrap().unwrap_err().contains("default_realm"));
    });
}
