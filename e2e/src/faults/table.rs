//! All rows.

use super::{
    Context, Length, Row, Times, api, cases, floods, heads, host, losses, names, network, stalls, storms,
};
use Length::{Nightly, Once, Quick};
use anyhow::Result;

/// A row whose work is the tests of the suite with these names.
macro_rules! tests {
    ($($name:literal),+ $(,)?) => {
        |context: &Context| -> Result<Times> { cases::pass(context, &[$($name),+]) }
    };
}

/// Faults 1 to 26, then threats T1 to T11, worst first.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    Row { number: "1", name: "an agent is killed in mid-transfer, 1,000 connections", holds: "frontends closed within 1 s; others' p99 < 2x", length: Quick, go: true, run: losses::agent_killed, shown: "common/driver/mutants/19 (connections outlive their stream): the last frontend closes after 30 s" },
    Row { number: "2", name: "a server restarts, 2,000 connections, 50 agents", holds: "agents back within 15 s; first dial within 1 s of ready", length: Quick, go: true, run: losses::server_restarted, shown: "the agents with --sync-interval=20s: back after 23 s" },
    Row { number: "3", name: "half-open: a router drops all packets", holds: "noticed within 20 s at both ends", length: Quick, go: false, run: network::half_open, shown: "keepalive.rs with UNRESPONSIVE_AFTER of an hour: no notice within 20 s" },
    Row { number: "4", name: "SIGSTOP for 20 s, agent and server", holds: "no corruption; everything works within 15 s", length: Nightly, go: false, run: losses::stopped, shown: "both programs with --unresponsive-timeout=10s: a transfer ends during the stop" },
    Row { number: "5", name: "slow reader, 1 of 100 at 0 or 1 B/s", holds: "others keep 95 % of throughput", length: Quick, go: true, run: stalls::slow_reader, shown: "Go's pair: the others keep 0 % of their throughput" },
    Row { number: "6", name: "slow endpoint (`tc tbf` 8 kbit/s)", holds: "memory within its window; others' p99 < 2x", length: Quick, go: true, run: stalls::slow_endpoint, shown: "both programs with --connection-flow-control=false, and Go's pair: an upload is reset" },
    Row { number: "7", name: "endpoint that drops SYNs, 1,000 dials", holds: "504 within 5.5 s; others' p99 < 50 ms", length: Quick, go: true, run: stalls::syns_dropped, shown: "the agent with a dial time-out of 20 s: the last answer after 21 s" },
    Row { number: "8", name: "descriptors exhausted (64 left, then none)", holds: "503; < 5 % CPU; recovers within 1 s", length: Quick, go: true, run: host::descriptors, shown: "AcceptLoop without its pause: 18 % of a CPU (debug builds on a busy machine)" },
    Row { number: "9", name: "10,000 stalled connections", holds: "RSS within --memory-limit; dials work", length: Nightly, go: false, run: stalls::ten_thousand_stalled, shown: "a server with --memory-limit=16Gi: 1,358 MiB resident" },
    Row { number: "10", name: "clock jumps by 1 h and 1 d (libfaketime)", holds: "no drops; leases right within 15 s", length: Nightly, go: false, run: host::clock, shown: "cache.rs judges renewed leases by the wall clock: wrong after +1h" },
    Row { number: "11", name: "certificates rotate under 500 dials/s", holds: "0 failures; a bad pair keeps the old one", length: Nightly, go: false, run: network::certificates_rotated, shown: "both programs with --certificate-reload-interval=1h: the new files are not in use within 30 s" },
    Row { number: "12", name: "log disk full (small tmpfs)", holds: "traffic unaffected; lost lines counted", length: Quick, go: false, run: host::log_disk_full, shown: "the log writer does not count lost lines: none seen within 30 s" },
    Row { number: "13", name: "DNS: NXDOMAIN, silence, changed addresses", holds: "502, 504 within 5.5 s; a reconnect resolves anew", length: Quick, go: false, run: names::name_server, shown: "as 1 and 3: the agent keeps its lost stream, back after 25 s" },
    Row { number: "14", name: "a load balancer sticks to one replica (times a tenth)", holds: "no leak; backed off to the cap", length: Quick, go: true, run: network::balancer_sticks, shown: "the agent with --sync-interval-cap=100ms: 135 attempts in 12 s" },
    Row { number: "15", name: "roll-outs, native and from Go in both orders", holds: "99.9 % of dials succeed, none corrupt", length: Nightly, go: false, run: losses::rollouts, shown: "--graceful-shutdown-timeout=0s and --drain-timeout=0s: an agent does not end within 70 s" },
    Row { number: "16", name: "10,000 connects at once; 2,000 agents at once", holds: "all up within 60 s; dials' p99 < 250 ms", length: Nightly, go: false, run: storms::storms, shown: "a server with a descriptor limit of 3,000: HTTP 503" },
    Row { number: "17", name: "Kubernetes API slow, 500, closing, hanging", holds: "established unaffected; agents enter after its return", length: Nightly, go: false, run: api::api_fails, shown: "a server that admits agents if the API does not answer" },
    Row { number: "18", name: "floods of HTTP/2 frames", holds: "GOAWAY within 1 s; + 16 MiB; others' p99 < 2x", length: Quick, go: true, run: floods::frame_floods, shown: "settings.rs with 2^30 local and pending resets: the flood of resets is not ended" },
    Row { number: "19", name: "malformed protobuf, absent oneof, ids 0, -1, MAX", holds: "a stream error only", length: Quick, go: false, run: tests![
        "misbehaving_agents::a_known_type_without_its_payload_is_survived", "misbehaving_agents::unknown_and_misdirected_packets_are_ignored",
        "misbehaving_frontends::a_known_type_without_its_payload_is_survived", "misbehaving_frontends::unusual_ids_are_accepted_as_dial_ids",
        "misbehaving_frontends::meaningless_packets_are_ignored", "misbehaving_frontends::garbage_is_survived",
        "misbehaving_servers::unexpected_packets_are_survived",
    ], shown: "Go's agent fails misbehaving_servers::unexpected_packets_are_survived" },
    Row { number: "20", name: "DATA before DIAL_RSP, double close, replayed random, reused id", holds: "nothing reaches another connection", length: Quick, go: false, run: tests![
        "misbehaving_agents::data_before_the_dial_rsp_is_dropped", "misbehaving_agents::a_repeated_dial_rsp_is_a_late_one",
        "misbehaving_agents::an_id_can_be_used_again_after_its_close", "misbehaving_frontends::closing_twice_is_harmless",
        "misbehaving_frontends::equal_dial_ids_do_not_collide",
    ], shown: "common/mux/mutants/05 and 06, and Go's server: a_repeated_dial_rsp_is_a_late_one, equal_dial_ids_do_not_collide" },
    Row { number: "21", name: "second stream of an agent id, same connection ids", holds: "no byte crosses; the first stream survives", length: Quick, go: false, run: tests![
        "misbehaving_agents::equal_ids_of_two_streams_of_one_agent_do_not_cross", "misbehaving_agents::second_agent_with_the_same_id_does_not_displace_the_first",
    ], shown: "Go's server fails both tests" },
    Row { number: "22", name: "segments of one byte between agent and server", holds: "identical checksums", length: Quick, go: true, run: network::single_bytes, shown: "no defense of the programs: TLS joins the segments. The checksum itself: payload::payload_is_recognized_and_a_foreign_one_is_not" },
    Row { number: "23", name: "RST and FIN", holds: "an RST ends the connection; a FIN delivers all", length: Quick, go: false, run: tests![
        "closes::an_endpoints_reset_ends_the_connection", "closes::data_before_a_reset_or_a_loss_reaches_a_slow_client",
        "closes::the_endpoints_close_reaches_the_client_behind_its_bytes",
    ], shown: "common/mux/mutants/02 (close overtakes data), and Go's programs: data_before_a_reset_or_a_loss_reaches_a_slow_client" },
    Row { number: "24", name: "the frontend's socket file is deleted", holds: "bound again within 10 s; live connections unaffected", length: Quick, go: true, run: losses::socket_deleted, shown: "UNIX_WATCH of an hour, and Go's server: no dial within 30 s" },
    Row { number: "25", name: "payload at accept, HTTP CONNECT", holds: "the 200 is alone; payload follows", length: Quick, go: false, run: tests![
        "server_first::the_200_head_is_alone_in_its_read_on_a_unix_socket", "server_first::the_200_head_comes_before_the_greeting_on_tls",
        "server_first::a_greeting_arrives_whole", "server_first::bytes_behind_the_head_are_payload",
    ], shown: "Go's programs fail three of the four tests: the 200 comes with payload" },
    Row { number: "26", name: "soak: 4 minutes of random load with kills", holds: "memory, descriptors, threads back", length: Once, go: false, run: network::soaked, shown: "not shown yet" },
    Row { number: "T1", name: "open agent port", holds: "loud, or refused", length: Quick, go: false, run: tests!["identity::an_open_agent_port_is_loud_or_refused"], shown: "Go's server fails it (it has no --require-agent-auth)" },
    Row { number: "T2", name: "route theft", holds: "identity binds identifiers; the first agent stays", length: Quick, go: false, run: tests![
        "identity::a_stolen_node_credential_takes_no_other_nodes_traffic", "identity::agent_id_belongs_to_one_agent_while_it_is_connected",
        "identity::wide_routes_are_for_agents_on_the_list",
    ], shown: "e2e/mutants/25: agent_id_belongs_to_one_agent_while_it_is_connected" },
    Row { number: "T3", name: "injection between agents and clients", holds: "nothing reaches another connection", length: Quick, go: false, run: tests![
        "misbehaving_agents::an_agent_cannot_answer_anothers_dial", "misbehaving_agents::equal_ids_of_two_agents_do_not_cross",
        "misbehaving_agents::dial_ids_are_the_servers_own", "misbehaving_frontends::other_client_can_neither_write_nor_close",
        "misbehaving_frontends::other_client_cannot_cancel_a_dial",
    ], shown: "Go's server fails three of the five tests" },
    Row { number: "T4", name: "HTTP/2 exhaustion", holds: "see 18; unauthenticated peers delay nothing", length: Quick, go: false, run: tests![
        "misbehaving_frontends::a_flood_of_resets_is_survived", "unauthenticated_peers::full_port_admits_new_peers",
        "unauthenticated_peers::silent_connections_do_not_delay_handshakes",
    ], shown: "e2e/mutants/01 and 04, and Go's server fails all three tests" },
    Row { number: "T5", name: "SSRF through the agent", holds: "tcp only; policy; cloud metadata denied", length: Quick, go: false, run: tests![
        "identity::agent_reaches_only_allowed_destinations", "identity::the_metadata_services_of_clouds_are_out_of_reach", "misbehaving_servers::only_tcp_is_dialed",
    ], shown: "e2e/mutants/24: the_metadata_services_of_clouds_are_out_of_reach" },
    Row { number: "T6", name: "broad frontend CA", holds: "an allow-list of names", length: Quick, go: false, run: tests!["identity::frontends_certificates_need_an_allowed_name"], shown: "e2e/mutants/26" },
    Row { number: "T7", name: "TokenReview", holds: "32 at once; audience checked; known agents stay", length: Quick, go: false, run: tests![
        "tokens::a_storm_of_agents_asks_about_32_at_once", "tokens::agents_without_a_valid_token_are_refused_with_gos_words",
        "tokens::while_reviews_fail_known_agents_are_admitted_and_others_retry", "tokens::hanging_api_does_not_delay_others",
    ], shown: "e2e/mutants/14, 20 and 37" },
    Row { number: "T8", name: "small slices that pin memory", holds: "charged at their real size", length: Quick, go: false, run: tests![
        "memory_limits::small_messages_to_a_stalled_endpoint_are_held_at_their_bytes", "memory_limits::agents_with_frames_of_a_byte_are_not_read_on",
    ], shown: "e2e/mutants/16 and 17: both tests" },
    Row { number: "T9", name: "CONNECT parser", holds: "12 heads are refused; nothing is dialed", length: Quick, go: true, run: heads::strict_heads, shown: "Go's server takes a bare line feed" },
    Row { number: "T10", name: "hygiene: tokens in logs, profiles, socket modes", holds: "none shown; opt-in; 0770", length: Quick, go: false, run: tests![
        "tokens::tokens_are_never_logged", "http_endpoints::profiles_are_not_served_otherwise", "transports::the_socket_file_has_mode_0770",
        "statusz::status_on_an_exposed_address_needs_its_flag",
    ], shown: "e2e/mutants/28: the_socket_file_has_mode_0770" },
    Row { number: "T11", name: "gRPC paths", holds: "exact; an agent cannot dial", length: Quick, go: false, run: tests![
        "transports::an_agent_cannot_dial", "unauthenticated_peers::refused_streams_do_not_keep_a_connection",
    ], shown: "e2e/mutants/27: an_agent_cannot_dial" },
];
