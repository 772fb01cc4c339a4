//! The contract of a plan: how its results may differ from the graph as written.
//!
//! A plan states its [`Contract`]: a class (`exact`, `torch` or `fast`), and the options `splits`, `no_tf32` and
//! `batch_invariant`. Planning and lowering choose by [`Hardware`](crate::Hardware), a machine under a contract.
//!
//! - **Half types** are f32 inside a kernel, rounded where they are stored and where the graph casts. Long rows that
//!   several blocks share are kept between reductions as they were loaded, two elements per register, and what follows
//!   is recomputed (`crates/block/src/passes/layout/narrow.rs`).
//! - **Exact rounding** is a property of a kernel. Kernels of an exact plan have `rounding per-op` ([`Rounding`]):
//!   lowering rounds every value of a half type (`Resolver::rounds`), block programs are `ieee`, and code generation
//!   neither contracts products and sums to FMAs nor replaces quotients by products with reciprocals. Kernels are fused
//!   as usual; rules that round differently are left out. Chains of IEEE 754 operations are compared bit by bit with
//!   libtorch's eager operators.
//! - **tf32** is a property of a kernel, not a type: `precision tf32` ([`Precision`]). Convolutions of f32 use it
//!   unless numerics are exact, matmuls under `fast`; tensors stay f32. `wgmma` reads K-major tf32 operands from
//!   shared memory, and left ones from registers, which may lie either way: operands are swapped, or transposed by a
//!   copy. Tensor cores truncate to tf32, which adds up over many layers: copies round to nearest, and so do reads to
//!   registers. Of a convolution the right operand is always copied.
//! - **3xTF32** (`precision tf32x3`, allowed by `splits`): a copy writes each operand as the sum of two tf32 numbers,
//!   and three tf32 products of these give a large matmul. Where the cost model finds that slower, and in dual GEMMs,
//!   matmuls stay exact. Tensor cores truncate when they accumulate, so the accumulators of a stage are
//!   zero-initialised, and added to the others in f32. An infinity is split into itself and 1, so that it stays
//!   infinite. Operands below 2^-100 lose accuracy; operands from 2^127 on, or products, may become infinite. Attention
//!   of f32 splits its operands in registers, where a matmul may use 3xTF32 or tf32 and the cost model finds it faster
//!   ([`attention::Sizes::settled`](crate::attention::Sizes::settled)); never in tf32.
//! - **f8** is only stored and multiplied. Tensors of `f8e4m3` and `f8e5m2` are cast, moved and multiplied as matrices,
//!   both operands of one type; the result is f32, and scales, bias and the cast of the result are an epilogue
//!   (`aten::_scaled_mm`). Accumulators are zero-initialised every 128 elements of K, as with 3xTF32. Casts of numbers
//!   beyond the largest give NaN, or infinity if the type has one, as in PyTorch. The host multiplies in f32, and GPUs
//!   in f16 where `wgmma` does not take the matmul.
//! - **Batch invariance**: the order of sums may not depend on the number of rows, which decides what form, fusion and
//!   schedule is the cheapest. So only rules that keep all bits apply, every op rounds to its type, K is not split,
//!   operands are not swapped, tiles hold one row, and [`Hardware::counted`](crate::Hardware::counted) replaces the
//!   number of rows where the order of a sum is chosen. `crates/difftest/src/invariance.rs` checks it.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Which deviations from the graph's arithmetic are allowed. Each class allows what the ones before it allow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numerics {
    /// The graph's operations as written, each rounded to its type ([`Rounding::PerOp`]), nothing reassociated.
    Exact,
    /// What PyTorch's defaults allow: sums are reassociated, half types are f32 within a kernel, and on GPUs
    /// convolutions of f32 round their operands to tf32, as `torch.backends.cudnn.allow_tf32` is true by default.
    /// Matmuls of f32 are full f32, as `torch.get_float32_matmul_precision()` is "highest".
    #[default]
    Torch,
    /// Approximations as well: matmuls of f32 in tf32 on GPUs, and attention by 3xTF32, as
    /// `torch.set_float32_matmul_precision("high")`.
    Fast,
}

impl Numerics {
    /// All classes, the strictest first.
    pub const ALL: [Numerics; 3] = [Numerics::Exact, Numerics::Torch, Numerics::Fast];
    /// The name on the command line and in plans.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Torch => "torch",
            Numerics::Fast => "fast",
        }
    }
}

/// The numerical guarantees of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Contract {
    /// Which deviations from the graph's arithmetic are allowed.
    pub numerics: Numerics,
    /// Large f32 matmuls and f32 attention may use 3xTF32, which is as accurate except for operands near either end of
    /// the range ([`Precision::Tf32x3`]).
    pub splits: bool,
    /// f32 convolutions do not round their operands to tf32, as with `torch.backends.cudnn.allow_tf32 = False`, and no
    /// matmul does.
    #[serde(default)]
    pub no_tf32: bool,
    /// The bytes of a row of the result do not depend on how many other rows there are.
    pub batch_invariant: bool,
}

impl Contract {
    /// The class of the rewrite rules that may be applied. Which form is the cheapest depends on the batch, so all
    /// forms of a batch-invariant plan must have the same bits.
    pub fn rules(self) -> Numerics {
        if self.batch_invariant { Numerics::Exact } else { self.numerics }
    }
    /// Where kernels round. Which values share a kernel depends on the batch, so a batch-invariant plan rounds after
    /// every op.
    pub fn rounding(self) -> Rounding {
        if self.rules() == Numerics::Exact { Rounding::PerOp } else { Rounding::AtStores }
    }
    /// The precision of f32 convolutions on a GPU with tf32.
    pub fn conv(self) -> Precision {
        match self.numerics {
            Numerics::Torch | Numerics::Fast if !self.no_tf32 => Precision::Tf32,
            _ => self.split(),
        }
    }
    /// The precision of f32 matmuls on a GPU with tf32.
    pub fn matmul(self) -> Precision {
        if self.numerics == Numerics::Fast && !self.no_tf32 { Precision::Tf32 } else { self.split() }
    }
    fn split(self) -> Precision {
        // Whether 3xTF32 is faster depends on the batch.
        if self.splits && !self.batch_invariant { Precision::Tf32x3 } else { Precision::Exact }
    }
}

impl From<Numerics> for Contract {
    fn from(numerics: Numerics) -> Contract {
        Contract { numerics, ..Contract::default() }
    }
}

/// As `torch`, `exact+batch_invariant`, `torch+splits`.
impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.numerics.name())?;
        let options = [("splits", self.splits), ("no_tf32", self.no_tf32), ("batch_invariant", self.batch_invariant)];
        for (word, is_set) in options {
            if is_set {
                write!(f, "+{word}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Contract {
    type Err = String;
    fn from_str(text: &str) -> Result<Contract, String> {
        let mut words = text.split('+');
        let name = words.next().unwrap_or_default();
        let numerics = Numerics::ALL.into_iter().find(|n| n.name() == name);
        let mut contract: Contract = numerics.ok_or_else(|| format!("`{name}` is not exact, torch or fast"))?.into();
        for word in words {
            match word {
                "splits" => contract.splits = true,
                "no_tf32" => contract.no_tf32 = true,
                "batch_invariant" => contract.batch_invariant = true,
                other => return Err(format!("`{other}` is not splits, no_tf32 or batch_invariant")),
            }
        }
        Ok(contract)
    }
}

/// Where a kernel rounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Values of half types are f32 inside the kernel, and rounded where they are stored or cast. A product and a sum
    /// after it may be one FMA, and a quotient a product with a reciprocal.
    #[default]
    AtStores,
    /// After each op of the body, to the op's type.
    PerOp,
}
impl Rounding {
    /// The name in plans; `None` for the default.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Rounding::AtStores => None,
            Rounding::PerOp => Some("per-op"),
        }
    }
}

/// The precision of the f32 matmuls and convolutions of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Full f32.
    #[default]
    Exact,
    /// 3xTF32, where that is faster: operands are sums of two tf32 numbers. As accurate as f32 for operands from 2^-100
    /// on (to 22 bits where a sum is a single product), and finite if operands and products are below 2^127.
    Tf32x3,
    /// Operands in tf32 (10 bits of mantissa), accumulated in f32.
    Tf32,
}
impl Precision {
    /// The name in plans; `None` for full f32.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Precision::Exact => None,
            Precision::Tf32x3 => Some("tf32x3"),
            Precision::Tf32 => Some("tf32"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_prints_and_parses_back() {
        for numerics in Numerics::ALL {
            for bits in 0..8 {
                let (splits, no_tf32, batch_invariant) = (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0);
                let c = Contract { numerics, splits, no_tf32, batch_invariant };
                assert_eq!(c.to_string().parse(), Ok(c));
            }
        }
        assert_eq!("reassociates".parse::<Contract>(), Err("`reassociates` is not exact, torch or fast".into()));
        assert!("torch+twice".parse::<Contract>().is_err());
    }

    #[test]
    fn tf32_is_pytorchs_default_for_convolutions_alone() {
        let torch = Contract::default();
        assert_eq!((torch.conv(), torch.matmul()), (Precision::Tf32, Precision::Exact));
        let exact = Contract::from(Numerics::Exact);
        assert_eq!((exact.conv(), exact.matmul()), (Precision::Exact, Precision::Exact));
        assert_eq!(Contract::from(Numerics::Fast).matmul(), Precision::Tf32);
        assert_eq!(Contract { splits: true, ..exact }.conv(), Precision::Tf32x3);
        for numerics in Numerics::ALL {
            let full = Contract { no_tf32: true, ..numerics.into() };
            assert_eq!((full.conv(), full.matmul()), (Precision::Exact, Precision::Exact));
        }
    }
}
