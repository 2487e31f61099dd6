//! A realm of Kerberos in a temporary directory: database, KDC on a loopback port, keytabs and ticket caches. It takes a
//! tenth of a second and no rights.
//!
//! The library reads `KRB5_CONFIG`, and a program with threads must not set a variable. So each test starts its
//! realm and runs itself in a child process that has the variable.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

/// Set in child processes: the directory of the realm.
const INSIDE: &str = "SPINRPC_GSS_REALM";
/// Set in child processes: the encryption type of the realm.
const ENCTYPE: &str = "SPINRPC_GSS_ENCTYPE";
/// Realm of the tests, and the one whose users may be trusted.
const REALM: &str = "SPIN.TEST";
const OTHER: &str = "OTHER.TEST";
const KDC_LOG: &str = "kdc.log";
/// Ports for a KDC, of which others may take each before it does.
const PORTS_TRIED: usize = 10;
/// A command that child processes are run by, such as valgrind with its options.
const RUN_BY: &str = "SPINRPC_GSS_RUN";
/// Programs of administrators are not in every path.
const SBIN: &str = "/usr/sbin:/sbin";

/// Runs `body`, a closure of a test, in a child process, in a new realm of this encryption type. The test may call this for
/// several types.
pub(crate) fn in_realm<B: FnOnce(&Home)>(enctype: &str, body: B) {
    // As in "program::module::test::{{closure}}".
    let (_, test) = std::any::type_name::<B>().split_once("::").unwrap();
    let test = test.strip_suffix("::{{closure}}").unwrap();
    if let Some(directory) = std::env::var_os(INSIDE) {
        if std::env::var(ENCTYPE).unwrap() != enctype {
            return;
        }
        body(&Home { directory: PathBuf::from(directory), realm: REALM });
        println!("the body of {test} has run");
        return;
    }
    let realm = Realm::start(test, enctype);
    let this = std::env::current_exe().unwrap();
    let run_by = std::env::var(RUN_BY).unwrap_or_default();
    let mut words = run_by.split_whitespace().map(Into::into).chain([this.into_os_string()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args([test, "--exact", "--nocapture"]);
    command.env(INSIDE, &realm.home.directory).env(ENCTYPE, enctype);
    let ended = realm.home.with_environment(&mut command).output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    print!("{text}{errors}");
    let ran = text.contains(&format!("the body of {test} has run"));
    assert!(ended.status.success() && ran, "{test} failed in its child process, see above");
}

pub(crate) struct Realm {
    home: Home,
    /// With what it writes its errors to.
    kdc: Option<(Child, BufReader<ChildStderr>)>,
}

impl Realm {
    fn start(test: &str, enctype: &str) -> Self {
        let mut realm = Self::create(home_of(test), enctype);
        let home = &realm.home;
        for principal in ["alice", "bob", "nfs/localhost", "nfs/absent", "host/client"] {
            home.kadmin(&format!("addprinc -pw {principal} {principal}"));
        }
        home.kadmin(&format!("ktadd -k {} nfs/localhost", home.path("nfs.keytab")));
        home.kadmin(&format!("ktadd -k {} host/client", home.path("client.keytab")));
        realm.serve(enctype);
        realm
    }

    fn create(home: Home, enctype: &str) -> Self {
        // One of a process that was killed, and had the number of this one.
        let _ = fs::remove_dir_all(&home.directory);
        fs::create_dir(&home.directory).unwrap();
        home.configure(enctype, free_port());
        home.run("kdb5_util", &["create", "-s", "-r", home.realm, "-P", "master"]);
        Self { home, kdc: None }
    }

    fn serve(&mut self, enctype: &str) {
        for _ in 0..PORTS_TRIED {
            if self.start_kdc() {
                return;
            }
            self.home.configure(enctype, free_port());
        }
        panic!("no KDC at one of {PORTS_TRIED} ports");
    }

    /// Starts the KDC of a realm whose port is taken by then.
    #[allow(dead_code, reason = "for one of the programs with this module")]
    pub(crate) fn with_taken_port(test: &str, enctype: &str, taken: u16) -> Self {
        let mut realm = Self::create(home_of(test), enctype);
        realm.home.kadmin("addprinc -pw alice alice");
        realm.home.configure(enctype, taken);
        realm.serve(enctype);
        realm
    }

    #[allow(dead_code, reason = "for one of the programs with this module")]
    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Starts the KDC, and waits for it to say that it serves. `false` if its port has been taken, which only its log
    /// tells.
    fn start_kdc(&mut self) -> bool {
        let _ = fs::remove_file(self.home.path(KDC_LOG));
        let mut command = Command::new("krb5kdc");
        self.home.with_environment(command.args(["-n", "-r", self.home.realm]));
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(process.stderr.take().unwrap());
        let (_, errors) = self.kdc.insert((process, errors));
        let mut said = String::new();
        while !said.contains("starting...") {
            if errors.read_line(&mut said).unwrap() == 0 {
                let log = fs::read_to_string(self.home.path(KDC_LOG)).unwrap_or_default();
                assert!(log.contains("Address already in use"), "krb5kdc said {said:?}, {log}");
                return false;
            }
        }
        true
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        if let Some((process, _)) = &mut self.kdc {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.home.directory);
    }
}

fn home_of(test: &str) -> Home {
    let name = format!("spinrpc-gss-{}-{}", std::process::id(), test.replace("::", "-"));
    Home { directory: std::env::temp_dir().join(name), realm: REALM }
}

fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) struct Home {
    directory: PathBuf,
    realm: &'static str,
}

impl Home {
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    fn configure(&self, enctype: &str, port: u16) {
        let clients = client_configuration(self.realm, enctype, port);
        fs::write(self.directory.join("krb5.conf"), clients).unwrap();
        let path = |name| self.path(name);
        let kdc = format!(
            "[realms]\n {} = {{\n  database_name = {}\n  key_stash_file = {}\n  \
             kdc_listen = 127.0.0.1:{port}\n  kdc_tcp_listen = 127.0.0.1:{port}\n  \
             supported_enctypes = {enctype}:normal\n  master_key_type = {}\n }}\n\
             [logging]\n kdc = FILE:{}\n",
            self.realm,
            path("principal"),
            path("stash"),
            enctype.split_whitespace().next().unwrap(),
            path(KDC_LOG),
        );
        fs::write(self.directory.join("kdc.conf"), kdc).unwrap();
    }

    fn with_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:{SBIN}"));
        command.env("KRB5_CONFIG", self.path("krb5.conf"));
        command.env("KRB5_KDC_PROFILE", self.path("kdc.conf"));
        // The default cache of the tests. What they name themselves is elsewhere.
        command.env("KRB5CCNAME", format!("FILE:{}", self.path("default-cache")));
        command.env("KRB5_KTNAME", format!("FILE:{}", self.path("default-keytab")))
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.run_with(program, arguments, "")
    }

    #[track_caller]
    fn run_with(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(program);
        self.with_environment(&mut command).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        output
    }

    #[track_caller]
    pub(crate) fn kadmin(&self, query: &str) {
        self.run("kadmin.local", &["-r", self.realm, "-q", query]);
    }

    /// A cache with a ticket for `principal`, whose password is its name. Returns the cache's name.
    #[track_caller]
    pub(crate) fn kinit(&self, principal: &str, options: &[&str]) -> String {
        let cache =
            format!("FILE:{}", self.path(&format!("cache-{}", principal.replace('/', "-"))));
        let arguments = [options, &["-c", &cache, principal]].concat();
        self.run_with("kinit", &arguments, &format!("{principal}\n"));
        cache
    }

    /// Starts another realm with a KDC of its own, `OTHER.TEST`, whose users this one believes: they get tickets for its
    /// services, and its own users get none there. The names of `users` are their passwords, with the realm. To be called
    /// before the library has read the file.
    pub(crate) fn trust_another(&self, users: &[&str]) -> Realm {
        let enctype = std::env::var(ENCTYPE).unwrap();
        let home = Self { directory: self.directory.join("other"), realm: OTHER };
        let mut other = Realm::create(home, &enctype);
        for user in users {
            other.home.kadmin(&format!("addprinc -pw {user}@{OTHER} {user}"));
        }
        for realm in [self, &other.home] {
            realm.kadmin(&format!("addprinc -pw trust krbtgt/{REALM}@{OTHER}"));
        }
        other.serve(&enctype);
        let text = fs::read_to_string(other.home.path("krb5.conf")).unwrap();
        let (_, realm) = text.split_once("[realms]\n").unwrap();
        self.edit(
            "[realms]\n",
            &format!("[domain_realm]\n localhost = {REALM}\n[realms]\n{realm}"),
        );
        other
    }

    /// Adds a line to `[libdefaults]`. To be called before the library has read the file.
    pub(crate) fn configure_clients(&self, line: &str) {
        self.edit("[libdefaults]\n", &format!("[libdefaults]\n {line}\n"));
    }

    /// Clients take this port of the loopback interface for the KDC's. As above.
    pub(crate) fn move_kdc(&self, port: u16) {
        let text = fs::read_to_string(self.path("krb5.conf")).unwrap();
        let old = text.lines().find(|line| line.contains(" kdc = ")).unwrap();
        self.edit(old, &format!("  kdc = 127.0.0.1:{port}"));
    }

    fn edit(&self, old: &str, new: &str) {
        let text = fs::read_to_string(self.path("krb5.conf")).unwrap();
        assert!(text.contains(old));
        fs::write(self.path("krb5.conf"), text.replace(old, new)).unwrap();
    }
}

fn client_configuration(realm: &str, enctype: &str, port: u16) -> String {
    format!(
        "[libdefaults]\n default_realm = {realm}\n permitted_enctypes = {enctype}\n \
         allow_rc4 = true\n allow_weak_crypto = true\n \
         dns_lookup_kdc = false\n dns_lookup_realm = false\n dns_canonicalize_hostname = false\n \
         rdns = false\n\
         [realms]\n {realm} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
    )
}

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kerberos").join(name)
}
