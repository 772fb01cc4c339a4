//! A kernel: flat arenas of values and instructions, regions by id. Entities are u32 newtypes; `Display` is the text
//! syntax.
use crate::{AtomicOp, Elem, Layout, Op, Type};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// `v3`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Value(pub u32);
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Inst(pub u32);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ValueData {
    pub ty: Type,
    /// How the elements are distributed over the registers of the threads; set by the layout pass, absent in
    /// upper-level programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InstData {
    pub op: Op,
    pub args: Vec<Value>,
    pub results: Vec<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<Region>,
}
impl InstData {
    /// The operand that a matmul adds to, if this is one.
    pub fn accumulator(&self) -> Option<Value> {
        match self.op {
            Op::Dot { .. } => self.args.get(2).copied(),
            Op::Wgmma { .. } => self.args.last().copied(),
            Op::SharedDot { .. } => self.args.get(4).copied(),
            _ => None,
        }
    }
    /// The left operand of a `wgmma` that is a block in registers.
    pub fn left_in_registers(&self) -> Option<Value> {
        match (&self.op, &self.args[..]) {
            (Op::Wgmma { .. }, [left, _, _, _]) => Some(*left),
            _ => None,
        }
    }
}

/// A straight list of instructions; nested ones end in `yield`, the kernel's own has none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Region {
    pub params: Vec<Value>,
    pub insts: Vec<Inst>,
}

/// What is known about a parameter before its value is: each fact holds for every launch of the program. Programs of
/// other facts are other programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Divides an integer; 1 where nothing is known. Pointers have an alignment instead.
    pub div: i64,
    /// The value of an integer or a bool (0 or 1).
    pub equals: Option<i64>,
    /// Least and largest value of an integer.
    pub least: Option<i64>,
    pub most: Option<i64>,
    /// A pointer's tensor has fewer than 2^31 elements.
    pub span32: bool,
    /// No other parameter points to memory of this pointer's tensor.
    pub noalias: bool,
}
impl Default for Facts {
    fn default() -> Facts {
        Facts { div: 1, equals: None, least: None, most: None, span32: false, noalias: false }
    }
}
impl Facts {
    pub fn is_empty(&self) -> bool {
        *self == Facts::default()
    }
    /// Least and largest value of an integer of this range, as far as the facts say.
    pub fn range(&self, (lo, hi): (i64, i64)) -> (i64, i64) {
        match self.equals {
            Some(n) => (n, n),
            None => (self.least.map_or(lo, |n| n.max(lo)), self.most.map_or(hi, |n| n.min(hi))),
        }
    }
    /// Whether a number is as the facts say.
    pub fn allow(&self, n: i64) -> bool {
        let (lo, hi) = self.range((i64::MIN, i64::MAX));
        (lo..=hi).contains(&n) && n.checked_rem(self.div) == Some(0)
    }
}

/// Program instances along each axis of the grid; 0 along any axis: nothing runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Grid {
    Constant([usize; 3]),
    /// Given with each launch; programs read it by [`Op::NumPrograms`].
    Launch,
}
impl Grid {
    /// The most instances along an axis, of any launch.
    pub const MOST: i64 = i32::MAX as i64;

    /// The sizes, if they are constants of the program.
    pub fn constant(self) -> Option<[usize; 3]> {
        match self {
            Grid::Constant(sizes) => Some(sizes),
            Grid::Launch => None,
        }
    }
    /// The size along an axis, if it is a constant.
    pub fn along(self, axis: u8) -> Option<usize> {
        self.constant()?.get(axis as usize).copied()
    }
}
impl Default for Grid {
    fn default() -> Grid {
        Grid::Constant([0; 3])
    }
}
impl From<[usize; 3]> for Grid {
    fn from(sizes: [usize; 3]) -> Grid {
        Grid::Constant(sizes)
    }
}
impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grid::Constant([x, y, z]) => write!(f, "[{x}, {y}, {z}]"),
            Grid::Launch => f.write_str("launch"),
        }
    }
}

/// A parameter of a kernel: a global pointer, a descriptor, or a scalar.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Param {
    pub name: String,
    pub value: Value,
    /// Alignment of the address in bytes (pointers; a power of two).
    pub align: usize,
    /// Never written through, and its memory is not written by anything else while the program runs.
    pub readonly: bool,
    /// The array of a descriptor; `None`: whoever launches the kernel supplies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<Array>,
    /// The array of a descriptor that the launcher makes of other parameters: no argument is passed for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_array: Option<LaunchArray>,
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub facts: Facts,
}

/// A strided array in a buffer, in elements, outermost axis first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Array {
    pub offset: usize,
    pub sizes: Vec<usize>,
    pub strides: Vec<usize>,
}

/// An array in the memory of a pointer parameter, whose sizes and strides are numbers of the launch; axes as in
/// [`Array`]. The parameters that it names come before its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LaunchArray {
    /// The position of the pointer among the parameters.
    pub base: usize,
    pub sizes: Vec<Extent>,
    pub strides: Vec<Extent>,
}

/// A product of a number and of integer parameters, by their positions.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Extent {
    pub factor: i64,
    pub params: Vec<usize>,
}
impl Extent {
    /// Where an axis has no end: no tile starts there.
    pub const ENDLESS: Extent = Extent { factor: 1 << 31, params: vec![] };

    pub fn constant(factor: i64) -> Extent {
        Extent { factor, params: vec![] }
    }
    /// Its value, by those of parameters; `None` if one is not known, or the product overflows.
    pub fn value(&self, number: impl Fn(usize) -> Option<i64>) -> Option<i64> {
        self.params.iter().try_fold(self.factor, |product, n| product.checked_mul(number(*n)?))
    }
}

/// What code generation may do to float arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// A multiplication and an addition may become one FMA, and a division a multiplication by a reciprocal.
    #[default]
    Contracted,
    /// Every instruction rounds once, as IEEE 754 requires. Elementary functions keep their own accuracy.
    Ieee,
}

fn one() -> usize {
    1
}

/// A block program. Block shapes are constants of the program; scalar parameters and the grid may be those of the
/// launch.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BlockProgram {
    pub name: String,
    pub params: Vec<Param>,
    pub grid: Grid,
    /// Warps of an instance on a GPU (a power of two without roles).
    pub warps: usize,
    /// Blocks of a cluster that share an instance, each with its part of the warps.
    #[serde(default = "one")]
    pub blocks: usize,
    /// Blocks in a cluster along axis 0.
    pub cluster: usize,
    /// Most registers of a thread: values that need more are kept in memory, so that blocks of several instances fit a
    /// multiprocessor. With roles: those that threads start with.
    #[serde(default)]
    pub registers: Option<usize>,
    /// Neighbours along the contiguous axis of its accesses that a thread holds at least; by their alignment otherwise.
    #[serde(default)]
    pub vector: Option<usize>,
    /// Lanes of a warp along that axis, at most; the others have elements of another axis.
    #[serde(default)]
    pub lanes: Option<usize>,
    /// Launched before the kernel ahead of it in the stream has ended, for whose end it then waits (programmatic
    /// dependent launch).
    #[serde(default)]
    pub dependent: bool,
    #[serde(default)]
    pub arithmetic: Arithmetic,
    pub values: Vec<ValueData>,
    pub insts: Vec<InstData>,
    pub body: Region,
}

impl BlockProgram {
    pub fn value(&self, v: Value) -> &ValueData {
        &self.values[v.0 as usize]
    }
    pub fn ty(&self, v: Value) -> &Type {
        &self.values[v.0 as usize].ty
    }
    pub fn inst(&self, i: Inst) -> &InstData {
        &self.insts[i.0 as usize]
    }
    pub fn inst_mut(&mut self, i: Inst) -> &mut InstData {
        &mut self.insts[i.0 as usize]
    }
    pub fn new_value(&mut self, ty: Type) -> Value {
        self.values.push(ValueData { ty, layout: None });
        Value(self.values.len() as u32 - 1)
    }
    pub fn new_inst(&mut self, data: InstData) -> Inst {
        self.insts.push(data);
        Inst(self.insts.len() as u32 - 1)
    }
    /// Puts instructions before `inst`, in its region; false if no region has it.
    pub fn insert_before(&mut self, inst: Inst, new: Vec<Inst>) -> bool {
        self.edit_around(inst, |insts, at| _ = insts.splice(at..at, new))
    }
    /// Takes an instruction out of its region; false if no region has it.
    pub fn remove(&mut self, inst: Inst) -> bool {
        self.edit_around(inst, |insts, at| _ = insts.remove(at))
    }
    /// Calls `edit` with the instructions of the region that has `inst`, and its place there.
    fn edit_around(&mut self, inst: Inst, edit: impl FnOnce(&mut Vec<Inst>, usize)) -> bool {
        let nested = self.insts.iter_mut().flat_map(|data| &mut data.regions);
        for region in std::iter::once(&mut self.body).chain(nested) {
            if let Some(at) = region.insts.iter().position(|i| *i == inst) {
                edit(&mut region.insts, at);
                return true;
            }
        }
        false
    }
    /// Has all instructions that take `old` take `new`.
    pub fn replace(&mut self, old: Value, new: Value) {
        for arg in self.insts.iter_mut().flat_map(|data| &mut data.args).filter(|arg| **arg == old) {
            *arg = new;
        }
    }
    /// Number of program instances, if it is a constant.
    pub fn instances(&self) -> Option<usize> {
        self.grid.constant().map(|sizes| sizes.iter().product())
    }
    /// Whether each launch has values of its own besides addresses: a grid, or scalar parameters.
    pub fn has_launch_values(&self) -> bool {
        self.grid == Grid::Launch || self.params.iter().any(|p| matches!(self.ty(p.value), Type::Block { .. }))
    }
    /// Whether floats are added to memory in an order that is open, so that two runs may round differently.
    pub fn adds_in_any_order(&self) -> bool {
        let mut found = false;
        self.walk(&mut |_, d| {
            let adds = matches!(d.op, Op::Atomic { op: AtomicOp::Add, .. });
            found |= adds && self.ty(d.args[1]).elem().is_some_and(Elem::is_float);
        });
        found
    }
    /// The instruction that gives each value; parameters have none.
    pub fn definitions(&self) -> HashMap<Value, Inst> {
        let mut made = HashMap::new();
        self.walk(&mut |inst, data| made.extend(data.results.iter().map(|v| (*v, inst))));
        made
    }
    /// Of a region's instructions, not of those in their regions, the one that gives each value.
    pub fn definitions_in(&self, r: &Region) -> HashMap<Value, Inst> {
        r.insts.iter().flat_map(|i| self.inst(*i).results.iter().map(|v| (*v, *i))).collect()
    }
    /// Visits every instruction in program order; an op's regions follow the op.
    pub fn walk(&self, f: &mut impl FnMut(Inst, &InstData)) {
        self.walk_region(&self.body, f);
    }
    pub fn walk_region(&self, r: &Region, f: &mut impl FnMut(Inst, &InstData)) {
        for &i in &r.insts {
            let data = self.inst(i);
            f(i, data);
            for inner in &data.regions {
                self.walk_region(inner, f);
            }
        }
    }
    /// The same kernel without unreachable values and instructions, renumbered: parameters first, then values in the
    /// order of their old numbers; an op's instruction follows those of its regions. This is what parsing the text form
    /// gives.
    pub fn compacted(&self) -> BlockProgram {
        let mut used = vec![false; self.values.len()];
        let mut mark = |v: &Value| {
            if let Some(u) = used.get_mut(v.0 as usize) {
                *u = true;
            }
        };
        self.walk(&mut |_, data| {
            data.args.iter().chain(&data.results).for_each(&mut mark);
            data.regions.iter().flat_map(|r| &r.params).for_each(&mut mark);
        });
        let mut to: Vec<Option<Value>> = vec![None; self.values.len()];
        let params = self.params.iter().map(|p| p.value.0 as usize);
        let others = (0..used.len()).filter(|i| used[*i]);
        let mut n = 0;
        for i in params.chain(others) {
            if let Some(to @ None) = to.get_mut(i) {
                *to = Some(Value(n));
                n += 1;
            }
        }
        // Unreachable values are numbered past the end and cut off.
        let mut past = n;
        let to: Vec<Value> = to
            .into_iter()
            .map(|t| {
                t.unwrap_or_else(|| {
                    past += 1;
                    Value(past - 1)
                })
            })
            .collect();
        let mut k = self.renumbered(&to);
        k.values.truncate(n as usize);
        let insts = std::mem::take(&mut k.insts);
        let mut body = std::mem::take(&mut k.body);
        k.sort_insts(&insts, &mut body);
        k.body = body;
        k
    }
    fn sort_insts(&mut self, old: &[InstData], r: &mut Region) {
        for i in &mut r.insts {
            let mut data = old[i.0 as usize].clone();
            data.regions.iter_mut().for_each(|r| self.sort_insts(old, r));
            *i = self.new_inst(data);
        }
    }
    /// Renumbers every value `v` to `to[v]`, a permutation.
    pub fn renumbered(&self, to: &[Value]) -> BlockProgram {
        fn region(r: &mut Region, new: &impl Fn(&mut Value)) {
            r.params.iter_mut().for_each(new);
        }
        let new = |v: &mut Value| *v = to.get(v.0 as usize).copied().unwrap_or(*v);
        let mut k = self.clone();
        for (old, data) in self.values.iter().enumerate() {
            k.values[to[old].0 as usize] = data.clone();
        }
        k.params.iter_mut().for_each(|p| new(&mut p.value));
        for data in &mut k.insts {
            data.args.iter_mut().chain(&mut data.results).for_each(new);
            data.regions.iter_mut().for_each(|r| region(r, &new));
        }
        region(&mut k.body, &new);
        k
    }
}
