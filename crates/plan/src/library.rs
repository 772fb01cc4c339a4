//! How long products by a GPU's library take beside Kiln's own templates.
use serde::{Deserialize, Serialize};

/// Shares of the time of Kiln's own template, as measured. What a description leaves out is an H200's.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Library {
    /// Of most products.
    pub share: f64,
    /// Products in half precision of so much work, most of it along K: at the power limit the library draws less.
    pub long: Large,
    /// K of such a product in rows or columns, whichever are more.
    pub depth: f64,
    /// Products in tf32 of so much work, for which Kiln turns an operand.
    pub turned: Large,
}

/// Products of a size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Large {
    /// Multiply-adds, at least.
    pub work: u64,
    /// Of the time of Kiln's own template.
    pub share: f64,
}

impl Default for Library {
    /// cuBLASLt 13 on an H200: the table of products in `benches/results/gemm.md`. 4096x4096x65536 took 0.94 of the time; half of that
    /// K as long as Kiln's own, and so did wide products of as much work. In tf32 4096 cubed took 0.92, 1024 cubed 1.5.
    fn default() -> Library {
        let long = Large { work: 1 << 40, share: 0.94 };
        Library { share: 1.02, long, depth: 8.0, turned: Large { work: 1 << 36, share: 0.92 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_leave_out_what_they_like() {
        assert_eq!(serde_json::from_str::<Library>("{}").ok(), Some(Library::default()));
        let some = serde_json::from_str::<Library>(r#"{"share": 0.9}"#).ok();
        assert_eq!(some, Some(Library { share: 0.9, ..Library::default() }));
    }
}
