//! Suggestions for misspelled names.

use spinrpc::config::KEYS;

/// Message for an unknown key, with the closest known one.
pub fn unknown_key(name: &str) -> String {
    let known = KEYS.iter().map(|key| key.name);
    format!("unknown key {name:?}{}", did_you_mean(name, known, "no key has a similar name"))
}

/// `; did you mean "rpc.credits"?`, or `; ` and `otherwise` if no known name is close.
pub fn did_you_mean<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str>,
    otherwise: &str,
) -> String {
    match nearest(name, known) {
        Some(meant) => format!("; did you mean {meant:?}?"),
        None => format!("; {otherwise}"),
    }
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|candidate| (distance(name, candidate), candidate));
    let (steps, candidate) = scored.min_by_key(|&(steps, _)| steps)?;
    (steps <= (name.chars().count() / 3).max(1)).then_some(candidate)
}

/// Distance of two names. Omitting the group or the unit at the end costs a single step.
fn distance(name: &str, candidate: &str) -> usize {
    let shortened = candidate.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    let whole = if shortened { 1 } else { edits(name, candidate) };
    match candidate.split_once('.') {
        Some((_, leaf)) if !name.contains('.') => whole.min(1 + distance(name, leaf)),
        _ => whole,
    }
}

/// Takes quadratic time, so `a` is cut to a length that no key reaches.
fn edits(a: &str, b: &str) -> usize {
    let cut = a.char_indices().nth(NAME_CHARS_MAX).map_or(a, |(end, _)| &a[..end]);
    strsim::osa_distance(cut, b)
}

const NAME_CHARS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_found() {
        for (typed, meant) in [
            ("rpc.credit", "rpc.credits"),
            ("rcp.credits", "rpc.credits"),
            ("rpc.credtis", "rpc.credits"),
            ("credits", "rpc.credits"),
            ("rpc.inline_send", "rpc.inline_send_bytes"),
            ("rpc.timeout", "rpc.timeout_ms"),
            ("poll.spin", "poll.spin_us"),
            ("pol.mode", "poll.mode"),
            ("mem.arena", "mem.arena_mib"),
            ("rpc.credits.x", "rpc.credits"),
        ] {
            let message = unknown_key(typed);
            assert_eq!(message, format!("unknown key {typed:?}; did you mean {meant:?}?"));
        }
    }

    #[test]
    fn far_names_get_no_proposal() {
        for typed in ["colour", "tcp.nodelay", "", "zzzzzzzzzzzzzzzzzzzz"] {
            assert_eq!(
                unknown_key(typed),
                format!("unknown key {typed:?}; no key has a similar name")
            );
        }
    }

    #[test]
    fn edits_count_swaps_of_neighbours_once() {
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "abc"), 0);
        assert_eq!(edits("abc", "acb"), 1);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn a_huge_name_costs_no_more_than_a_long_one() {
        unknown_key(&"x".repeat(1 << 20));
    }
}
