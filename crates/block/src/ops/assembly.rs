//! Inline assembly: text of a GPU's machine language that computes elements from elements.
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// The most elements of a block that one execution takes.
const MAX_PACK: u32 = 32;

/// Text, and how elements reach it. `$0`, `$1`, … are the registers of the results, then those of the operands.
/// Elements narrower than 32 bits share registers, up to `pack` of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Assembly {
    pub text: String,
    /// A letter for each register, as LLVM's constraints: `=r,=r,r,l`.
    pub constraints: String,
    /// Elements of each block that one execution takes; a power of two.
    pub pack: u32,
    pub effects: Effects,
}

/// Whether it is kept, and in its place, whoever uses its results.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effects {
    Pure,
    Volatile,
}

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Register {
    Predicate,
    Bits16,
    Bits32,
    Bits64,
    Float32,
    Float64,
    /// A constant in the text.
    Immediate,
    /// The register of a result.
    Same(usize),
}

impl Register {
    fn named(letter: &str) -> Option<Register> {
        match letter {
            "b" => Some(Register::Predicate),
            "h" => Some(Register::Bits16),
            "r" => Some(Register::Bits32),
            "l" => Some(Register::Bits64),
            "f" => Some(Register::Float32),
            "d" => Some(Register::Float64),
            "n" | "i" => Some(Register::Immediate),
            number => number.parse().ok().map(Register::Same),
        }
    }
}

/// The registers of a text, by its constraints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    pub results: Vec<Register>,
    pub operands: Vec<Register>,
}

impl Assembly {
    /// The constraints read; `Err` says what is wrong with them.
    pub fn registers(&self) -> Result<Registers, String> {
        let mut registers = Registers::default();
        for constraint in self.listed().filter(|constraint| !constraint.starts_with('~')) {
            let unknown = || {
                format!(
                    "`{constraint}` is no constraint of a GPU's assembly; h, r, l, f, d, b and n are, with = before \
                         those of results"
                )
            };
            match constraint.strip_prefix('=') {
                Some(letter) => {
                    let register = Register::named(letter.trim_start_matches('&')).ok_or_else(unknown)?;
                    if !registers.operands.is_empty() || matches!(register, Register::Immediate | Register::Same(_)) {
                        return Err(unknown());
                    }
                    registers.results.push(register);
                }
                None => registers.operands.push(Register::named(constraint).ok_or_else(unknown)?),
            }
        }
        let results = registers.results.len();
        match registers.operands.iter().find(|register| matches!(register, Register::Same(n) if *n >= results)) {
            Some(Register::Same(n)) => Err(format!("the constraint {n} names a result that there is not")),
            _ => Ok(registers),
        }
    }
    /// The constraints without spaces, and with memory as what a text with effects changes.
    pub fn llvm_constraints(&self) -> String {
        let memory = (self.effects == Effects::Volatile).then_some("~{memory}");
        self.listed().chain(memory).collect::<Vec<_>>().join(",")
    }
    fn listed(&self) -> impl Iterator<Item = &str> {
        self.constraints.split(',').map(str::trim).filter(|constraint| !constraint.is_empty())
    }
    /// Elements of this type in one register.
    pub fn elements_per_register(&self, ty: &Type) -> u32 {
        let bits = match ty {
            Type::Block { elem, .. } => 8 * elem.bytes() as u32,
            _ => 64,
        };
        (32 / bits).max(1).min(self.pack)
    }
    /// Registers that blocks of these types take in one execution.
    pub fn register_count<'t>(&self, types: impl Iterator<Item = &'t Type>) -> usize {
        types.map(|ty| (self.pack / self.elements_per_register(ty)) as usize).sum()
    }
    pub fn has_valid_pack(&self) -> bool {
        self.pack.is_power_of_two() && self.pack <= MAX_PACK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Elem;

    fn assembly(constraints: &str, pack: u32) -> Assembly {
        Assembly { text: String::new(), constraints: constraints.into(), pack, effects: Effects::Volatile }
    }

    #[test]
    fn constraints_are_read() {
        let registers = assembly("=&r, =h,l, 1,n,~{memory}", 1).registers().unwrap();
        assert_eq!(registers.results, [Register::Bits32, Register::Bits16]);
        assert_eq!(registers.operands, [Register::Bits64, Register::Same(1), Register::Immediate]);
        for wrong in ["=v,v", "r,=r", "=n", "=r,1"] {
            assert!(assembly(wrong, 1).registers().is_err(), "{wrong}");
        }
        assert_eq!(assembly("=r, l", 1).llvm_constraints(), "=r,l,~{memory}");
    }

    #[test]
    fn narrow_elements_share_registers() {
        let types = [Elem::I8, Elem::F16, Elem::F32, Elem::I64].map(|elem| Type::block(elem, [64]));
        let counts =
            |pack| types.iter().map(|ty| assembly("", pack).register_count([ty].into_iter())).collect::<Vec<_>>();
        assert_eq!(counts(1), [1, 1, 1, 1]);
        assert_eq!(counts(2), [1, 1, 2, 2]);
        assert_eq!(counts(8), [2, 4, 8, 8]);
    }
}
