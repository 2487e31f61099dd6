//! A limit on what the engines of other users may take of one query: those of each user by themselves, and all of them
//! together, because one person may have thousands of user numbers (subuid(5)). Nothing of it is taken from
//! engines of this user and of root.

use rustix::process::geteuid;
use std::collections::HashMap;

/// What is left of an amount, such as bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    own: u64,
    of_each: u64,
    of_others: u64,
    /// What is left for each user that has spent something.
    users: HashMap<u32, u64>,
}

impl Budget {
    /// Amounts for this user and for root, for each other user, and for all others together.
    pub(crate) fn new(own: u64, of_each: u64, of_others: u64) -> Self {
        Self { own, of_each, of_others, users: HashMap::new() }
    }

    /// Amount that the engines of this user may still take.
    pub(crate) fn left(&self, user: u32) -> u64 {
        let left = self.users.get(&user).copied();
        match is_other(user) {
            true => left.unwrap_or(self.of_each).min(self.of_others),
            false => left.unwrap_or(self.own),
        }
    }

    /// Takes the amount, or all that is left.
    pub(crate) fn spend(&mut self, user: u32, amount: u64) {
        let is_other = is_other(user);
        let left = self.users.entry(user).or_insert(if is_other { self.of_each } else { self.own });
        *left = left.saturating_sub(amount);
        if is_other {
            self.of_others = self.of_others.saturating_sub(amount);
        }
    }

    /// Takes the amount if there is as much left; returns whether there was.
    pub(crate) fn take(&mut self, user: u32, amount: u64) -> bool {
        let is_enough = amount <= self.left(user);
        if is_enough {
            self.spend(user, amount);
        }
        is_enough
    }
}

fn is_other(user: u32) -> bool {
    user != 0 && user != geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_have_a_limit_each_and_together_and_take_nothing_of_this_one() {
        let own = geteuid().as_raw();
        let others = [own + 1, own + 2, own + 3];
        let mut budget = Budget::new(100, 10, 15);
        assert!(budget.take(others[0], 4) && !budget.take(others[0], 7), "each");
        budget.spend(others[0], 20);
        assert_eq!(others.map(|user| budget.left(user)), [0, 0, 0], "together");
        assert!(budget.take(own, 100) && !budget.take(own, 1));
        let mut budget = Budget::new(100, 10, 15);
        assert!(budget.take(others[0], 10) && budget.take(others[1], 5));
        assert_eq!(others.map(|user| budget.left(user)), [0, 0, 0], "together");
        assert_eq!([0, own].map(|user| budget.left(user)), [100, 100]);
    }
}
