//! Which elements of a tensor the accesses of a bound program reach, instance by instance.
//!
//! All integers of a bound program are known but those that it reads. So scalars are computed for each instance and
//! each iteration of the loops around an access; along the axes of a block, offsets and masks are affine
//! ([`Analysis`]). What follows is exact: a box of lanes for each time that an access runs. Never: what memory holds;
//! an access whose offset, mask or condition depends on it is not followed.
mod lanes;
mod scalars;

use super::{Affine, Analysis, Bounds, analyse};
use crate::{BlockProgram, Inst, InstData, Op, Region, Value};
use lanes::{Bits, Lanes};
use scalars::Scalars;
use std::collections::{HashMap, HashSet};

/// Most times that accesses are followed, of all instances and iterations.
const MAX_VISITS: usize = 1 << 18;
/// Most elements of a tensor of which is noted which are stored.
const MAX_ELEMENTS: usize = 1 << 28;

/// Why accesses are not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfollowed {
    /// An offset, a mask or what an access runs under is read from memory, or is not affine.
    NotAffine,
    /// They run too often.
    TooMany,
}

/// Which elements of a tensor are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coverage {
    /// All of them; `stored` counts each store of an element.
    Whole { stored: usize },
    /// Some are not, or some are outside of the tensor.
    Part,
}

/// Footprints of a program whose grid and numbers are constants.
pub struct Footprints<'a> {
    program: &'a BlockProgram,
    facts: Analysis,
    defs: HashMap<Value, Inst>,
}

impl<'a> Footprints<'a> {
    pub fn of(program: &'a BlockProgram) -> Footprints<'a> {
        Footprints { program, facts: analyse(program), defs: program.definitions() }
    }
    /// Offsets of a load or store from its parameter, in elements, along the axes of its block.
    pub fn offsets(&self, access: Inst) -> Option<Affine> {
        let pointer = *self.program.inst(access).args.first()?;
        let form = self.facts.affine(pointer)?;
        let is_param = |v: &Value| self.program.params.iter().any(|p| p.value == *v);
        form.root.as_ref().is_some_and(is_param).then(|| Affine { root: None, ..form.clone() })
    }
    /// The mask of a load or store.
    pub fn mask(&self, access: Inst) -> Option<Value> {
        let data = self.program.inst(access);
        data.args.get(if matches!(data.op, Op::Store(_)) { 2 } else { 1 }).copied()
    }
    /// Its bounds; none at all where there is no mask.
    pub fn bounds(&self, access: Inst) -> Option<Bounds> {
        self.mask(access).map_or(Some(vec![]), |mask| self.facts.bounds(mask).cloned())
    }
    /// Lanes of an access.
    pub fn shape(&self, access: Inst) -> &[usize] {
        self.program.inst(access).args.first().map_or(&[], |pointer| self.program.ty(*pointer).shape())
    }
    /// Elements that an access reads or writes at most: those that masks leave out count, and a loop of unknown length
    /// as one iteration.
    pub fn elements(&self, access: Inst) -> f64 {
        let lanes: usize = self.shape(access).iter().product();
        self.runs(access) * lanes as f64
    }
    /// How often an instruction runs.
    pub fn runs(&self, inst: Inst) -> f64 {
        let instances = self.program.instances().unwrap_or(1) as f64;
        self.trips_to(&self.program.body, inst).map_or(0., |trips| instances * trips)
    }
    fn trips_to(&self, region: &Region, inst: Inst) -> Option<f64> {
        region.insts.iter().find_map(|i| {
            let data = self.program.inst(*i);
            let inside = || data.regions.iter().find_map(|r| self.trips_to(r, inst));
            if *i == inst { Some(1.) } else { inside().map(|trips| trips * self.trips(data)) }
        })
    }
    fn trips(&self, data: &InstData) -> f64 {
        let number = |n: usize| data.args.get(n).and_then(|v| self.facts.affine(*v)?.as_constant());
        match (&data.op, number(0), number(1), number(2)) {
            (Op::For, Some(lo), Some(hi), Some(step)) if step > 0 => {
                (hi.saturating_sub(lo).max(0) as f64 / step as f64).ceil()
            }
            _ => 1.,
        }
    }

    /// Which of a tensor's elements these stores write.
    ///
    /// # Errors
    /// Why they are not followed.
    pub fn coverage(&self, stores: &[Inst], elements: usize) -> Result<Coverage, Unfollowed> {
        if elements > MAX_ELEMENTS {
            return Err(Unfollowed::TooMany);
        }
        let mut bits = Bits::new(elements);
        self.visit(stores, &mut |store, scalars| {
            let form = self.offsets(store).ok_or(Unfollowed::NotAffine)?;
            let bounds = self.bounds(store).ok_or(Unfollowed::NotAffine)?;
            let lanes = Lanes::of(self.shape(store), &bounds, scalars)?;
            let offsets = scalars.numbers(&form).ok_or(Unfollowed::NotAffine)?;
            lanes.runs(&offsets, &mut |run| bits.set(run))
        })?;
        Ok(bits.coverage())
    }
    /// Whether an integer form is in `0..end` on all lanes in these bounds, whenever an access runs.
    pub fn is_within(&self, access: Inst, bounds: &Bounds, form: &Affine, end: i64) -> bool {
        let check = &mut |_, scalars: &mut Scalars| {
            let lanes = Lanes::of(self.shape(access), bounds, scalars)?;
            let numbers = scalars.numbers(form).ok_or(Unfollowed::NotAffine)?;
            let inside = lanes.range(&numbers).is_none_or(|(lo, hi)| lo >= 0 && hi < end);
            if inside { Ok(()) } else { Err(Unfollowed::NotAffine) }
        };
        self.visit(&[access], check).is_ok()
    }

    /// Calls `f` each time that one of these instructions runs, with the scalars there.
    fn visit(&self, accesses: &[Inst], f: &mut Visit) -> Result<(), Unfollowed> {
        let Some(grid) = self.program.grid.constant() else { return Err(Unfollowed::NotAffine) };
        let mut around = HashSet::new();
        self.mark(&self.program.body, accesses, &mut around);
        let mut visits = 0;
        for id in 0..grid.iter().product::<usize>() {
            let place = [id % grid[0], id / grid[0] % grid[1], id / grid[0] / grid[1]];
            let scalars = Scalars::new(self.program, &self.defs, place, grid);
            let mut walk = Walk { footprints: self, accesses, around: &around, scalars, visits: &mut visits, f };
            walk.region(&self.program.body)?;
        }
        Ok(())
    }
    /// Notes the instructions whose regions have one of these accesses; whether this region has one.
    fn mark(&self, region: &Region, accesses: &[Inst], around: &mut HashSet<Inst>) -> bool {
        let mut has = false;
        for inst in &region.insts {
            let inside = self.program.inst(*inst).regions.iter().filter(|r| self.mark(r, accesses, around)).count() > 0;
            if inside {
                around.insert(*inst);
            }
            has |= inside || accesses.contains(inst);
        }
        has
    }
}

/// What is done each time that an access runs.
type Visit<'f> = dyn FnMut(Inst, &mut Scalars) -> Result<(), Unfollowed> + 'f;

/// A walk through one instance.
struct Walk<'w, 'a, 'f> {
    footprints: &'w Footprints<'a>,
    accesses: &'w [Inst],
    /// What has an access in its regions.
    around: &'w HashSet<Inst>,
    scalars: Scalars<'w>,
    visits: &'w mut usize,
    f: &'w mut Visit<'f>,
}

impl Walk<'_, '_, '_> {
    fn region(&mut self, region: &Region) -> Result<(), Unfollowed> {
        let program = self.footprints.program;
        for inst in &region.insts {
            if self.accesses.contains(inst) {
                *self.visits += 1;
                if *self.visits > MAX_VISITS {
                    return Err(Unfollowed::TooMany);
                }
                (self.f)(*inst, &mut self.scalars)?;
            }
            if !self.around.contains(inst) {
                continue;
            }
            let data = program.inst(*inst);
            match (&data.op, &data.regions[..]) {
                (Op::For, [body]) => self.for_loop(data, body)?,
                (Op::If, [then, otherwise]) => {
                    let condition = self.scalars.integer(data.args[0]).ok_or(Unfollowed::NotAffine)?;
                    self.scalars.enter();
                    self.region(if condition != 0 { then } else { otherwise })?;
                    self.scalars.leave();
                }
                _ => return Err(Unfollowed::NotAffine),
            }
        }
        Ok(())
    }
    fn for_loop(&mut self, data: &InstData, body: &Region) -> Result<(), Unfollowed> {
        let [lo, hi, step] = [0, 1, 2].map(|n| self.scalars.integer(data.args[n]));
        let (Some(lo), Some(hi), Some(step)) = (lo, hi, step) else { return Err(Unfollowed::NotAffine) };
        if step <= 0 {
            return Err(Unfollowed::NotAffine);
        }
        let mut carried: Vec<Option<i64>> = data.args[3..].iter().map(|v| self.scalars.integer(*v)).collect();
        let next = body.insts.last().map(|last| self.footprints.program.inst(*last).args.clone()).unwrap_or_default();
        let mut index = lo;
        while index < hi {
            self.scalars.enter();
            for (v, number) in body.params.iter().zip(std::iter::once(Some(index)).chain(carried)) {
                self.scalars.set(*v, number);
            }
            self.region(body)?;
            carried = next.iter().map(|v| self.scalars.integer(*v)).collect();
            self.scalars.leave();
            index = index.saturating_add(step);
            *self.visits += 1;
            if *self.visits > MAX_VISITS {
                return Err(Unfollowed::TooMany);
            }
        }
        Ok(())
    }
}
