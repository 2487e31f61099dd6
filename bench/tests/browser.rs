//! The page of a real run in a real browser: every plot has its points, nothing is fetched, logged
//! or cut off, in light and in dark, on a wide screen and a narrow one. Needs Chromium (Debian
//! package chromium), so it only runs on request: `cargo test -p spinrpc-bench --test browser`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Folder, cores, spinperf, text};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Inspects the page and records what it finds.
const PROBE: &str = include_str!("common/probe.js");
/// The page's policy; the probe needs a wider one.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const POLICY_OF_PROBE: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Of pages and of the browser's own files.
impl Folder {
    /// The final DOM of a page, and the browser's log about it.
    fn open(&self, html: &str, options: &[&str]) -> (String, String) {
        let page = self.file("page.html");
        fs::write(&page, html).unwrap();
        let open = |attempt: u32| {
            let own = format!("--user-data-dir={}", self.file(&format!("profile-{attempt}")));
            Command::new("timeout")
                .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", &own])
                .args(["--disable-background-networking", "--enable-logging=stderr", "--v=0"])
                .args(["--virtual-time-budget=5000", "--dump-dom"])
                .args(options)
                .arg(format!("file://{page}"))
                .output()
                .unwrap()
        };
        // It may hang, or fail to start a process of its own, where other programs have the CPUs.
        let opened = (1..3).map(open).find(|output| output.status.success());
        let output = opened.unwrap_or_else(|| open(3));
        assert!(output.status.success(), "chromium: {}", text(&output.stderr));
        let log = text(&output.stderr);
        let console = log.lines().filter(|line| line.contains("CONSOLE"));
        (text(&output.stdout), console.collect::<Vec<_>>().join("\n"))
    }

    /// The probe's report about a page.
    fn seen(&self, html: &str, options: &[&str]) -> Value {
        let probed = html
            .replace(POLICY, POLICY_OF_PROBE)
            .replace("</title>", &format!("</title><script>{PROBE}</script>"));
        let (dom, _) = self.open(&probed, options);
        let rest = dom.split_once("data-seen=\"").unwrap_or_else(|| panic!("no probe in {dom}")).1;
        let seen = rest.split('"').next().unwrap();
        let seen = seen.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">");
        serde_json::from_str(&seen.replace("&amp;", "&")).unwrap()
    }
}

/// The page of the main job, which has every kind of plot.
fn page(folder: &Folder) -> String {
    let _cores = cores();
    let path = folder.file("report.html");
    let job = ["--profile", "dev-vm", "--repeats", "2", "--duration", "200ms", "--report", &path];
    let output = spinperf(&job);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_browser_shows_every_plot_and_finds_nothing_wrong() {
    let folder = Folder::new("shows");
    let html = page(&folder);
    let (dom, console) = folder.open(&html, &["--window-size=1280,900"]);
    assert_eq!(console, "", "something was logged");
    assert!(dom.contains("Bottleneck of each row"), "{dom}");
    for (options, dark) in [
        (&["--window-size=1280,900"][..], false),
        (&["--window-size=500,900"], false),
        (&["--window-size=1280,900", "--blink-settings=preferredColorScheme=0"], true),
    ] {
        let seen = folder.seen(&html, options);
        for (what, found) in seen["wrong"].as_object().unwrap() {
            assert_eq!(found, &Value::Array(Vec::new()), "{what}, {options:?}");
        }
        assert_eq!(seen["dark"], dark, "{seen}");
        assert!(seen["contrast"].as_f64().unwrap() > 7.0, "{seen}");
        assert_eq!(seen["unnamed"], 0, "{seen}");
        let count = |what: &str| seen[what].as_u64().unwrap() as usize;
        assert_eq!(count("figures"), html.matches("<figure>").count(), "{seen}");
        assert_eq!(count("lines"), html.matches("<polyline").count(), "{seen}");
        // Spectra, a throughput curve, and a heat map for each of eleven rows.
        assert!(count("figures") > 11 && count("lines") > 30 && count("cells") > 30, "{seen}");
    }
}

/// Plant errors. Expect each to be found, or silence about the real page means nothing.
#[test]
fn what_must_not_be_in_a_page_is_found() {
    let folder = Folder::new("planted");
    let planted = format!(
        "<!doctype html><html><head><title>x</title><style>svg {{ width: 100px }}</style></head>\
         <body style=\"color:#000;background:#fff\"><main>\
         <p style=\"width:9000px\">too wide</p><img src=\"http://127.0.0.1:9/x\">\
         <svg viewBox=\"0 0 10 10\"><text x=\"50\">far out</text>\
         <polyline data-points=\"3\" points=\"0,0 -1,1\"/></svg></main>\
         <!-- {POLICY} --><script>absent.knows</script></body></html>"
    );
    let seen = folder.seen(&planted, &["--window-size=1280,900"]);
    for (what, found) in seen["wrong"].as_object().unwrap() {
        assert_ne!(found, &Value::Array(Vec::new()), "{what} was not found: {seen}");
    }
    assert_eq!(seen["unnamed"], 1, "{seen}");
    let (_, console) = folder.open(&planted, &[]);
    assert!(console.contains("absent"), "{console}");
}
