//! Counts of things in messages.

/// A count with its noun: `1 kernel`, `3 kernels`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {}", plural(n, what))
}

/// The noun in singular for `n` = 1, else in plural: `kernel`, `kernels`.
pub fn plural(n: usize, what: &str) -> String {
    format!("{what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_is_one() {
        let counts = [0, 1, 2].map(|n| super::count(n, "kernel"));
        assert_eq!(counts, ["0 kernels", "1 kernel", "2 kernels"]);
    }
}
