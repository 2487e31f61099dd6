//! `spintune doctor` and `spintune record`, which examine a host.

use crate::report::to_json;
use crate::{Answer, Outcome, at_root};
use spinrpc_tuning::doctor::{CheckInput, Tried, examine, profile_for};
use spinrpc_tuning::host::{HostFacts, Record, Tree};
use spinrpc_tuning::keytab;
use spinrpc_tuning::printable::printable;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = include_str!("help/doctor.txt").trim_ascii_end())]
pub(crate) struct DoctorArguments {
    /// Name of a shipped profile, or path of a file, to run on this host
    #[arg(long, default_value = "base", value_name = "PROFILE")]
    profile: String,
    /// Override a value of the profile; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the remedies of notes, too
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Treat warnings as failures
    #[arg(long)]
    strict: bool,
    /// Only read, and skip the tests that occupy the poll cores for some seconds
    #[arg(long)]
    passive: bool,
    /// Check this keytab, the one of spin-nfsd --keytab [default: KRB5_KTNAME, or /etc/krb5.keytab].
    /// With --root, a path in DIR or in the record, and KRB5_KTNAME is not used
    #[arg(long, value_name = "FILE")]
    keytab: Option<PathBuf>,
    /// Examine a record or a copy of a host's files instead of this host. Links do not lead out of
    /// DIR
    #[arg(long, value_name = "RECORD|DIR")]
    root: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct RecordArguments {
    /// File to write; - is standard output
    file: PathBuf,
    /// Add mode and owner of this keytab, next to /etc/krb5.keytab [default: KRB5_KTNAME]
    #[arg(long, value_name = "FILE")]
    keytab: Option<PathBuf>,
}

pub(crate) fn doctor(arguments: &DoctorArguments) -> Answer {
    let tree = match &arguments.root {
        None => Tree::host(),
        Some(path) => at_root(path, Tree::open(path))?,
    };
    let mut facts = HostFacts::read(&tree);
    use_keytab(arguments.keytab.as_deref(), &tree, &mut facts);
    let profile = profile_for(&facts, &arguments.profile, &arguments.overrides)?;
    let tries = tree.is_this_host() && !arguments.passive;
    let tried = tries
        .then(|| Tried::out(&facts, profile.config(), &mut progress()).with_allocator("mimalloc"));
    let report = examine(&CheckInput { facts: &facts, profile: &profile, tried: tried.as_ref() });
    let answer = if arguments.json { to_json(&report) } else { report.render(arguments.all) };
    let status = u8::from(!report.is_good(arguments.strict));
    Ok(Outcome { answer, problems: Vec::new(), status })
}

/// Examines the keytab that is named: on this host as spin-nfsd does, elsewhere that of the option only.
fn use_keytab(option: Option<&Path>, tree: &Tree, facts: &mut HostFacts) {
    let here = tree.is_this_host().then(|| keytab::named(option));
    match here.unwrap_or(Ok(option.map(Path::to_owned))) {
        Ok(None) => {}
        Ok(Some(path)) => facts.kerberos.use_keytab(tree, Ok(&path)),
        Err(error) => facts.kerberos.use_keytab(tree, Err(error)),
    }
}

fn progress() -> impl FnMut(&str) {
    let started = Instant::now();
    move |what| {
        if started.elapsed() >= Duration::from_secs(2) {
            let seconds = started.elapsed().as_secs_f64();
            eprintln!("spintune: {seconds:.0} s: {}", printable(what));
        }
    }
}

pub(crate) fn record(arguments: &RecordArguments) -> Answer {
    let mut record = HostFacts::record(Tree::host());
    add_keytab(&mut record, arguments.keytab.as_deref()).map_err(Outcome::failed)?;
    let record = record.to_string();
    if arguments.file.as_os_str() == "-" {
        return Ok(Outcome::good(record));
    }
    match fs::write(&arguments.file, record) {
        Ok(()) => Ok(Outcome::good(String::new())),
        Err(error) => Err(Outcome::failed(format!("{}: {error}", arguments.file.display()))),
    }
}

/// Adds the keytab that is named. Only that of the option must be there: the variable may be meant for other programs.
fn add_keytab(record: &mut Record, option: Option<&Path>) -> Result<(), String> {
    let Ok(Some(path)) = keytab::named(option) else { return Ok(()) };
    let found =
        path.to_str().and_then(|path| Tree::host().permissions(path.trim_start_matches('/')));
    let is_added = found.is_some_and(|found| record.add_permissions(&path, found));
    match (is_added, found, option) {
        (true, ..) | (.., None) => Ok(()),
        (_, None, _) => Err(format!("--keytab: there is no file {}", path.display())),
        (_, Some(_), _) => {
            Err(format!("--keytab {}: a record cannot have this path", path.display()))
        }
    }
}
