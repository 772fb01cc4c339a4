//! Adds the e-nodes of templates.
use super::Premise::{self, *};
use super::{Adds, RULES, Rule};
use crate::language::{ENode, OpKey, Template, op};
use crate::rules::Saturated;
use egg::Id;
use kiln_graph::ops::Class;
use kiln_graph::{DType, Op, Type};
use kiln_plan::form::{GemmTemplate, Patches, Storage};
use kiln_plan::{Engine, Hardware, Precision};
use std::collections::{BTreeMap, BTreeSet};

/// Whether a premise holds of an op with operands of this type.
fn holds(premise: Premise, op: &Op, dtype: DType, m: &Hardware) -> bool {
    let single = dtype == DType::F32;
    let precision = m.f32_matmul(op).0;
    match premise {
        Warpgroups => m.arch.has_wgmma(),
        Half => matches!(dtype, DType::Bf16 | DType::F16) || dtype.is_f8(),
        Single => single,
        Double => dtype == DType::F64,
        LibraryTypes => matches!(dtype, DType::Bf16 | DType::F16 | DType::F32 | DType::F64),
        Tf32 => single && precision == Precision::Tf32,
        Tf32x3 => single && precision == Precision::Tf32x3,
        AnyOrder => !m.contract.batch_invariant,
        DualGemm => m.dual_gemm(dtype.name()),
        Any(all) => all.iter().any(|p| holds(*p, op, dtype, m)),
    }
}

/// The rules that apply to an op on operands of this type.
fn applicable<'a>(op: &'a Op, dtype: DType, m: &'a Hardware) -> impl Iterator<Item = &'static Rule> + use<'a> {
    let class = Class::of(op);
    RULES.iter().filter(move |r| r.of.contains(&class) && r.when.iter().all(|p| holds(*p, op, dtype, m)))
}

/// Adds the forms of every matmul, convolution and attention. None on the host, which has one program for each.
pub fn add(s: &mut Saturated, m: &Hardware) {
    if !m.arch.is_gpu() {
        return;
    }
    let g = &s.builder.g;
    let multiplies = |t: &&ENode| matches!(Class::of(op(g, t)), Class::Matmul | Class::Conv | Class::Attention);
    let mut nodes: Vec<(Id, ENode)> = vec![];
    for class in g.classes() {
        nodes.extend(class.nodes.iter().filter(multiplies).map(|t| (class.id, t.clone())));
    }
    nodes.sort();
    let duals = duals(s, &nodes);
    for (class, node) in nodes {
        let dual = duals.contains(&(class, node.key));
        Adder { s, m, class, node }.add(dual);
    }
    s.builder.g.rebuild();
}

/// Matmuls that may share a launch: those with a sibling of the same type and left operand, and those of which both
/// halves of the columns are read.
fn duals(s: &Saturated, nodes: &[(Id, ENode)]) -> BTreeSet<(Id, u32)> {
    let g = &s.builder.g;
    let mut siblings: BTreeMap<(u32, Id), Vec<Id>> = BTreeMap::new();
    let matmuls = || nodes.iter().filter(|(_, t)| Class::of(op(g, t)) == Class::Matmul);
    for (class, t) in matmuls() {
        siblings.entry((t.key, g.find(t.args[0]))).or_default().push(*class);
    }
    let has_halves = |class: Id| {
        let starts: BTreeSet<usize> = g[class]
            .parents()
            .flat_map(|p| g[g.find(p)].nodes.iter())
            .filter(|t| t.args.first().is_some_and(|a| g.find(*a) == class))
            .filter_map(|t| match op(g, t) {
                Op::Slice { start, len, .. } if g[class].data.ty.shape.last() == Some(&(2 * len)) => Some(*start),
                _ => None,
            })
            .collect();
        starts.len() == 2
    };
    matmuls()
        .filter(|(class, t)| siblings[&(t.key, g.find(t.args[0]))].len() > 1 || has_halves(*class))
        .map(|(class, t)| (*class, t.key))
        .collect()
}

/// Whether tiles of this template are staged in shared memory, on a machine with warpgroups: those of `mma` are loaded
/// to registers. FMAs take both.
fn is_staged(template: GemmTemplate) -> bool {
    matches!(template, GemmTemplate::Tiles(engine) if engine != Engine::Mma)
}

/// Adds the forms of one e-node.
struct Adder<'a, 'm> {
    s: &'a mut Saturated,
    m: &'a Hardware<'m>,
    class: Id,
    node: ENode,
}

impl Adder<'_, '_> {
    fn add(mut self, dual: bool) {
        let g = &self.s.builder.g;
        let (o, ty) = (op(g, &self.node).clone(), g[self.class].data.ty.clone());
        let Some(&left) = self.node.args.first() else { return };
        let dtype = g[left].data.ty.dtype;
        let rules: Vec<&Rule> = applicable(&o, dtype, self.m).collect();
        let has = |adds: Adds| rules.iter().any(|r| r.adds == adds);
        if Class::of(&o) == Class::Attention {
            let options = |rule| if has(rule) { vec![false, true] } else { vec![false] };
            for rule in &rules {
                let Adds::Attention(engine) = rule.adds else { continue };
                for split in options(Adds::AttentionSplit) {
                    for block_mask in options(Adds::BlockMask) {
                        let args = self.node.args.clone();
                        let form = self.term(&o, &ty, Template::Attention { engine, split, block_mask }, args);
                        self.s.builder.equate(self.class, form);
                    }
                }
            }
            return;
        }
        let copies = has(Adds::Layout);
        let (first, second) = (left, self.node.args[1]);
        let rest = self.node.args[2..].to_vec();
        // A convolution multiplies its weight with patches of its input.
        let pairs: Vec<([Id; 2], Option<Patches>)> = if Class::of(&o) == Class::Conv {
            let patches = rules.iter().filter_map(|r| if let Adds::Patches(p) = r.adds { Some(p) } else { None });
            patches.map(|p| ([second, self.value(first, Template::Patches(p))], Some(p))).collect()
        } else {
            vec![([first, second], None)]
        };
        for ([left, right], patches) in pairs {
            // Tensor maps describe windows of the input itself.
            let copied = [copies, copies && patches != Some(Patches::Windows)];
            let [a, b] = [left, right].map(|x| self.value(x, Template::Array));
            let plain = [&[a, b][..], &rest].concat();
            let [a, b] = [(left, copied[0]), (right, copied[1])].map(|(x, copies)| self.staged(x, copies));
            let staged = [&[a, b][..], &rest].concat();
            let swapped = has(Adds::Transpose).then(|| {
                let [left, right] = [left, right].map(|x| self.value(x, Template::Transpose));
                let [a, b] = [(right, copied[1]), (left, copied[0])].map(|(x, copies)| self.staged(x, copies));
                [&[a, b][..], &rest].concat()
            });
            for rule in &rules {
                let (template, split) = match rule.adds {
                    Adds::Gemm(template) => (template, false),
                    Adds::Split(template) => (template, true),
                    _ => continue,
                };
                let stages = is_staged(template) && self.m.arch.has_wgmma();
                if patches == Some(Patches::Windows) && !stages {
                    continue;
                }
                let args = if stages { &staged } else { &plain };
                let in_halves = if dual && has(Adds::Dual) { vec![false, true] } else { vec![false] };
                for dual in in_halves {
                    let how = Template::Gemm { template, split, dual };
                    let form = self.term(&o, &ty, how, args.clone());
                    self.s.builder.equate(self.class, form);
                    if let (Some(swapped), true, false) = (&swapped, stages, dual) {
                        let transposed = self.term(&o, &ty, how, swapped.clone());
                        let form = self.value(transposed, Template::Transpose);
                        self.s.builder.equate(self.class, form);
                    }
                }
            }
        }
    }
    /// An array that is staged: the value as it is stored or, where `copies`, as a copy.
    fn staged(&mut self, value: Id, copies: bool) -> Id {
        let stored = self.value(value, Template::Staged(Storage::InPlace));
        if copies {
            let copy = self.value(value, Template::Staged(Storage::Copied));
            self.s.builder.equate(stored, copy);
        }
        stored
    }
    fn value(&mut self, of: Id, template: Template) -> Id {
        let ty = self.s.builder.ty(of).clone();
        self.term(&Op::Reshape(ty.shape.clone()), &ty, template, vec![of])
    }
    fn term(&mut self, op: &Op, ty: &Type, template: Template, args: Vec<Id>) -> Id {
        let g = &mut self.s.builder.g;
        let key = OpKey { op: op.clone(), ty: ty.clone(), serial: None, template: Some(template) };
        let key = g.analysis.key(key);
        g.add(ENode { key, args })
    }
}
