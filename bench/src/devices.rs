//! `spinperf devices`: the RDMA devices of this host, and the obstacles to a connection.
//!
//! Explains each obstacle in words: no device, no address, no driver in this program, or too little
//! lockable memory.

use crate::cli::DevicesArgs;
use crate::console::say_to_people;
use crate::failure::Failure;
use crate::profile;
use crate::report::sink::{Sink, is_standard_output};
use crate::report::table;
use crate::units::show_size;
use serde::Serialize;
use spinrpc::config::Driver;
use spinrpc::fabric::RDMA_PORT;
use spinrpc_tuning::rdma::{Device, Memlock, Port};
use std::net::{IpAddr, SocketAddr};

/// Results of the command: `bench/schema/spinperf-devices-1.schema.json`.
#[derive(Debug, Serialize)]
struct Listing {
    /// Name of the document; changes when a field changes its meaning or is removed.
    schema: &'static str,
    /// True if this program can use the devices.
    built_with_verbs: bool,
    devices: Vec<Device>,
    /// Limits of each device from rdma-core; empty without it.
    limits: Vec<Limits>,
    memory: Memory,
    /// Remedies for obstacles to a connection.
    advice: Vec<String>,
}

/// Limits of a device.
#[derive(Debug, Serialize)]
struct Limits {
    device: String,
    /// Per queue.
    work_requests: u32,
    /// Per completion queue.
    completions: u32,
    /// Per work request, and per RDMA Read.
    sges: u32,
    read_sges: u32,
    /// Maximum number in flight per connection, from and at this side.
    reads_out: u8,
    reads_in: u8,
    /// Of type 2; 0 if there are none.
    memory_windows: u32,
    message_bytes: u32,
}

/// Memory that connections lock, and the limit.
#[derive(Debug, Serialize)]
struct Memory {
    #[serde(flatten)]
    limit: Memlock,
    /// The profile used for the calculation.
    profile: String,
    /// Upper bound of the memory that each connection registers.
    connection_bytes: u64,
}

/// Lists the devices.
pub(crate) fn run(args: &DevicesArgs) -> Result<(), Failure> {
    let json = Sink::open(args.json.as_deref())?;
    let profile = profile::for_driver(&args.profile, Driver::Verbs)?;
    let memory = Memory {
        limit: Memlock::current(),
        profile: args.profile.clone(),
        connection_bytes: Memlock::connection_bytes(&profile),
    };
    let listing = Listing::new(crate::fabric::devices(), limits(), memory);
    json.write_json(&listing)?;
    let is_output_taken = args.json.as_deref().is_some_and(is_standard_output);
    say_to_people(is_output_taken, &listing.render())
}

impl Listing {
    /// `limits` come from rdma-core; `None` in a program without it.
    fn new(devices: Vec<Device>, limits: Option<Asked>, memory: Memory) -> Self {
        let advice = advice(&devices, limits.as_ref(), &memory);
        let built_with_verbs = limits.is_some();
        let limits = limits.and_then(Result::ok).unwrap_or_default();
        Self { schema: SCHEMA, built_with_verbs, devices, limits, memory, advice }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        if self.devices.is_empty() {
            table::push_line(&mut text, "no RDMA device on this host");
        } else {
            table::push_section(&mut text, "devices", &self.device_lines());
        }
        if !self.limits.is_empty() {
            table::push_section(&mut text, "limits reported by rdma-core", &self.limit_lines());
        }
        table::push_section(&mut text, "memory", &self.memory.lines());
        if !self.advice.is_empty() {
            table::push_section(&mut text, "needed for connections", &self.advice);
        }
        text
    }

    fn device_lines(&self) -> Vec<String> {
        let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
        for device in &self.devices {
            rows.extend(device.ports.iter().map(|port| cells(device, port)));
        }
        table::aligned(rows)
    }
}

impl Listing {
    fn limit_lines(&self) -> Vec<String> {
        let mut rows = vec![LIMITS_HEADER.map(str::to_owned).to_vec()];
        rows.extend(self.limits.iter().map(Limits::cells));
        table::aligned(rows)
    }
}

impl Limits {
    fn cells(&self) -> Vec<String> {
        let windows = match self.memory_windows {
            0 => "none".to_owned(),
            windows => windows.to_string(),
        };
        vec![
            self.device.clone(),
            self.work_requests.to_string(),
            self.completions.to_string(),
            format!("{}/{}", self.sges, self.read_sges),
            format!("{}/{}", self.reads_out, self.reads_in),
            show_size(self.message_bytes as usize),
            windows,
        ]
    }
}

/// Answer of rdma-core, or the reason for its failure.
type Asked = Result<Vec<Limits>, String>;

#[cfg(not(feature = "verbs"))]
fn limits() -> Option<Asked> {
    None
}

#[cfg(feature = "verbs")]
fn limits() -> Option<Asked> {
    let said = spinrpc::fabric::verbs::devices().map_err(|error| error.to_string());
    Some(said.map(|devices| devices.into_iter().map(Limits::of).collect()))
}

#[cfg(feature = "verbs")]
impl Limits {
    fn of(info: spinrpc::fabric::verbs::DeviceInfo) -> Self {
        let caps = info.caps;
        Self {
            device: info.name,
            work_requests: caps.work_requests_max,
            completions: caps.cq_entries_max,
            sges: caps.sge_max,
            read_sges: caps.read_sge_max,
            reads_out: caps.reads_out_max,
            reads_in: caps.reads_in_max,
            memory_windows: caps.windows_max,
            message_bytes: caps.message_bytes_max,
        }
    }
}

impl Memory {
    fn lines(&self) -> Vec<String> {
        let Self { limit, profile, connection_bytes } = self;
        let privileged = match limit.limit_bytes.is_some() && limit.is_privileged {
            true => "; does not apply, because this process is privileged",
            false => "",
        };
        vec![
            format!("may be locked            {}{privileged}", limit.show()),
            format!(
                "registered per connection {} MiB at most, with profile {profile}",
                connection_bytes.div_ceil(1 << 20)
            ),
        ]
    }

    /// Returns whether a connection would fail because of the limit.
    fn is_short(&self) -> bool {
        !self.limit.is_privileged && !self.limit.allows(self.connection_bytes)
    }
}

fn cells(device: &Device, port: &Port) -> Vec<String> {
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let addresses: Vec<String> = port.addresses.iter().map(|&ip| address(ip, port)).collect();
    vec![
        device.name.clone(),
        port.number.to_string(),
        or_none(port.state.clone()),
        port.transport.name().to_owned(),
        or_none(port.link_layer.clone()),
        device.driver.clone().unwrap_or_else(|| "-".to_owned()),
        device.firmware.clone().unwrap_or_else(|| "-".to_owned()),
        or_none(port.netdevs.join(" ")),
        or_none(addresses.join(" ")),
    ]
}

/// Address in the syntax of `--address`; a link-local address needs its interface.
fn address(ip: IpAddr, port: &Port) -> String {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            format!("rdma://[{ip}%{}]:{RDMA_PORT}", port.netdevs.join(""))
        }
        ip => format!("rdma://{}", SocketAddr::new(ip, RDMA_PORT)),
    }
}

/// Remedies, most urgent first.
fn advice(devices: &[Device], limits: Option<&Asked>, memory: &Memory) -> Vec<String> {
    let mut advice = Vec::new();
    if devices.is_empty() {
        advice.extend(NO_DEVICE.map(str::to_owned));
    } else if !devices.iter().any(Device::is_active) {
        advice.push("no port is ACTIVE: bring the network interface up".to_owned());
    }
    match limits {
        None => advice.push(NOT_BUILT.to_owned()),
        Some(Err(problem)) => advice.push(problem.clone()),
        Some(Ok(known)) => {
            advice.extend(devices.iter().filter_map(|device| unknown(device, known)))
        }
    }
    advice.extend(devices.iter().filter_map(nameless));
    if memory.is_short() {
        advice.push(format!(
            "only {} may be locked, less than a connection registers: {}",
            memory.limit.show(),
            Memlock::REMEDY
        ));
    }
    advice
}

/// The kernel has a device, but rdma-core has no driver for it.
fn unknown(device: &Device, known: &[Limits]) -> Option<String> {
    let is_unknown = !known.iter().any(|limits| limits.device == device.name);
    is_unknown.then(|| {
        format!(
            "rdma-core does not support {}: load ib_uverbs, and install its provider (Debian: \
             ibverbs-providers)",
            device.name
        )
    })
}

fn nameless(device: &Device) -> Option<String> {
    let is_nameless = device.ports.iter().all(|port| port.addresses.is_empty());
    (device.is_active() && is_nameless).then(|| {
        format!(
            "{} has no IP address, but connections need one: ip address add ADDRESS/BITS dev \
             INTERFACE",
            device.name
        )
    })
}

const SCHEMA: &str = "spinperf-devices/1";
const HEADER: [&str; 9] = [
    "device",
    "port",
    "state",
    "transport",
    "link",
    "driver",
    "firmware",
    "interface",
    "addresses",
];
const LIMITS_HEADER: [&str; 7] = [
    "device",
    "work requests",
    "completions",
    "SGEs/per Read",
    "Reads out/in",
    "message",
    "type-2 windows",
];
const NOT_BUILT: &str = "this spinperf is built without RDMA; with rdma-core's libraries \
                         installed: cargo build --release --features verbs --bin spinperf";
const NO_DEVICE: [&str; 4] = [
    "a software device needs three commands as root, for a network interface such as eth0:",
    "  modprobe rdma_rxe                           (RoCE; siw for iWARP, not in Debian's kernels)",
    "  rdma link add rxe0 type rxe netdev eth0     (type siw for iWARP)",
    "  ip -brief address show dev eth0             (its address is that of the device)",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;
    use spinrpc_tuning::rdma::{Gid, Transport};

    fn memory(limit_bytes: Option<u64>) -> Memory {
        let limit = Memlock { limit_bytes, is_privileged: false };
        Memory { limit, profile: "latency".to_owned(), connection_bytes: 100 << 20 }
    }

    #[test]
    fn without_a_device_three_commands_make_one() {
        let text = Listing::new(Vec::new(), NONE, memory(None)).render();
        assert!(text.starts_with("no RDMA device on this host\n"), "{text}");
        for command in ["modprobe rdma_rxe", "rdma link add", "ip -brief address"] {
            assert!(text.contains(command), "{text}");
        }
    }

    /// Limits of `rxe0` as rdma-core reports them.
    fn known() -> Option<Asked> {
        Some(Ok(vec![Limits {
            device: "rxe0".to_owned(),
            work_requests: 1_048_576,
            completions: 32_767,
            sges: 32,
            read_sges: 32,
            reads_out: 128,
            reads_in: 128,
            memory_windows: 0,
            message_bytes: 1 << 31,
        }]))
    }

    /// Limits on a host without devices.
    const NONE: Option<Asked> = Some(Ok(Vec::new()));

    fn device(name: &str, state: &str, addresses: &[&str]) -> Device {
        let port = Port {
            number: 1,
            state: state.to_owned(),
            link_layer: "Ethernet".to_owned(),
            transport: Transport::Roce,
            rate: None,
            netdevs: vec!["eth0".to_owned()],
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            gids: vec![Gid { index: 1, gid: "::ffff:10.9.0.1".parse().unwrap(), kind: None }],
        };
        let driver = Some("rdma_rxe".to_owned());
        Device {
            name: name.to_owned(),
            driver,
            is_software: true,
            firmware: None,
            ports: vec![port],
        }
    }

    #[test]
    fn a_device_is_listed_with_the_addresses_to_connect_by() {
        let works = device("rxe0", "ACTIVE", &["10.9.0.1", "fe80::1"]);
        let listing = Listing::new(vec![works], known(), memory(None));
        assert!(listing.advice.is_empty(), "{listing:?}");
        let text = listing.render();
        for cell in [
            "rxe0",
            "ACTIVE",
            "RoCE",
            "rdma://10.9.0.1:20049",
            "rdma://[fe80::1%eth0]:20049",
            "32767",
        ] {
            assert!(text.contains(cell), "{text}");
        }
    }

    #[test]
    fn a_device_that_leads_nowhere_is_told_with_what_to_do() {
        let down = Listing::new(vec![device("rxe0", "DOWN", &["10.9.0.1"])], known(), memory(None));
        assert!(down.advice[0].contains("ACTIVE"), "{down:?}");
        let nameless = Listing::new(vec![device("rxe0", "ACTIVE", &[])], known(), memory(None));
        assert!(nameless.advice[0].contains("ip address add"), "{nameless:?}");
    }

    #[test]
    fn a_device_without_its_provider_is_named() {
        let works = device("rxe0", "ACTIVE", &["10.9.0.1"]);
        let listing = Listing::new(vec![works.clone()], NONE, memory(None));
        assert!(listing.advice[0].contains("rxe0: load ib_uverbs"), "{listing:?}");
        let refused = Some(Err("open device rxe0: permission denied".to_owned()));
        let listing = Listing::new(vec![works], refused, memory(None));
        assert_eq!(listing.advice, ["open device rxe0: permission denied"]);
    }

    #[test]
    fn a_program_without_the_driver_says_how_to_build_it() {
        let text = Listing::new(Vec::new(), None, memory(None)).render();
        assert!(text.contains("--features verbs"), "{text}");
    }

    #[test]
    fn memory_that_cannot_be_locked_is_told_with_every_remedy() {
        let short = Listing::new(Vec::new(), NONE, memory(Some(8 << 20))).render();
        assert!(short.contains("8 MiB may be locked"), "{short}");
        for remedy in ["ulimit -l", "limits.conf", "LimitMEMLOCK=infinity", "memlock=-1"] {
            assert!(short.contains(remedy), "{short}");
        }
        let enough = Listing::new(Vec::new(), NONE, memory(Some(100 << 20))).render();
        assert!(!enough.contains("ulimit"), "{enough}");
    }

    #[test]
    fn the_document_is_what_its_schema_says_and_holds_everything() {
        let schema = include_str!("../schema/spinperf-devices-1.schema.json");
        let rxe = device("rxe0", "ACTIVE", &["10.9.0.1"]);
        let full = Listing::new(vec![rxe], known(), memory(None));
        let document = serde_json::to_value(&full).unwrap();
        assert_eq!(schema::violations(&document, schema), [""; 0]);
        let listing = Listing::new(Vec::new(), NONE, memory(Some(8 << 20)));
        let document = serde_json::to_value(&listing).unwrap();
        assert_eq!(schema::violations(&document, schema), [""; 0]);
        assert_eq!(document["built_with_verbs"], true);
        assert_eq!(document["memory"]["limit_bytes"], 8 << 20);
        assert_eq!(document["memory"]["connection_bytes"], 100 << 20);
        assert!(document["devices"].as_array().unwrap().is_empty());
        assert!(!document["advice"].as_array().unwrap().is_empty());
    }
}
