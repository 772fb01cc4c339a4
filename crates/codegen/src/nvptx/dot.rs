//! Matrix products.
use super::emit::{Fail, Res};
use super::r#gen::Gen;
use super::index::Reg;
use kiln_block::{DotPrecision, InstData};

impl<'c> Gen<'c, '_> {
    pub fn dot(&mut self, data: &InstData, precision: DotPrecision) -> Res<Vec<Reg<'c>>> {
        let _ = (data, precision);
        Err(Fail::Unsupported("a product".into()))
    }
}
