//! How memory accesses divide their bytes among registers.
use kiln_block::Elem;

/// How the bytes of one access are held: in `words` registers of `bits`.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub words: usize,
    pub bits: usize,
}
impl Words {
    pub fn of(bytes: usize, elem: Elem) -> Words {
        let bits = match bytes {
            1 | 2 => bytes * 8,
            _ if elem.bytes() == 8 => 64,
            _ => 32,
        };
        Words { words: bytes * 8 / bits, bits }
    }
    /// Constraint of a register, and the PTX type.
    pub fn asm(self) -> (char, String) {
        let letter = match self.bits {
            64 => 'l',
            16 => 'h',
            _ => 'r',
        };
        let vector = if self.words > 1 { format!(".v{}", self.words) } else { String::new() };
        let ty = if self.bits == 8 { "u8".into() } else { format!("b{}", self.bits) };
        (letter, format!("{vector}.{ty}"))
    }
}
