//! Reads the forms of an e-node from the templates of its class.
use crate::language::{ENode, Template, op, template};
use crate::rules::Saturated;
use egg::Id;
use kiln_graph::ops::Class;
use kiln_plan::form::{AttentionForm, Form, GemmForm, Patches, Storage};
use std::collections::BTreeSet;

/// The forms in which the class computes an e-node: those of its templates whose operands are arrays of the e-node's.
pub fn of(s: &Saturated, class: Id, node: &ENode) -> Vec<Form> {
    let g = &s.builder.g;
    let multiplies = matches!(Class::of(op(g, node)), Class::Matmul | Class::Conv | Class::Attention);
    if !multiplies {
        return vec![];
    }
    let mut found = BTreeSet::new();
    let is = |class: Id, wanted: Template| g[g.find(class)].nodes.iter().find(|t| template(g, t) == Some(wanted));
    let inner = |class: Id, wanted: Template| is(class, wanted).map(|t| g.find(t.args[0]));
    // How an array holds the operand, or its transpose: its storages, and the patches of it.
    let arrays = |array: Id, operand: Id, swap: bool| -> Vec<(Storage, Option<Patches>)> {
        let operand = g.find(operand);
        let reads = |(template, storage): (Template, Storage)| {
            let stored = inner(array, template)?;
            let matrix = if swap { inner(stored, Template::Transpose)? } else { stored };
            if matrix == operand {
                return Some((storage, None));
            }
            let patches = [Patches::Im2col, Patches::Windows].into_iter();
            let found = patches.into_iter().find(|p| inner(matrix, Template::Patches(*p)) == Some(operand));
            found.map(|p| (storage, Some(p)))
        };
        let arrays = [
            (Template::Array, Storage::InPlace),
            (Template::Staged(Storage::InPlace), Storage::InPlace),
            (Template::Staged(Storage::Copied), Storage::Copied),
        ];
        arrays.into_iter().filter_map(reads).collect()
    };
    let same_rest = |t: &ENode| t.args[2..].iter().map(|a| g.find(*a)).eq(node.args[2..].iter().map(|a| g.find(*a)));
    let is_conv = Class::of(op(g, node)) == Class::Conv;
    let operands = |args: &[Id]| if is_conv { [args[1], args[0]] } else { [args[0], args[1]] };
    let mut gemm = |t: &ENode, swap: bool| {
        let Some(Template::Gemm { template, split, dual }) = template(g, t) else { return };
        if op(g, t) != op(g, node) || !same_rest(t) {
            return;
        }
        let [left, right] = operands(&node.args);
        let [a, b] = if swap { [t.args[1], t.args[0]] } else { [t.args[0], t.args[1]] };
        for (left, no_patches) in arrays(a, left, swap) {
            for (right, patches) in arrays(b, right, swap) {
                if no_patches.is_none() && patches.is_some() == is_conv {
                    let operands = [left, right];
                    found.insert(Form::Gemm(GemmForm { template, split, dual, swap, operands, patches }));
                }
            }
        }
    };
    for t in &g[g.find(class)].nodes {
        match template(g, t) {
            Some(Template::Gemm { .. }) => gemm(t, false),
            Some(Template::Transpose) => g[g.find(t.args[0])].nodes.iter().for_each(|t| gemm(t, true)),
            _ => {}
        }
    }
    for t in &g[g.find(class)].nodes {
        if let Some(Template::Attention { engine, split, block_mask }) = template(g, t)
            && op(g, t) == op(g, node)
            && t.args == node.args
        {
            found.insert(Form::Attention(AttentionForm { engine, split, block_mask }));
        }
    }
    found.into_iter().collect()
}
