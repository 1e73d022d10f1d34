//! The committed Rust code is what the .proto file generates, so that a build needs no generator.
//!
//! `UPDATE_PROTO=1 cargo test -p proto` writes the file again.

use std::fs;

#[test]
fn messages_are_current() {
    let out = tempfile::tempdir().unwrap();
    let files = protox::compile(["konnectivity.proto"], ["proto"]).unwrap();
    prost_build::Config::new().bytes(["."]).out_dir(out.path()).compile_fds(files).unwrap();
    let generated = fs::read_to_string(out.path().join("_.rs")).expect("the generator writes this file");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/messages.rs");
    if std::env::var_os("UPDATE_PROTO").is_some() {
        fs::write(path, &generated).expect("the tree can be written to");
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert!(committed == generated, "{path} is stale: run `UPDATE_PROTO=1 cargo test -p proto`");
}
