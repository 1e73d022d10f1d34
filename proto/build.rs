//! Compiles the .proto with a pure-Rust compiler: no `protoc` is needed to build.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/konnectivity.proto");
    let files = protox::compile(["konnectivity.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
