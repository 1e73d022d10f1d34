//! One direction of a path: the lost packets, and the arrival times of the others. Has no clock, no socket, no contents.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Smallest capacity of the queue in bytes, whatever the bandwidth-delay product: a hundred packets.
const LEAST_QUEUE: u64 = 100 * 1500;

/// How much later a packet arrives that others overtake.
const LATER: Duration = Duration::from_millis(5);

/// A bottleneck with a drop-tail queue, then a delay. Packets stay in order, except a random fraction.
#[derive(Debug)]
pub struct Line {
    /// Bits per second.
    rate: u64,
    /// Fraction of packets that are lost, from 0 to 1.
    loss: f64,
    /// Fraction of packets that arrive later by [`LATER`], from 0 to 1.
    reorder: f64,
    random: SmallRng,
    /// When the bottleneck will have sent its queue, and when the last packet arrives: both since the start.
    free: Duration,
    last: Duration,
}

impl Line {
    /// A line of `rate` bits per second that loses the fraction `loss` of its packets, at random from `seed`.
    pub fn new(rate: u64, loss: f64, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        Self { rate: rate.max(1), loss, reorder: 0.0, random, free: Duration::ZERO, last: Duration::ZERO }
    }

    /// The same line, on which a fraction of the packets, chosen at random, is overtaken by others.
    pub fn reordering(self, reorder: f64) -> Self {
        Self { reorder, ..self }
    }

    /// The arrival time of a packet that enters at `now`, both since the start; `None` if it is lost. The queue holds one
    /// bandwidth-delay product; `delay` is half of the RTT.
    pub fn admit(&mut self, now: Duration, delay: Duration, bytes: usize) -> Option<Duration> {
        if self.loss > 0.0 && self.random.random_bool(self.loss) {
            return None;
        }
        let queue = self.bytes_in(2 * delay).max(LEAST_QUEUE);
        if self.bytes_in(self.free.saturating_sub(now)) + bytes as u64 > queue {
            return None;
        }
        self.free = self.free.max(now) + self.time_of(bytes as u64);
        self.last = self.last.max(self.free + delay);
        let is_late = self.reorder > 0.0 && self.random.random_bool(self.reorder);
        Some(if is_late { self.last + LATER } else { self.last })
    }

    fn bytes_in(&self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos() * u128::from(self.rate) / 8_000_000_000).unwrap_or(u64::MAX)
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(8_000_000_000) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;
    const PACKET: usize = 1500;
    const DELAY: Duration = Duration::from_millis(10);

    #[test]
    fn packet_arrives_after_its_transmission_and_the_delay() {
        let mut line = Line::new(12 * MBIT, 0.0, 1);
        // 1,500 bytes take 1 ms.
        assert_eq!(line.admit(Duration::ZERO, DELAY, PACKET), Some(Duration::from_millis(11)));
        assert_eq!(line.admit(Duration::ZERO, DELAY, PACKET), Some(Duration::from_millis(12)), "behind it");
        let later = Duration::from_secs(1);
        assert_eq!(
            line.admit(later, DELAY, PACKET),
            Some(later + Duration::from_millis(11)),
            "idle meanwhile"
        );
    }

    #[test]
    fn queue_takes_one_bandwidth_delay_product_and_at_least_a_hundred_packets() {
        // 200 Mbit/s and 20 ms are 500,000 bytes.
        for (rate, packets) in [(200 * MBIT, 500_000 / PACKET), (MBIT, 100)] {
            let mut line = Line::new(rate, 0.0, 1);
            let taken = (0..2000).filter(|_| line.admit(Duration::ZERO, DELAY, PACKET).is_some()).count();
            assert_eq!(taken, packets, "{rate}");
            let one = line.time_of(PACKET as u64);
            assert!(line.admit(one, DELAY, PACKET).is_some(), "one has left");
            assert!(line.admit(one, DELAY, PACKET).is_none(), "no other has");
        }
    }

    #[test]
    fn rate_limits_the_bytes_of_a_second() {
        let mut line = Line::new(200 * MBIT, 0.0, 1);
        let mut arrived = 0;
        for micros in (0..1_000_000).step_by(30) {
            let now = Duration::from_micros(micros);
            let due = line.admit(now, DELAY, PACKET);
            arrived += due.is_some_and(|due| due <= Duration::from_secs(1)) as u64;
        }
        let wanted = 200 * MBIT / 8 / PACKET as u64;
        assert!((wanted - wanted / 50..=wanted).contains(&arrived), "{arrived} of {wanted}");
    }

    #[test]
    fn loss_is_random_and_repeatable() {
        let lost = |seed| -> Vec<u64> {
            let mut line = Line::new(200 * MBIT, 0.01, seed);
            let admit = |micros: &u64| line.admit(Duration::from_micros(*micros), DELAY, 64).is_none();
            (0..100_000_u64).map(|n| n * 100).filter(admit).collect()
        };
        let first = lost(7);
        assert!((850..1150).contains(&first.len()), "{}", first.len());
        assert_eq!(first, lost(7));
        assert_ne!(first, lost(8));
    }

    #[test]
    fn reordered_packets_arrive_after_their_successors() {
        let mut line = Line::new(200 * MBIT, 0.0, 1).reordering(0.1);
        let arrivals: Vec<_> =
            (0..300).map(|n| line.admit(Duration::from_micros(n * 100), DELAY, PACKET).unwrap()).collect();
        let overtaken = arrivals.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!((15..45).contains(&overtaken), "{overtaken} of 300");
    }

    #[test]
    fn shorter_delay_does_not_change_the_order() {
        let mut line = Line::new(200 * MBIT, 0.0, 1);
        let slow = line.admit(Duration::ZERO, Duration::from_millis(40), PACKET).unwrap();
        let fast = line.admit(Duration::from_millis(1), Duration::from_millis(2), PACKET).unwrap();
        assert!(fast >= slow);
    }
}
