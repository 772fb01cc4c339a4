//! Masks at the ends of rows.
//!
//! The masks of a thread's neighbouring elements imply one another, since all elements behind the start of a row are
//! inside, or all before its end. So one condition says whether a whole vector is inside, and single elements are
//! distinguished behind a branch that few threads take.
use super::emit::{Res, Val};
use super::r#gen::Gen;
use super::index::{Index, Memo, Reg};
use inkwell::values::IntValue;
use kiln_block::{BinaryOp, CmpOp, Elem, InstData, Kernel, Op, Type};
use std::collections::{HashMap, HashSet};

/// Blocks of at least this many elements: few of their warps have an end of the row.
const LONG: usize = 4096;
/// Elements that are selected together: a vector of half types; and a vector of f32.
const TOGETHER: usize = 8;
const VECTOR: usize = 4;

/// What is known about the conditions of elements.
#[derive(Default)]
pub(super) struct Conditions<'c> {
    /// Whether rows are long. Where many threads have an end, conditions held in registers are as good.
    wanted: bool,
    /// Pairs of conditions of which the first implies the second.
    implied: HashSet<(IntValue<'c>, IntValue<'c>)>,
    /// The comparisons that a condition is the conjunction of.
    made: HashMap<IntValue<'c>, Vec<Comparison<'c>>>,
}

type Comparison<'c> = (CmpOp, Index<'c>, Index<'c>);

impl<'c> Conditions<'c> {
    pub fn of_kernel(k: &Kernel) -> Conditions<'c> {
        let mut wanted = false;
        k.walk(&mut |_, d| {
            wanted |= matches!((&d.op, &d.args[..]), (Op::Reduce { .. }, [arg, ..]) if is_long(k.ty(*arg)))
        });
        Conditions { wanted, ..Conditions::default() }
    }
    fn holds(&self, a: IntValue<'c>, b: IntValue<'c>) -> bool {
        a == b || self.implied.contains(&(a, b))
    }
    /// Whether each implies the next one.
    fn up(&self, all: &[IntValue<'c>]) -> bool {
        all.windows(2).all(|w| self.holds(w[0], w[1]))
    }
    fn down(&self, all: &[IntValue<'c>]) -> bool {
        all.windows(2).all(|w| self.holds(w[1], w[0]))
    }
    fn of(&self, condition: IntValue<'c>) -> Option<Vec<Comparison<'c>>> {
        match condition.get_zero_extended_constant() {
            Some(1) => Some(vec![]),
            _ => self.made.get(&condition).cloned(),
        }
    }
}

impl<'c> Gen<'c, '_> {
    /// Records how conditions are made, and which conditions of neighbouring registers imply each other: those that
    /// compare a value which grows from register to register, and conjunctions of such.
    pub fn learn(&mut self, data: &InstData, args: &[Vec<Reg<'c>>], out: &[Reg<'c>]) -> Res<()> {
        let ([a, b], Op::Cmp(_) | Op::Binary(BinaryOp::And)) = (args, &data.op) else { return Ok(()) };
        if !self.conditions.wanted {
            return Ok(());
        }
        for r in 0..out.len() {
            let Ok(condition) = out[r].condition() else { return Ok(()) };
            let made = match data.op {
                Op::Cmp(op) => match (a[r], b[r]) {
                    (Reg::Int(a), Reg::Int(b)) => Some(vec![(op, a, b)]),
                    _ => None,
                },
                _ => match (a[r].condition().ok().and_then(|a| self.conditions.of(a)), b[r].condition()) {
                    (Some(a), Ok(b)) => self.conditions.of(b).map(|b| [a, b].concat()),
                    _ => None,
                },
            };
            if let Some(made) = made {
                self.conditions.made.entry(condition).or_insert(made);
            }
            let Some(before) = r.checked_sub(1).and_then(|r| out[r].condition().ok()).filter(|c| *c != condition)
            else {
                continue;
            };
            let [up, down] = match data.op {
                Op::Cmp(op) => match (op, growth(&a[r - 1..=r], &b[r - 1..=r])) {
                    (CmpOp::Ge | CmpOp::Gt, Some(by)) => [by > 0, by < 0],
                    (CmpOp::Lt | CmpOp::Le, Some(by)) => [by < 0, by > 0],
                    _ => continue,
                },
                _ => {
                    let of = |x: &[Reg<'c>]| -> Res<_> { Ok([x[r - 1].condition()?, x[r].condition()?]) };
                    let (a, b, known) = (of(a)?, of(b)?, &self.conditions);
                    [known.up(&a) && known.up(&b), known.down(&a) && known.down(&b)]
                }
            };
            self.conditions.implied.extend(up.then_some((before, condition)));
            self.conditions.implied.extend(down.then_some((condition, before)));
        }
        Ok(())
    }
    /// The condition, recomputed at its use: behind a branch that few threads take, so that the others need not compute
    /// it.
    pub fn made_here(&mut self, condition: IntValue<'c>) -> Res<IntValue<'c>> {
        let Some(made) = self.conditions.of(condition) else { return Ok(condition) };
        let mut memo = Memo::default();
        let mut all = self.e.bool(true);
        for (op, a, b) in made {
            let c = a.compare(op, b, &self.e, &mut memo)?;
            all = if all.is_const() { c } else { self.e.and(all, c)? };
        }
        Ok(all)
    }
    /// Whether one of the conditions holds.
    pub fn any(&self, all: &[IntValue<'c>]) -> Res<IntValue<'c>> {
        match all {
            [.., last] if self.conditions.up(all) => Ok(*last),
            [first, ..] if self.conditions.down(all) => Ok(*first),
            _ => all.iter().try_fold(self.e.bool(false), |any, m| self.e.or(any, *m)),
        }
    }
    /// Whether all of them do.
    pub fn all(&self, all: &[IntValue<'c>]) -> Res<IntValue<'c>> {
        match all {
            [first, ..] if self.conditions.up(all) => Ok(*first),
            [.., last] if self.conditions.down(all) => Ok(*last),
            _ => all.iter().try_fold(self.e.bool(true), |all, m| self.e.and(all, *m)),
        }
    }
    /// A select between elements of a long row and values outside of it, vector by vector; `None` for other selects.
    pub fn select_at_ends(&mut self, data: &InstData, args: &[Vec<Reg<'c>>]) -> Res<Option<Vec<Reg<'c>>>> {
        let [inside, values, others] = args else { return Ok(None) };
        let ty = self.k.ty(data.results[0]);
        let long = ty.elem() == Some(Elem::F32) && is_long(ty);
        if data.op != Op::Select || !long || !values.len().is_multiple_of(TOGETHER) {
            return Ok(None);
        }
        let inside: Vec<IntValue<'c>> = inside.iter().map(Reg::condition).collect::<Res<_>>()?;
        let [values, others] = [values, others]
            .map(|of| of.iter().map(|x| x.plain(&self.e, &mut self.memo)).collect::<Res<Vec<Val<'c>>>>());
        let (values, others) = (values?, others?);
        let mut out = vec![];
        for (n, inside) in inside.chunks(TOGETHER).enumerate() {
            let at = n * TOGETHER..(n + 1) * TOGETHER;
            let (values, others) = (values[at.clone()].to_vec(), &others[at]);
            let pick = |g: &Self, inside: &[IntValue<'c>], values: &[Val<'c>]| -> Res<Vec<Val<'c>>> {
                let each = inside.iter().zip(values.iter().zip(others));
                each.map(|(inside, (v, other))| g.e.select(*inside, *v, *other)).collect()
            };
            // Where rows end with a vector, one select per element is as good.
            let alike = inside.chunks(VECTOR).all(|v| v.iter().all(|m| *m == v[0]));
            let chosen = if alike || !self.conditions.up(inside) && !self.conditions.down(inside) {
                pick(self, inside, &values)?
            } else {
                let end = self.e.not(self.all(inside)?)?;
                self.in_part(end, values, |g, values| {
                    let inside: Vec<_> = inside.iter().map(|m| g.made_here(*m)).collect::<Res<_>>()?;
                    pick(g, &inside, values)
                })?
            };
            out.extend(chosen.into_iter().map(Reg::Plain));
        }
        Ok(Some(out))
    }
    /// The values, or those that `make` gives where `when` holds, which it does in few threads.
    pub fn in_part(
        &mut self,
        when: IntValue<'c>,
        values: Vec<Val<'c>>,
        make: impl FnOnce(&mut Self, &[Val<'c>]) -> Res<Vec<Val<'c>>>,
    ) -> Res<Vec<Val<'c>>> {
        let before = self.block()?;
        let (part, join) = (self.new_block("part"), self.new_block("join"));
        self.e.b.build_conditional_branch(when, part, join)?;
        self.e.b.position_at_end(part);
        let made = make(self, &values)?;
        let part = self.block()?;
        self.e.b.build_unconditional_branch(join)?;
        self.e.b.position_at_end(join);
        let joined = values.iter().zip(&made).map(|(whole, made)| {
            let phi = self.e.b.build_phi(whole.get_type(), "")?;
            phi.add_incoming(&[(whole, before), (made, part)]);
            Ok(phi.as_basic_value())
        });
        joined.collect()
    }
}

/// Whether it is a block of a long row.
fn is_long(ty: &Type) -> bool {
    matches!(ty.shape(), [n] if *n >= LONG)
}

/// By how much the left side grows relative to the right one from register to register, if both keep their base.
fn growth(a: &[Reg], b: &[Reg]) -> Option<i64> {
    let by = |x: &[Reg]| match x {
        [Reg::Int(x), Reg::Int(y)] if x.base == y.base => y.off.checked_sub(x.off),
        _ => None,
    };
    by(a)?.checked_sub(by(b)?)
}
