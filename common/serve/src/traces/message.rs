//! The messages of OTLP's trace service in protobuf, with the field numbers of opentelemetry-proto 1. A message is the
//! sequence of its encoded fields, in any order.

/// Appends a text, bytes or a message as a field.
pub(super) fn put(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    let mut length = value.len();
    while length >= 0x80 {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(value);
}

/// Appends a time, in nanoseconds since 1970.
pub(super) fn put_time(message: &mut Vec<u8>, field: u8, nanoseconds: u64) {
    message.push(field << 3 | 1);
    message.extend(nanoseconds.to_le_bytes());
}

/// Appends a number below 128.
pub(super) fn put_number(message: &mut Vec<u8>, field: u8, number: u8) {
    message.extend([field << 3, number]);
}

/// A message with these fields.
pub(super) fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
    let mut message = Vec::new();
    fields.iter().for_each(|(field, value)| put(&mut message, *field, value));
    message
}

/// An attribute, the message `KeyValue` with a string in its `AnyValue`.
pub(super) fn attribute(key: &str, value: &str) -> Vec<u8> {
    message(&[(1, key.as_bytes()), (2, &message(&[(1, value.as_bytes())]))])
}
