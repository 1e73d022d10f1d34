//! Parses the protobuf wire format of a borrowed message.
//!
//! Never copies, never panics: every error is a text that names the fault. It accepts exactly what prost 0.14 accepts
//! (unknown groups are skipped up to prost's depth, field numbers up to 2^29), if it has no more than [`MOST_FIELDS`].

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Why bytes are not a message. The text is for logs and metrics' exemplars, and contains no bytes of the peer.
pub(super) type Refused = &'static str;

/// The depth of nested groups and messages at which prost gives up.
const DEPTH: u32 = 100;

/// The most fields of a message with those of the messages in it. Packets have five; a message of 4 MiB could have two million,
/// which would hold up the thread for milliseconds.
const MOST_FIELDS: u32 = 1_024;

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const DELIMITED: u8 = 2;
const START_GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FIXED32: u8 = 5;

/// A field's number and wire type.
#[derive(Clone, Copy)]
pub(super) struct Key {
    /// The field's number, from 1 upwards.
    pub(super) field: u32,
    wire_type: u8,
}

/// The unread rest of a message, and how many levels of nesting and fields are left.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    depth: u32,
    fields: u32,
}

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Reader { rest: message, depth: DEPTH, fields: MOST_FIELDS }
    }

    /// The next field's key, `None` at the end of the message.
    pub(super) fn key(&mut self) -> Result<Option<Key>, Refused> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.fields = self.fields.checked_sub(1).ok_or("too many fields")?;
        let key = u32::try_from(self.varint()?).map_err(|_| "a field key beyond 32 bits")?;
        let (field, wire_type) = (key >> 3, (key & 7) as u8);
        if wire_type > FIXED32 {
            return Err("a wire type that protobuf does not have");
        }
        if field == 0 {
            return Err("field number 0");
        }
        Ok(Some(Key { field, wire_type }))
    }

    /// The value of an integer field.
    pub(super) fn integer(&mut self, key: Key) -> Result<u64, Refused> {
        if key.wire_type != VARINT {
            return Err("an integer field with another wire type");
        }
        self.varint()
    }

    /// The value of a bytes field.
    pub(super) fn bytes(&mut self, key: Key) -> Result<&'a [u8], Refused> {
        if key.wire_type != DELIMITED {
            return Err("a bytes, string or message field with another wire type");
        }
        let length = self.varint()?;
        self.take(length)
    }

    /// The value of a string field; an error unless it is UTF-8.
    pub(super) fn string(&mut self, key: Key) -> Result<&'a str, Refused> {
        str::from_utf8(self.bytes(key)?).map_err(|_| "a string that is not UTF-8")
    }

    /// Reads a nested message by `read`.
    pub(super) fn message(
        &mut self,
        key: Key,
        read: impl FnOnce(&mut Reader<'a>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let mut nested = Reader { rest: self.bytes(key)?, depth: self.depth - 1, fields: self.fields };
        read(&mut nested)?;
        self.fields = nested.fields;
        Ok(())
    }

    /// Skips an unknown field.
    pub(super) fn skip(&mut self, key: Key) -> Result<(), Refused> {
        // The field numbers of the open groups, innermost last. Unknown groups are rare, so this seldom allocates.
        let mut groups: Vec<u32> = Vec::new();
        let mut key = key;
        loop {
            if groups.len() as u32 >= self.depth {
                return Err("groups nested too deeply");
            }
            match key.wire_type {
                VARINT => drop(self.varint()?),
                FIXED64 => drop(self.take(8)?),
                FIXED32 => drop(self.take(4)?),
                DELIMITED => {
                    let length = self.varint()?;
                    self.take(length)?;
                }
                START_GROUP => groups.push(key.field),
                _ => return Err("the end of a group that was not open"),
            }
            while !groups.is_empty() {
                key = self.key()?.ok_or("a group without an end")?;
                if key.wire_type != END_GROUP {
                    break;
                }
                if groups.pop() != Some(key.field) {
                    return Err("the end of another group than the open one");
                }
            }
            if groups.is_empty() {
                return Ok(());
            }
        }
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Refused> {
        let length = usize::try_from(length).map_err(|_| "a length beyond the message")?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("a length beyond the message")?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Refused> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or("a cut integer")?;
            self.rest = rest;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("an integer beyond 64 bits")
    }
}
