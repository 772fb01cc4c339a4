//! The contract of a plan: how its results may differ from the graph as written.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What arithmetic may be done differently. Each class allows what the ones before it allow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numerics {
    /// The graph's operations as they are written, each rounded to its type ([`Rounding::PerOp`]): nothing is regrouped.
    Exact,
    /// What PyTorch's own defaults allow: sums are regrouped, half types are f32 within a kernel, and on GPUs convolutions of f32 take
    /// their operands as tf32, as `torch.backends.cudnn.allow_tf32` is true unless it is set. Matmuls of f32 are full f32, as
    /// `torch.get_float32_matmul_precision()` is "highest".
    #[default]
    Torch,
    /// Approximations as well: matmuls of f32 in tf32 on GPUs, as `torch.set_float32_matmul_precision("high")`.
    Fast,
}

impl Numerics {
    /// All of them, the strictest first.
    pub const ALL: [Numerics; 3] = [Numerics::Exact, Numerics::Torch, Numerics::Fast];
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Torch => "torch",
            Numerics::Fast => "fast",
        }
    }
}

/// All that a plan promises of its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Contract {
    /// What arithmetic may be done differently.
    pub numerics: Numerics,
    /// Large matmuls of f32 may be three of tf32, as accurate but for operands near either end of the range ([`Precision::Tf32x3`]).
    pub splits: bool,
    /// The bytes of a row of the result do not depend on how many other rows there are.
    pub batch_invariant: bool,
}

impl Contract {
    /// Which rules may be applied: which form is the cheapest depends on the batch, so of an invariant plan all forms have the same bits.
    pub fn rules(self) -> Numerics {
        if self.batch_invariant { Numerics::Exact } else { self.numerics }
    }
    /// Where kernels round. Which values share a kernel depends on the batch, so an invariant plan rounds after every op.
    pub fn rounding(self) -> Rounding {
        if self.rules() == Numerics::Exact { Rounding::PerOp } else { Rounding::AtStores }
    }
    /// What convolutions of f32 are made of on a GPU with tf32.
    pub fn conv(self) -> Precision {
        match self.numerics {
            Numerics::Exact => self.split(),
            Numerics::Torch | Numerics::Fast => Precision::Tf32,
        }
    }
    /// What matmuls of f32 are made of on a GPU with tf32.
    pub fn matmul(self) -> Precision {
        if self.numerics == Numerics::Fast { Precision::Tf32 } else { self.split() }
    }
    fn split(self) -> Precision {
        // Where three matmuls are faster than one depends on the batch.
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
        for (word, is_set) in [("splits", self.splits), ("batch_invariant", self.batch_invariant)] {
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
                "batch_invariant" => contract.batch_invariant = true,
                other => return Err(format!("`{other}` is not splits or batch_invariant")),
            }
        }
        Ok(contract)
    }
}

/// Where a kernel rounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Values of half types are f32 inside the kernel, and rounded where they are stored or cast. A product and a sum after it may
    /// be one FMA, and a quotient a product with a reciprocal.
    #[default]
    AtStores,
    /// After each op of the body, to the op's type.
    PerOp,
}
impl Rounding {
    /// `None` for the usual.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Rounding::AtStores => None,
            Rounding::PerOp => Some("per-op"),
        }
    }
}

/// What the f32 matmuls and convolutions of a kernel are made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32.
    #[default]
    Exact,
    /// Three matmuls of operands as sums of two numbers in tf32, where that is faster. As accurate as in f32 for operands from 2^-100
    /// on (where a sum is one product, to 22 bits), and finite where the operands are below 2^127 and so are the products.
    Tf32x3,
    /// Operands in tf32, with 10 bits after the point, summed in f32.
    Tf32,
}
impl Precision {
    /// What is said of it; nothing of full f32.
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
            for bits in 0..4 {
                let c = Contract { numerics, splits: bits & 1 > 0, batch_invariant: bits & 2 > 0 };
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
    }
}
