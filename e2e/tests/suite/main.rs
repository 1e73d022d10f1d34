//! Tests against the built binaries, one file per theme. The programs under test are named by `PROXY_SERVER` and
//! `PROXY_AGENT`, so that the same tests run against other implementations; `docs/compatibility.md` maps behaviours
//! to tests.

mod bytes;
