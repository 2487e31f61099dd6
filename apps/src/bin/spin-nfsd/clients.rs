//! `spin-nfsd clients` and `spin-nfsd disconnect`, and the answers of the server to them.

use crate::cli::{AtServer, Disconnect, Query};
use crate::failure::Failure;
use crate::reload::{self, Outcome};
use crate::stats::{self, Served};
use serde_json::{Value, json};
use spinrpc_apps::command_line;
use spinrpc_nfs::server::client_table::ConnectedClient;
use spinrpc_nfs::server::exports::Exports;
use spinrpc_tuning::printable::printable;
use std::time::UNIX_EPOCH;

const LIST: &str = "clients";
const DISCONNECT: &str = "disconnect";

pub(crate) fn list(options: &Query) -> Result<(), Vec<Failure>> {
    let document = ask(&options.server, LIST)?;
    match options.json {
        true => say(&document.to_string()),
        false => {
            let clients = document["clients"].as_array().into_iter().flatten();
            let rows = clients.map(|client| printable(&row(client)));
            let header = "client                     connections  connected s        calls   \
                          mean us  last call    to export";
            [header.to_owned()].into_iter().chain(rows).try_for_each(|line| say(&line))
        }
    }
}

pub(crate) fn disconnect(Disconnect { address, query }: &Disconnect) -> Result<(), Vec<Failure>> {
    let document = ask(&query.server, &format!("{DISCONNECT} {address}"))?;
    match query.json {
        true => say(&document.to_string()),
        false => say(&format!("closing {} connections of {address}", document["connections"])),
    }
}

pub(crate) fn say(line: &str) -> Result<(), Vec<Failure>> {
    let said = command_line::say(line);
    said.map_err(|error| vec![Failure::failed("standard output", error)])
}

pub(crate) fn ask(server: &AtServer, request: &str) -> Result<Value, Vec<Failure>> {
    let text = reload::ask(server, request)?.concat();
    serde_json::from_str(&text).map_err(|error| vec![Failure::failed("the answer", error)])
}

fn row(client: &Value) -> String {
    let mean_us = client["calls"]
        .as_f64()
        .filter(|calls| *calls > 0.0)
        .and_then(|calls| Some((client["seconds"].as_f64()? * 1e7 / calls).round() / 10.0));
    let last = &client["last"];
    let [address, connections, connected, calls, mean, procedure, export] = [
        &client["address"],
        &client["connections"],
        &client["connected_seconds"],
        &client["calls"],
        &json!(mean_us),
        &last["procedure"],
        &last["export"],
    ]
    .map(|value| match value {
        Value::Null => "-".to_owned(),
        value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    });
    format!(
        "{address:<26} {connections:>11} {connected:>12} {calls:>12} {mean:>9}  {procedure:<12} {export}"
    )
}

impl Served {
    /// The answer to a request about clients. `None` if it is another one. Does not block.
    pub(crate) fn about_clients(&self, request: &str) -> Option<Outcome> {
        let words: Vec<&str> = request.split(' ').collect();
        match words[..] {
            [LIST] => Some(Ok(vec![self.clients().to_string()])),
            [DISCONNECT, address] => Some(self.disconnect(address)),
            _ => None,
        }
    }

    fn clients(&self) -> Value {
        let exports = self.server.exports();
        let clients = self.server.clients();
        let clients: Vec<Value> = clients.iter().map(|client| about(client, &exports)).collect();
        json!({"schema": "spin-nfsd-clients/1", "clients": clients})
    }

    fn disconnect(&self, address: &str) -> Outcome {
        let clients = self.server.clients();
        let client = clients.iter().find(|client| client.peer.to_string() == address);
        let Some(client) = client else {
            return Err(vec![format!(
                "{address} is not connected: spin-nfsd clients lists those that are"
            )]);
        };
        let ask = |(core, connection): &(usize, _)| self.engine.disconnect(*core, *connection);
        if !client.connections.iter().all(|one| matches!(ask(one), Ok(true))) {
            return Err(vec!["a core has too much to do: try again".to_owned()]);
        }
        let connections = client.connections.len();
        let schema = "spin-nfsd-disconnect/1";
        let document = json!({"schema": schema, "address": address, "connections": connections});
        Ok(vec![document.to_string()])
    }
}

fn about(client: &ConnectedClient, exports: &Exports) -> Value {
    let since = client.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let last = client.usage.and_then(|usage| usage.last).map(|last| {
        let export = last.export.and_then(|id| exports.by_id(id)).map(|export| &export.path);
        json!({
            "procedure": stats::name(last.procedure as usize),
            "export": export,
            "seconds_ago": last.elapsed().as_secs_f64(),
        })
    });
    json!({
        "address": client.peer.to_string(),
        "connections": client.connections.len(),
        "since": since.as_secs(),
        "connected_seconds": client.since.elapsed().unwrap_or_default().as_secs(),
        "calls": client.usage.map(|usage| usage.calls),
        "seconds": client.usage.map(|usage| usage.ns as f64 / 1e9),
        "last": last,
    })
}
