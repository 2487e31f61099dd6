use serde_json::{Map, Value, json};
use spinrpc_nfs::client::{Entry, Found, Nfs, RoundTrips};
use spinrpc_nfs::protocol::{Fattr3, FileHandle, Ftype3, Nfstime3};
use spinrpc_tuning::printable;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn file(path: &str, found: &Found) -> String {
    let attributes = &found.attributes;
    let mut text = path.escape_debug().to_string();
    let lines = [
        ("type", kind(attributes.r#type).1.to_owned()),
        ("mode", format!("{:04o}", attributes.mode)),
        ("links", attributes.nlink.to_string()),
        ("owner", format!("{}:{}", attributes.uid, attributes.gid)),
        ("size", attributes.size.to_string()),
        ("used", attributes.used.to_string()),
        ("fsid", format!("{:x}", attributes.fsid)),
        ("fileid", attributes.fileid.to_string()),
        ("atime", utc(attributes.atime)),
        ("mtime", utc(attributes.mtime)),
        ("ctime", utc(attributes.ctime)),
        ("handle", hex(&found.handle)),
    ];
    for (name, value) in lines {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {name:7} {value}");
    }
    text
}

pub(crate) fn json_file(path: &str, found: &Found) -> String {
    let mut object = json_attributes(&found.attributes);
    (object["path"], object["handle"]) = (path.into(), hex(&found.handle).into());
    printable::json(&object.to_string())
}

pub(crate) fn entry(entry: &Entry, target: Option<&[u8]>) -> String {
    let name = entry.name.escape_ascii();
    let mut text = match &entry.attributes {
        Some(a) => format!(
            "{}{} {:>3} {:>5} {:>5} {:>12} {} {name}",
            kind(a.r#type).0,
            permissions(a.mode),
            a.nlink,
            a.uid,
            a.gid,
            a.size,
            humantime::format_rfc3339_seconds(system_time(a.mtime)),
        ),
        None => format!("{:58} {name}", "?"),
    };
    if let Some(target) = target {
        let _ = write!(text, " -> {}", target.escape_ascii());
    }
    text
}

/// The entry as one line of JSON. Invalid UTF-8 in names is replaced; `fileid` distinguishes such
/// names.
pub(crate) fn json_entry(entry: &Entry, target: Option<&[u8]>) -> String {
    let mut object = entry.attributes.as_ref().map_or_else(|| json!({}), json_attributes);
    object["name"] = String::from_utf8_lossy(&entry.name).into();
    object["fileid"] = entry.fileid.into();
    if let Some(target) = target {
        object["target"] = String::from_utf8_lossy(target).into();
    }
    printable::json(&object.to_string())
}

fn json_attributes(a: &Fattr3) -> Value {
    json!({
        "type": kind(a.r#type).1, "mode": a.mode, "links": a.nlink, "uid": a.uid, "gid": a.gid,
        "size": a.size, "used": a.used, "fsid": a.fsid, "fileid": a.fileid,
        "atime": utc(a.atime), "mtime": utc(a.mtime), "ctime": utc(a.ctime),
    })
}

pub(crate) fn stats(nfs: &Nfs) -> String {
    let mut text = "stats:".to_owned();
    for (name, value) in nfs.counters() {
        let _ = write!(text, " nfs.{name}={value}");
    }
    for (name, value) in nfs.stats().entries().filter(|(_, value)| *value > 0) {
        let _ = write!(text, " engine.{name}={value}");
    }
    text
}

/// A line with round-trip times, preceded by a line feed; empty if there are none.
pub(crate) fn round_trips(times: &RoundTrips) -> String {
    let known = |ns: Option<f64>| ns.map_or("-".to_owned(), time);
    let all = times.summary().into_iter().map(|(name, ns)| format!("{name} {}", known(ns)));
    match times.is_empty() {
        true => String::new(),
        false => format!("\nround trip: {}", all.collect::<Vec<_>>().join("  ")),
    }
}

/// Round-trip times in nanoseconds, the mean with its fraction; null if unknown.
pub(crate) fn json_round_trips(times: &RoundTrips) -> Map<String, Value> {
    let value = |name, ns: Option<f64>| match ns {
        None => Value::Null,
        Some(ns) if name == "mean" => Value::from(ns),
        Some(ns) => Value::from(ns as u64),
    };
    let all = times.summary().into_iter();
    all.map(|(name, ns)| (name.replace('.', "_"), value(name, ns))).collect()
}

pub(crate) fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        _ if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

fn kind(of: Ftype3) -> (char, &'static str) {
    match of {
        Ftype3::Nf3reg => ('-', "file"),
        Ftype3::Nf3dir => ('d', "directory"),
        Ftype3::Nf3blk => ('b', "block device"),
        Ftype3::Nf3chr => ('c', "character device"),
        Ftype3::Nf3lnk => ('l', "symbolic link"),
        Ftype3::Nf3sock => ('s', "socket"),
        Ftype3::Nf3fifo => ('p', "fifo"),
    }
}

/// `rwxr-xr-x`, with the set-user-ID, set-group-ID and sticky bits as in `ls`.
fn permissions(mode: u32) -> String {
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    let mut text = String::with_capacity(9);
    for (group, (bit, letter)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * group);
        text.push(if bits & 4 > 0 { 'r' } else { '-' });
        text.push(if bits & 2 > 0 { 'w' } else { '-' });
        text.push(match (mode & bit > 0, bits & 1 > 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn utc(time: Nfstime3) -> String {
    humantime::format_rfc3339_nanos(system_time(time)).to_string()
}

fn system_time(time: Nfstime3) -> SystemTime {
    UNIX_EPOCH + Duration::new(time.seconds.into(), time.nseconds)
}

fn hex(handle: &FileHandle) -> String {
    handle.as_bytes().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server can send any number.
    #[test]
    fn times_beyond_a_second_of_nanoseconds_are_dates() {
        assert_eq!(utc(Nfstime3 { seconds: 0, nseconds: 7 }), "1970-01-01T00:00:00.000000007Z");
        let odd = Nfstime3 { seconds: u32::MAX, nseconds: u32::MAX };
        assert_eq!(utc(odd), "2106-02-07T06:28:19.294967295Z");
        let listed = humantime::format_rfc3339_seconds(system_time(odd)).to_string();
        assert_eq!(listed, "2106-02-07T06:28:19Z");
    }

    #[test]
    fn permissions_are_as_in_ls() {
        for (mode, text) in [
            (0o755, "rwxr-xr-x"),
            (0o644, "rw-r--r--"),
            (0o1777, "rwxrwxrwt"),
            (0o4711, "rws--x--x"),
            (0o6600, "rwS--S---"),
            (0, "---------"),
        ] {
            assert_eq!(permissions(mode), text, "{mode:o}");
        }
    }

    #[test]
    fn a_name_with_bytes_for_the_terminal_is_printed_harmlessly() {
        let name = b"a\x1b[31m\n\xff".to_vec();
        let shown = entry(&Entry { name, fileid: 1, attributes: None, handle: None }, None);
        assert!(shown.ends_with("a\\x1b[31m\\n\\xff"), "{shown}");
    }

    #[test]
    fn json_of_a_name_with_bytes_for_the_terminal_is_harmless_and_means_the_same() {
        let name = "a\u{9b}2J\u{202e}\u{7f}\n";
        let entry = Entry { name: name.into(), fileid: 1, attributes: None, handle: None };
        let shown = json_entry(&entry, Some(name.as_bytes()));
        assert!(shown.chars().all(printable::is_harmless), "{shown:?}");
        let read: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((&read["name"], &read["target"]), (&name.into(), &name.into()));
    }
}
