//! Builds a kernel instruction by instruction; result types follow from the operands.
mod atomic;
mod combine;
pub(crate) mod rewrite;

use crate::{
    Arithmetic, Array, BinaryOp, BlockProgram, CachePolicy, CmpOp, Const, DotPrecision, Elem, Facts, Grid, Inst,
    LoadMode, Op, Param, ReduceOp, Region, Role, ScanOp, Terms, Type, UnaryOp, Value,
};
use std::collections::HashMap;

/// The program of a role; it receives the number of its copy if there are several.
pub type Program<'a> = Box<dyn FnOnce(&mut Builder, Option<Value>) + 'a>;

/// Open regions, innermost last; instructions go to the innermost. Shapes are checked by the verifier, not here: a
/// wrong program is built and then rejected.
pub struct Builder {
    kernel: BlockProgram,
    open: Vec<Region>,
    fault: Option<String>,
    /// What wider values were cast from, by these.
    narrow: HashMap<Value, Value>,
}

impl Builder {
    pub fn new(name: impl Into<String>, grid: impl Into<Grid>, warps: usize) -> Builder {
        let grid = grid.into();
        Builder {
            kernel: BlockProgram { name: name.into(), grid, warps, blocks: 1, cluster: 1, ..BlockProgram::default() },
            open: vec![Region::default()],
            fault: None,
            narrow: HashMap::new(),
        }
    }
    /// Adds to an existing program: what is built goes where [`Builder::place_before`] says.
    pub fn of(program: BlockProgram) -> Builder {
        Builder { kernel: program, open: vec![Region::default()], fault: None, narrow: HashMap::new() }
    }
    /// Places what was built since the last call before an instruction of the program.
    pub fn place_before(&mut self, inst: Inst) {
        let built = self.open.last_mut().map(|region| std::mem::take(&mut region.insts)).unwrap_or_default();
        if !self.kernel.insert_before(inst, built) {
            self.broken("an instruction is placed before one that the program does not have");
        }
    }
    /// The program that was added to.
    pub fn into_program(self) -> BlockProgram {
        self.kernel
    }
    /// The program as it is so far.
    pub fn program(&self) -> &BlockProgram {
        &self.kernel
    }
    /// The same, to replace and remove instructions.
    pub fn program_mut(&mut self) -> &mut BlockProgram {
        &mut self.kernel
    }
    /// Marks the program as invalid, with the reason; the caller checks [`Builder::fault`] before it uses the program.
    /// Returns a dummy value, so that building can go on until the program is thrown away.
    pub fn broken(&mut self, why: impl Into<String>) -> Value {
        self.fault.get_or_insert_with(|| why.into());
        self.i32(0)
    }
    /// Why the program is invalid, if [`Builder::broken`] was called.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }
    pub fn name(&self) -> &str {
        &self.kernel.name
    }
    /// A pointer parameter.
    pub fn param(&mut self, name: impl Into<String>, elem: Elem, readonly: bool) -> Value {
        self.push_param(name.into(), Type::ptr(elem, []), readonly, None, Facts::default())
    }
    /// A scalar parameter.
    pub fn scalar(&mut self, name: impl Into<String>, elem: Elem, facts: Facts) -> Value {
        self.push_param(name.into(), Type::scalar(elem), false, None, facts)
    }
    fn push_param(&mut self, name: String, ty: Type, readonly: bool, array: Option<Array>, facts: Facts) -> Value {
        let value = self.kernel.new_value(ty);
        self.kernel.params.push(Param { name, value, align: 16, readonly, array, launch_array: None, facts });
        value
    }
    /// The parameters so far, to state what is known of them.
    pub fn params_mut(&mut self) -> &mut [Param] {
        &mut self.kernel.params
    }
    /// A descriptor parameter: tiles of `ty` in `array`.
    pub fn descriptor(&mut self, name: impl Into<String>, ty: Type, array: Array, readonly: bool) -> Value {
        self.push_param(name.into(), ty, readonly, Some(array), Facts::default())
    }
    /// A parameter of another program, of this type.
    pub fn param_like(&mut self, p: &Param, ty: Type) -> Value {
        let value = self.kernel.new_value(ty);
        self.kernel.params.push(Param { value, ..p.clone() });
        value
    }
    pub fn ty(&self, v: Value) -> &Type {
        self.kernel.ty(v)
    }
    pub fn shape(&self, v: Value) -> Vec<usize> {
        self.kernel.ty(v).shape().to_vec()
    }
    pub fn elem(&self, v: Value) -> Option<Elem> {
        self.kernel.ty(v).elem()
    }
    /// Appends an instruction with the given result types.
    pub fn inst(&mut self, op: Op, args: &[Value], results: &[Type], regions: Vec<Region>) -> Vec<Value> {
        let results: Vec<Value> = results.iter().map(|t| self.kernel.new_value(t.clone())).collect();
        self.define(&results, op, args, regions);
        results
    }
    fn one(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.inst(op, args, &[ty], vec![])[0]
    }

    pub fn constant(&mut self, ty: Type, value: Const) -> Value {
        self.one(Op::Const(value), &[], ty)
    }
    pub fn i32(&mut self, v: i64) -> Value {
        self.constant(Type::scalar(Elem::I32), Const::Int(v))
    }
    pub fn program_id(&mut self, axis: u8) -> Value {
        self.one(Op::ProgramId(axis), &[], Type::scalar(Elem::I32))
    }
    pub fn num_programs(&mut self, axis: u8) -> Value {
        self.one(Op::NumPrograms(axis), &[], Type::scalar(Elem::I32))
    }
    pub fn iota(&mut self, n: usize) -> Value {
        self.one(Op::Iota, &[], Type::block(Elem::I32, [n]))
    }
    /// Scalar to block; the same value if the shape is empty.
    pub fn splat(&mut self, v: Value, shape: &[usize]) -> Value {
        if shape.is_empty() {
            return v;
        }
        let ty = self.ty(v).with_shape(shape);
        self.one(Op::Splat, &[v], ty)
    }
    pub fn expand_dims(&mut self, v: Value, axis: usize) -> Value {
        let mut shape = self.shape(v);
        shape.insert(axis.min(shape.len()), 1);
        let ty = self.ty(v).with_shape(shape);
        self.one(Op::ExpandDims(axis as u8), &[v], ty)
    }
    /// To `shape` by splat, leading expand_dims and broadcast, as needed; the same value if it has the shape already.
    pub fn broadcast_to(&mut self, mut v: Value, shape: &[usize]) -> Value {
        if self.ty(v).is_scalar() {
            return self.splat(v, shape);
        }
        while self.shape(v).len() < shape.len() {
            v = self.expand_dims(v, 0);
        }
        if self.shape(v) == shape {
            return v;
        }
        let ty = self.ty(v).with_shape(shape);
        self.one(Op::Broadcast, &[v], ty)
    }
    pub fn reshape(&mut self, v: Value, shape: &[usize]) -> Value {
        let ty = self.ty(v).with_shape(shape);
        self.one(Op::Reshape, &[v], ty)
    }
    pub fn permute(&mut self, v: Value, perm: &[u8]) -> Value {
        let old = self.shape(v);
        let ty = self.ty(v).with_shape(perm.iter().map(|&p| old[p as usize]).collect::<Vec<_>>());
        self.one(Op::Permute(perm.to_vec()), &[v], ty)
    }
    /// `extent` elements along `axis`, from `at` on.
    pub fn part(&mut self, v: Value, axis: usize, at: usize, extent: usize) -> Value {
        let mut shape = self.shape(v);
        if shape[axis] == extent {
            return v;
        }
        shape[axis] = extent;
        let ty = self.ty(v).with_shape(shape);
        self.one(Op::Part { axis: axis as u8, at: at as u32 }, &[v], ty)
    }
    /// Splits a block of one axis into rows of `row` elements ([`Op::Unpack`]).
    pub fn unpack(&mut self, v: Value, row: usize, shape: [usize; 2]) -> Value {
        let ty = self.ty(v).with_shape(shape);
        self.one(Op::Unpack { row: row as u32 }, &[v], ty)
    }
    /// Concatenates the first `row` elements of each row into a block of `extent` ([`Op::Pack`]).
    pub fn pack(&mut self, v: Value, row: usize, extent: usize) -> Value {
        let ty = self.ty(v).with_shape([extent]);
        self.one(Op::Pack { row: row as u32 }, &[v], ty)
    }
    pub fn unary(&mut self, op: UnaryOp, v: Value) -> Value {
        let ty = match op {
            UnaryOp::IsNan | UnaryOp::IsInf => Type::block(Elem::Bool, self.shape(v)),
            _ => self.ty(v).clone(),
        };
        self.one(Op::Unary(op), &[v], ty)
    }
    /// Operands are broadcast to each other's shape.
    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let (a, b) = self.together(a, b);
        let ty = self.ty(a).clone();
        self.one(Op::Binary(op), &[a, b], ty)
    }
    pub fn cmp(&mut self, op: CmpOp, a: Value, b: Value) -> Value {
        let (a, b) = self.together(a, b);
        let ty = Type::block(Elem::Bool, self.shape(a));
        self.one(Op::Cmp(op), &[a, b], ty)
    }
    pub fn select(&mut self, c: Value, a: Value, b: Value) -> Value {
        let (a, b) = self.together(a, b);
        let (c, a) = self.together(c, a);
        let (a, b) = self.together(a, b);
        let ty = self.ty(a).clone();
        self.one(Op::Select, &[c, a, b], ty)
    }
    fn together(&mut self, a: Value, b: Value) -> (Value, Value) {
        let (x, y) = (self.shape(a), self.shape(b));
        if x == y {
            return (a, b);
        }
        let n = x.len().max(y.len());
        let at = |s: &[usize], i: usize| if i + s.len() >= n { s[i + s.len() - n] } else { 1 };
        let shape: Vec<usize> = (0..n).map(|i| if at(&x, i) == 1 { at(&y, i) } else { at(&x, i) }).collect();
        (self.broadcast_to(a, &shape), self.broadcast_to(b, &shape))
    }
    /// The same value if it has the type already, or what it was cast from if that has.
    pub fn cast(&mut self, v: Value, to: Elem) -> Value {
        let elem = self.elem(v);
        if elem == Some(to) {
            return v;
        }
        if let Some(narrow) = self.narrow.get(&v).copied().filter(|n| self.elem(*n) == Some(to)) {
            return narrow;
        }
        let ty = Type::block(to, self.shape(v));
        let cast = self.one(Op::Cast(to), &[v], ty);
        let formats = elem.and_then(Elem::format).zip(to.format());
        if formats.is_some_and(|(from, to)| to.holds(from)) {
            self.narrow.insert(cast, v);
        }
        cast
    }
    /// `a * b + c`, rounded once.
    pub fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        let (a, b) = self.together(a, b);
        let (a, c) = self.together(a, c);
        let (a, b) = self.together(a, b);
        let ty = self.ty(a).clone();
        self.one(Op::Fma, &[a, b, c], ty)
    }
    /// To a smaller float, rounded toward zero.
    pub fn cast_to_zero(&mut self, v: Value, to: Elem) -> Value {
        let ty = Type::block(to, self.shape(v));
        self.one(Op::CastToZero(to), &[v], ty)
    }
    /// The same bits as another type of the operand's shape.
    pub fn bitcast(&mut self, v: Value, to: &Type) -> Value {
        let shape = self.shape(v);
        self.one(Op::Bitcast, &[v], to.with_shape(shape))
    }
    /// The same integers or pointers, known to be multiples along each axis.
    pub fn multiple_of(&mut self, v: Value, divisors: &[u32]) -> Value {
        let ty = self.ty(v).clone();
        self.one(Op::MultipleOf(divisors.to_vec()), &[v], ty)
    }
    /// Pointer and offset are broadcast to each other.
    pub fn ptr_add(&mut self, p: Value, offset: Value) -> Value {
        let (p, offset) = self.together(p, offset);
        let ty = self.ty(p).clone();
        self.one(Op::PtrAdd, &[p, offset], ty)
    }
    pub fn load(&mut self, p: Value, mask: Option<Value>, other: Option<Value>) -> Value {
        self.load_by(LoadMode::Vectors, p, mask, other)
    }
    pub fn load_by(&mut self, mode: LoadMode, p: Value, mask: Option<Value>, other: Option<Value>) -> Value {
        let shape = self.shape(p);
        let mut args = vec![p];
        for v in [mask, other].into_iter().flatten() {
            args.push(self.broadcast_to(v, &shape));
        }
        let ty = self.ty(p).pointee();
        self.one(Op::Load(mode, CachePolicy::Normal), &args, ty)
    }
    /// Prefetches bytes from a scalar pointer on, which another instance will read soon.
    pub fn prefetch(&mut self, p: Value, bytes: usize) {
        self.inst(Op::Prefetch { bytes: bytes as u32 }, &[p], &[], vec![]);
    }
    pub fn store(&mut self, p: Value, v: Value, mask: Option<Value>) {
        self.store_cached(p, v, mask, CachePolicy::Normal);
    }
    pub fn store_cached(&mut self, p: Value, v: Value, mask: Option<Value>, cache: CachePolicy) {
        let shape = self.shape(p);
        let mut args = vec![p, self.broadcast_to(v, &shape)];
        if let Some(m) = mask {
            args.push(self.broadcast_to(m, &shape));
        }
        self.inst(Op::Store(cache), &args, &[], vec![]);
    }
    /// Shows values to other instances ([`Op::Publish`]).
    pub fn publish(&mut self, p: Value, v: Value, mask: Option<Value>) {
        let shape = self.shape(p);
        let mut args = vec![p, self.broadcast_to(v, &shape)];
        if let Some(m) = mask {
            args.push(self.broadcast_to(m, &shape));
        }
        self.inst(Op::Publish, &args, &[], vec![]);
    }
    /// What other instances have published ([`Op::Await`]).
    pub fn wait(&mut self, p: Value, elem: Elem, mask: Option<Value>) -> Value {
        let shape = self.shape(p);
        let mut args = vec![p];
        if let Some(m) = mask {
            args.push(self.broadcast_to(m, &shape));
        }
        self.one(Op::Await, &args, Type::Block { elem, shape })
    }
    /// Where `bad` holds, writes the index and its site to `to` ([`Op::Check`]).
    pub fn check(&mut self, to: Value, [bad, index]: [Value; 2], mask: Option<Value>, site: u32) {
        let (bad, mut index) = self.together(bad, index);
        if let Some(m) = mask {
            index = self.together(index, m).0;
        }
        let shape = self.shape(index);
        let mut args = vec![to, self.broadcast_to(bad, &shape), index];
        args.extend(mask.map(|m| self.broadcast_to(m, &shape)));
        self.inst(Op::Check { site }, &args, &[], vec![]);
    }
    pub fn reduce(&mut self, op: ReduceOp, v: Value, axis: usize) -> Value {
        let mut shape = self.shape(v);
        shape.remove(axis);
        let ty = match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => Type::block(Elem::I32, shape),
            _ => self.ty(v).with_shape(shape),
        };
        self.one(Op::Reduce { op, axis: axis as u8 }, &[v], ty)
    }
    pub fn scan(&mut self, op: ScanOp, v: Value, axis: usize) -> Value {
        let ty = self.ty(v).clone();
        self.one(Op::Scan { op, axis: axis as u8 }, &[v], ty)
    }
    pub fn dot(&mut self, a: Value, b: Value, acc: Value, precision: DotPrecision) -> Value {
        let ty = self.ty(acc).clone();
        self.one(Op::Dot { precision, terms: Terms::Products }, &[a, b, acc], ty)
    }
    /// Sums `terms` over K in exact f32.
    pub fn sum_of(&mut self, terms: Terms, a: Value, b: Value, acc: Value) -> Value {
        let ty = self.ty(acc).clone();
        self.one(Op::Dot { precision: DotPrecision::Exact, terms }, &[a, b, acc], ty)
    }
    /// `for index in lo..hi step { carried = body(index, carried) }`; gives the last carried values.
    pub fn for_loop(
        &mut self,
        [lo, hi, step]: [Value; 3],
        carried: &[Value],
        body: impl FnOnce(&mut Builder, Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let types: Vec<Type> = carried.iter().map(|v| self.ty(*v).clone()).collect();
        let params: Vec<Type> = std::iter::once(self.ty(lo).clone()).chain(types.iter().cloned()).collect();
        let region = self.region(&params, |b, params| body(b, params[0], &params[1..]));
        let args: Vec<Value> = [lo, hi, step].into_iter().chain(carried.iter().copied()).collect();
        self.inst(Op::For, &args, &types, vec![region])
    }
    /// Runs `body`, which gives a condition and the next values of the carried scalars, until the condition is false.
    pub fn while_loop(&mut self, carried: &[Value], body: impl FnOnce(&mut Builder, &[Value]) -> (Value, Vec<Value>)) {
        let types: Vec<Type> = carried.iter().map(|v| self.ty(*v).clone()).collect();
        let region = self.region(&types, |b, now| {
            let (more, next) = body(b, now);
            [vec![more], next].concat()
        });
        self.inst(Op::While, carried, &[], vec![region]);
    }
    /// The same for carried values of any types; gives the last ones.
    pub fn repeat_while(
        &mut self,
        carried: &[Value],
        body: impl FnOnce(&mut Builder, &[Value]) -> (Value, Vec<Value>),
    ) -> Vec<Value> {
        self.while_loop(carried, body);
        // The instruction was appended last.
        let types: Vec<Type> = carried.iter().map(|v| self.ty(*v).clone()).collect();
        let results: Vec<Value> = types.into_iter().map(|t| self.kernel.new_value(t)).collect();
        if let Some(i) = self.last() {
            self.kernel.inst_mut(i).results = results.clone();
        }
        results
    }
    /// `if condition { then } else { otherwise }`: both give values of the same types.
    pub fn if_else(
        &mut self,
        condition: Value,
        then: impl FnOnce(&mut Builder) -> Vec<Value>,
        otherwise: impl FnOnce(&mut Builder) -> Vec<Value>,
    ) -> Vec<Value> {
        let mut types = vec![];
        let then = self.region(&[], |b, _| {
            let values = then(b);
            types = values.iter().map(|v| b.ty(*v).clone()).collect();
            values
        });
        let otherwise = self.region(&[], |b, _| otherwise(b));
        self.inst(Op::If, &[condition], &types, vec![then, otherwise])
    }
    /// A region with these parameters that holds what `body` emits and ends in a `yield` of what `body` returns.
    fn region(&mut self, params: &[Type], body: impl FnOnce(&mut Builder, &[Value]) -> Vec<Value>) -> Region {
        let params = self.open_region(params);
        let last = body(self, &params);
        self.close_region(&last)
    }
    /// Opens a region with parameters of these types: what follows is in it.
    pub(crate) fn open_region(&mut self, params: &[Type]) -> Vec<Value> {
        let params: Vec<Value> = params.iter().map(|t| self.kernel.new_value(t.clone())).collect();
        self.open.push(Region { params: params.clone(), insts: vec![] });
        params
    }
    /// Ends the innermost region with what it yields.
    pub(crate) fn close_region(&mut self, yields: &[Value]) -> Region {
        self.inst(Op::Yield, yields, &[], vec![]);
        self.open.pop().unwrap_or_default()
    }
    /// Runs all roles concurrently, each with its program; a program receives the number of its copy if there are
    /// several.
    pub fn roles(&mut self, roles: Vec<(Role, Program)>) {
        let (mut heads, mut regions) = (vec![], vec![]);
        for (role, program) in roles {
            let params = if role.copies > 1 { vec![Type::scalar(Elem::I32)] } else { vec![] };
            regions.push(self.region(&params, |b, params| {
                program(b, params.first().copied());
                vec![]
            }));
            heads.push(role);
        }
        self.kernel.warps = heads.iter().map(|r| r.warps * r.copies).sum();
        self.inst(Op::Roles(heads), &[], &[], regions);
    }
    pub fn set_grid(&mut self, grid: impl Into<Grid>) {
        self.kernel.grid = grid.into();
    }
    pub fn set_warps(&mut self, warps: usize) {
        self.kernel.warps = warps;
    }
    /// Blocks of a cluster that share an instance.
    pub fn set_blocks(&mut self, blocks: usize) {
        self.kernel.blocks = blocks;
    }
    pub fn set_cluster(&mut self, blocks: usize) {
        self.kernel.cluster = blocks;
    }
    /// Most registers of a thread.
    pub fn set_registers(&mut self, most: Option<usize>) {
        self.kernel.registers = most;
    }
    pub fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.kernel.arithmetic = arithmetic;
    }
    pub fn finish(mut self) -> BlockProgram {
        self.kernel.body = self.open.pop().unwrap_or_default();
        self.kernel
    }
}
