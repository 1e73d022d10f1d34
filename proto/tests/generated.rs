//! The committed Rust code is what the .proto file generates, so that a build needs no generator.
//!
//! `UPDATE_PROTO=1 cargo test -p proto` writes the files again.

use std::fs;
use std::path::Path;

/// Every message and enum of the .proto file: the stubs take them from the crate `proto`.
const TYPES: [&str; 9] = [
    "Packet",
    "PacketType",
    "DialRequest",
    "DialResponse",
    "Data",
    "CloseRequest",
    "CloseResponse",
    "CloseDial",
    "Drain",
];

const MESSAGES: &str = "src/messages.rs";
const STUBS: &str = "../e2e/src/stubs.rs";

fn check(file: &str, generated: &Path) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let generated = fs::read_to_string(generated).expect("the generator writes this file");
    if std::env::var_os("UPDATE_PROTO").is_some() {
        fs::write(&path, &generated).expect("the tree can be written to");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == generated, "{file} is stale: run `UPDATE_PROTO=1 cargo test -p proto`");
}

#[test]
fn messages_are_current() {
    let out = tempfile::tempdir().unwrap();
    let files = protox::compile(["konnectivity.proto"], ["proto"]).unwrap();
    prost_build::Config::new().bytes(["."]).out_dir(out.path()).compile_fds(files).unwrap();
    check(MESSAGES, &out.path().join("_.rs"));
}

#[test]
fn stubs_are_current() {
    let out = tempfile::tempdir().unwrap();
    let files = protox::compile(["konnectivity.proto"], ["proto"]).unwrap();
    // The generated `connect(address)` would collide with the RPC of that name.
    let builder = tonic_prost_build::configure().build_transport(false).out_dir(out.path());
    TYPES
        .iter()
        .fold(builder, |builder, name| builder.extern_path(format!(".{name}"), format!("::proto::{name}")))
        .compile_fds(files)
        .unwrap();
    check(STUBS, &out.path().join("_.rs"));
}
