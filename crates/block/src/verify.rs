//! verify
use crate::{BlockError, Kernel};
pub fn verify(_k: &Kernel) -> Result<(), BlockError> {
    Ok(())
}
