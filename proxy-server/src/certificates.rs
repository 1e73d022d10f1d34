//! The certificates of the two listeners, whose files may change while the server runs.

use serve::certificates::CertificateSide;

/// Where kube-apiserver connects.
pub(crate) const FRONTEND: CertificateSide = CertificateSide {
    name: "frontend",
    files: "--server-cert, --server-key, --server-ca-cert",
    cert: "server-cert",
    authorities: "server-ca-cert",
};

/// Where agents connect.
pub(crate) const AGENTS: CertificateSide = CertificateSide {
    name: "agents",
    files: "--cluster-cert, --cluster-key, --cluster-ca-cert",
    cert: "cluster-cert",
    authorities: "cluster-ca-cert",
};
