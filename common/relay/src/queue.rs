//! Bytes that wait for a local end.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tunnel::charge;

use crate::local::Local;

/// Slices below this are copied when they have to wait: each would pin a whole receive buffer.
const COPY_BELOW: usize = 4 << 10;

/// The queue of one local end. Its bound is the core's business, which is told its charge.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    slices: VecDeque<Bytes>,
    charged: usize,
    /// So many slices at the back came since [`Queue::settle`].
    fresh: usize,
}

impl Queue {
    pub(crate) fn push(&mut self, slice: Bytes) {
        self.charged += charge(slice.len());
        self.fresh += 1;
        self.slices.push_back(slice);
    }

    pub(crate) fn clear(&mut self) {
        *self = Queue::default();
    }

    /// What the queue is charged, in bytes.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Writes until the local end takes no more, then pushes it on.
    pub(crate) fn write_into(&mut self, local: &mut dyn Local, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(front) = self.slices.front_mut() {
            let before = charge(front.len());
            if local.poll_write(cx, front)?.is_pending() {
                break;
            }
            self.charged -= before;
            if front.is_empty() {
                self.slices.pop_front();
            } else {
                self.charged += charge(front.len());
            }
        }
        match local.poll_flush(cx) {
            Poll::Ready(done) => done,
            Poll::Pending => Ok(()),
        }
    }

    /// Lets go of receive buffers that small slices, which stay, would pin.
    pub(crate) fn settle(&mut self) {
        let stay = self.slices.len();
        for slice in self.slices.iter_mut().skip(stay.saturating_sub(self.fresh)) {
            if slice.len() < COPY_BELOW {
                *slice = Bytes::copy_from_slice(slice);
            }
        }
        self.fresh = 0;
    }
}
