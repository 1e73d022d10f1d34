//! Visits every state that a scenario can reach, depth first.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use super::scenario::Scenario;
use super::world::{Action, World};

/// How a state was reached.
struct Trail {
    action: Action,
    before: Option<Rc<Trail>>,
}

fn describe(trail: Option<&Rc<Trail>>) -> String {
    let mut actions = Vec::new();
    let mut at = trail;
    while let Some(trail) = at {
        actions.push(format!("{:?}", trail.action));
        at = trail.before.as_ref();
    }
    actions.reverse();
    actions.join(", ")
}

/// Visits all states, at most `limit`. Returns the number of states, and whether these are all.
///
/// # Panics
/// If a state breaks a rule.
pub(crate) fn explore(scenario: &Scenario, limit: usize) -> (usize, bool) {
    let start = World::new(scenario);
    let mut seen = HashSet::new();
    seen.insert(fingerprint(&start));
    let mut open: Vec<(World, Option<Rc<Trail>>)> = vec![(start, None)];
    while let Some((world, trail)) = open.pop() {
        let actions = world.enabled(scenario);
        if actions.is_empty() {
            if let Err(broken) = world.check_over(scenario) {
                panic!(
                    "{}: at the end {broken}\nafter {}\n{world:#?}",
                    scenario.name,
                    describe(trail.as_ref())
                );
            }
            continue;
        }
        for action in actions {
            let mut next = world.clone();
            let done = next.apply(scenario, action).and_then(|()| next.check(scenario));
            if let Err(broken) = done {
                let before = describe(trail.as_ref());
                panic!("{}: {broken}\nby {action:?} after {before}\n{next:#?}", scenario.name);
            }
            if seen.insert(fingerprint(&next)) {
                open.push((next, Some(Rc::new(Trail { action, before: trail.clone() }))));
            }
        }
        if seen.len() >= limit {
            return (seen.len(), false);
        }
    }
    (seen.len(), true)
}

/// A hash of 128 bits of a state: a collision of two states has a chance of 1 in 10^18.
fn fingerprint(world: &World) -> (u64, u64) {
    let mut mix = Mix(0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03);
    world.hash(&mut mix);
    (mix.finish(), mix.1 ^ (mix.1 >> 29))
}

struct Mix(u64, u64);

impl Mix {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.1 = (self.1 ^ word.wrapping_mul(0xc4ce_b9fe_1a85_ec53)).rotate_left(29).wrapping_mul(5)
            ^ (self.0 >> 32);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 31)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
}
