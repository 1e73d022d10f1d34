//! The agent's certificates, whose files may change while it runs. The token's file needs no watcher, it is read for each
//! connect.

use serve::certificates::CertificateSide;

/// Handshakes with servers, the only ones that the agent has.
pub(crate) const SERVERS: CertificateSide = CertificateSide {
    name: "servers",
    files: "--ca-cert, --agent-cert, --agent-key",
    cert: "agent-cert",
    authorities: "ca-cert",
};
