//! Log lines about dials that failed at an agent, in the Go server's words.

use serve::logs::Peer;

use super::{DialFailure, Target};

/// Logs the failure. The frontend logs failures in which no agent took part.
pub(super) fn failed(target: &Target, agent: Option<&str>, failure: &DialFailure) {
    let (dial_id, address) = (target.dial_id, Peer(&target.address));
    let (agent, err) = (Peer(agent.unwrap_or_default()), failure.to_string());
    let err = Peer(&err);
    match failure {
        DialFailure::NoAgent | DialFailure::NoMemory | DialFailure::Cancelled => {}
        DialFailure::Refused(_) => {
            tracing::error!(
                %err, dialID = dial_id, agentID = %agent, dialAddress = %address, "DIAL_RSP contains failure"
            );
        }
        DialFailure::TimedOut => tracing::error!(
            %err, dialID = dial_id, agentID = %agent, dialAddress = %address,
            "backend dial timed out before connection was established"
        ),
        DialFailure::LinkLost | DialFailure::Closed => tracing::error!(
            %err, dialID = dial_id, agentID = %agent, dialAddress = %address,
            "backend context closed before connection was established"
        ),
        DialFailure::SendFailed | DialFailure::Full => {
            tracing::error!(
                %err, dialID = dial_id, agentID = %agent, dialAddress = %address, "DIAL_REQ to Backend failed"
            );
        }
    }
}
