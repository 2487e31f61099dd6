//! Options of an export in text form: `client=192.0.2.0/24,ro,squash=all`.
//!
//! Words are separated by commas, because addresses may contain colons. The command line and the
//! configuration file set the same keys, through [`Settings::set`].

use super::clients::{Client, decimal};
use super::flavor::Flavor;
use crate::server::errors::Problem;
use spinrpc_tuning::did_you_mean;
use std::collections::BTreeSet;
use std::fmt;

/// Maximum number of clients of an export.
pub const CLIENTS_MAX: usize = 256;

const NOBODY: u32 = 65_534;

/// Access options of an export. By default it is writable, squashes root to `nobody`, accepts
/// AUTH_SYS, and admits no clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// True if changes are rejected.
    pub read_only: bool,
    /// Callers that act as [`ExportOptions::anonymous`].
    pub squash: Squash,
    /// User and group of squashed callers, and of AUTH_NONE.
    pub anonymous: (u32, u32),
    /// Clients that may connect; none if empty.
    pub clients: Vec<Client>,
    /// Accepted flavors, preferred one first.
    pub flavors: Vec<Flavor>,
    /// Hosts and services that Kerberos proves act as root, and not as the anonymous user.
    pub machine_is_root: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::default(),
            anonymous: (NOBODY, NOBODY),
            clients: Vec::new(),
            flavors: vec![Flavor::Sys],
            machine_is_root: false,
        }
    }
}

impl ExportOptions {
    /// Returns whether a flavor of Kerberos is accepted.
    #[must_use]
    pub fn accepts_kerberos(&self) -> bool {
        let is_its =
            |flavor: &Flavor| matches!(flavor, Flavor::Krb5 | Flavor::Krb5i | Flavor::Krb5p);
        self.flavors.iter().any(is_its)
    }
}

/// Callers of an export that lose their identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// User 0 and group 0.
    #[default]
    Root,
    /// All callers.
    All,
    /// No caller.
    None,
}

impl fmt::Display for Squash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::All => "all",
            Self::None => "none",
        })
    }
}

/// All settings of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Access options.
    pub options: ExportOptions,
    /// The path that clients mount, if it is not that of the directory.
    pub path: Option<String>,
    /// Number in its handles, if it is not derived from the path.
    pub id: Option<u32>,
    /// Maximum size of an in-memory tree in bytes.
    pub bytes_max: Option<u64>,
    /// Maximum number of files in an in-memory tree.
    pub files_max: Option<u64>,
    /// Keys that were set.
    set: BTreeSet<&'static str>,
}

/// Every option with its values, for help and errors.
pub const KEYS: [(&str, &str); 11] = [
    (
        "client",
        "admitted clients, may be repeated: ADDRESS, NETWORK/BITS, DNS name, local, local:UID, any",
    ),
    ("ro", "reject changes"),
    ("rw", "allow changes (the default)"),
    ("squash", "users mapped to the anonymous user: root (the default), all, none"),
    ("anon", "the anonymous user: UID:GID (65534:65534)"),
    (
        "sec",
        "accepted flavors, preferred one first: sys (the default), krb5, krb5i, krb5p, none; several are separated by colons",
    ),
    ("machine", "user of hosts and services that Kerberos proves: nobody (the default), root"),
    ("path", "the path that clients mount; it must begin with /, without empty parts, . and .."),
    ("id", "number in the handles: 0 to 4294967295 (derived from the path)"),
    ("bytes", "maximum bytes in memory: 512M, 4G"),
    ("files", "maximum number of files in memory"),
];

impl Settings {
    /// Parses words separated by commas.
    ///
    /// # Errors
    /// [`Problem`] for each invalid one.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let (mut settings, mut errors) = (Self::default(), Vec::new());
        for word in text.split(',') {
            let set = match word.split_once('=') {
                Some((key, value)) => settings.set(key, Some(value)),
                None => settings.set(word, None),
            };
            errors.extend(set.err());
        }
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }

    /// Sets one key; `client` and `sec` add to previous values, and other values are set once.
    ///
    /// # Errors
    /// [`Problem`] has the allowed values.
    pub fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), Problem> {
        let known = KEYS.iter().find(|(known, _)| *known == key);
        let (key, takes) = *known.ok_or_else(|| unknown(key))?;
        let is_repeated = !self.set.insert(key);
        let set = match (key, value) {
            ("ro" | "rw", None) => self.set_access(key == "ro"),
            ("ro" | "rw", Some(_)) => Err("takes no value".to_owned()),
            (_, None) => Err(format!("needs a value: {takes}")),
            ("client", Some(value)) => self.add_client(value),
            ("sec", Some(value)) => self.add_flavors(value, is_repeated),
            _ if is_repeated => Err("can only be set once".to_owned()),
            (_, Some(value)) => self.assign(key, value),
        };
        set.map_err(|problem| Problem(format!("{key}: {problem}")))
    }

    fn assign(&mut self, key: &str, value: &str) -> Result<(), String> {
        let refuse = || not_valid(key, value);
        match key {
            "machine" => self.options.machine_is_root = machine(value).ok_or_else(refuse)?,
            "squash" => self.options.squash = squash(value).ok_or_else(refuse)?,
            "anon" => self.options.anonymous = user_and_group(value).ok_or_else(refuse)?,
            "path" if !super::is_path(value) => return Err(refuse()),
            "path" => self.path = Some(value.to_owned()),
            "id" => self.id = Some(decimal(value).ok_or_else(refuse)?),
            "bytes" => self.bytes_max = Some(size(value).ok_or_else(refuse)?),
            _ => self.files_max = Some(decimal(value).ok_or_else(refuse)?.into()),
        }
        Ok(())
    }

    fn set_access(&mut self, read_only: bool) -> Result<(), String> {
        if ["ro", "rw"].iter().all(|key| self.set.contains(key)) {
            return Err("ro and rw exclude each other".to_owned());
        }
        self.options.read_only = read_only;
        Ok(())
    }

    fn add_client(&mut self, text: &str) -> Result<(), String> {
        let client = text.parse::<Client>().map_err(|error| error.to_string())?;
        if self.options.clients.len() == CLIENTS_MAX {
            return Err(format!("at most {CLIENTS_MAX} can be named: use networks"));
        }
        if !self.options.clients.contains(&client) {
            self.options.clients.push(client);
        }
        Ok(())
    }

    /// The first ones replace the default.
    fn add_flavors(&mut self, text: &str, is_repeated: bool) -> Result<(), String> {
        let named = text.split(':').map(Flavor::named).collect::<Option<Vec<Flavor>>>();
        let named = named.ok_or_else(|| not_valid("sec", text))?;
        if !is_repeated {
            self.options.flavors.clear();
        }
        for flavor in named {
            if !self.options.flavors.contains(&flavor) {
                self.options.flavors.push(flavor);
            }
        }
        Ok(())
    }
}

fn not_valid(key: &str, value: &str) -> String {
    let takes = KEYS.iter().find(|(known, _)| *known == key).map_or("", |(_, takes)| takes);
    format!("{value:?} is not valid: {takes}")
}

fn unknown(key: &str) -> Problem {
    let names = || KEYS.iter().map(|(name, _)| *name);
    let all = format!("the options are {}", names().collect::<Vec<_>>().join(", "));
    Problem(format!("unknown option {key:?}{}", did_you_mean(key, names(), &all)))
}

fn machine(text: &str) -> Option<bool> {
    match text {
        "root" => Some(true),
        "nobody" => Some(false),
        _ => None,
    }
}

fn squash(text: &str) -> Option<Squash> {
    [Squash::Root, Squash::All, Squash::None].into_iter().find(|squash| squash.to_string() == text)
}

/// Rejects the number that is not a valid id (see [`Export::caller`](super::Export::caller)).
fn user_and_group(text: &str) -> Option<(u32, u32)> {
    let (uid, gid) = text.split_once(':')?;
    let id = |text: &str| decimal(text).filter(|id| *id < u32::MAX);
    Some((id(uid)?, id(gid)?))
}

/// Parses bytes, with K, M, G or T for KiB, MiB, GiB or TiB.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let unit = text.strip_prefix(number)?;
    let shift = match unit.strip_suffix("iB").filter(|unit| !unit.is_empty()).unwrap_or(unit) {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return None,
    };
    let is_number = number.bytes().all(|digit| digit.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        Settings::parse(text).unwrap_err().remove(0).to_string()
    }

    #[test]
    fn by_default_nobody_may_come_in() {
        let options = ExportOptions::default();
        assert!(options.clients.is_empty() && !options.read_only);
        assert_eq!((options.squash, options.anonymous), (Squash::Root, (65534, 65534)));
        assert_eq!(options.flavors, [Flavor::Sys]);
    }

    #[test]
    fn every_option_is_taken() {
        let text = "client=10.0.0.0/8,client=fd00::/8,client=local:7,client=any,ro,squash=all,\
                    anon=1:2,sec=none,sec=krb5p:krb5i,sec=krb5:sys,machine=root,path=/data,id=7,bytes=4G,files=9";
        let settings = Settings::parse(text).unwrap();
        let options = &settings.options;
        let shown: Vec<String> = options.clients.iter().map(Client::to_string).collect();
        assert_eq!(shown, ["10.0.0.0/8", "fd00::/8", "local:7", "any"]);
        assert!(options.read_only);
        assert_eq!((options.squash, options.anonymous), (Squash::All, (1, 2)));
        let flavors = [Flavor::None, Flavor::Krb5p, Flavor::Krb5i, Flavor::Krb5, Flavor::Sys];
        assert_eq!(options.flavors, flavors);
        assert!(options.machine_is_root);
        assert_eq!((settings.path.as_deref(), settings.id), (Some("/data"), Some(7)));
        assert_eq!((settings.bytes_max, settings.files_max), (Some(4 << 30), Some(9)));
    }

    #[test]
    fn what_is_named_twice_is_there_once() {
        let options =
            Settings::parse("client=any,client=any,sec=sys:sys,sec=sys,rw,rw").unwrap().options;
        assert_eq!((options.clients.len(), options.flavors.len()), (1, 1));
        assert!(!options.read_only);
    }

    #[test]
    fn an_unknown_option_names_the_nearest() {
        assert!(refused("clients=any").contains("did you mean \"client\"?"));
        assert!(refused("sqash=all").contains("did you mean \"squash\"?"));
        assert!(refused("no_root_squash").contains("the options are client, ro, rw, squash"));
        assert!(refused("").contains("unknown option \"\""));
    }

    #[test]
    fn a_wrong_value_names_the_option_and_what_it_takes() {
        for (text, says) in [
            ("ro=1", "ro: takes no value"),
            ("client", "client: needs a value"),
            ("client=ho_st", "2001:db8::/32"),
            ("ro,rw", "rw: ro and rw exclude each other"),
            ("rw,client=any,ro", "ro: ro and rw exclude each other"),
            ("machine=root,machine=nobody", "machine: "),
            ("squash=all,squash=none", "squash: "),
            ("anon=1:1,anon=1:2", "anon: "),
            ("path=/a,path=/b", "path: "),
            ("id=1,id=1", "id: "),
            ("bytes=1,bytes=2", "bytes: "),
            ("files=1,files=2", "files: "),
            ("squash=some", "root (the default), all, none"),
            ("sec=krb6", "sys (the default), krb5"),
            ("sec=krb5:", "separated by colons"),
            ("machine=alice", "nobody (the default), root"),
            ("anon=nobody", "UID:GID"),
            ("anon=4294967295:1", "UID:GID"),
            ("path=rel", "begin with /"),
            ("path=/a/../b", "begin with /"),
            ("id=-1", "0 to 4294967295"),
            ("id=4294967296", "0 to 4294967295"),
            ("bytes=1x", "512M, 4G"),
            ("files=+1", "maximum number of files"),
        ] {
            assert!(refused(text).contains(says), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in [("7", 7), ("2k", 2048), ("1M", 1 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "G", "1GB", "-1", "+1", "1.5G", "1 G", "4KK", "9999999999T"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn clients_have_a_bound() {
        let all = (0..=CLIENTS_MAX as u32).map(|uid| format!("client=local:{uid}"));
        assert!(refused(&all.collect::<Vec<_>>().join(",")).contains("use networks"));
    }

    proptest! {
        #[test]
        fn any_text_is_options_or_refused(text: String) {
            drop(Settings::parse(&text));
        }
    }
}
