//! What `helm test` runs, out of the same images: asks kube-apiserver for the health ports of agents or servers, by the
//! pods' `proxy` subresource. kube-apiserver goes to pods through the tunnel, so the question is itself the test.
//!
//! It talks to kube-apiserver only, reads only, and needs two rights: list pods, get pods/proxy, in one namespace.

pub mod api;
pub mod check;
pub mod flags;
pub mod scrape;
