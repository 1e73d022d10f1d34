//! Generates the gRPC stubs of the test peers; the messages come from the `proto` crate.

/// Every message and enum of the .proto file; none of them is generated again here.
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../proto/proto/konnectivity.proto");
    let files = protox::compile(["konnectivity.proto"], ["../proto/proto"])?;
    // The generated `connect(address)` would collide with the RPC of that name.
    let builder = tonic_prost_build::configure().build_transport(false);
    TYPES
        .iter()
        .fold(builder, |builder, name| builder.extern_path(format!(".{name}"), format!("::proto::{name}")))
        .compile_fds(files)?;
    Ok(())
}
