//! Machine code of GPU programs (cubins), so that loading an artifact does not wait for the driver's assembler.
//!
//! Takes: PTX. Gives: what `ptxas` makes of it, by the digest of the text: code that was generated again finds its
//! machine code only if it is the same text. Never: decides whether machine code from a file is trusted; that is
//! [`crate::CompileOptions::machine_code`].
use crate::{Error, digest::digest, facts, ptxas, workers};
use kiln_machine::Arch as Target;
use kiln_runtime::Cubin;
use std::{collections::BTreeMap, sync::Arc};

/// Machine code by the digest of its PTX.
#[derive(Clone, Default, Debug)]
pub struct Cubins {
    capability: (u32, u32),
    all: BTreeMap<String, Arc<[u8]>>,
}

impl Cubins {
    /// None yet, for programs of this target; `None` if it is no GPU.
    pub(crate) fn new(target: Target) -> Option<Cubins> {
        Some(Cubins { capability: capability(target)?, all: BTreeMap::new() })
    }
    /// Has `ptxas` assemble these texts, on all cores.
    ///
    /// # Errors
    /// [`Error::Usage`] if the target is no GPU; [`Error::Failed`] if there is no `ptxas`, or it refuses a text.
    pub fn assemble<'a>(texts: impl Iterator<Item = &'a str>, target: Target) -> Result<Cubins, Error> {
        let mut made = Cubins::new(target)
            .ok_or_else(|| Error::usage(format!("the target {target} has no cubin"), "add --target sm_90a"))?;
        let ptxas = ptxas::find_ptxas().ok_or_else(|| {
            Error::failed(
                "machine code needs ptxas, which was not found",
                "run scripts/setup, or put ptxas on the PATH",
            )
        })?;
        let texts: Vec<&str> = texts.filter(|t| !t.is_empty()).collect();
        let cubins = workers::map(&texts, |text| facts::cubin(&ptxas, text, target.name()));
        for (text, cubin) in texts.iter().zip(cubins) {
            made.put(digest(text.as_bytes()), cubin?);
        }
        Ok(made)
    }
    /// Adds machine code by the digest of its PTX.
    pub(crate) fn put(&mut self, ptx: String, cubin: Vec<u8>) {
        self.all.insert(ptx, cubin.into());
    }
    /// The machine code of this PTX.
    pub fn of(&self, ptx: &str) -> Option<Cubin> {
        if self.all.is_empty() {
            return None;
        }
        let bytes = self.all.get(&digest(ptx.as_bytes()))?.clone();
        Some(Cubin { capability: self.capability, bytes })
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// The compute capability (major, minor) that machine code of a target runs on; `None` if the target is no GPU.
pub(crate) fn capability(target: Target) -> Option<(u32, u32)> {
    let number: u32 = target.name().strip_prefix("sm_")?.trim_end_matches('a').parse().ok()?;
    Some((number / 10, number % 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_is_found_by_the_text_it_was_made_from() {
        let mut cubins = Cubins::new(Target::Sm90a).expect("a GPU");
        assert!(cubins.is_empty() && cubins.of("text").is_none());
        cubins.put(digest(b"text"), vec![1, 2]);
        let found = cubins.of("text").expect("put");
        assert_eq!((found.capability, &found.bytes[..]), ((9, 0), &[1, 2][..]));
        assert!(cubins.of("text ").is_none());
        assert_eq!(Cubins::new(Target::Sm89).map(|c| c.capability), Some((8, 9)));
        assert!(Cubins::new(Target::Cpu).is_none());
    }
}
