//! Recognises the programs that roles are made from: a loop over K of tile loads and matmuls, an epilogue on the sums,
//! and optionally a loop over tiles around both.
use super::Refusal;
pub use crate::passes::constant;
use crate::{
    BinaryOp, BlockProgram, Const, DotPrecision, Elem, Inst, InstData, Op, Region, Terms, Type, UnaryOp, Value,
    analysis,
};
use std::collections::{HashMap, HashSet};

/// The engine that multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// bf16, f16, tf32 and f8 by `wgmma`.
    TensorCores,
    /// f32 by FMAs from shared tiles.
    Simt,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Left,
    Right,
}

/// A tile of an operand, loaded once per iteration of the loop over K.
pub struct Load {
    pub inst: Inst,
    pub desc: Value,
    pub side: Side,
    pub elem: Elem,
    /// As stored in memory.
    pub shape: [usize; 2],
    /// The matmul takes it transposed.
    pub swapped: bool,
    /// Its elements are rounded to tf32 before the matmul takes them.
    pub rounded: bool,
}
impl Load {
    /// Whether it is a left operand that `wgmma` takes from registers: in tf32 it reads only K-major tiles, as they
    /// are.
    pub fn in_registers(&self, engine: Engine) -> bool {
        let left = self.side == Side::Left && engine == Engine::TensorCores && self.elem == Elem::F32;
        left && (self.swapped || self.rounded)
    }
}

/// A loaded tile, as a value has it.
#[derive(Clone, Copy)]
struct Loaded {
    inst: Inst,
    swapped: bool,
    rounded: bool,
}

/// A sum of matmuls of the loads, in their order, accumulated in a carried value.
pub struct Sum {
    /// Left and right load of each matmul, by number.
    pub matmuls: Vec<[usize; 2]>,
    /// Number of the carried value.
    pub carried: usize,
    /// The matmuls of an iteration are summed from zero, and their sum is added to the carried value.
    pub apart: bool,
    pub terms: Terms,
}

/// Matmuls found so far that are summed in their order.
struct Chain {
    /// The carried value they accumulate on; `None` if they start from zero.
    carried: Option<usize>,
    matmuls: Vec<[usize; 2]>,
    apart: bool,
    terms: Terms,
}

const CHANGED: &str = "a sum is changed between two matmuls; do that after the loop";

pub struct Form {
    pub engine: Engine,
    /// The loop over tiles.
    pub tiles: Option<Inst>,
    /// The instructions of one tile: the kernel's own list, or the region of the loop over tiles.
    pub tile: Region,
    /// The loop over K, and its position in `tile`.
    pub depth: Inst,
    pub at: usize,
    /// Its iterations, at least one. `None`: a number of the launch or of the tile, possibly none.
    pub trips: Option<usize>,
    pub loads: Vec<Load>,
    pub sums: Vec<Sum>,
    /// Carried scalars, which the starts of tiles may depend on.
    pub kept: Vec<usize>,
    /// Size of each sum.
    pub m: usize,
    pub n: usize,
}

fn refuse<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(what.into()))
}

/// Whether an instruction is pure and gives scalars only.
pub fn is_scalar(k: &BlockProgram, data: &InstData) -> bool {
    data.op.is_pure() && data.results.iter().all(|v| k.ty(*v).is_scalar())
}

fn is_zero(k: &BlockProgram, v: Value) -> bool {
    constant(k, v) == Some(Const::Float(0.0))
}

/// The only loop of a list, and its position.
fn only_loop(k: &BlockProgram, r: &Region) -> Result<(Inst, usize), Refusal> {
    let mut nested = r.insts.iter().enumerate().filter(|(_, i)| !k.inst(**i).regions.is_empty());
    match (nested.next(), nested.next()) {
        (Some((at, i)), None) if k.inst(*i).op == Op::For => Ok((*i, at)),
        _ => refuse("the matmul is not one loop over K; move other loops and branches out of the kernel"),
    }
}

pub fn recognise(k: &BlockProgram) -> Result<Form, Refusal> {
    let (outer, at) = only_loop(k, &k.body)?;
    let region = &k.inst(outer).regions[0];
    let matmuls = |r: &Region| r.insts.iter().any(|i| matches!(k.inst(*i).op, Op::Dot { .. }));
    let (tiles, tile, depth, at) = if matmuls(region) {
        (None, k.body.clone(), outer, at)
    } else {
        let (inner, at) = only_loop(k, region)?;
        (Some(outer), region.clone(), inner, at)
    };
    if tiles.is_some_and(|t| !k.inst(t).results.is_empty()) {
        return refuse("the loop over tiles carries values; make tiles independent of each other");
    }
    let trips = trips(k, depth)?;
    let mut form = Form {
        engine: Engine::TensorCores,
        tiles,
        tile,
        depth,
        at,
        trips,
        loads: vec![],
        sums: vec![],
        kept: vec![],
        m: 0,
        n: 0,
    };
    form.read_loop(k)?;
    form.check_carried(k)?;
    Ok(form)
}

/// Iterations of a loop, at least one; `None` if its bounds are not constants.
fn trips(k: &BlockProgram, i: Inst) -> Result<Option<usize>, Refusal> {
    let facts = analysis::analyse(k);
    let number = |v: &Value| facts.affine(*v).and_then(analysis::Affine::as_constant);
    match k.inst(i).args[..3].iter().map(number).collect::<Vec<_>>()[..] {
        [Some(lo), Some(hi), Some(step)] if lo < hi && step > 0 => {
            Ok(Some((hi - lo) as usize / step as usize + usize::from((hi - lo) % step > 0)))
        }
        [Some(lo), Some(hi), _] if lo >= hi => refuse("the loop over K has no iteration"),
        [_, _, Some(step)] if step > 0 && k.ty(k.inst(i).args[0]) == &Type::scalar(Elem::I32) => Ok(None),
        _ => refuse("the step of the loop over K is not a positive constant, or its index has not 32 bits"),
    }
}

impl Form {
    fn read_loop(&mut self, k: &BlockProgram) -> Result<(), Refusal> {
        let data = k.inst(self.depth);
        // Operand tiles by value.
        let mut tiles: HashMap<Value, Loaded> = HashMap::new();
        // Partial sums by value, with what they accumulate on.
        let mut chains: HashMap<Value, Chain> = HashMap::new();
        for &i in &data.regions[0].insts {
            let inst = k.inst(i);
            match &inst.op {
                Op::TileLoad => {
                    tiles.insert(inst.results[0], Loaded { inst: i, swapped: false, rounded: false });
                }
                Op::Permute(perm) if perm[..] == [1, 0] && tiles.contains_key(&inst.args[0]) => {
                    let tile = tiles[&inst.args[0]];
                    tiles.insert(inst.results[0], Loaded { swapped: !tile.swapped, ..tile });
                }
                Op::Unary(UnaryOp::Tf32) if tiles.contains_key(&inst.args[0]) => {
                    tiles.insert(inst.results[0], Loaded { rounded: true, ..tiles[&inst.args[0]] });
                }
                Op::Dot { precision, terms } => self.matmul(k, inst, (*precision, *terms), &tiles, &mut chains)?,
                Op::Binary(BinaryOp::Add) if inst.args.iter().any(|v| chains.contains_key(v)) => {
                    self.whole(k, inst, &mut chains)?
                }
                Op::Yield => self.summed(&inst.args, &mut chains)?,
                op if op.is_pure() => {}
                op => {
                    let name = crate::text::print_inst(k, i);
                    let more = if matches!(op, Op::Load(..)) {
                        "; a tensor map needs rows that are multiples of 16 bytes"
                    } else {
                        ""
                    };
                    return refuse(format!("`{name}` in the loop over K is neither a tile load nor a matmul{more}"));
                }
            }
        }
        Ok(())
    }
    fn matmul(
        &mut self,
        k: &BlockProgram,
        dot: &InstData,
        (precision, terms): (DotPrecision, Terms),
        tiles: &HashMap<Value, Loaded>,
        chains: &mut HashMap<Value, Chain>,
    ) -> Result<(), Refusal> {
        let [a, b, sum] = dot.args[..] else { return refuse("a matmul without operands") };
        let engine = match (k.ty(a).elem(), precision) {
            (Some(e), _) if e.is_half() || e.is_f8() => Engine::TensorCores,
            (Some(Elem::F32), DotPrecision::Tf32) => Engine::TensorCores,
            (Some(Elem::F32), DotPrecision::Exact) => Engine::Simt,
            _ => {
                return refuse(format!("warpgroups do not multiply {}; use bf16, f16, f8, tf32 or exact f32", k.ty(a)));
            }
        };
        let [m, n] = k.ty(sum).shape() else { return refuse("a matmul that does not have two axes") };
        if self.m > 0 && (self.engine, self.m, self.n) != (engine, *m, *n) {
            return refuse("the matmuls are of different types or sizes; make them alike");
        }
        (self.engine, self.m, self.n) = (engine, *m, *n);
        let mut chain = match (chains.remove(&sum), self.carried(k, sum)) {
            (Some(chain), _) if !chain.apart && chain.terms == terms => chain,
            (None, Some(n)) => Chain { carried: Some(n), matmuls: vec![], apart: false, terms },
            (None, None) if is_zero(k, sum) && engine == Engine::TensorCores => {
                Chain { carried: None, matmuls: vec![], apart: false, terms }
            }
            _ => return refuse("a matmul is not added to a carried value"),
        };
        let left = self.load(k, a, Side::Left, tiles)?;
        let right = self.load(k, b, Side::Right, tiles)?;
        self.check_order(left, right)?;
        chain.matmuls.push([left, right]);
        chains.insert(dot.results[0], chain);
        Ok(())
    }
    /// Checks that tensor cores can read the operands as they lie.
    fn check_order(&self, left: usize, right: usize) -> Result<(), Refusal> {
        let [left, right] = [&self.loads[left], &self.loads[right]];
        let any_order = left.elem.is_half() || self.engine == Engine::Simt;
        if right.rounded || left.rounded && self.engine == Engine::Simt {
            return refuse("an operand that is read from shared memory is rounded there; store it rounded");
        }
        if !any_order && (!right.swapped || left.swapped && left.elem.is_f8()) {
            let what = "right operands in tf32, and both in f8, must be K-major; store the other one transposed";
            return refuse(what);
        }
        Ok(())
    }
    /// Number of a carried value, if it is one.
    fn carried(&self, k: &BlockProgram, v: Value) -> Option<usize> {
        k.inst(self.depth).regions[0].params.iter().skip(1).position(|p| *p == v)
    }
    /// An addition that adds the sum of an iteration's matmuls to a carried value.
    fn whole(&self, k: &BlockProgram, add: &InstData, chains: &mut HashMap<Value, Chain>) -> Result<(), Refusal> {
        let [x, y] = add.args[..] else { return refuse("an addition without operands") };
        let (chain, other) = if chains.contains_key(&x) { (x, y) } else { (y, x) };
        match (chains.remove(&chain), self.carried(k, other)) {
            (Some(chain), Some(n)) if chain.carried.is_none() => {
                chains.insert(add.results[0], Chain { carried: Some(n), apart: true, ..chain });
                Ok(())
            }
            _ => refuse(CHANGED),
        }
    }
    /// What the loop yields: every sum must be carried on directly from its matmuls.
    fn summed(&mut self, yielded: &[Value], chains: &mut HashMap<Value, Chain>) -> Result<(), Refusal> {
        for (n, v) in yielded.iter().enumerate() {
            match chains.remove(v) {
                Some(Chain { carried, matmuls, apart, terms }) if carried == Some(n) => {
                    self.sums.push(Sum { matmuls, carried: n, apart, terms });
                }
                Some(_) => return refuse(CHANGED),
                None => {}
            }
        }
        if chains.is_empty() { Ok(()) } else { refuse(CHANGED) }
    }
    /// Number of the load that gives an operand.
    fn load(
        &mut self,
        k: &BlockProgram,
        v: Value,
        side: Side,
        tiles: &HashMap<Value, Loaded>,
    ) -> Result<usize, Refusal> {
        let Some(&Loaded { inst, swapped, rounded }) = tiles.get(&v) else {
            return refuse(format!("an operand ({v}) is not a loaded tile"));
        };
        if let Some(n) = self.loads.iter().position(|l| l.inst == inst) {
            let known = &self.loads[n];
            return match (known.side, known.swapped, known.rounded) == (side, swapped, rounded) {
                true => Ok(n),
                false => refuse("one tile is used on both sides, or in two forms (transposed, rounded); load it twice"),
            };
        }
        let desc = k.inst(inst).args[0];
        let Type::Block { elem, shape } = k.ty(k.inst(inst).results[0]) else {
            return refuse("a tile that is not a block");
        };
        let &[rows, columns] = &shape[..] else { return refuse("an operand's tile does not have two axes") };
        self.loads.push(Load { inst, desc, side, elem: *elem, shape: [rows, columns], swapped, rounded });
        Ok(self.loads.len() - 1)
    }
    /// Sums must start from constants; other carried values must be scalars for the starts of tiles.
    fn check_carried(&mut self, k: &BlockProgram) -> Result<(), Refusal> {
        if self.sums.is_empty() {
            return refuse("the loop has no matmul");
        }
        let data = k.inst(self.depth);
        if self.sums.iter().any(|s| constant(k, data.args[3 + s.carried]).is_none()) {
            return refuse("the sums do not start from a constant; add the initial value after the loop");
        }
        if self.sums.iter().any(|s| s.apart != self.sums[0].apart) {
            return refuse("some sums start from zero in every iteration and others do not; make them alike");
        }
        if self.sums[0].apart && self.loads.iter().any(|l| l.in_registers(self.engine)) {
            return refuse(
                "left operands of sums that start from zero in every iteration must be K-major and as stored",
            );
        }
        let mut used: HashSet<Value> = HashSet::new();
        k.walk(&mut |_, d| used.extend(&d.args));
        for n in 0..data.results.len() {
            if self.sums.iter().any(|s| s.carried == n) {
                continue;
            }
            if !k.ty(data.results[n]).is_scalar() || used.contains(&data.results[n]) {
                return refuse("the loop over K carries values other than sums and offsets");
            }
            self.kept.push(n);
        }
        Ok(())
    }
}
