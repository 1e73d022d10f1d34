//! Tables of verdicts: certificates, Go's verdict, and ours.

use std::sync::Arc;

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CustomExtension, IsCa, date_time_ymd};
use rustls::Error;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::pki::{Pair, ca};
pub(super) use super::world::NAME;
use crate::tls::legacy::client_verifier;
use crate::tls::{LegacyPki, server_verifier};

/// `Server` is verified by an agent, `Client` by a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) roots: Vec<CertificateDer<'static>>,
    /// Leaf first.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) go: bool,
    pub(super) ours: bool,
}

/// Certificates of one shape: a root, an intermediate below it, and an unrelated root of the same name.
pub(super) struct World {
    pub(super) root: Pair,
    pub(super) middle: Pair,
    pub(super) unknown_ca: Pair,
    pub(super) cases: Vec<Case>,
}

impl World {
    pub(super) fn new() -> Self {
        let root = Pair::self_signed(ca("root"));
        Self {
            middle: root.issue(ca("middle")),
            unknown_ca: Pair::self_signed(ca("root")),
            root,
            cases: Vec::new(),
        }
    }

    /// Adds a case with the same verdict as Go; the chain is trusted through `root`.
    pub(super) fn add(&mut self, name: &'static str, role: Role, chain: &[&Pair], go: bool) {
        let root = self.root.der.clone();
        self.add_full(name, role, &[&root], chain, go, go);
    }

    pub(super) fn add_full(
        &mut self,
        name: &'static str,
        role: Role,
        roots: &[&CertificateDer<'static>],
        chain: &[&Pair],
        go: bool,
        ours: bool,
    ) {
        self.cases.push(Case {
            name,
            role,
            roots: roots.iter().map(|der| (*der).clone()).collect(),
            chain: chain.iter().map(|pair| pair.der.clone()).collect(),
            go,
            ours,
        });
    }

    /// One line for each case with an unexpected verdict.
    pub(super) fn wrong(&self) -> Vec<String> {
        let told = self.cases.iter().map(|case| (case, case.verdict()));
        told.filter(|(case, verdict)| verdict.is_ok() != case.ours)
            .map(|(Case { name, role, go, ours, .. }, verdict)| {
                format!("{name}, {role:?}: expected {ours}, Go says {go}, we say {verdict:?}")
            })
            .collect()
    }
}

impl Case {
    /// Our verifiers' verdict, and the reason that they counted if only Go's rules accept.
    pub(super) fn verdict(&self) -> Result<Option<LegacyPki>, Error> {
        self.verdict_at(UnixTime::now())
    }

    pub(super) fn verdict_at(&self, now: UnixTime) -> Result<Option<LegacyPki>, Error> {
        let counted = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&counted);
        let observer = Arc::new(move |why: LegacyPki| *seen.lock() = Some(why));
        let (leaf, rest) = self.chain.split_first().unwrap();
        match self.role {
            Role::Server => {
                let verifier = server_verifier(self.roots.clone(), observer).unwrap();
                let name = ServerName::try_from(NAME).unwrap();
                verifier.verify_server_cert(leaf, rest, &name, &[], now)?;
            }
            Role::Client => {
                let provider = crate::tls::provider();
                let verifier = client_verifier(self.roots.clone(), provider, observer).unwrap();
                verifier.verify_client_cert(leaf, rest, now)?;
            }
        }
        let why = *counted.lock();
        Ok(why)
    }
}

pub(super) fn with(
    mut params: CertificateParams,
    change: impl FnOnce(&mut CertificateParams),
) -> CertificateParams {
    change(&mut params);
    params
}

pub(super) fn ca_flag(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

pub(super) fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2001, 1, 1);
}

pub(super) fn extension(oid: &[u64], content: &[u8]) -> CustomExtension {
    let mut made = CustomExtension::from_oid_content(oid, content.to_vec());
    made.set_criticality(true);
    made
}
