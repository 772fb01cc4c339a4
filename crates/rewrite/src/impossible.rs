//! Why constraints cannot be met: the answer of both those who read them and those who plan under them.

/// A constraint that cannot be met: its text, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Impossible {
    pub constraint: String,
    pub why: String,
}
