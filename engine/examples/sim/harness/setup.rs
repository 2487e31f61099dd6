//! Makes the engines, callers and hostile peers of a scenario.

use super::caller::Caller;
use super::hostile::{Hostile, PRIVATE_DATA, PrivateData};
use super::ledger::Ledger;
use super::program::{PROGRAM, VERSION, Worker};
use super::run::{Action, Place, Seat, Server, Simulation};
use super::scenario::{LinkPlan, Node, Scenario, Target};
use super::secured::accept;
use spinrpc::fabric::sim::{Rng, SimConnector, World};
use spinrpc::{Bulk, ConnectionId, Core, CoreContext, Engine, EngineError};

pub(crate) fn simulation(
    seed: u64,
    scenario: &Scenario,
    ledger: Ledger,
    trace: bool,
) -> Simulation {
    let world = World::new(scenario.network.clone());
    let mut sim = Simulation::new(world, seed, ledger, trace);
    sim.oracle.profile = scenario.profile;
    sim.ledger.entries().is_mixed = scenario.profile.is_none();
    sim.ledger.entries().takes_reverse = scenario.reverse_calls > 0;
    sim.reverse_calls = scenario.reverse_calls;
    sim.oracle.is_fleet = scenario.fleet.is_mixed;
    sim.cuts.clone_from(&scenario.fleet.cuts);
    let made = sim.add_engines(scenario);
    if let Err(error) = made {
        sim.fail(format!("an engine does not start: {error}"));
    }
    sim.add_hostile(scenario);
    sim.add_callers(scenario);
    for (at_ns, fault) in &scenario.faults {
        sim.plan(*at_ns, Action::Fault(*fault));
    }
    sim
}

pub(crate) fn free_blocks(core: &Core) -> usize {
    let blocks: Vec<Bulk> = std::iter::from_fn(|| core.bulk(1)).collect();
    blocks.len()
}

pub(crate) fn server_address(index: usize) -> String {
    format!("server-{index}")
}

/// An address of a server whose first one is given.
pub(crate) fn address_at(first: &str, number: usize) -> String {
    if number == 0 { first.to_owned() } else { format!("{first}/{number}") }
}

/// Private data of a hostile node: sometimes a claim that it takes, or sends, messages of any
/// length, or bytes that are not private data at all.
fn draw_private_data(wild: &mut Option<Rng>) -> PrivateData {
    let mut said = PRIVATE_DATA;
    if let Some(rng) = wild {
        let at = rng.pick(&[4, 5, 6, 7, 6, 7, 0]);
        said[at] = rng.pick(&[0, 1, 2, 7, 63, 255]);
    }
    said
}

fn hostile_address(index: usize) -> String {
    format!("hostile-{index}")
}

impl Simulation {
    fn add_engines(&mut self, scenario: &Scenario) -> Result<(), EngineError> {
        for (index, node) in scenario.servers.iter().enumerate() {
            self.servers.push(Server { node: node.clone(), engine: 0, is_leaving: false });
            self.start_server(index)?;
        }
        for node in &scenario.clients {
            let (engine, connector) = self.add_engine(node)?;
            if scenario.reverse_calls > 0 {
                self.serve(&engine, node, None)?;
            }
            self.start_cores(&engine, &connector)?;
        }
        Ok(())
    }

    /// Makes a server, in the place of one that is shut down.
    pub(crate) fn start_server(&mut self, index: usize) -> Result<(), EngineError> {
        let node = self.servers[index].node.clone();
        let (engine, connector) = self.add_engine(&node)?;
        self.serve(&engine, &node, Some(self.places.len()))?;
        accept(&engine)?;
        for number in 0..node.addresses {
            engine.listen(&address_at(&server_address(index), number))?;
        }
        self.start_cores(&engine, &connector)?;
        self.servers[index] = Server { node, engine: self.engines.len() - 1, is_leaving: false };
        Ok(())
    }

    /// Of a server, with the place that its first core will have; of a client, for calls in reverse.
    fn serve(&self, engine: &Engine, node: &Node, first: Option<usize>) -> Result<(), EngineError> {
        let (ledger, hostile) = (self.ledger.clone(), self.hostile_sides.clone());
        let worker = move |context: &CoreContext| {
            let place = first.map(|first| first + context.index());
            Worker::new(context.clone(), ledger.clone(), hostile.clone(), place)
        };
        match node.keeps_replies {
            true => engine.serve_once(PROGRAM, VERSION, worker)?,
            false => engine.serve(PROGRAM, VERSION, worker)?,
        }
        Ok(())
    }

    pub(crate) fn add_reverse_caller(&mut self, place: usize, connection: ConnectionId) {
        let (number, credits) = (self.callers.len(), self.reverse_calls);
        let (rng, ledger) = (self.rng.fork(), self.ledger.clone());
        let Some(at) = self.places.get_mut(place) else { return };
        let made = Caller::in_reverse(&mut at.core, connection, number, &ledger, rng);
        // It may be down already.
        let Some(caller) = made else { return };
        let address = String::new();
        self.callers.push(Seat { caller, place, address, credits, is_done: false });
        self.plan_in(0, Action::Call(number));
    }

    fn add_engine(&mut self, node: &Node) -> Result<(Engine, SimConnector), EngineError> {
        let mut made = None;
        let engine = Engine::simulated(node.config.clone(), |mut device| {
            node.device.apply(&mut device);
            made.insert(self.world.connector(device)).clone()
        })?;
        self.engines.push(engine.clone());
        let connector = made.unwrap_or_else(|| self.world.connector(Default::default()));
        Ok((engine, connector))
    }

    fn start_cores(
        &mut self,
        engine: &Engine,
        connector: &SimConnector,
    ) -> Result<(), EngineError> {
        for index in 0..engine.cores() {
            let core = engine.core(index)?;
            let blocks = free_blocks(&core);
            let waker = connector.waker(index);
            self.places.push(Place { core, waker, stalled_until: 0, turns: 1, blocks });
        }
        Ok(())
    }

    /// Hostile servers first, so that clients find them.
    fn add_hostile(&mut self, scenario: &Scenario) {
        let mut wild = scenario.wild.map(Rng::new);
        for index in 0..scenario.hostile_servers {
            let rng = self.rng.fork();
            let said = draw_private_data(&mut wild);
            let address = hostile_address(index);
            self.hostile.extend(Hostile::server(&self.world, &address, said, rng));
        }
        for _ in 0..scenario.hostile_clients {
            let server = self.rng.below(scenario.servers.len() as u64) as usize;
            let rng = self.rng.fork();
            let said = draw_private_data(&mut wild);
            self.hostile.extend(Hostile::client(&self.world, server_address(server), said, rng));
        }
        for index in 0..self.hostile.len() {
            let at_ns = self.rng.below(50_000);
            self.plan(at_ns, Action::Act(index));
        }
    }

    fn add_callers(&mut self, scenario: &Scenario) {
        let first: usize = scenario.servers.iter().map(|node| node.config.cores()).sum();
        for (number, link) in scenario.links.iter().enumerate() {
            let before = scenario.clients[..link.node].iter();
            let place = first + before.map(|node| node.config.cores()).sum::<usize>() + link.core;
            self.add_caller(scenario, number, link, place);
        }
    }

    fn add_caller(&mut self, scenario: &Scenario, number: usize, link: &LinkPlan, place: usize) {
        let own = scenario.clients[link.node].config.credits();
        let (address, credits) = match link.target {
            Target::Server(index) => {
                let config = &scenario.servers[index].config;
                (server_address(index), config.credits().min(own))
            }
            Target::Hostile(index) => (hostile_address(index), own),
        };
        // Two of each grant are for answers to calls in reverse, if they leave one.
        let credits = credits.saturating_sub(scenario.reverse_calls.min(2)).max(1);
        let rng = self.rng.fork();
        let (ledger, plan) = (self.ledger.clone(), link.clone());
        let Some(at) = self.places.get_mut(place) else { return };
        let made = Caller::connect(&mut at.core, plan, number, &address, &ledger, rng);
        let Some(caller) = made else { return };
        self.callers.push(Seat { caller, place, address, credits, is_done: false });
        self.plan(0, Action::Call(self.callers.len() - 1));
    }
}
