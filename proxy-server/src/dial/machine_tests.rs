//! Every order of events, sensible or not, to the end of the dial: there are few, because each event either
//! changes nothing or brings the end nearer.

use super::*;

const A: LinkId = LinkId(1);
const B: LinkId = LinkId(2);

fn alphabet() -> Vec<Event> {
    let mut events = vec![Event::Chosen(None), Event::Deadline, Event::Cancelled];
    for link in [A, B] {
        events.extend([Event::Chosen(Some(link)), Event::Admitted(link)]);
        let refused = Answer::Refused(RemoteError::parse("connection refused"));
        for answer in [Answer::Opened, refused, Answer::Closed, Answer::Lost, Answer::Full] {
            events.push(Event::Answered(link, answer));
        }
    }
    events
}

/// What has happened so far, judged from outside the machine.
#[derive(Debug, Clone, Default)]
struct Judge {
    choices: usize,
    sent: Vec<LinkId>,
    finished: Option<Result<LinkId, DialFailure>>,
}

impl Judge {
    fn check(&mut self, event: Option<&Event>, action: &Action) {
        match action {
            Action::Wait => {
                let ends = matches!(event, Some(Event::Deadline | Event::Cancelled));
                assert!(!ends || self.finished.is_some(), "a dial must end when it is told to");
            }
            _ => assert_eq!(self.finished, None, "silent after the end: {action:?}"),
        }
        match action {
            Action::Choose { exclude } => {
                self.choices += 1;
                assert!(self.choices <= 2);
                assert_eq!(exclude.is_some(), self.choices == 2);
                let setback = matches!(event, Some(Event::Answered(on, Answer::Lost | Answer::Full)) if Some(*on) == *exclude);
                assert!(event.is_none() || setback, "a retry needs a lost or full link, not {event:?}");
            }
            Action::Send(link) => {
                assert!(!self.sent.contains(link), "never twice on one link");
                self.sent.push(*link);
                assert!(self.sent.len() <= 2, "one retry at most");
            }
            Action::Finish(outcome) => {
                self.check_outcome(event.expect("no dial ends before it began"), outcome);
                self.finished = Some(outcome.clone());
            }
            Action::Admit(link) => assert!(!self.sent.contains(link), "a tried link is not tried again"),
            Action::Wait => {}
        }
    }

    fn check_outcome(&self, event: &Event, outcome: &Result<LinkId, DialFailure>) {
        let current = self.sent.last().copied();
        match outcome {
            Ok(link) => {
                assert_eq!(event, &Event::Answered(*link, Answer::Opened));
                assert_eq!(Some(*link), current, "only the link that was asked last opens");
            }
            Err(DialFailure::Refused(error)) => {
                let Event::Answered(link, Answer::Refused(said)) = event else { panic!("{event:?}") };
                assert_eq!((Some(*link), said), (current, error));
            }
            Err(DialFailure::NoAgent) => assert_eq!((event, self.choices), (&Event::Chosen(None), 1)),
            Err(DialFailure::Cancelled) => assert_eq!(event, &Event::Cancelled),
            Err(DialFailure::NoMemory) => panic!("no machine is started while memory is short"),
            Err(DialFailure::TimedOut | DialFailure::SendFailed) => assert_eq!(event, &Event::Deadline),
            Err(DialFailure::LinkLost) if matches!(event, Event::Answered(_, Answer::Closed)) => {}
            Err(DialFailure::LinkLost | DialFailure::Full) => {
                assert_eq!(self.choices, 2, "another link was looked for");
            }
        }
    }
}

/// Plays all continuations. Returns how many schedules there were.
fn explore(before: &DialMachine, judge: &Judge, alphabet: &[Event]) -> usize {
    let mut played = 1;
    for event in alphabet {
        let (mut machine, mut judge) = (before.clone(), judge.clone());
        let action = machine.handle(event.clone());
        judge.check(Some(event), &action);
        if action == Action::Wait {
            // Nothing changed: what may follow is what may follow without this event, and is played there.
            assert_eq!(&machine, before);
        } else {
            played += explore(&machine, &judge, alphabet);
        }
    }
    played
}

#[test]
fn every_order_of_events_ends_once() {
    let (machine, first) = DialMachine::start();
    let mut judge = Judge::default();
    judge.check(None, &first);
    let played = explore(&machine, &judge, &alphabet());
    assert!(played > 50, "only {played} schedules");
}

fn play(events: &[Event]) -> Vec<Action> {
    let (mut machine, first) = DialMachine::start();
    let mut actions = vec![first];
    actions.extend(events.iter().map(|event| machine.handle(event.clone())));
    actions
}

#[test]
fn a_lost_link_is_replaced_once() {
    use Event::{Admitted, Answered, Chosen};
    let lost = |link| Answered(link, Answer::Lost);
    let actions = play(&[Chosen(Some(A)), Admitted(A), lost(A), Chosen(Some(B)), Admitted(B), lost(B)]);
    assert_eq!(
        actions,
        [
            Action::Choose { exclude: None },
            Action::Admit(A),
            Action::Send(A),
            Action::Choose { exclude: Some(A) },
            Action::Admit(B),
            Action::Send(B),
            Action::Finish(Err(DialFailure::LinkLost)),
        ]
    );
}

#[test]
fn the_first_failure_is_reported_when_nobody_else_is_there() {
    for (answer, failure) in [(Answer::Lost, DialFailure::LinkLost), (Answer::Full, DialFailure::Full)] {
        for other in [None, Some(A)] {
            let events = [Event::Chosen(Some(A)), Event::Answered(A, answer.clone()), Event::Chosen(other)];
            assert_eq!(play(&events).last(), Some(&Action::Finish(Err(failure.clone()))));
        }
    }
}

#[test]
fn a_deadline_says_whether_the_request_was_sent() {
    let waiting = [Event::Chosen(Some(A)), Event::Deadline];
    assert_eq!(play(&waiting).last(), Some(&Action::Finish(Err(DialFailure::SendFailed))));
    let sent = [Event::Chosen(Some(A)), Event::Admitted(A), Event::Deadline];
    assert_eq!(play(&sent).last(), Some(&Action::Finish(Err(DialFailure::TimedOut))));
}
