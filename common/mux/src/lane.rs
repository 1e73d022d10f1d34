//! Which of an agent's streams (lanes) gets a new connection, as data. The connection then stays on its lane.
//!
//! Nobody knows beforehand whether a new connection becomes bulk, so the choice protects other connections from it. It takes the
//! lane that moves the fewest bytes at the moment: a lane with bulk gets no dial while another lane is quiet. Of quiet lanes it
//! takes one without connections that proved to be small. If many connections open together and all become bulk, a lane is left to the
//! small ones.

/// A connection that moved more bytes than this is bulk.
pub const BULK_BYTES: u64 = 1 << 20;

/// The traffic of one lane when a dial chooses a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneLoad {
    /// Bytes of payload in both directions that the lane moved recently.
    pub moved: u64,
    /// Open connections that moved more than [`BULK_BYTES`].
    pub bulk: usize,
    /// Open connections that moved up to [`BULK_BYTES`], but not nothing.
    pub small: usize,
    /// Open connections and dials without an answer.
    pub connections: usize,
}

/// The lane that gets a new connection: the one that moves the fewest bytes; of lanes that move about the same number ([`class`])
/// the one with the fewest bulk, then the fewest small, then the fewest connections; of these the first one. `None` without lanes.
pub fn choose_lane<T>(lanes: impl IntoIterator<Item = (T, LaneLoad)>) -> Option<T> {
    let key = |load: &LaneLoad| (class(load.moved), load.bulk, load.small, load.connections);
    lanes.into_iter().min_by_key(|(_, load)| key(load)).map(|(lane, _)| lane)
}

/// Numbers of bytes in steps of four times: smaller differences come and go with every packet.
pub fn class(bytes: u64) -> u32 {
    bytes.checked_ilog2().map_or(0, |log| log / 2 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane() -> impl Strategy<Value = LaneLoad> {
        let moved = prop_oneof![Just(0), 1..1_000_u64, 0..u64::MAX];
        (moved, 0..3_usize, 0..3_usize, 0..4_usize).prop_map(|(moved, bulk, small, connections)| LaneLoad {
            moved,
            bulk,
            small,
            connections,
        })
    }

    /// The place of the chosen lane.
    fn place(lanes: impl IntoIterator<Item = LaneLoad>) -> Option<usize> {
        choose_lane(lanes.into_iter().enumerate())
    }

    #[test]
    fn bulk_keeps_new_connections_away() {
        let bulk = LaneLoad { moved: 100 << 20, bulk: 1, small: 0, connections: 1 };
        let busy = LaneLoad { moved: 64 << 10, bulk: 0, small: 400, connections: 500 };
        assert_eq!(place([bulk, busy]), Some(1));
        assert_eq!(place([busy, bulk]), Some(0));
        assert_eq!(place([bulk, bulk, LaneLoad { connections: 0, ..bulk }]), Some(2), "all are bulk");
        assert_eq!(place([]), None);
        let paused = LaneLoad { moved: 0, ..bulk };
        let small = LaneLoad { moved: 0, ..busy };
        assert_eq!(place([paused, small]), Some(1), "it may go on");
    }

    /// As a benchmark or a user does: an exchange waits while sixteen downloads are opened, which all begin later. They share the
    /// other lanes.
    #[test]
    fn downloads_that_are_opened_beside_a_small_exchange_take_other_lanes() {
        for moved in [0, 64] {
            let mut lanes = [LaneLoad::default(); 4];
            assert_eq!(place(lanes), Some(0));
            lanes[0] = LaneLoad { moved, bulk: 0, small: 1, connections: 1 };
            for _ in 0..15 {
                lanes[place(lanes).unwrap()].connections += 1;
            }
            assert_eq!(lanes.map(|lane| lane.connections), [1, 5, 5, 5]);
        }
    }

    #[test]
    fn a_class_is_four_times_the_one_below() {
        for (bytes, of) in [(0, 0), (1, 1), (3, 1), (4, 2), (15, 2), (16, 3), (u64::MAX, 32)] {
            assert_eq!(class(bytes), of, "{bytes}");
        }
    }

    #[test]
    fn idle_connections_are_spread() {
        let mut lanes = [LaneLoad::default(); 3];
        for _ in 0..30 {
            let chosen = place(lanes).unwrap();
            lanes[chosen].connections += 1;
        }
        assert!(lanes.iter().all(|lane| lane.connections == 10), "{lanes:?}");
    }

    proptest! {
        #[test]
        fn no_other_lane_is_better(lanes in prop::collection::vec(lane(), 1..6)) {
            let chosen = place(lanes.iter().copied()).unwrap();
            let best = lanes[chosen];
            for (place, lane) in lanes.iter().enumerate() {
                prop_assert!(class(best.moved) <= class(lane.moved));
                let alike = class(best.moved) == class(lane.moved);
                let counts = |lane: &LaneLoad| (lane.bulk, lane.small, lane.connections);
                prop_assert!(!alike || counts(&best) <= counts(lane));
                prop_assert!(!alike || counts(&best) < counts(lane) || chosen <= place, "the first of equals");
            }
        }

        /// The traffic of one lane never changes which of the others is preferred.
        #[test]
        fn a_lane_that_is_not_chosen_does_not_matter(lanes in prop::collection::vec(lane(), 2..6), gone: prop::sample::Index) {
            let chosen = place(lanes.iter().copied()).unwrap();
            let gone = gone.index(lanes.len());
            let mut left = lanes.clone();
            let removed = left.remove(gone);
            if gone != chosen {
                prop_assert_eq!(left[place(left.iter().copied()).unwrap()], lanes[chosen]);
            } else {
                prop_assert!(class(removed.moved) <= class(left[place(left.iter().copied()).unwrap()].moved));
            }
        }

        #[test]
        fn a_class_spans_four_times(bytes in 1..u64::MAX / 16) {
            prop_assert_eq!(class(bytes * 4), class(bytes) + 1);
            prop_assert!(class(bytes + 1) >= class(bytes));
        }
    }
}
