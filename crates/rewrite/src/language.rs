//! The e-graph's language: tensor values only. Loads, stores and kernels are absent on purpose.
//!
//! An e-node is an op of the graph's op set over e-classes. Each op with its result type is interned
//! ([`ValueAnalysis::keys`]), so e-nodes are small and ordered, and congruent nodes have equal types. After saturation
//! the classes of matmuls, convolutions and attention get e-nodes of templates too ([`crate::forms`]), whose operands
//! are arrays in memory.
use crate::dag::is_frozen;
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use kiln_graph::{BinaryOp, DType, Op, Scalar, Type, UnaryOp};
use kiln_plan::Engine;
use kiln_plan::form::{GemmTemplate, Patches, Storage};
use std::collections::HashMap;

/// An op with its result type; `serial` keeps fallback calls distinct, which may have side effects.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OpKey {
    pub op: Op,
    pub ty: Type,
    pub serial: Option<u32>,
    /// How a GPU computes the op, if the e-node says so.
    pub template: Option<Template>,
}

/// How a GPU computes a matmul, a convolution or attention, or where it reads an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Template {
    /// A GEMM of two arrays; `split`: in slices of K; `dual`: as one of two that share a launch.
    Gemm { template: GemmTemplate, split: bool, dual: bool },
    /// Attention; `split`: in slices of the keys; `block_mask`: of the blocks of keys that a launch before it finds.
    Attention { engine: Engine, split: bool, block_mask: bool },
    /// The transpose of its operand, a GEMM whose operands are in the other order.
    Transpose,
    /// The matrix of a convolution's patches.
    Patches(Patches),
    /// An array that holds its operand, as it is stored.
    Array,
    /// An array that is staged in shared memory: as it is stored, or a copy.
    Staged(Storage),
}

/// An e-node.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ENode {
    pub key: u32,
    pub args: Vec<Id>,
}
impl Language for ENode {
    type Discriminant = u32;
    fn discriminant(&self) -> u32 {
        self.key
    }
    fn matches(&self, other: &ENode) -> bool {
        self.key == other.key && self.args.len() == other.args.len()
    }
    fn children(&self) -> &[Id] {
        &self.args
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}

/// Analysis data of an e-class, which rules may test. Nothing in it is about kernels, since a class holds forms of many
/// kernels.
#[derive(Clone, PartialEq, Debug)]
pub struct ClassData {
    pub ty: Type,
    /// Every element is this number (bits of an f64).
    pub uniform: Option<u64>,
    /// Computed from parameters and constants only.
    pub frozen: bool,
}
impl ClassData {
    pub fn number(&self) -> Option<f64> {
        self.uniform.map(f64::from_bits)
    }
}

/// The e-class analysis, with the interned keys of e-nodes.
#[derive(Default, Clone)]
pub struct ValueAnalysis {
    pub keys: Vec<OpKey>,
    by_key: HashMap<OpKey, u32>,
}
impl ValueAnalysis {
    /// The number of a key.
    pub fn key(&mut self, h: OpKey) -> u32 {
        let next = self.keys.len() as u32;
        let keys = &mut self.keys;
        *self.by_key.entry(h).or_insert_with_key(|h| {
            keys.push(h.clone());
            next
        })
    }
}

pub type Values = EGraph<ENode, ValueAnalysis>;

/// The op of an e-node.
pub fn op<'a>(g: &'a Values, t: &ENode) -> &'a Op {
    &g.analysis.keys[t.key as usize].op
}

/// The template of an e-node, if it has one.
pub fn template(g: &Values, t: &ENode) -> Option<Template> {
    g.analysis.keys[t.key as usize].template
}

impl Analysis<ENode> for ValueAnalysis {
    type Data = ClassData;
    fn make(g: &mut Values, t: &ENode, _: Id) -> ClassData {
        let head = &g.analysis.keys[t.key as usize];
        let frozen = is_frozen(&head.op, t.args.iter().map(|a| g[*a].data.frozen));
        let args: Vec<&ClassData> = t.args.iter().map(|a| &g[*a].data).collect();
        let uniform = fold(&head.op, &head.ty, &args).map(f64::to_bits);
        ClassData { ty: head.ty.clone(), uniform, frozen }
    }
    /// Merged classes have equal types (`Builder::equate` checks); other facts are joined.
    fn merge(&mut self, a: &mut ClassData, b: ClassData) -> DidMerge {
        let before = (a.uniform, a.frozen);
        (a.uniform, a.frozen) = (a.uniform.or(b.uniform), a.frozen | b.frozen);
        DidMerge((a.uniform, a.frozen) != before, (a.uniform, a.frozen) != (b.uniform, b.frozen))
    }
    fn modify(g: &mut Values, id: Id) {
        let fact = &g[id].data;
        let (Some(v), true) = (fact.number(), fact.ty.shape.is_empty() && fact.ty.dtype.is_float()) else { return };
        let head = OpKey { op: Op::Const(Scalar::Float(v)), ty: fact.ty.clone(), serial: None, template: None };
        let head = g.analysis.key(head);
        let constant = g.add(ENode { key: head, args: vec![] });
        g.union(id, constant);
    }
}

/// `v` as a number of that type.
pub fn round_to(v: f64, dtype: DType) -> f64 {
    dtype.round(v)
}

/// Constant folding: the number that every element of the result equals, if the operands determine it. Rounds as the op
/// itself does.
fn fold(op: &Op, ty: &Type, args: &[&ClassData]) -> Option<f64> {
    let arg = |i: usize| args.get(i).and_then(|a| a.number());
    let float = ty.dtype.is_float();
    let v = match op {
        Op::Const(s @ Scalar::Float(_)) => round_to(s.as_f64(), ty.dtype),
        Op::Const(Scalar::Bool(b)) => f64::from(u8::from(*b)),
        // Integers that are exact in f64.
        Op::Const(Scalar::Int(i)) if i.unsigned_abs() < 1 << 53 => *i as f64,
        Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Flip(_) => arg(0)?,
        Op::Cast(_) if float => arg(0)?,
        Op::Unary(UnaryOp::Neg) if float => -arg(0)?,
        Op::Unary(UnaryOp::Sqrt) if float => arg(0)?.sqrt(),
        Op::Binary(b) if float => match b {
            BinaryOp::Add => arg(0)? + arg(1)?,
            BinaryOp::Sub => arg(0)? - arg(1)?,
            BinaryOp::Mul => arg(0)? * arg(1)?,
            BinaryOp::Div => arg(0)? / arg(1)?,
            _ => return None,
        },
        _ => return None,
    };
    Some(round_to(v, ty.dtype))
}
