//! The flags of both binaries that Go's lack: flow control, and the memory limit for queued payload.

use crate::{FlagError, Value};

/// The minimum of [`FlowOptions::connection_memory_limit`]: two frames.
const MIN_CONNECTION_MEMORY_LIMIT: u64 = 128 << 10;
/// The minimum of [`FlowOptions::memory_limit`].
const MIN_MEMORY_LIMIT: u64 = 16 << 20;

crate::flags! {
    /// The limits of payload that waits for slow readers, in bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FlowOptions {
        "Flow control and memory" {
            /// Negotiate flow control for each connection, and half-close, with native peers. (Not a flag of the Go
            /// programs.)
            connection_flow_control: bool = "true",
            /// Bytes that may wait for the reader of one connection, such as 8388608 or 8Mi. Above this limit a
            /// connection whose reader is too slow is reset. (Not a flag of the Go programs.)
            connection_memory_limit: u64 = "8Mi" => connection_memory_limit,
            /// Bytes that may wait for readers in the whole process, such as 256Mi. Near this limit the program resets
            /// the largest stalled connections and refuses new dials. 0: 40% of the container's limit; without one 25% of
            /// the machine's memory, but at most 2Gi. (Not a flag of the Go programs.)
            memory_limit: Option<u64> = "0" => memory_limit,
        }
    }
}

fn connection_memory_limit(flag: &'static str, Quantity(bytes): Quantity) -> Result<u64, FlagError> {
    if bytes < MIN_CONNECTION_MEMORY_LIMIT {
        return Err(FlagError::value(flag, bytes, "it must be at least 128Ki"));
    }
    Ok(bytes)
}

/// `None` if the limit is derived from the machine or the cgroup.
fn memory_limit(flag: &'static str, Quantity(bytes): Quantity) -> Result<Option<u64>, FlagError> {
    if bytes != 0 && bytes < MIN_MEMORY_LIMIT {
        return Err(FlagError::value(flag, bytes, "it must be 0 or at least 16Mi"));
    }
    Ok((bytes != 0).then_some(bytes))
}

/// A number of bytes, with Kubernetes' binary suffixes: 65536, 64Ki, 8Mi, 1Gi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quantity(u64);

const SUFFIXES: [(&str, u32); 3] = [("Gi", 30), ("Mi", 20), ("Ki", 10)];

impl Value for Quantity {
    const KIND: &'static str = "BYTES";

    fn parse(text: &str) -> Result<Self, String> {
        let suffix = SUFFIXES.into_iter().find_map(|(name, shift)| Some((text.strip_suffix(name)?, shift)));
        let (digits, shift) = suffix.unwrap_or((text, 0));
        let number = digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse::<u64>().ok());
        let bytes = number.flatten().and_then(|number| number.checked_mul(1 << shift));
        bytes.map(Self).ok_or_else(|| "it must be a number of bytes, as 8388608, 8Mi or 1Gi".to_owned())
    }

    fn shown(&self) -> String {
        let fitting =
            SUFFIXES.into_iter().find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        fitting.map_or_else(|| self.0.to_string(), |(name, shift)| format!("{}{name}", self.0 >> shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Option<u64> {
        Quantity::parse(text).ok().map(|value| value.0)
    }

    #[test]
    fn quantities_are_bytes_with_binary_suffixes() {
        assert_eq!(quantity("0"), Some(0));
        assert_eq!(quantity("65536"), Some(65_536));
        assert_eq!(quantity("64Ki"), Some(65_536));
        assert_eq!(quantity("1Gi"), Some(1 << 30));
        for wrong in ["", "Ki", "-1", "1.5Mi", "8M", "8 Mi", "+8", "99999999999Gi", "0x10"] {
            assert_eq!(quantity(wrong), None, "{wrong}");
        }
        assert_eq!(Quantity(8 << 20).shown(), "8Mi");
        assert_eq!(Quantity(0).shown(), "0");
        assert_eq!(Quantity(1_000).shown(), "1000");
    }
}
