//! Limits log lines that clients can cause as often as they like.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Throttle {
    logged: Option<Instant>,
}

impl Throttle {
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        let interval = |logged: Instant| now.saturating_duration_since(logged);
        let admits = self.logged.is_none_or(|logged| interval(logged) >= INTERVAL);
        if admits {
            self.logged = Some(now);
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_second_is_admitted() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        let admitted = [0, 1, 999, 1000, 1500, 2000]
            .map(|millis| throttle.admits(now + Duration::from_millis(millis)));
        assert_eq!(admitted, [true, false, false, true, false, true]);
    }
}
