//! Panics, which no release should have: each ends its task. docs/supply-chain.md tells what each task is needed for.

use std::panic::{set_hook, take_hook};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Registers `panics_total` (ours), and counts every panic of the process from now on. The message goes to standard error, as
/// before. Called once, because a process has one hook.
pub fn count_panics(registry: &mut Registry, prefix: &str) {
    let (counter, message) = (Counter::<u64>::default(), take_hook());
    let help = "Panics, each of which ended one task of the process";
    registry.sub_registry_with_prefix(prefix).register("panics_total", help, counter.clone());
    set_hook(Box::new(move |panic| {
        counter.inc();
        message(panic);
    }));
}
