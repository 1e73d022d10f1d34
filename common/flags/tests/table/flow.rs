//! The entries of the flags for flow control and memory, which both binaries have and Go's do not.

use super::Entry;
use flags::FlowOptions;

/// `options` returns this part of a binary's configuration.
pub fn flow_entries<C: 'static>(
    base: &'static [&'static str],
    options: fn(&C) -> &FlowOptions,
) -> Vec<Entry<C>> {
    let flag = |flag: &'static str, shown: fn(&FlowOptions) -> String| {
        Entry::new(flag, base, move |config| shown(options(config)))
    };
    vec![
        flag("connection-flow-control", |flow| flow.connection_flow_control.to_string())
            .default("true")
            .accepts_but_go_rejects(&["--connection-flow-control"], "true")
            .accepts_but_go_rejects(&["--connection-flow-control=false"], "false")
            .refuses(
                &["--connection-flow-control=2"],
                "invalid argument \"2\" for \"--connection-flow-control\"",
            ),
        flag("connection-memory-limit", |flow| flow.connection_memory_limit.to_string())
            .default("8388608")
            .accepts_but_go_rejects(&["--connection-memory-limit=131072"], "131072")
            .accepts_but_go_rejects(&["--connection-memory-limit=1Mi"], "1048576")
            .refuses(
                &["--connection-memory-limit=127Ki"],
                "--connection-memory-limit=130048: it must be at least",
            )
            .refuses(
                &["--connection-memory-limit="],
                "invalid argument \"\" for \"--connection-memory-limit\"",
            )
            .refuses(
                &["--connection-memory-limit=1M"],
                "invalid argument \"1M\" for \"--connection-memory-limit\"",
            ),
        flag("memory-limit", |flow| format!("{:?}", flow.memory_limit))
            .default("None")
            .accepts_but_go_rejects(&["--memory-limit=0"], "None")
            .accepts_but_go_rejects(&["--memory-limit=1Gi"], "Some(1073741824)")
            .refuses(&["--memory-limit=1Mi"], "--memory-limit=1048576: it must be 0 or at least 16Mi")
            .refuses(&["--memory-limit=-1"], "invalid argument \"-1\" for \"--memory-limit\" flag"),
    ]
}
