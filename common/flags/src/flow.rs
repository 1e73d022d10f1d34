//! The flags of both binaries that Go's lack: flow control, and the memory limit for queued payload.

use std::ffi::OsStr;

use crate::value::utf8;
use crate::{FlagError, FlagSet, InvalidValue, Value};

/// The minimum of [`FlowOptions::connection_memory_limit`]: two frames.
const LEAST_PER_CONNECTION: u64 = 128 << 10;
/// The minimum of [`FlowOptions::memory_limit`].
const LEAST_IN_ALL: u64 = 16 << 20;

/// The limits of payload that waits for slow readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOptions {
    /// Negotiate flow control for each connection, and half-close, with native peers.
    pub connection_flow_control: bool,
    /// The most bytes that may wait for one connection's reader.
    pub connection_memory_limit: u64,
    /// The most bytes that may wait in the whole process; `None`: derived from the machine or the cgroup.
    pub memory_limit: Option<u64>,
}

/// The raw flags.
#[derive(Debug)]
pub struct FlowFlags {
    connection_flow_control: bool,
    connection_memory_limit: Quantity,
    memory_limit: Quantity,
}

impl Default for FlowFlags {
    fn default() -> Self {
        Self {
            connection_flow_control: true,
            connection_memory_limit: Quantity(8 << 20),
            memory_limit: Quantity(0),
        }
    }
}

impl FlowFlags {
    /// Adds the flags to a set.
    pub fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Flow control and memory");
        set.add(
            "connection-flow-control",
            &mut self.connection_flow_control,
            "Agree with peers of this implementation on flow control for each connection and on half-close. \
             (Not a flag of the Go programs.)",
        );
        set.add(
            "connection-memory-limit",
            &mut self.connection_memory_limit,
            "Payload that may wait for one connection's reader, as 8388608 or 8Mi. Beyond it a connection that \
             does not drain is reset. (Not a flag of the Go programs.)",
        );
        set.add(
            "memory-limit",
            &mut self.memory_limit,
            "Payload that may wait in the whole process, as 256Mi. Beyond it the largest stalled connections are \
             reset and new dials refused. 0: 40% of the cgroup's limit, or 25% of the machine's memory, 2Gi at \
             most. (Not a flag of the Go programs.)",
        );
    }

    /// Validates the flags.
    ///
    /// # Errors
    /// If a limit is too small.
    pub fn check(self) -> Result<FlowOptions, FlagError> {
        let (each, all) = (self.connection_memory_limit.0, self.memory_limit.0);
        if each < LEAST_PER_CONNECTION {
            return Err(FlagError::value("connection-memory-limit", each, "it must be at least 128Ki"));
        }
        if all != 0 && all < LEAST_IN_ALL {
            return Err(FlagError::value("memory-limit", all, "it must be 0 or at least 16Mi"));
        }
        Ok(FlowOptions {
            connection_flow_control: self.connection_flow_control,
            connection_memory_limit: each,
            memory_limit: (all != 0).then_some(all),
        })
    }
}

/// A number of bytes, with Kubernetes' binary suffixes: 65536, 64Ki, 8Mi, 1Gi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quantity(u64);

const SUFFIXES: [(&str, u32); 3] = [("Gi", 30), ("Mi", 20), ("Ki", 10)];

impl Value for Quantity {
    fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue> {
        let text = utf8(text)?;
        let suffix = SUFFIXES.into_iter().find_map(|(name, shift)| Some((text.strip_suffix(name)?, shift)));
        let (digits, shift) = suffix.unwrap_or((text, 0));
        let number = digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse::<u64>().ok());
        let bytes = number.flatten().and_then(|number| number.checked_mul(1 << shift));
        self.0 = bytes
            .ok_or_else(|| InvalidValue::because("it must be a number of bytes, as 8388608, 8Mi or 1Gi"))?;
        Ok(())
    }

    fn shown(&self) -> String {
        let fitting =
            SUFFIXES.into_iter().find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        fitting.map_or_else(|| self.0.to_string(), |(name, shift)| format!("{}{name}", self.0 >> shift))
    }

    fn kind(&self) -> &'static str {
        "BYTES"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Option<u64> {
        let mut value = Quantity(1);
        value.set(OsStr::new(text)).ok().map(|()| value.0)
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
