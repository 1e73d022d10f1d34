//! The agent's certificates, whose files may change while the agent runs. The token file needs no watch, because it is read for
//! each connect.

use serve::certificates::CertificateSide;

/// Certificates for handshakes with servers; the agent has no other handshakes.
pub(crate) const SERVERS: CertificateSide = CertificateSide {
    name: "servers",
    files: "--ca-cert, --agent-cert, --agent-key",
    cert: "agent-cert",
    authorities: "ca-cert",
};
