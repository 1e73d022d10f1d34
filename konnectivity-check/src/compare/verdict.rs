//! The dials of one target through two servers, and whether their results are the same.

use commands::probe::Refused;
use commands::table::millis;

use super::dial::Answer;

/// The new server may take twice as long as the old one, and this much longer, in seconds.
const MAX_EXTRA_SECONDS: f64 = 0.01;

/// A dial that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// The same for the same cause, whatever program words it.
    class: &'static str,
    text: String,
}

impl Failure {
    pub(super) fn new(stage: &'static str, text: &str) -> Self {
        let lower = text.to_lowercase();
        let classes = [
            ("time-out", &["timed out", "timeout", "deadline exceeded"][..]),
            ("connection refused", &["connection refused"]),
            ("no such host", &["no such host", "lookup "]),
            ("unreachable", &["no route to host", "unreachable"]),
            ("denied", &["denied", "not allowed"]),
        ];
        let named = classes.iter().find(|(_, parts)| parts.iter().any(|part| lower.contains(part)));
        let class = match (stage, named) {
            ("selection", _) => "no agent",
            ("frontend", _) => "frontend failed",
            ("answer", _) => "answer failed",
            (_, Some((class, _))) => class,
            ("agent", None) => "agent lost",
            _ => "other error",
        };
        Self { class, text: text.to_owned() }
    }
}

impl From<Refused> for Failure {
    fn from(Refused { stage, text }: Refused) -> Self {
        Self::new(stage, &text)
    }
}

/// All dials of one target through one server.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// Seconds of each dial that succeeded.
    times: Vec<f64>,
    answers: Vec<Answer>,
    failures: Vec<Failure>,
}

impl Side {
    pub(super) fn add(&mut self, dialed: Result<(f64, Answer), Failure>) {
        match dialed {
            Ok((seconds, answer)) => {
                self.times.push(seconds);
                self.answers.push(answer);
            }
            Err(failure) => self.failures.push(failure),
        }
    }

    pub(super) fn reached(&self) -> usize {
        self.times.len()
    }

    pub(super) fn outcome(&self) -> String {
        let all = self.times.len() + self.failures.len();
        let class = self.failures.first().map(|failure| format!(": {}", failure.class));
        format!("{} of {all}{}", self.reached(), class.unwrap_or_default())
    }

    fn median(&self) -> Option<f64> {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }

    fn best(&self) -> Option<f64> {
        self.times.iter().copied().min_by(f64::total_cmp)
    }

    pub(super) fn time(&self) -> String {
        self.median().map(millis).unwrap_or_default()
    }

    /// The answer through both, in a few words.
    pub(super) fn answer(&self, other: &Self) -> String {
        let Some(Answer { chain, status, body }) = self.answers.first().or(other.answers.first()) else {
            return String::new();
        };
        let mut parts = Vec::new();
        if !chain.is_empty() {
            parts.push(format!("chain of {}", chain.len()));
        }
        if !status.is_empty() {
            parts.push(format!("{status}, {} bytes", body.len()));
        }
        parts.join(", ")
    }

    /// Whether all answers are the same one.
    fn constant(&self) -> bool {
        self.answers.windows(2).all(|pair| pair.first() == pair.last())
    }

    fn classes(&self) -> Vec<&'static str> {
        let mut classes: Vec<_> = self.failures.iter().map(|failure| failure.class).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }
}

fn slower(old: Option<f64>, new: Option<f64>) -> bool {
    old.zip(new).is_some_and(|(old, new)| new > 2.0 * old + MAX_EXTRA_SECONDS)
}

/// Whether kube-apiserver may switch for a target with which both servers did this, and why.
pub(super) fn verdict(old: &Side, new: &Side) -> (bool, String) {
    if new.reached() < old.reached() {
        let text = new.failures.first().map_or("", |failure| &failure.text);
        return (false, format!("fails through the new server: {text}"));
    }
    if old.reached() == 0 && new.reached() > 0 {
        return (true, "reached only through the new server".to_owned());
    }
    if new.reached() == 0 {
        let same = old.classes() == new.classes();
        return (same, if same { "fails the same way" } else { "fails for another reason" }.to_owned());
    }
    if old.constant() && !(new.constant() && old.answers.first() == new.answers.first()) {
        return (false, "the endpoint's answers differ".to_owned());
    }
    // Both, because a busy machine delays single dials.
    if slower(old.median(), new.median()) && slower(old.best(), new.best()) {
        return (false, "dials are slower".to_owned());
    }
    let varies = !old.constant();
    (true, if varies { "same; answers vary through the old server, too" } else { "same" }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(times: &[f64], body: &str, failures: &[Failure]) -> Side {
        let answer = |_: &f64| Answer { body: body.into(), ..Answer::default() };
        Side {
            times: times.to_vec(),
            answers: times.iter().map(answer).collect(),
            failures: failures.to_vec(),
        }
    }

    #[test]
    fn verdicts_compare_outcome_class_answer_and_time() {
        let refused = || Failure::new("connect", "dial tcp 10.0.0.1:80: connect: connection refused");
        let none = || Failure::new("selection", "No agent available");
        let fine = || side(&[0.001, 0.002], "a", &[]);
        for (old, new, safe, text) in [
            (fine(), fine(), true, "same"),
            (fine(), side(&[0.001, 0.013], "a", &[]), true, "same"),
            (fine(), side(&[0.001, 0.5], "a", &[]), true, "same"),
            (fine(), side(&[0.013, 0.015], "a", &[]), false, "slower"),
            (fine(), side(&[0.001, 0.001], "b", &[]), false, "answers differ"),
            (fine(), side(&[0.001], "a", &[none()]), false, "fails through the new server: No agent"),
            (side(&[], "", &[refused()]), side(&[], "", &[refused()]), true, "fails the same way"),
            (side(&[], "", &[refused()]), side(&[], "", &[none()]), false, "another reason"),
            (side(&[], "", &[none()]), fine(), true, "only through the new"),
        ] {
            let verdict = verdict(&old, &new);
            assert!(verdict.0 == safe && verdict.1.contains(text), "{old:?} {new:?}: {verdict:?}");
        }
    }

    #[test]
    fn answers_that_vary_anyway_prove_nothing() {
        let mut varying = side(&[0.001, 0.001], "a", &[]);
        varying.answers[1].body = b"b".to_vec();
        assert!(
            verdict(&varying, &side(&[0.001], "c", &[Failure::new("agent", "lost")])).1.contains("fails")
        );
        let same = verdict(&varying, &side(&[0.001, 0.001], "c", &[]));
        assert!(same.0 && same.1.contains("vary"), "{same:?}");
    }

    #[test]
    fn a_cause_has_one_class_in_every_programs_words() {
        for (stage, text, class) in [
            ("connect", "dial tcp 10.0.0.1:80: i/o timeout", "time-out"),
            ("agent", "Backend dial timeout: timed out waiting for backend dial", "time-out"),
            ("connect", "dial tcp: lookup nope.invalid on 10.0.0.10:53: no such host", "no such host"),
            ("connect", "dial tcp 10.0.0.1:80: connect: no route to host", "unreachable"),
            ("selection", "No agent available", "no agent"),
            ("frontend", "connection refused", "frontend failed"),
            ("agent", "the dial was canceled (DIAL_CLS)", "agent lost"),
            ("connect", "something else", "other error"),
        ] {
            assert_eq!(Failure::new(stage, text).class, class, "{text}");
        }
    }
}
