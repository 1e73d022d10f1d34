//! Response bodies.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode};
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// A body that is complete at once, or grows line by line.
pub(crate) enum Answer {
    Whole(Option<Bytes>),
    Lines(mpsc::UnboundedReceiver<String>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Lines(lines) => {
                lines.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line.into()))))
            }
        }
    }
}

pub(crate) fn json_answer(code: u16, body: &Value) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Some(body.to_string().into())));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

pub(crate) fn status(code: u16, reason: &str, message: &str) -> Response<Answer> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    json_answer(code, &body)
}
