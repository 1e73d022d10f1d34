//! Alone in its process: other tests open descriptors at the same time.

use serve::metrics::{Exposition, Registry};

/// Since Linux 6.2 the directory's size is the number of descriptors, and a walk counts its own one as well.
#[test]
fn descriptors_are_counted_without_a_walk_where_the_kernel_counts_them() {
    let walked = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let kernel_counts = std::fs::metadata("/proc/self/fd").unwrap().len() > 0;
    let expected = if kernel_counts { walked - 1 } else { walked };
    let scrape = Exposition::new(Registry::default()).scrape();
    let line = scrape.lines().find(|line| line.starts_with("process_open_fds "));
    assert_eq!(line, Some(format!("process_open_fds {expected}").as_str()));
}
