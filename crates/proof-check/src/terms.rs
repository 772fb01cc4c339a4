//! Classes of equal terms, closed under congruence: the same op on equal operands is equal.
//!
//! Each class has the facts that premises ask for: the number that all of its elements are, and whether it is computed
//! from parameters and constants alone. Terms of equal classes have equal types.
use kiln_graph::{BinaryOp, Op, Scalar, Type, UnaryOp};
use std::collections::{BTreeSet, HashMap};

#[derive(Clone, Debug)]
pub struct Node {
    pub op: Op,
    pub ty: Type,
    pub args: Vec<usize>,
    /// Made of constants alone.
    pub constant: bool,
}

#[derive(Clone, Default, Debug)]
struct Class {
    members: Vec<usize>,
    /// Terms with an operand in the class.
    users: Vec<usize>,
    /// Bits of the number.
    number: Option<u64>,
    frozen: bool,
}

#[derive(Default)]
pub struct Terms {
    nodes: Vec<Node>,
    parent: Vec<usize>,
    classes: HashMap<usize, Class>,
    by_form: HashMap<(Op, Type, Vec<usize>), usize>,
    /// Terms whose operands have new forms since the theory was last applied to them.
    touched: BTreeSet<usize>,
}

impl Terms {
    pub fn term(&self, t: usize) -> &Node {
        &self.nodes[t]
    }
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    pub fn ty(&self, t: usize) -> &Type {
        &self.nodes[t].ty
    }
    /// Representative of a term's class.
    pub fn find(&self, mut t: usize) -> usize {
        while self.parent[t] != t {
            t = self.parent[t];
        }
        t
    }
    pub fn same(&self, a: usize, b: usize) -> bool {
        self.find(a) == self.find(b)
    }
    pub fn members(&self, t: usize) -> &[usize] {
        &self.classes[&self.find(t)].members
    }
    /// The number that all elements are, if it is known.
    pub fn number(&self, t: usize) -> Option<f64> {
        self.classes[&self.find(t)].number.map(f64::from_bits)
    }
    pub fn frozen(&self, t: usize) -> bool {
        self.classes[&self.find(t)].frozen
    }

    /// A term whose operands have new forms since it was last taken.
    pub fn take_touched(&mut self) -> Option<usize> {
        self.touched.pop_first()
    }
    pub fn users(&self, t: usize) -> &[usize] {
        &self.classes[&self.find(t)].users
    }
    /// A term alone.
    pub fn insert(&mut self, op: Op, ty: Type, args: Vec<usize>) -> usize {
        let form = (op, ty, args.iter().map(|a| self.find(*a)).collect::<Vec<usize>>());
        if let Some(&t) = self.by_form.get(&form) {
            return t;
        }
        let t = self.nodes.len();
        let users: BTreeSet<usize> = form.2.iter().copied().collect();
        let leaf = matches!(form.0, Op::Input(_) | Op::Param(_) | Op::Fallback(_));
        let constant = !leaf && args.iter().all(|a| self.nodes[*a].constant);
        self.nodes.push(Node { op: form.0.clone(), ty: form.1.clone(), args, constant });
        self.parent.push(t);
        self.by_form.insert(form, t);
        for class in users {
            self.classes.entry(class).or_default().users.push(t);
        }
        let (number, frozen) = self.facts(t);
        self.classes.insert(t, Class { members: vec![t], users: vec![], number, frozen });
        self.constant(t);
        t
    }
    /// Joins the classes of two equal terms.
    pub fn join(&mut self, a: usize, b: usize) {
        let mut pending = vec![(a, b)];
        while let Some((a, b)) = pending.pop() {
            let (a, b) = (self.find(a), self.find(b));
            if a == b {
                continue;
            }
            let (gone, kept) =
                if self.classes[&a].members.len() < self.classes[&b].members.len() { (a, b) } else { (b, a) };
            let Some(old) = self.classes.remove(&gone) else { continue };
            self.parent[gone] = kept;
            let class = self.classes.entry(kept).or_default();
            let changed = class.number.is_none() && old.number.is_some() || old.frozen && !class.frozen;
            class.number = class.number.or(old.number);
            class.frozen |= old.frozen;
            class.members.extend(old.members);
            let moved = old.users.clone();
            self.touched.extend(class.users.iter().chain(&moved));
            class.users.extend(old.users);
            let affected = if changed { class.users.clone() } else { moved };
            for user in affected {
                let n = &self.nodes[user];
                let form = (n.op.clone(), n.ty.clone(), n.args.iter().map(|a| self.find(*a)).collect::<Vec<usize>>());
                match self.by_form.get(&form) {
                    Some(&other) if !self.same(other, user) => pending.push((other, user)),
                    Some(_) => {}
                    None => {
                        self.by_form.insert(form, user);
                    }
                }
                self.learn(user);
            }
            self.constant(kept);
        }
    }
    /// Recomputes the facts of a term whose operands' facts have changed.
    fn learn(&mut self, t: usize) {
        let mut todo = vec![t];
        while let Some(t) = todo.pop() {
            let (number, frozen) = self.facts(t);
            let root = self.find(t);
            let Some(class) = self.classes.get_mut(&root) else { continue };
            let changed = class.number.is_none() && number.is_some() || frozen && !class.frozen;
            if changed {
                class.number = class.number.or(number);
                class.frozen |= frozen;
                todo.extend(class.users.clone());
                self.constant(root);
            }
        }
    }
    /// A float of rank 0 whose value is known is that constant.
    fn constant(&mut self, t: usize) {
        let (ty, number) = (self.ty(t).clone(), self.number(t));
        if let (Some(v), true) = (number, ty.shape.is_empty() && ty.dtype.is_float()) {
            let constant = self.insert_constant(v, ty);
            if !self.same(constant, t) {
                self.join(constant, t);
            }
        }
    }
    fn insert_constant(&mut self, v: f64, ty: Type) -> usize {
        let form = (Op::Const(Scalar::Float(v)), ty, vec![]);
        if let Some(&t) = self.by_form.get(&form) {
            return t;
        }
        let t = self.nodes.len();
        self.nodes.push(Node { op: form.0.clone(), ty: form.1.clone(), args: vec![], constant: true });
        self.parent.push(t);
        self.by_form.insert(form, t);
        let class = Class { members: vec![t], users: vec![], number: Some(v.to_bits()), frozen: true };
        self.classes.insert(t, class);
        t
    }
    /// What a term's op makes of the facts of its operands.
    fn facts(&self, t: usize) -> (Option<u64>, bool) {
        let n = &self.nodes[t];
        let frozen = !matches!(n.op, Op::Input(_) | Op::Fallback(_)) && n.args.iter().all(|a| self.frozen(*a));
        let arg = |i: usize| n.args.get(i).and_then(|a| self.number(*a));
        let float = n.ty.dtype.is_float();
        let number = match &n.op {
            Op::Const(Scalar::Float(v)) => Some(*v),
            Op::Const(Scalar::Bool(b)) => Some(f64::from(u8::from(*b))),
            Op::Const(Scalar::Int(i)) if i.unsigned_abs() < 1 << 53 => Some(*i as f64),
            Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Flip(_) => arg(0),
            Op::Cast(_) if float => arg(0),
            Op::Unary(UnaryOp::Neg) if float => arg(0).map(|x| -x),
            Op::Unary(UnaryOp::Sqrt) if float => arg(0).map(f64::sqrt),
            Op::Binary(b) if float => arg(0).zip(arg(1)).and_then(|(x, y)| match b {
                BinaryOp::Add => Some(x + y),
                BinaryOp::Sub => Some(x - y),
                BinaryOp::Mul => Some(x * y),
                BinaryOp::Div => Some(x / y),
                _ => None,
            }),
            _ => None,
        };
        (number.map(|v| n.ty.dtype.round(v).to_bits()), frozen)
    }
}
