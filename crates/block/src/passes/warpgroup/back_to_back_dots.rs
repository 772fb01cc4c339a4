//! Recognises two chained matmuls: loops whose first matmul gives scores, from which the left operand of the second one
//! and what the loop carries are computed row by row, as in attention:
//! ```text
//! q = f(tile_load)
//! for j { k = tile_load; s = dot q, k; …; v = tile_load; sum = dot f(s), v, g(sum) }
//! ```
//! Several such loops may follow one another, each starting from what the one before it carried; any of them may have
//! no iteration. An iteration may load further tiles, of the scores' size, that it computes with element by element:
//! biases and masks.
use super::Refusal;
use super::form::constant;
use crate::{BlockProgram, Const, DotPrecision, Elem, Inst, InstData, Op, Region, Swizzle, Terms, Type, Value};
use std::collections::{HashMap, HashSet};

/// An operand that is loaded as a tile.
#[derive(Clone)]
pub struct Operand {
    pub inst: Inst,
    pub desc: Value,
    pub elem: Elem,
    /// As stored in memory.
    pub shape: [usize; 2],
    /// The matmul takes it transposed.
    pub swapped: bool,
    /// How its rows lie in shared memory.
    pub swizzle: Swizzle,
}
impl Operand {
    /// Bytes in shared memory: rows are whole panels.
    pub fn bytes(&self) -> usize {
        self.shape[0] * self.swizzle.row_bytes(self.elem, self.shape[1])
    }
}

/// One of the loops.
pub struct Pass {
    pub inst: Inst,
    /// Right operands of the two matmuls.
    pub right: [Operand; 2],
    /// The sums of the first matmul.
    pub scores: Value,
    /// The left operand of the second matmul, and what it adds to.
    pub weights: Value,
    pub from: Value,
    /// Tiles of the scores' size.
    pub beside: Vec<Operand>,
}

/// How the loop over tiles draws the next one from a counter.
pub struct Draw {
    pub inst: Inst,
    /// The number of the next tile, and the instruction that says whether there is one, from that number.
    pub next: Value,
    pub more: Inst,
    /// What is computed from the number that is drawn.
    pub after: Vec<Inst>,
}

pub struct Form {
    /// The loop over tiles, and how it draws them.
    pub tiles: Option<Inst>,
    pub draw: Option<Draw>,
    /// The instructions of one tile.
    pub tile: Region,
    pub passes: Vec<Pass>,
    /// Positions of the first and the last loop in the tile.
    pub at: [usize; 2],
    /// The left operand of the first matmul, which is the same for all iterations.
    pub left: Operand,
    /// What is computed from it element by element before the loops, in the same type, and multiplied in its place.
    pub computed_left: Option<Value>,
    /// Number of the carried value that the second matmul sums.
    pub sum: usize,
    /// Size of the sums, and columns of the scores.
    pub m: usize,
    pub n: usize,
    pub scores: usize,
    /// What the loops load beside the operands of matmuls, each descriptor once. A loop may do without some.
    pub beside: Vec<Operand>,
}

fn refuse<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(what.into()))
}

/// The loops that multiply directly in a list, with their positions.
fn loops(k: &BlockProgram, r: &Region) -> Vec<(usize, Inst)> {
    let multiplies = |r: &Region| r.insts.iter().any(|i| matches!(k.inst(*i).op, Op::Dot { .. }));
    let found = r.insts.iter().copied().enumerate();
    found.filter(|(_, i)| k.inst(*i).op == Op::For && k.inst(*i).regions.iter().any(multiplies)).collect()
}

/// The list of a tile's instructions, with the loop over tiles if there is one.
fn tile(k: &BlockProgram) -> Option<(Option<Inst>, &Region)> {
    if !loops(k, &k.body).is_empty() {
        return Some((None, &k.body));
    }
    let mut outer = k.body.insts.iter().filter(|i| matches!(k.inst(**i).op, Op::For | Op::While));
    match (outer.next(), outer.next()) {
        (Some(i), None) => Some((Some(*i), k.inst(*i).regions.first()?)),
        _ => None,
    }
}

/// Whether a kernel has a loop with a matmul of what another one of the same loop gives.
pub fn has_back_to_back_dots(k: &BlockProgram) -> bool {
    let Some((_, tile)) = tile(k) else { return false };
    loops(k, tile).iter().any(|(_, i)| {
        let dots = |r: &Region| r.insts.iter().filter(|i| matches!(k.inst(**i).op, Op::Dot { .. })).count();
        let loads: Vec<Value> =
            loaded(k, &k.inst(*i).regions[0]).into_keys().chain(loaded(k, tile).into_keys()).collect();
        let computed = |i: &Inst| {
            matches!(k.inst(*i).op, Op::Dot { .. }) && k.inst(*i).args.first().is_some_and(|a| !loads.contains(a))
        };
        let region = &k.inst(*i).regions[0];
        dots(region) == 2 && region.insts.iter().any(computed)
    })
}

/// The tiles that a list loads, by value; also their transposes.
fn loaded(k: &BlockProgram, r: &Region) -> HashMap<Value, (Inst, bool)> {
    let mut all = HashMap::new();
    for &i in &r.insts {
        let data = k.inst(i);
        match &data.op {
            Op::TileLoad => _ = all.insert(data.results[0], (i, false)),
            Op::Permute(perm) if perm[..] == [1, 0] => {
                if let Some(&(load, swapped)) = all.get(&data.args[0]) {
                    all.insert(data.results[0], (load, !swapped));
                }
            }
            _ => {}
        }
    }
    all
}

fn operand(k: &BlockProgram, v: Value, tiles: &HashMap<Value, (Inst, bool)>) -> Option<Operand> {
    let &(inst, swapped) = tiles.get(&v)?;
    let data = k.inst(inst);
    match k.ty(data.results[0]) {
        Type::Block { elem, shape } if shape.len() == 2 => {
            let shape = [shape[0], shape[1]];
            Some(Operand { inst, desc: data.args[0], elem: *elem, shape, swapped, swizzle: Swizzle::B128 })
        }
        _ => None,
    }
}

/// How a loop over tiles draws them; `None` for a loop with a stride.
fn drawn(k: &BlockProgram, tiles: &InstData) -> Result<Option<Draw>, Refusal> {
    let (Op::While, [region]) = (&tiles.op, &tiles.regions[..]) else { return Ok(None) };
    let mut draws = region.insts.iter().copied().filter(|i| k.inst(*i).op == Op::AtomicInc);
    let last = region.insts.last().map(|i| &k.inst(*i).args[..]).unwrap_or_default();
    if let (Some(inst), None, &[more, next]) = (draws.next(), draws.next(), last)
        && let Some(more) = region.insts.iter().copied().find(|i| k.inst(*i).results[..] == [more])
        && k.inst(more).args.first() == Some(&next)
    {
        let mut drawn: HashSet<Value> = k.inst(inst).results.iter().copied().collect();
        let depends = |i: &Inst| {
            let yes = k.inst(*i).args.iter().any(|v| drawn.contains(v));
            drawn.extend(k.inst(*i).results.iter().filter(|_| yes));
            yes
        };
        let after = region.insts.iter().copied().filter(depends).collect();
        return Ok(Some(Draw { inst, next, more, after }));
    }
    refuse("the loop over tiles does not draw their numbers from one counter")
}

pub fn recognise(k: &BlockProgram) -> Result<Form, Refusal> {
    let Some((tiles, tile)) = tile(k) else { return refuse("the matmuls are not in loops of one tile") };
    if tiles.is_some_and(|t| !k.inst(t).results.is_empty()) {
        return refuse("the loop over tiles carries values; make tiles independent of each other");
    }
    let draw = tiles.map_or(Ok(None), |t| drawn(k, k.inst(t)))?;
    let found = loops(k, tile);
    let (Some(first), Some(last)) = (found.first(), found.last()) else { return refuse("no loop multiplies") };
    let before = loaded(k, tile);
    let mut form: Option<Form> = None;
    let mut known: Option<(&InstData, Value)> = None;
    for &(_, inst) in &found {
        let data = k.inst(inst);
        let Found { pass, left, multiplied, sum } = pass(k, inst, &before)?;
        if let Some((earlier, same)) = &known
            && (data.args[3..] != earlier.results[..] || *same != multiplied)
        {
            return refuse("a loop does not start from what the one before it carried");
        }
        known = Some((data, multiplied));
        let computed_left = (k.inst(left.inst).results[..] != [multiplied]).then_some(multiplied);
        let (&[m, scores], &[_, n]) = (k.ty(pass.scores).shape(), k.ty(data.results[sum]).shape()) else {
            return refuse("a matmul that does not have two axes");
        };
        if let Some(o) = pass.beside.iter().find(|o| o.shape != [m, scores]) {
            let [rows, columns] = o.shape;
            return refuse(format!(
                "a tile of {rows}x{columns} beside scores of {m}x{scores}; it must have their size"
            ));
        }
        match &mut form {
            None => {
                let (at, tile, beside) = ([first.0, last.0], tile.clone(), pass.beside.clone());
                let passes = vec![pass];
                form =
                    Some(Form { tiles, draw: None, tile, passes, at, left, computed_left, sum, m, n, scores, beside });
            }
            Some(f) if f.sum == sum && [f.m, f.n, f.scores] == [m, n, scores] && f.same_tiles(&pass) => {
                let new = pass.beside.iter().filter(|o| f.number(o).is_none()).cloned().collect::<Vec<_>>();
                f.beside.extend(new);
                f.passes.push(pass);
            }
            Some(_) => return refuse("the loops multiply tiles of different sizes; make them alike"),
        }
    }
    let Some(form) = form.map(|f| Form { draw, ..f }) else { return refuse("no loop multiplies") };
    Ok(form)
}

/// Elements of K per `wgmma` of half types, and multiples of columns.
const STEP: usize = 16;
const COLUMNS: usize = 8;

impl Form {
    /// Leaves out of the tiles what is not used: columns of the sums, and depth of the first matmul that is zero.
    pub fn narrow(&mut self, columns: Option<usize>, depth: Option<usize>) {
        if let Some(depth) = depth.map(|n| n.next_multiple_of(STEP)) {
            let all_along = self.passes.iter().all(|p| p.right[0].swapped);
            let right = self.passes.iter_mut().map(|p| &mut p.right[0]);
            for o in std::iter::once(&mut self.left).chain(right).filter(|_| all_along) {
                o.shape[1] = o.shape[1].min(depth);
            }
        }
        if let Some(columns) = columns.map(|n| n.next_multiple_of(COLUMNS)) {
            for o in self.passes.iter_mut().map(|p| &mut p.right[1]) {
                let axis = usize::from(!o.swapped);
                o.shape[axis] = o.shape[axis].min(columns);
            }
        }
    }
    /// Number of a tile beside the scores.
    pub fn number(&self, o: &Operand) -> Option<usize> {
        self.beside.iter().position(|b| b.desc == o.desc)
    }
    fn same_tiles(&self, p: &Pass) -> bool {
        let of = |p: &Pass| p.right.clone().map(|o| (o.elem, o.shape, o.swapped));
        self.passes.first().is_none_or(|first| of(first) == of(p))
    }
}

/// A loop, with what it multiplies from the left, the tile that this is computed from, and the number of its sum.
struct Found {
    pass: Pass,
    left: Operand,
    multiplied: Value,
    sum: usize,
}

/// The tile from which a left operand is computed element by element, in its type.
fn computed_from(k: &BlockProgram, v: Value, tiles: &HashMap<Value, (Inst, bool)>) -> Option<Operand> {
    let made = k.definitions();
    let (mut open, mut seen, mut found) = (vec![v], HashSet::new(), None);
    while let Some(v) = open.pop() {
        if !seen.insert(v) {
            continue;
        }
        if tiles.contains_key(&v) {
            if found.replace(v).is_some() {
                return None;
            }
            continue;
        }
        let by_element = |op: &Op| matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Cmp(_) | Op::Select);
        let data = made.get(&v).map(|i| k.inst(*i)).filter(|d| by_element(&d.op));
        open.extend(data.into_iter().flat_map(|d| &d.args));
    }
    operand(k, found.filter(|tile| k.ty(*tile) == k.ty(v))?, tiles)
}

fn pass(k: &BlockProgram, inst: Inst, before: &HashMap<Value, (Inst, bool)>) -> Result<Found, Refusal> {
    let region = &k.inst(inst).regions[0];
    let inside = loaded(k, region);
    let mut dots: Vec<&InstData> = vec![];
    let mut yielded: &[Value] = &[];
    for &i in &region.insts {
        let data = k.inst(i);
        match &data.op {
            Op::Dot { precision: DotPrecision::Exact, terms: Terms::Products }
                if k.ty(data.args[0]).elem().is_some_and(Elem::is_half) =>
            {
                dots.push(data)
            }
            Op::TileLoad | Op::Load(..) => {}
            Op::Yield => yielded = &data.args,
            op if op.is_pure() && !matches!(op, Op::Dot { .. }) => {}
            _ => {
                let name = crate::text::print_inst(k, i);
                return refuse(format!("`{name}` in the loop is not a load, arithmetic or a matmul of half types"));
            }
        }
    }
    let [first, second] = dots[..] else { return refuse("the loop does not have two matmuls") };
    if constant(k, first.args[2]) != Some(Const::Float(0.0)) {
        return refuse("the first matmul does not start from zero");
    }
    let multiplied = first.args[0];
    let left = operand(k, multiplied, before).or_else(|| computed_from(k, multiplied, before));
    let (Some(left), Some(keys), Some(values)) =
        (left, operand(k, first.args[1], &inside), operand(k, second.args[1], &inside))
    else {
        return refuse("an operand of a matmul is not a loaded tile; the first one's left is loaded before the loop");
    };
    if left.swapped {
        return refuse("the left operand is transposed; store it with its depth along rows");
    }
    let Some(sum) = yielded.iter().position(|v| *v == second.results[0]) else {
        return refuse("the second matmul's sums are not carried on directly");
    };
    let is_right = |i: &Inst| *i == keys.inst || *i == values.inst;
    let loads = region.insts.iter().filter(|i| k.inst(**i).op == Op::TileLoad && !is_right(i));
    let loads = loads.filter_map(|i| operand(k, k.inst(*i).results[0], &inside));
    let beside: Vec<Operand> = loads.map(|o| Operand { swizzle: Swizzle::widest(o.elem, o.shape[1]), ..o }).collect();
    let once = |(n, o): (usize, &Operand)| beside[..n].iter().all(|b| b.desc != o.desc);
    if !beside.iter().enumerate().all(once) {
        return refuse("the loop loads two tiles by one descriptor; load the tile once");
    }
    let [scores, weights, from] = [first.results[0], second.args[0], second.args[2]];
    let pass = Pass { inst, right: [keys, values], scores, weights, from, beside };
    Ok(Found { pass, left, multiplied, sum })
}
