//! Accesses of a launch that are out of bounds for certain: without a mask, outside of branches, at offsets that are
//! affine in the instance's position, the element's coordinates and loops' indices, all of which take every value of
//! their ranges.
use kiln_block::{BinaryOp, BlockProgram, Const, Inst, InstData, Op, Region, Type, Value};
use std::collections::{BTreeMap, HashMap};

/// The numbers of a launch.
#[derive(Clone, Default, Debug)]
pub struct LaunchValues {
    /// Instances along each axis.
    pub grid: [usize; 3],
    /// Of each parameter: an integer's value, a pointer's bytes; `None` where it is not known.
    pub parameters: Vec<Option<i64>>,
}

/// An access that some instance of the launch makes outside of its tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outside {
    pub inst: Inst,
    /// Number of the parameter.
    pub parameter: usize,
    pub writes: bool,
    /// The first or last element that is accessed, whichever the tensor does not have.
    pub element: i128,
    /// Elements that the tensor has.
    pub elements: i128,
}

/// What a number varies with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Variable {
    /// The coordinate along an axis of the block.
    Axis(usize),
    /// The instance's position along an axis of the grid.
    Position(u8),
    /// A loop's index.
    Index(Value),
}

/// A constant, and the factor of each variable.
#[derive(Clone, PartialEq, Debug, Default)]
struct Affine {
    constant: i128,
    terms: BTreeMap<Variable, i128>,
}

impl Affine {
    fn constant(n: i128) -> Affine {
        Affine { constant: n, terms: BTreeMap::new() }
    }
    fn variable(v: Variable) -> Affine {
        Affine { constant: 0, terms: BTreeMap::from([(v, 1)]) }
    }
    fn plus(mut self, other: &Affine, factor: i128) -> Affine {
        self.constant += factor * other.constant;
        for (v, n) in &other.terms {
            *self.terms.entry(*v).or_default() += factor * n;
        }
        self
    }
    fn renamed(&self, axis: impl Fn(usize) -> usize) -> Affine {
        let rename = |v: &Variable| if let Variable::Axis(a) = v { Variable::Axis(axis(*a)) } else { *v };
        Affine { constant: self.constant, terms: self.terms.iter().map(|(v, n)| (rename(v), *n)).collect() }
    }
}

/// A pointer's parameter and its offset in bytes, or an integer.
#[derive(Clone, Debug)]
enum Known {
    Integer(Affine),
    Pointer(usize, Affine),
}

struct Walker<'a> {
    program: &'a BlockProgram,
    launch: &'a LaunchValues,
    known: HashMap<Value, Known>,
    /// Last value of each loop's index, with its first.
    ranges: HashMap<Value, (i128, i128)>,
    found: Vec<Outside>,
}

/// The accesses of a launch that are out of bounds, whatever memory holds.
pub fn outside(program: &BlockProgram, launch: &LaunchValues) -> Vec<Outside> {
    let mut walker = Walker { program, launch, known: HashMap::new(), ranges: HashMap::new(), found: vec![] };
    if launch.grid.contains(&0) {
        return vec![];
    }
    for (n, p) in program.params.iter().enumerate() {
        let number = launch.parameters.get(n).copied().flatten();
        let known = match program.ty(p.value) {
            Type::Ptr { .. } => Some(Known::Pointer(n, Affine::default())),
            _ => number.or(p.facts.equals).map(|n| Known::Integer(Affine::constant(n.into()))),
        };
        walker.known.extend(known.map(|known| (p.value, known)));
    }
    walker.region(&program.body);
    walker.found
}

impl Walker<'_> {
    fn region(&mut self, region: &Region) {
        for inst in &region.insts {
            let data = self.program.inst(*inst);
            match data.op {
                // What is inside runs for some values only.
                Op::If | Op::While => {}
                Op::For => self.for_loop(data),
                Op::Load(..) | Op::Store(_) => self.access(*inst, data),
                _ => {
                    if let ([result], Some(known)) = (&data.results[..], self.value(data)) {
                        self.known.insert(*result, known);
                    }
                }
            }
        }
    }
    fn for_loop(&mut self, data: &InstData) {
        let constant = |n: usize| match self.known.get(&data.args[n]) {
            Some(Known::Integer(a)) if a.terms.is_empty() => Some(a.constant),
            _ => None,
        };
        let (Some(lo), Some(hi), Some(step)) = (constant(0), constant(1), constant(2)) else { return };
        if lo >= hi || step <= 0 {
            return;
        }
        let body = &data.regions[0];
        let index = body.params[0];
        self.ranges.insert(index, (lo, lo + (hi - 1 - lo) / step * step));
        self.known.insert(index, Known::Integer(Affine::variable(Variable::Index(index))));
        self.region(body);
    }
    fn integer(&self, v: Value) -> Option<&Affine> {
        match self.known.get(&v)? {
            Known::Integer(a) => Some(a),
            Known::Pointer(..) => None,
        }
    }
    fn value(&self, data: &InstData) -> Option<Known> {
        let args = &data.args;
        let moved = |axis: &dyn Fn(usize) -> usize| {
            Some(match self.known.get(&args[0])? {
                Known::Integer(a) => Known::Integer(a.renamed(axis)),
                Known::Pointer(n, a) => Known::Pointer(*n, a.renamed(axis)),
            })
        };
        match &data.op {
            Op::Const(Const::Int(n)) => Some(Known::Integer(Affine::constant((*n).into()))),
            Op::ProgramId(axis) => Some(Known::Integer(Affine::variable(Variable::Position(*axis)))),
            Op::NumPrograms(axis) => {
                let n = *self.launch.grid.get(usize::from(*axis))?;
                Some(Known::Integer(Affine::constant(n as i128)))
            }
            Op::Iota => Some(Known::Integer(Affine::variable(Variable::Axis(0)))),
            Op::Splat | Op::Broadcast => moved(&|axis| axis),
            Op::ExpandDims(new) => moved(&|axis| axis + usize::from(axis >= usize::from(*new))),
            Op::Permute(perm) => moved(&|axis| perm.iter().position(|p| usize::from(*p) == axis).unwrap_or(axis)),
            Op::Cast(elem) if !elem.is_float() => moved(&|axis| axis),
            Op::PtrAdd => {
                let Known::Pointer(n, base) = self.known.get(&args[0])? else { return None };
                let bytes = self.program.ty(args[0]).elem()?.bytes() as i128;
                Some(Known::Pointer(*n, base.clone().plus(self.integer(args[1])?, bytes)))
            }
            Op::Binary(op) => {
                let (a, b) = (self.integer(args[0])?, self.integer(args[1])?);
                Some(Known::Integer(match op {
                    BinaryOp::Add => a.clone().plus(b, 1),
                    BinaryOp::Sub => a.clone().plus(b, -1),
                    BinaryOp::Mul if b.terms.is_empty() => Affine::default().plus(a, b.constant),
                    BinaryOp::Mul if a.terms.is_empty() => Affine::default().plus(b, a.constant),
                    _ => return None,
                }))
            }
            _ => None,
        }
    }
    /// First and last value of a variable.
    fn range(&self, v: Variable, shape: &[usize]) -> Option<(i128, i128)> {
        Some(match v {
            Variable::Axis(axis) => (0, *shape.get(axis)? as i128 - 1),
            Variable::Position(axis) => (0, *self.launch.grid.get(usize::from(axis))? as i128 - 1),
            Variable::Index(index) => *self.ranges.get(&index)?,
        })
    }
    fn access(&mut self, inst: Inst, data: &InstData) {
        let writes = matches!(data.op, Op::Store(_));
        if data.args.len() > if writes { 2 } else { 1 } {
            return;
        }
        let Some(Known::Pointer(parameter, offset)) = self.known.get(&data.args[0]) else { return };
        let ty = self.program.ty(data.args[0]);
        let (Some(Some(bytes)), Some(elem)) = (self.launch.parameters.get(*parameter), ty.elem()) else { return };
        let (mut least, mut most) = (offset.constant, offset.constant);
        for (v, factor) in &offset.terms {
            let Some((first, last)) = self.range(*v, ty.shape()) else { return };
            least += (factor * first).min(factor * last);
            most += (factor * first).max(factor * last);
        }
        let size = elem.bytes() as i128;
        let (elements, parameter) = (i128::from(*bytes) / size, *parameter);
        let element = if least < 0 { least.div_euclid(size) } else { most / size };
        if least < 0 || most + size > i128::from(*bytes) {
            self.found.push(Outside { inst, parameter, writes, element, elements });
        }
    }
}
