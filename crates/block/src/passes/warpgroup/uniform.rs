//! Which values are the same in all blocks of a cluster.
use crate::{BinaryOp, BlockProgram, Const, Inst, Op, Region, Value};
use std::collections::HashSet;

/// Whether a tile load reads the same tile in all blocks of a cluster, equally often.
pub fn over_cluster(k: &BlockProgram, load: Inst) -> bool {
    let mut d = Differ { k, numbers: HashSet::new(), sizes: HashSet::new(), values: HashSet::new(), trips: false };
    // To a fixed point, as carried values feed back.
    loop {
        let before = d.values.len();
        d.region(&k.body);
        if d.values.len() == before {
            break;
        }
    }
    !d.trips && !k.inst(load).args.iter().any(|v| d.values.contains(v))
}

struct Differ<'k> {
    k: &'k BlockProgram,
    /// The block's number, and constants of the cluster's size.
    numbers: HashSet<Value>,
    sizes: HashSet<Value>,
    /// Values that differ.
    values: HashSet<Value>,
    /// The number of iterations of a loop differs.
    trips: bool,
}

impl Differ<'_> {
    fn region(&mut self, r: &Region) {
        let k = self.k;
        for &i in &r.insts {
            let data = k.inst(i);
            match (&data.op, &data.args[..]) {
                (Op::Const(Const::Int(n)), _) if *n == k.cluster as i64 => _ = self.sizes.insert(data.results[0]),
                (Op::ProgramId(0), _) => {
                    self.numbers.insert(data.results[0]);
                    self.values.insert(data.results[0]);
                }
                // Blocks of a cluster have consecutive numbers.
                (Op::Binary(BinaryOp::Div), [n, size]) if self.numbers.contains(n) && self.sizes.contains(size) => {}
                (Op::For, args) => {
                    self.trips |= args[..3].iter().any(|v| self.values.contains(v));
                    let region = &data.regions[0];
                    self.region(region);
                    let next = region.insts.last().map(|i| &k.inst(*i).args[..]).unwrap_or_default();
                    for (n, (init, next)) in args[3..].iter().zip(next).enumerate() {
                        if self.values.contains(init) || self.values.contains(next) {
                            self.values.extend([region.params[1 + n], data.results[n]]);
                        }
                    }
                }
                (_, args) => {
                    if args.iter().any(|v| self.values.contains(v)) {
                        self.values.extend(&data.results);
                    }
                    data.regions.iter().for_each(|r| self.region(r));
                }
            }
        }
    }
}
