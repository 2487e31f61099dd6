//! iceoryx2 between two processes, measured like spinperf: `serve` answers until SIGTERM, `run`
//! measures for a second and prints `key value` lines. Both poll. bench/peers/iceoryx2/measure runs
//! each on its own core.
//!
//! iceoryx2-peer serve|run calls|deep|samples|stream|bulk ROOT PREFIX
//!
//! ROOT is the directory, and PREFIX the beginning of the name, of everything that iceoryx2
//! creates, so that the leftovers of a killed process can be removed by name.

use iceoryx2::node::NodeWaitFailure;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory as Topic;
use iceoryx2::service::port_factory::request_response::PortFactory as Calls;
use std::collections::VecDeque;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;
type Small = [u8; 64];

const DEPTH: usize = 32;
/// As many transfers in flight as spinperf has.
const BULK_DEPTH: usize = 2;
const BULK_BYTES: usize = 1 << 20;
const WARM_UP: Duration = Duration::from_millis(200);
const MEASURED: Duration = Duration::from_secs(1);
/// More than a second of samples at any possible rate; a run that reaches it ends early.
const SAMPLES_MAX: usize = 16 << 20;
/// Checking for shutdown takes a system call, so it is done rarely.
const EMPTY_POLLS_PER_CHECK: u32 = 1 << 16;
const CONNECT_TIME: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    set_log_level(LogLevel::Error);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["serve", mode, root, prefix] => open(root, prefix).and_then(|node| serve(&node, mode)),
        ["run", mode, root, prefix] => open(root, prefix).and_then(|node| run(&node, mode)),
        _ => Err("serve|run calls|deep|samples|stream|bulk ROOT PREFIX".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iceoryx2-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(root: &str, prefix: &str) -> Outcome<Node<ipc::Service>> {
    let mut config = Config::default();
    config.global.set_root_path(&Path::new(root.as_bytes())?);
    config.global.prefix = FileName::new(prefix.as_bytes())?;
    Ok(NodeBuilder::new().config(&config).create::<ipc::Service>()?)
}

fn calls(node: &Node<ipc::Service>) -> Outcome<Calls<ipc::Service, Small, (), Small, ()>> {
    let service = node.service_builder(&"calls".try_into()?).request_response::<Small, Small>();
    Ok(service.max_active_requests_per_client(DEPTH).open_or_create()?)
}

fn samples(node: &Node<ipc::Service>, name: &str) -> Outcome<Topic<ipc::Service, Small, ()>> {
    let service = node.service_builder(&name.try_into()?).publish_subscribe::<Small>();
    Ok(service.enable_safe_overflow(false).subscriber_max_buffer_size(DEPTH).open_or_create()?)
}

fn bulk(node: &Node<ipc::Service>) -> Outcome<Topic<ipc::Service, [u8], ()>> {
    let service = node.service_builder(&"bulk".try_into()?).publish_subscribe::<[u8]>();
    let service = service.enable_safe_overflow(false).subscriber_max_borrowed_samples(BULK_DEPTH);
    Ok(service.subscriber_max_buffer_size(BULK_DEPTH).open_or_create()?)
}

/// The publisher rejects samples that do not fit, and the caller retries: waiting is part of the
/// benchmark.
fn publisher(
    topic: &Topic<ipc::Service, Small, ()>,
) -> Outcome<Publisher<ipc::Service, Small, ()>> {
    let builder = topic.publisher_builder();
    Ok(builder.backpressure_strategy(BackpressureStrategy::DiscardData).create()?)
}

fn serve(node: &Node<ipc::Service>, mode: &str) -> Outcome<()> {
    match mode {
        "calls" | "deep" => serve_calls(node),
        "samples" => serve_samples(node),
        "stream" => {
            let subscriber = samples(node, "there")?.subscriber_builder().create()?;
            serve_with(node, || Ok(subscriber.receive()?.is_some()))
        }
        "bulk" => {
            let subscriber = bulk(node)?.subscriber_builder().create()?;
            serve_with(node, || Ok(subscriber.receive()?.is_some_and(|sample| !sample.is_empty())))
        }
        _ => Err(format!("no mode {mode}").into()),
    }
}

fn serve_calls(node: &Node<ipc::Service>) -> Outcome<()> {
    let server = calls(node)?.server_builder().create()?;
    serve_with(node, || {
        let Some(request) = server.receive()? else { return Ok(false) };
        request.loan_uninit()?.write_payload(*request).send()?;
        Ok(true)
    })
}

fn serve_samples(node: &Node<ipc::Service>) -> Outcome<()> {
    let subscriber = samples(node, "there")?.subscriber_builder().create()?;
    let publisher = publisher(&samples(node, "back")?)?;
    serve_with(node, || {
        let Some(sample) = subscriber.receive()? else { return Ok(false) };
        publisher.loan_uninit()?.write_payload(*sample).send()?;
        Ok(true)
    })
}

/// Polls until a signal ends the process.
fn serve_with(node: &Node<ipc::Service>, mut poll: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    println!("listening");
    let mut empty = 0;
    loop {
        if poll()? {
            continue;
        }
        std::hint::spin_loop();
        empty += 1;
        if empty == EMPTY_POLLS_PER_CHECK {
            empty = 0;
            match node.wait(Duration::ZERO) {
                Ok(()) => {}
                Err(NodeWaitFailure::TerminationRequest | NodeWaitFailure::Interrupt) => {
                    return Ok(());
                }
            }
        }
    }
}

fn run(node: &Node<ipc::Service>, mode: &str) -> Outcome<()> {
    match mode {
        "calls" => run_calls(node),
        "deep" => run_deep(node),
        "samples" => run_samples(node),
        "stream" => run_stream(node),
        "bulk" => run_bulk(node),
        _ => Err(format!("no mode {mode}").into()),
    }
}

/// One call at a time.
fn run_calls(node: &Node<ipc::Service>) -> Outcome<()> {
    let client = calls(node)?.client_builder().create()?;
    connected(|| Ok(client.send_copy([0; 64])?.number_of_server_connections() > 0))?;
    round_trips(|payload| {
        let pending = client.loan_uninit()?.write_payload(payload).send()?;
        loop {
            if let Some(response) = pending.receive()? {
                return Ok(*response);
            }
            std::hint::spin_loop();
        }
    })
}

/// As many calls in flight as allowed, answered in order.
fn run_deep(node: &Node<ipc::Service>) -> Outcome<()> {
    let client = calls(node)?.client_builder().create()?;
    connected(|| Ok(client.send_copy([0; 64])?.number_of_server_connections() > 0))?;
    let mut in_flight = VecDeque::with_capacity(DEPTH);
    counted(DEPTH, || {
        if in_flight.len() < DEPTH {
            in_flight.push_back(client.loan_uninit()?.write_payload([1; 64]).send()?);
            return Ok(false);
        }
        let Some(oldest) = in_flight.front() else { return Ok(false) };
        let replied = oldest.receive()?.is_some();
        if replied {
            in_flight.pop_front();
        }
        Ok(replied)
    })
}

/// A sample there and its copy back.
fn run_samples(node: &Node<ipc::Service>) -> Outcome<()> {
    let subscriber = samples(node, "back")?.subscriber_builder().create()?;
    let publisher = publisher(&samples(node, "there")?)?;
    connected(|| Ok(publisher.send_copy([0; 64])? > 0))?;
    await_sample(&subscriber)?;
    round_trips(|payload| {
        publisher.loan_uninit()?.write_payload(payload).send()?;
        await_sample(&subscriber)
    })
}

fn await_sample(subscriber: &Subscriber<ipc::Service, Small, ()>) -> Outcome<Small> {
    loop {
        if let Some(sample) = subscriber.receive()? {
            return Ok(*sample);
        }
        std::hint::spin_loop();
    }
}

/// Samples one way.
fn run_stream(node: &Node<ipc::Service>) -> Outcome<()> {
    let publisher = publisher(&samples(node, "there")?)?;
    connected(|| Ok(publisher.send_copy([0; 64])? > 0))?;
    counted(DEPTH, || Ok(publisher.loan_uninit()?.write_payload([1; 64]).send()? > 0))
}

/// Large samples one way, each copied from private memory. iceoryx2 blocks when the buffer is full,
/// because a retry would copy again for nothing.
fn run_bulk(node: &Node<ipc::Service>) -> Outcome<()> {
    let topic = bulk(node)?;
    let builder = topic.publisher_builder().initial_max_slice_len(BULK_BYTES);
    let publisher =
        builder.backpressure_strategy(BackpressureStrategy::RetryUntilDelivered).create()?;
    let source = vec![7u8; BULK_BYTES];
    let mut send =
        || Ok(publisher.loan_slice_uninit(BULK_BYTES)?.write_from_slice(&source).send()? > 0);
    connected(&mut send)?;
    println!("bytes {BULK_BYTES}");
    counted(BULK_DEPTH, send)
}

/// Retries until the other end is connected.
fn connected(mut attempt: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let began = Instant::now();
    while !attempt()? {
        if began.elapsed() > CONNECT_TIME {
            return Err("no peer answers".into());
        }
    }
    Ok(())
}

/// Times every exchange; prints the median round trip.
fn round_trips(mut exchange: impl FnMut(Small) -> Outcome<Small>) -> Outcome<()> {
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        exchange([0; 64])?;
    }
    let mut times_ns: Vec<u32> = vec![0; SAMPLES_MAX];
    times_ns.clear();
    let began = Instant::now();
    let mut before = began;
    while before - began < MEASURED && times_ns.len() < SAMPLES_MAX {
        let payload = [times_ns.len() as u8; 64];
        if exchange(payload)? != payload {
            return Err("what came back is not what was sent".into());
        }
        let now = Instant::now();
        times_ns.push(u32::try_from((now - before).as_nanos()).unwrap_or(u32::MAX));
        before = now;
    }
    times_ns.sort_unstable();
    print_count(times_ns.len(), before - began);
    println!("depth 1\nmin_ns {}\np50_ns {}", times_ns[0], times_ns[times_ns.len() / 2]);
    Ok(())
}

/// Counts completed steps in the measured time; `step` returns true if it completed one.
fn counted(depth: usize, mut step: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        step()?;
    }
    let (mut done, mut steps) = (0, 0u32);
    let began = Instant::now();
    let mut elapsed = Duration::ZERO;
    while elapsed < MEASURED {
        done += usize::from(step()?);
        steps += 1;
        // Reading the clock costs a good part of a small exchange.
        if steps % DEPTH as u32 == 0 {
            elapsed = began.elapsed();
        }
    }
    print_count(done, elapsed);
    println!("depth {depth}");
    Ok(())
}

fn print_count(count: usize, elapsed: Duration) {
    println!("count {count}\nelapsed_ns {}", elapsed.as_nanos());
    println!("rate_per_second {:.3}", count as f64 / elapsed.as_secs_f64());
}
