//! Out-of-range indices of gathers, takes and scatters: the record that a kernel's code writes, and the message for the
//! user.
use crate::Kernel;
use kiln_graph::{Op, ValueId};

/// Low bits of a kernel's fault record that hold the index; the record is an i64, 0 as long as all indices were in
/// range.
const INDEX_BITS: u32 = 44;

/// An out-of-range index, as recorded by a kernel's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The node of the kernel's body that used it.
    pub site: ValueId,
    /// The index as given, which may be negative.
    pub index: i64,
}
impl Fault {
    /// Decodes a record as written by `check` in block programs: the index (signed) in the low 44 bits, and the site
    /// plus one above them. `None` if all indices were in range.
    pub fn of(record: i64) -> Option<Fault> {
        let site = u32::try_from(record >> INDEX_BITS).ok()?.checked_sub(1)?;
        let spare = i64::BITS - INDEX_BITS;
        Some(Fault { site: ValueId(site), index: record << spare >> spare })
    }
}

/// A node of a kernel's body that takes indices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexSite {
    /// The node, in the kernel's body.
    pub node: ValueId,
    /// Name of its op.
    pub op: &'static str,
    /// Module and `file:line` of the model's source, as far as known.
    pub place: String,
    /// Indices must be below this.
    pub extent: usize,
}
impl IndexSite {
    /// All sites of a kernel.
    pub fn all(k: &Kernel) -> Vec<IndexSite> {
        let one = |v: ValueId| {
            let axis = match k.body.op(v) {
                Op::Gather { axis } | Op::Take { axis } | Op::Scatter { axis, .. } => *axis,
                _ => return None,
            };
            let extent = k.body.args(v).first().and_then(|x| k.body.shape(*x).get(axis).copied())?;
            Some(IndexSite { node: v, op: k.body.op(v).name(), place: k.body.source(v).place(), extent })
        };
        k.body.values().filter_map(one).collect()
    }
    /// The message for an out-of-range index at this site.
    pub fn sentence(&self, index: i64) -> String {
        out_of_range(self.op, &self.place, index, self.extent)
    }
}

/// The message, as `take (encoder.embed, model.py:12): index 12 is out of range for an axis of 10`.
pub fn out_of_range(op: &str, place: &str, index: i64, extent: usize) -> String {
    let place = if place.is_empty() { String::new() } else { format!(" ({place})") };
    format!("{op}{place}: index {index} is out of range for an axis of {extent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back() {
        let written = |site: i64, index: i64| (site + 1) << INDEX_BITS | index & ((1 << INDEX_BITS) - 1);
        for (site, index) in [(0, 0), (3, 12), (3, -1), (9000, -(1 << 43)), (1, (1 << 43) - 1)] {
            assert_eq!(Fault::of(written(site, index)), Some(Fault { site: ValueId(site as u32), index }));
        }
        assert_eq!(Fault::of(0), None);
    }
}
