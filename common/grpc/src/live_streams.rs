//! The header by which an agent tells a server which of its streams it still has.
//!
//! Some losses are seen by the agent alone: a load balancer resets the agent's connection, and the server's stays open without a
//! peer. With this header the server ends such a stream as soon as the agent connects again, instead of after
//! `--keepalive-timeout`.
//!
//! A stream that merely does not answer is one that the agent still has: nothing ends it.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The metadata key: the number of the agent's process, the number of the new stream, and the numbers of the agent's other
/// streams, separated by spaces.
pub const STREAMS: HeaderName = HeaderName::from_static("konnectivity-streams");

/// An agent with more streams does not send the header.
const MAX_STREAMS: usize = 256;

/// The name of one stream of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamName {
    /// A random number of the agent's process. It is secret: the agent tells it only to its servers.
    pub process: u64,
    /// Grows with each attempt of the process to connect.
    pub number: u64,
}

/// A new stream of an agent, and the agent's other streams at that time, including attempts under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveStreams {
    /// The new stream.
    pub name: StreamName,
    /// The numbers of the others.
    pub others: Vec<u64>,
}

impl LiveStreams {
    /// The metadata value; `None` if there are too many streams.
    pub fn header(&self) -> Option<HeaderValue> {
        let StreamName { process, number } = self.name;
        let numbers = [process, number].into_iter().chain(self.others.iter().copied());
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        let mut value = HeaderValue::try_from(numbers.join(" ")).ok()?;
        value.set_sensitive(true);
        (self.others.len() < MAX_STREAMS).then_some(value)
    }

    /// The streams that an agent names; `None` without the header, or if it is invalid.
    pub fn read(metadata: &HeaderMap) -> Option<Self> {
        let text = metadata.get(STREAMS)?.to_str().ok()?;
        let mut numbers = text.split(' ').take(MAX_STREAMS + 2).map(|number| number.parse::<u64>().ok());
        let name = StreamName { process: numbers.next()??, number: numbers.next()?? };
        let others: Option<Vec<u64>> = numbers.collect();
        others.filter(|others| others.len() < MAX_STREAMS).map(|others| LiveStreams { name, others })
    }

    /// Whether the agent no longer has this stream. False for streams with a higher number: the agent opened them later, although
    /// they may have arrived before.
    pub fn have_lost(&self, stream: StreamName) -> bool {
        stream.process == self.name.process
            && stream.number < self.name.number
            && !self.others.contains(&stream.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Option<LiveStreams> {
        let mut metadata = HeaderMap::new();
        metadata.insert(STREAMS, HeaderValue::from_str(value).unwrap());
        LiveStreams::read(&metadata)
    }

    fn streams(others: Vec<u64>) -> LiveStreams {
        LiveStreams { name: StreamName { process: u64::MAX, number: 9 }, others }
    }

    #[test]
    fn only_earlier_streams_of_the_process_that_are_not_listed_are_lost() {
        let streams = read(streams(vec![2, 7]).header().unwrap().to_str().unwrap()).unwrap();
        assert_eq!(streams.others, [2, 7]);
        let lost = |process, number| streams.have_lost(StreamName { process, number });
        let all: Vec<u64> = (0..12).filter(|number| lost(u64::MAX, *number)).collect();
        assert_eq!(all, [0, 1, 3, 4, 5, 6, 8]);
        assert!(!lost(1, 3), "another process");
    }

    #[test]
    fn invalid_headers_say_nothing() {
        assert_eq!(LiveStreams::read(&HeaderMap::new()), None);
        for wrong in ["", "1", "1 ", "1 x", "1 2 x", "1 2  3", "-1 2", "1 18446744073709551616", "1 2 3,4"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        assert_eq!(read("1 2").unwrap().others, [0; 0]);
        let most: Vec<u64> = (10..10 + MAX_STREAMS as u64).collect();
        assert_eq!(streams(most.clone()).header(), None);
        let text = most.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(read(&format!("1 2 {text}")), None);
        assert!(read(streams(most[1..].to_vec()).header().unwrap().to_str().unwrap()).is_some());
    }
}
