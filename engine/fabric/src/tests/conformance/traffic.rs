//! A conversation between two ends that do not share a thread, and need not share a process.
//!
//! Each request asks for something, so that one side drives and the other one obeys.

use super::*;
use std::thread;

const PATIENCE: Duration = Duration::from_secs(20);
const RECEIVES: usize = 16;
const TRANSFER_BYTES: usize = 50_000;

/// Obeys on `qp` until the peer ends the connection: echoes messages, and answers one that names a
/// slice by reading it, writing it back reversed to the slice behind it, and echoing.
pub(crate) fn echo_traffic<F: Fabric>(end: &mut End<F>, qp: QpId) {
    end.post_recvs(qp, RECEIVES);
    loop {
        end.turn();
        match end.next(qp) {
            None => {}
            Some(Event::Message(message, _)) => {
                end.post_recvs(qp, 1);
                if message.starts_with(b"transfer") {
                    reverse(end, qp, &message);
                }
                end.send(qp, &message);
            }
            Some(Event::Down(_)) => return,
            Some(other) => assert_eq!(other, Event::RecvFlushed),
        }
    }
}

fn reverse<F: Fabric>(end: &mut End<F>, qp: QpId, request: &[u8]) {
    let (from, to) = (decode(&request[8..24]), decode(&request[24..40]));
    let mut bulk = end.bulk(qp, &vec![0; from.length as usize]);
    let into = bulk.lease(0..from.length as usize);
    end.post(qp, SendWr::Read { id: WrId(1), from, into });
    let done = (0..).find_map(|_| {
        end.turn();
        end.next(qp)
    });
    assert_eq!(done, Some(Event::Read(WrId(1), Ok(()))));
    let mut reversed = bytes_of(&bulk);
    reversed.reverse();
    bulk.copy_from(0, &reversed);
    end.post(qp, SendWr::Write { from: bulk.lease(0..from.length as usize), to });
}

/// Drives a peer that runs [`echo_traffic`]: 3,000 messages with several on their way, 50 transfers.
pub(crate) fn drive_traffic<F: Fabric>(end: &mut End<F>, qp: QpId) {
    end.post_recvs(qp, RECEIVES);
    let (mut sent, mut received) = (0, 0);
    while received < 3000 {
        while sent < 3000 && sent - received < RECEIVES / 2 {
            end.send(qp, &pattern(sent % 500, sent));
            sent += 1;
        }
        end.turn();
        while let Some(event) = end.next(qp) {
            assert_eq!(event, Event::Message(pattern(received % 500, received), None));
            received += 1;
            end.post_recvs(qp, 1);
        }
    }
    (0..50).for_each(|seed| drive_transfer(end, qp, seed));
}

fn drive_transfer<F: Fabric>(end: &mut End<F>, qp: QpId, seed: usize) {
    let mut source = end.bulk(qp, &pattern(TRANSFER_BYTES, seed));
    let mut target = end.bulk(qp, &[0; TRANSFER_BYTES]);
    let from = source.lease(0..TRANSFER_BYTES);
    let from = end.fabric.expose(qp, from, Access::RemoteRead, None).unwrap();
    let to = target.lease(0..TRANSFER_BYTES);
    let to = end.fabric.expose(qp, to, Access::RemoteWrite, None).unwrap();
    let request = [&b"transfer"[..], &encode(from), &encode(to)].concat();
    end.send(qp, &request);
    let answer = (0..).find_map(|_| {
        end.turn();
        end.next(qp)
    });
    assert_eq!(answer, Some(Event::Message(request, None)));
    end.post_recvs(qp, 1);
    end.revoke(qp, from.handle);
    end.revoke(qp, to.handle);
    let (target, source) = (bytes_of(&target), bytes_of(&source));
    assert!(target.iter().rev().eq(&source), "transfer {seed} is not whole");
}

fn encode(slice: RemoteSlice) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&slice.handle.to_ne_bytes());
    bytes[4..8].copy_from_slice(&slice.length.to_ne_bytes());
    bytes[8..].copy_from_slice(&slice.offset.to_ne_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> RemoteSlice {
    RemoteSlice {
        handle: u32::from_ne_bytes(bytes[..4].try_into().unwrap()),
        length: u32::from_ne_bytes(bytes[4..8].try_into().unwrap()),
        offset: u64::from_ne_bytes(bytes[8..16].try_into().unwrap()),
    }
}

/// Runs both ends of a connection, each on a separate thread, until the near one is done.
pub(crate) fn on_two_threads<P: Provider>(
    provider: &P,
    far: impl FnOnce(&mut EndOf<P>, QpId) + Send,
    near: impl FnOnce(&mut EndOf<P>, QpId),
) {
    let connector = provider.connector();
    let address = provider.address();
    let (acceptor, endpoints) = accept_into_channel(Some(1));
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    thread::scope(|scope| {
        let connector = &connector;
        let other = scope.spawn(move || {
            let mut end = End::new(connector.fabric(1).unwrap());
            let qp = end.fabric.adopt(endpoints.recv_timeout(PATIENCE).unwrap()).unwrap();
            far(&mut end, qp);
        });
        let mut end = End::new(connector.fabric(0).unwrap());
        let endpoint = connector.connect(&ConnectRequest::new(&address, PATIENCE)).unwrap();
        let qp = end.fabric.adopt(endpoint).unwrap();
        near(&mut end, qp);
        end.close(qp);
        other.join().unwrap();
    });
}

type EndOf<P> = End<<<P as Provider>::Connector as Connector>::Fabric>;

/// Run each end on a separate thread. Expect every byte.
pub(crate) fn traffic_between_two_threads_is_whole<P: Provider>(provider: &P) {
    on_two_threads(provider, echo_traffic, drive_traffic);
}
