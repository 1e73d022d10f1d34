//! The certificates of the two listeners; their files may change while the server runs.

use serve::certificates::CertificateSide;

/// The listener for kube-apiserver.
pub(crate) const FRONTEND: CertificateSide = CertificateSide {
    name: "frontend",
    files: "--server-cert, --server-key, --server-ca-cert",
    cert: "server-cert",
    authorities: "server-ca-cert",
};

/// The listener for agents.
pub(crate) const AGENTS: CertificateSide = CertificateSide {
    name: "agents",
    files: "--cluster-cert, --cluster-key, --cluster-ca-cert",
    cert: "cluster-cert",
    authorities: "cluster-ca-cert",
};
