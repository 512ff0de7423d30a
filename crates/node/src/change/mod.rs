//! Which configuration a node serves: compared with its disk before anything else is done, and
//! changed while nothing is served.

mod ask;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conclave_protocol::id::{NodeId, Token};
use conclave_protocol::keeper::{KeeperRecord, KeeperStored};
use conclave_protocol::lock::{ConfigId, Record, Stored, StoredConfig};
use conclave_protocol::membership::{
    Adoption, AdoptionEvent, AdoptionInput, Found, Missing, Plan, find,
};
use conclave_protocol::{Effects, EffectsOf, Machine};
use conclave_wire::Cluster;
use conclave_wire::cluster::differences;

use crate::shard::Clock;
use crate::store::{KeeperStore, Store};
use crate::{Options, StartError};

/// How a node changes its configuration.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Nodes of the old configuration, from 1, that are gone for good.
    pub abandon: Vec<u32>,
    /// Set from outside to end the node while it waits for the others.
    pub halt: Arc<AtomicBool>,
}

/// How often the log says what is waited for.
const SPEAK: Duration = Duration::from_secs(10);
/// The loop looks around at least this often.
const ROUND: Duration = Duration::from_millis(100);
/// For a hierarchy: so far ahead of its clock a node that lost its disk may have promised tokens.
const LEAD: Duration = Duration::from_hours(1);

/// Where a node keeps what it knows.
pub(crate) struct Disks<'a> {
    pub(crate) locks: &'a mut Box<dyn Store>,
    pub(crate) objects: &'a mut Box<dyn KeeperStore>,
    /// What was found of leases and objects.
    pub(crate) kept: &'a mut Option<KeeperStored>,
}

/// Makes sure that the configuration of the cluster file is the one that this node serves, and
/// that its disk says so; changes it first if that was asked for.
pub(crate) fn settle(
    options: &Options,
    mut disks: Disks<'_>,
    clock: &Clock,
) -> Result<(), StartError> {
    let stored = disks.locks.load()?;
    let served = disks.kept.as_ref().is_some_and(|kept| kept.open);
    let file = stored_config(&options.cluster, 0);
    let change = options.change.as_ref();
    match (find(stored.as_ref(), served, file.id), change) {
        (Found::New, None) => keep(disks.locks, file),
        (Found::Unknown, None) => {
            tracing::info!(
                epoch = file.id.epoch,
                "this data directory is from before configurations were kept in it: the cluster \
                 file is taken as what it served"
            );
            keep(disks.locks, file)
        }
        (Found::Unknown, Some(_)) => Err(StartError::Change(
            "the data directory does not tell which configuration it served; start the node once \
             with the old cluster file and without --reconfigure"
                .to_owned(),
        )),
        (Found::Same(config), _) => {
            if change.is_some() {
                let epoch = config.id.epoch;
                tracing::info!(epoch, "this configuration is in force: nothing to change");
            }
            let file = stored_config(&options.cluster, config.before);
            if *config == file {
                return Ok(());
            }
            // Addresses may change at any time; whoever changes more needs the newest.
            keep(disks.locks, file)
        }
        (Found::Other(config), None) => Err(changed(config, &options.cluster)),
        (Found::Adopting(config), None) => Err(StartError::Change(format!(
            "this node is changing to epoch {} (digest {}); give that cluster file, or the old \
             one, and --reconfigure, to all nodes",
            config.id.epoch,
            short(config.id),
        ))),
        (Found::New | Found::Other(_) | Found::Adopting(_), Some(change)) => {
            let stored = stored.unwrap_or_default();
            adopt(options, change, &stored, &mut disks, clock)
        }
    }
}

fn stored_config(cluster: &Cluster, before: u32) -> StoredConfig {
    StoredConfig {
        id: id_of(cluster),
        text: cluster.to_toml().into(),
        before,
    }
}

fn id_of(cluster: &Cluster) -> ConfigId {
    ConfigId {
        epoch: cluster.epoch,
        digest: cluster.digest(),
    }
}

fn keep(store: &mut Box<dyn Store>, config: StoredConfig) -> Result<(), StartError> {
    Ok(store.write(&[Record::Config(Box::new(config))])?)
}

/// The beginning of a digest, as people compare it.
fn short(id: ConfigId) -> String {
    let [a, b, c, d, ..] = id.digest;
    format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
}

/// Another configuration than the one that was served.
fn changed(config: &StoredConfig, file: &Cluster) -> StartError {
    let old = Cluster::parse(&config.text);
    let differ = old.ok().and_then(|old| {
        let told = differences(&old.facts(), &file.facts())?;
        Some(
            told.replace(" here and ", " on disk and ")
                .replace(" there", " in the file"),
        )
    });
    StartError::Changed {
        epoch: config.id.epoch,
        digest: short(config.id),
        file: file.epoch,
        differ: differ.unwrap_or_else(|| "they differ".to_owned()),
    }
}

/// The configuration in force, if one is known.
fn in_force(stored: &Stored, served: bool) -> Result<Option<Cluster>, StartError> {
    let Some(config) = &stored.config else {
        return Ok(None);
    };
    // A node that never served has nothing that others need to know.
    if !served && stored.incarnation.is_none() {
        return Ok(None);
    }
    Ok(Some(Cluster::parse(&config.text)?))
}

fn adopt(
    options: &Options,
    change: &Change,
    stored: &Stored,
    disks: &mut Disks<'_>,
    clock: &Clock,
) -> Result<(), StartError> {
    let kept = disks.kept.as_ref();
    let (known, objects, mark) = kept.map_or((false, 0, Token(0)), |kept| {
        (kept.open, kept.objects.len(), kept.mark)
    });
    let old = in_force(stored, known)?;
    check_epoch(old.as_ref(), &options.cluster)?;
    let plan = plan(
        options,
        change,
        old.as_ref(),
        stored,
        (mark, objects as u64),
    )?;
    let now = clock();
    if objects > 0 && old.is_some() && !plan.objects_stay {
        return Err(objects_in_the_way(plan.id, objects as u64));
    }
    let mut out = Effects::new();
    let machine = Adoption::new(plan, stored, now, &mut out);
    disks.locks.write(&std::mem::take(&mut out.persist))?;
    let asker = ask::Asker::new(options, old.as_ref())?;
    let driver = Driver {
        machine,
        out,
        clock: clock.clone(),
        halt: change.halt.clone(),
        epoch: options.cluster.epoch,
        spoken: None,
    };
    let (records, mark, lost) = ask::run(driver, asker)?;
    let mut kept_records = vec![KeeperRecord::Mark(mark)];
    if disks.kept.is_none() && !lost {
        kept_records.push(KeeperRecord::Opened);
    }
    let all = disks.kept.get_or_insert_default();
    for record in &kept_records {
        // These records fit whatever is there.
        let _ = all.apply(record);
    }
    disks.objects.write(&kept_records, &|| all.clone())?;
    disks.locks.write(&records)?;
    tracing::info!(
        epoch = options.cluster.epoch,
        "the new configuration is in force"
    );
    Ok(())
}

/// A configuration counts up, so that one that was in force never is again by mistake; but a
/// change that nobody has completed can be taken back.
fn check_epoch(old: Option<&Cluster>, new: &Cluster) -> Result<(), StartError> {
    match old {
        Some(old) if new.epoch <= old.epoch && id_of(old) != id_of(new) => {
            Err(StartError::Change(format!(
                "the epoch must grow with every change: this node served epoch {}, and the file \
                 says {}; write epoch = {}",
                old.epoch,
                new.epoch,
                old.epoch.saturating_add(1),
            )))
        }
        _ => Ok(()),
    }
}

fn plan(
    options: &Options,
    change: &Change,
    old: Option<&Cluster>,
    stored: &Stored,
    keeper: (Token, u64),
) -> Result<Plan, StartError> {
    let new = &options.cluster;
    let nodes = new.nodes.len();
    let old_nodes = old.map(|old| old.nodes.len());
    if options.id as usize > nodes.max(old_nodes.unwrap_or(0)) {
        let id = options.id;
        return Err(StartError::Id { id, nodes });
    }
    let of_old = |id: u32| (1..=old_nodes.unwrap_or(nodes)).contains(&(id as usize));
    if let Some(id) = change.abandon.iter().find(|id| !of_old(**id)) {
        return Err(StartError::Change(format!(
            "--abandon {id}: the configuration in force has no such node"
        )));
    }
    let abandoned: BTreeSet<NodeId> = change.abandon.iter().map(|id| NodeId(id - 1)).collect();
    let id = NodeId(options.id.saturating_sub(1));
    if abandoned.contains(&id) {
        let problem = format!("--abandon {}: that is this node", options.id);
        return Err(StartError::Change(problem));
    }
    let stays = |old: &Cluster| {
        old.nodes.len() == nodes
            && old.faults.byzantine() == new.faults.byzantine()
            && old.faults.objects() == new.faults.objects()
    };
    let before = u32::try_from(old_nodes.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(Plan {
        id,
        to: stored_config(new, before),
        nodes,
        old: old_nodes,
        abandoned,
        wait: wait(old.unwrap_or(new), stored)?,
        hierarchy: new.is_hierarchy(),
        objects_stay: old.is_some_and(stays),
        keeper,
        lead: LEAD,
    })
}

/// How long something that was granted under this configuration may be in use.
fn wait(old: &Cluster, stored: &Stored) -> Result<Duration, StartError> {
    let times = old.config()?.times;
    let longest = times.stretch(times.ttl_max.max(stored.longest_ttl));
    let locks = if old.is_hierarchy() {
        // A permission goes on down the levels, each with a lease of its own.
        longest * 2 + Duration::from_secs(2)
    } else {
        longest
    };
    Ok(locks.max(old.lease_config()?.quarantine()))
}

fn objects_in_the_way(node: NodeId, objects: u64) -> StartError {
    StartError::Change(format!(
        "{node} keeps {objects} objects, which cannot move to another number of nodes or liars; \
         take the change back (the old cluster file and --reconfigure on all nodes), or copy the \
         objects elsewhere and delete them first"
    ))
}

/// Steps the machine until the change is done.
struct Driver {
    machine: Adoption,
    out: EffectsOf<Adoption>,
    clock: Clock,
    halt: Arc<AtomicBool>,
    epoch: u64,
    /// What was last said, and when.
    spoken: Option<(String, std::time::Instant)>,
}

/// What came of a step.
enum Step {
    /// These nodes are to be asked.
    Ask(Vec<NodeId>),
    /// It is over: what to write, the mark of leases, and whether they were lost here.
    Done(Vec<Record>, Token, bool),
}

impl Driver {
    fn step(&mut self, input: AdoptionInput) -> Result<Step, StartError> {
        if self.halt.load(Ordering::Relaxed) {
            return Err(StartError::Stopped);
        }
        self.machine.handle((self.clock)(), input, &mut self.out);
        self.speak();
        let records = std::mem::take(&mut self.out.persist);
        if let Some(event) = self.out.events.pop() {
            return match event {
                AdoptionEvent::Done { mark, lost } => Ok(Step::Done(records, mark, lost)),
                AdoptionEvent::Objects(node, count) => Err(objects_in_the_way(node, count)),
            };
        }
        let asks = self.out.send_now.drain(..).map(|ask| ask.to);
        Ok(Step::Ask(asks.collect()))
    }

    fn timeout(&self) -> Duration {
        let now = (self.clock)().mono;
        let wake = self.machine.next_wake().map(|wake| wake.at.since(now));
        wake.map_or(ROUND, |wait| wait.min(ROUND))
    }

    /// Says what is waited for, now and then and whenever that changes.
    fn speak(&mut self) {
        let now = (self.clock)();
        let said = if self.machine.stays() {
            let missing = self.machine.missing();
            let missing: Vec<String> = missing.into_iter().map(in_words).collect();
            missing.join("; ")
        } else {
            "this node is not in the new configuration: stop it when all others serve".to_owned()
        };
        let old = self.spoken.as_ref();
        if old.is_some_and(|(old, at)| *old == said && at.elapsed() < SPEAK) {
            return;
        }
        let own = self.machine.left(now);
        let (epoch, seconds) = (self.epoch, own.as_secs());
        tracing::info!(
            epoch,
            own_wait_seconds = seconds,
            "changing the configuration: {said}"
        );
        self.spoken = Some((said, std::time::Instant::now()));
    }
}

fn in_words((node, why): (NodeId, Missing)) -> String {
    match why {
        Missing::Silent => format!(
            "{node} does not answer and counts as serving the old configuration: start it with \
             --reconfigure"
        ),
        Missing::Other(id) => {
            let digest = short(id);
            format!("{node} is at epoch {} (digest {digest})", id.epoch)
        }
        Missing::Waiting => format!("{node} waits until its old grants have run out"),
        Missing::Joining => format!(
            "{node} does not know what it served: if its disk is lost, name it with --abandon"
        ),
    }
}
