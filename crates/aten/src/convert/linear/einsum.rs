//! `einsum` of one or two operands: each letter becomes a batch, free or contracted axis of one matmul.
use super::one;
use crate::{
    convert::context::{Ctx, Res},
    raw::Call,
};
use kiln_graph::{Op, ReduceOp, ValueId};
use std::collections::HashMap;

pub fn einsum(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (equation, operands) = (c.str(call, 0)?.replace(' ', ""), c.tensors(call, 1)?);
    let ranks: Vec<usize> = operands.iter().map(|v| c.rank(*v)).collect();
    let (inputs, output) = parse(&expanded(&equation, &ranks)?)?;
    if inputs.len() != operands.len() {
        return Err("the number of terms differs from the number of operands".into());
    }
    let mut sizes = HashMap::new();
    for (term, v) in inputs.iter().zip(&operands) {
        if term.len() != c.rank(*v) {
            return Err("a term's length differs from its operand's rank".into());
        }
        for (letter, size) in term.iter().zip(c.shape(*v)) {
            if *sizes.entry(*letter).or_insert(size) != size {
                return Err("axes of one letter differ in size".into());
            }
        }
    }
    let ty = c.out(call, 0)?;
    let r = match (&inputs[..], &operands[..]) {
        ([term], [x]) => single(c, *x, term, &output)?,
        ([a, b], [x, y]) => pair(c, (*x, a), (*y, b), &output, &sizes)?,
        _ => return Err("an einsum of more than two operands".into()),
    };
    one(c.reshape(r, &ty.shape)?)
}

type Term = Vec<char>;

/// The equation with letters for the axes that ellipses stand for, the same from the last axis backwards.
fn expanded(equation: &str, ranks: &[usize]) -> Res<String> {
    if !equation.contains("...") {
        return Ok(equation.to_string());
    }
    let (left, right) = equation.split_once("->").ok_or("an einsum with an ellipsis and no arrow")?;
    let hidden =
        |(term, rank): (&str, &usize)| if term.contains("...") { (rank + 3).saturating_sub(term.len()) } else { 0 };
    let most = left.split(',').zip(ranks).map(hidden).max().unwrap_or(0);
    let fresh: Vec<char> = ('0'..='9').take(most).collect();
    if fresh.len() < most {
        return Err(format!("an ellipsis for {most} axes"));
    }
    let letters = |n: usize| fresh.iter().skip(most.saturating_sub(n)).collect::<String>();
    let terms = left.split(',').zip(ranks).map(|(t, rank)| t.replacen("...", &letters(hidden((t, rank))), 1));
    Ok(format!("{}->{}", terms.collect::<Vec<_>>().join(","), right.replacen("...", &letters(most), 1)))
}

/// The terms and the result's letters; without an arrow, the letters that occur once, in alphabetical order.
fn parse(equation: &str) -> Res<(Vec<Term>, Term)> {
    if equation.contains('.') {
        return Err("an einsum with an ellipsis".into());
    }
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (equation, None),
    };
    let terms: Vec<Term> = left.split(',').map(|t| t.chars().collect()).collect();
    let repeated = |t: &Term| t.iter().enumerate().any(|(i, l)| t.iter().skip(i + 1).any(|other| other == l));
    if terms.iter().any(repeated) {
        return Err("an einsum with a letter twice in one term".into());
    }
    let output = match right {
        Some(r) => r.chars().collect(),
        None => {
            let all: Vec<char> = left.chars().filter(|ch| *ch != ',').collect();
            let mut once: Term =
                all.iter().copied().filter(|ch| all.iter().filter(|o| *o == ch).count() == 1).collect();
            once.sort_unstable();
            once
        }
    };
    Ok((terms, output))
}

/// Permutes `x` from the letter order `from` to `to`, which has the same letters.
fn arrange(c: &mut Ctx, x: ValueId, from: &[char], to: &[char]) -> Res<ValueId> {
    let perm: Vec<usize> = to.iter().filter_map(|l| from.iter().position(|f| f == l)).collect();
    if perm.len() != c.rank(x) {
        return Err("an einsum result with unknown letters".into());
    }
    c.permute(x, &perm)
}

/// Sums over the letters for which `keep` is false.
fn summed(c: &mut Ctx, x: ValueId, term: &[char], keep: impl Fn(char) -> bool) -> Res<(ValueId, Term)> {
    let axes: Vec<usize> = term.iter().enumerate().filter(|(_, l)| !keep(**l)).map(|(i, _)| i).collect();
    let kept: Term = term.iter().copied().filter(|l| keep(*l)).collect();
    let shape: Vec<usize> = term.iter().zip(c.shape(x)).filter(|(l, _)| keep(**l)).map(|(_, n)| n).collect();
    let r = c.reduce(ReduceOp::Sum, x, &axes)?;
    Ok((c.reshape(r, &shape)?, kept))
}

fn single(c: &mut Ctx, x: ValueId, term: &[char], output: &[char]) -> Res<ValueId> {
    let (x, term) = summed(c, x, term, |l| output.contains(&l))?;
    arrange(c, x, &term, output)
}

fn pair(
    c: &mut Ctx,
    (x, a): (ValueId, &[char]),
    (y, b): (ValueId, &[char]),
    output: &[char],
    sizes: &HashMap<char, usize>,
) -> Res<ValueId> {
    let (x, a) = summed(c, x, a, |l| output.contains(&l) || b.contains(&l))?;
    let (y, b) = summed(c, y, b, |l| output.contains(&l) || a.contains(&l))?;
    let batch: Term = a.iter().copied().filter(|l| b.contains(l) && output.contains(l)).collect();
    let inner: Term = a.iter().copied().filter(|l| b.contains(l) && !output.contains(l)).collect();
    let left: Term = a.iter().copied().filter(|l| !b.contains(l)).collect();
    let right: Term = b.iter().copied().filter(|l| !a.contains(l)).collect();
    let count = |t: &Term| t.iter().map(|l| sizes[l]).product::<usize>();
    let mut lead: Vec<usize> = batch.iter().map(|l| sizes[l]).collect();
    let x = arrange(c, x, &a, &[&batch[..], &left, &inner].concat())?;
    let y = arrange(c, y, &b, &[&batch[..], &inner, &right].concat())?;
    let x = c.reshape(x, &[&lead[..], &[count(&left), count(&inner)]].concat())?;
    let y = c.reshape(y, &[&lead[..], &[count(&inner), count(&right)]].concat())?;
    let r = c.node(Op::Dot, &[x, y])?;
    let order: Term = [&batch[..], &left, &right].concat();
    lead.extend(left.iter().chain(&right).map(|l| sizes[l]));
    let r = c.reshape(r, &lead)?;
    arrange(c, r, &order, output)
}
