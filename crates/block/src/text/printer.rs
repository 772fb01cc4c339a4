//! BlockProgram to text. Prints any kernel, verified or not.
use super::{lexer::is_plain, names};
use crate::{
    Arithmetic, Assembly, Atomicity, BlockProgram, CachePolicy, Const, DotPrecision, Effects, Extent, Facts, Inst,
    InstData, Layout, Op, Region, Terms, Type, Value, layout::Basis,
};
use std::{collections::HashMap, fmt::Write};

struct Printer<'a> {
    k: &'a BlockProgram,
    params: HashMap<Value, String>,
    out: String,
}

/// The whole kernel.
pub fn print(k: &BlockProgram) -> String {
    let mut p = Printer::new(k);
    let params: Vec<String> = k.params.iter().map(|x| p.param(x)).collect();
    let name = sign('@', &k.name);
    p.out = format!("kernel {name}({}) grid {} warps {}", params.join(", "), k.grid, k.warps);
    if k.blocks != 1 {
        p.put(&format!(" blocks {}", k.blocks));
    }
    if k.cluster != 1 {
        p.put(&format!(" cluster {}", k.cluster));
    }
    if let Some(n) = k.vector {
        p.put(&format!(" vector {n}"));
    }
    if let Some(n) = k.lanes {
        p.put(&format!(" lanes {n}"));
    }
    if let Some(n) = k.registers {
        p.put(&format!(" registers {n}"));
    }
    if k.dependent {
        p.put(" dependent");
    }
    if k.arithmetic == Arithmetic::Ieee {
        p.put(" ieee");
    }
    p.put(" {\n");
    p.region(&k.body, 1);
    p.put("}\n");
    p.out
}

/// One instruction on one line, its regions left out.
pub fn print_inst(k: &BlockProgram, i: Inst) -> String {
    match k.insts.get(i.0 as usize) {
        Some(data) => Printer::new(k).head(data),
        None => format!("instruction {} (absent)", i.0),
    }
}

/// ` {div 16, least 0}`; nothing where nothing is known.
fn facts(f: &Facts) -> String {
    if f.is_empty() {
        return String::new();
    }
    let number = |word: &str, n: Option<i64>| n.map(|n| format!("{word} {n}"));
    let flag = |word: &str, on: bool| on.then(|| word.to_string());
    let all = [
        number("div", Some(f.div).filter(|n| *n != 1)),
        number("equals", f.equals),
        number("least", f.least),
        number("most", f.most),
        flag("span32", f.span32),
        flag("noalias", f.noalias),
    ];
    format!(" {{{}}}", all.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn sign(c: char, name: &str) -> String {
    if is_plain(name) { format!("{c}{name}") } else { format!("{c}{name:?}") }
}

impl<'a> Printer<'a> {
    fn new(k: &'a BlockProgram) -> Printer<'a> {
        let mut params = HashMap::new();
        for p in &k.params {
            let unique = k.params.iter().filter(|o| o.name == p.name).count() == 1;
            if unique && !p.name.is_empty() {
                params.insert(p.value, sign('%', &p.name));
            }
        }
        Printer { k, params, out: String::new() }
    }
    fn put(&mut self, s: &str) {
        self.out.push_str(s);
    }
    fn name(&self, v: Value) -> String {
        self.params.get(&v).cloned().unwrap_or_else(|| v.to_string())
    }
    fn names(&self, vs: &[Value]) -> String {
        vs.iter().map(|v| self.name(*v)).collect::<Vec<_>>().join(", ")
    }
    /// Type and layout.
    fn ty(&self, v: Value) -> String {
        let Some(data) = self.k.values.get(v.0 as usize) else { return "?".into() };
        match &data.layout {
            None => data.ty.to_string(),
            Some(l) => format!("{} {}", data.ty, layout(l)),
        }
    }
    fn types(&self, vs: &[Value]) -> String {
        vs.iter().map(|v| self.ty(*v)).collect::<Vec<_>>().join(", ")
    }
    fn param(&self, p: &crate::Param) -> String {
        let mut s = match self.params.get(&p.value) {
            Some(name) => name.clone(),
            None => format!("%{:?} as {}", p.name, p.value),
        };
        _ = write!(s, ": {}", self.ty(p.value));
        if p.readonly {
            s.push_str(" readonly");
        }
        let pointer = matches!(self.k.values.get(p.value.0 as usize).map(|v| &v.ty), Some(Type::Ptr { .. }));
        if pointer || p.align != 16 {
            _ = write!(s, " align {}", p.align);
        }
        if let Some(a) = &p.array {
            _ = write!(s, " of {:?} strides {:?}", a.sizes, a.strides);
            if a.offset > 0 {
                _ = write!(s, " offset {}", a.offset);
            }
        }
        if let Some(a) = &p.launch_array {
            let [sizes, strides] = [&a.sizes, &a.strides].map(|all| self.extents(all));
            _ = write!(s, " of {} {sizes} strides {strides}", self.param_name(a.base));
        }
        s + &facts(&p.facts)
    }
    fn param_name(&self, n: usize) -> String {
        self.k.params.get(n).map_or("?".into(), |p| self.name(p.value))
    }
    fn extents(&self, all: &[Extent]) -> String {
        let one = |e: &Extent| {
            let factor = (e.factor != 1 || e.params.is_empty()).then(|| e.factor.to_string());
            let params = e.params.iter().map(|n| self.param_name(*n));
            factor.into_iter().chain(params).collect::<Vec<_>>().join(" ")
        };
        format!("[{}]", all.iter().map(one).collect::<Vec<_>>().join(", "))
    }
    fn region(&mut self, r: &Region, depth: usize) {
        for &i in &r.insts {
            let pad = "  ".repeat(depth);
            let Some(data) = self.k.insts.get(i.0 as usize) else {
                _ = writeln!(self.out, "{pad}instruction {} (absent)", i.0);
                continue;
            };
            let head = self.head(data);
            _ = write!(self.out, "{pad}{head}");
            for (n, inner) in data.regions.iter().enumerate() {
                let open = match &data.op {
                    Op::Roles(roles) => {
                        let text = roles.get(n).map(|r| {
                            let name = if is_plain(&r.name) { r.name.clone() } else { format!("{:?}", r.name) };
                            let copy =
                                inner.params.first().map(|v| format!(" copies {} as {}", r.copies, self.name(*v)));
                            let copy = copy.unwrap_or_default();
                            format!(" {name} warps {} registers {}{copy}", r.warps, r.registers)
                        });
                        text.unwrap_or_default()
                    }
                    Op::If if n == 1 => " else".into(),
                    _ => String::new(),
                };
                _ = writeln!(self.out, "{open} {{");
                self.region(inner, depth + 1);
                _ = write!(self.out, "{pad}}}");
            }
            self.put("\n");
        }
    }
    /// Results, op, operands and types, without regions.
    fn head(&self, data: &InstData) -> String {
        let mut s = String::new();
        if !data.results.is_empty() {
            _ = write!(s, "{} = ", self.names(&data.results));
        }
        if data.op == Op::For
            && let Some(text) = self.for_head(data)
        {
            return s + &text;
        }
        if let (Op::While, [region]) = (&data.op, &data.regions[..]) {
            let with = self.carried(&region.params, &data.args).unwrap_or_default();
            return s + "while" + &with + &self.result_types(data, &region.params);
        }
        if let (Op::ReduceBy { .. } | Op::ScanBy { .. }, [region]) = (&data.op, &data.regions[..]) {
            let (op, after) = op_text(&data.op);
            let one = |v: &Value| format!("{} : {}", self.name(*v), self.ty(*v));
            let params: Vec<String> = region.params.iter().map(one).collect();
            let (args, types) = (self.names(&data.args), self.types(&data.results));
            return format!("{s}{op} {args}{after} with ({}) : {types}", params.join(", "));
        }
        let (op, after) = op_text(&data.op);
        s += &op;
        if !data.args.is_empty() {
            _ = write!(s, " {}", self.names(&data.args));
        }
        s += &after;
        if !data.results.is_empty() {
            _ = write!(s, " : {}", self.types(&data.results));
        }
        s
    }
    fn for_head(&self, data: &InstData) -> Option<String> {
        let [region] = &data.regions[..] else { return None };
        let ([lo, hi, step, init @ ..], [index, carried @ ..]) = (&data.args[..], &region.params[..]) else {
            return None;
        };
        let with = self.carried(carried, init)?;
        let n = |v: &Value| self.name(*v);
        // The index is an i32; its type is written only if it says more (a layout).
        let index = match self.ty(*index) {
            ty if ty == "i32" => n(index),
            ty => format!("{} : {ty}", n(index)),
        };
        let results = self.result_types(data, carried);
        Some(format!("for {index} in {}..{} step {}{with}{results}", n(lo), n(hi), n(step)))
    }
    /// Types of a loop's results, if they are not those of what it carries.
    fn result_types(&self, data: &InstData, carried: &[Value]) -> String {
        let types = self.types(&data.results);
        if data.results.is_empty() || types == self.types(carried) { String::new() } else { format!(" : {types}") }
    }
    /// Carried values of a loop with their initial values; `None` if they are not as many.
    fn carried(&self, carried: &[Value], init: &[Value]) -> Option<String> {
        let one = |(c, i): (&Value, &Value)| format!("{} = {} : {}", self.name(*c), self.name(*i), self.ty(*c));
        let list: Vec<String> = carried.iter().zip(init).map(one).collect();
        let with = if list.is_empty() { String::new() } else { format!(" with ({})", list.join(", ")) };
        (init.len() == carried.len()).then_some(with)
    }
}

fn layout(l: &Layout) -> String {
    let bases = |list: &[Basis]| {
        let one = |b: &Basis| format!("[{}]", b.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        format!("[{}]", list.iter().map(one).collect::<Vec<_>>().join(","))
    };
    format!("layout(registers {}, lanes {}, warps {})", bases(&l.registers), bases(&l.lanes), bases(&l.warps))
}

fn constant(c: &Const) -> String {
    match c {
        Const::Float(f) if f.is_finite() => format!("{f:?}"),
        Const::Float(f) => format!("0x{:016x}", f.to_bits()),
        Const::Int(i) => i.to_string(),
        Const::Bool(b) => b.to_string(),
    }
}

/// Text before and after the operands.
fn op_text(op: &Op) -> (String, String) {
    let before = match op {
        Op::Const(c) => format!("const {}", constant(c)),
        Op::ProgramId(axis) => format!("program_id {axis}"),
        Op::NumPrograms(axis) => format!("num_programs {axis}"),
        Op::Unary(u) => names::name_of(names::UNARY, u).unwrap_or("unary").into(),
        Op::Binary(b) => names::name_of(names::BINARY, b).unwrap_or("binary").into(),
        Op::Cmp(c) => format!("cmp {}", names::name_of(names::CMP, c).unwrap_or("?")),
        Op::Cast(to) => format!("cast {to}"),
        Op::CastToZero(to) => format!("cast_to_zero {to}"),
        Op::ExpandDims(axis) => return ("expand_dims".into(), format!(" axis {axis}")),
        Op::Permute(perm) => {
            let list: Vec<String> = perm.iter().map(u8::to_string).collect();
            return ("permute".into(), format!(" [{}]", list.join(",")));
        }
        Op::MultipleOf(divisors) => {
            let list: Vec<String> = divisors.iter().map(u32::to_string).collect();
            return ("multiple_of".into(), format!(" [{}]", list.join(",")));
        }
        Op::Part { axis, at } => return ("part".into(), format!(" axis {axis} at {at}")),
        Op::Unpack { row } => return ("unpack".into(), format!(" row {row}")),
        Op::Pack { row } => return ("pack".into(), format!(" row {row}")),
        Op::Atomic { op, how } => atomic(names::name_of(names::ATOMIC, op).unwrap_or("?"), *how),
        Op::CompareSwap { how } => atomic("atomic_compare_swap", *how),
        Op::ReduceBy { axis } => return ("reduce_by".into(), format!(" axis {axis}")),
        Op::ScanBy { axis, reverse } => {
            return (flag("scan_by", "reverse", *reverse), format!(" axis {axis}"));
        }
        Op::Split(half) => format!("split {half}"),
        Op::Cat { axis } => return ("cat".into(), format!(" axis {axis}")),
        Op::Gather { axis } => return ("gather".into(), format!(" axis {axis}")),
        Op::Reduce { op, axis } => {
            let name = names::name_of(names::REDUCE, op).unwrap_or("?");
            return (format!("reduce {name}"), format!(" axis {axis}"));
        }
        Op::Scan { op, axis } => {
            return (format!("scan {}", names::name_of(names::SCAN, op).unwrap_or("?")), format!(" axis {axis}"));
        }
        Op::Dot { precision: DotPrecision::Exact, terms } => of(*terms, "dot"),
        Op::Dot { precision: DotPrecision::Tf32, .. } => "dot tf32".into(),
        Op::Dot { precision: DotPrecision::Tf32x3, .. } => "dot tf32x3".into(),
        Op::AsyncWait { pending } => format!("async_wait {pending}"),
        Op::Print(text) => format!("print {text:?}"),
        Op::Assert(text) => format!("assert {text:?}"),
        Op::Asm(assembly) => inline(assembly),
        Op::Check { site } => return ("check".into(), format!(" site {site}")),
        Op::Prefetch { bytes } => return ("prefetch".into(), format!(" bytes {bytes}")),
        Op::BarrierExpect { bytes } => return ("barrier_expect".into(), format!(" bytes {bytes}")),
        Op::BarrierArrive { multicast } => flag("barrier_arrive", "multicast", *multicast),
        Op::TmaLoad { multicast } => flag("tma_load", "multicast", *multicast),
        Op::TmaStoreWait { pending } => format!("tma_store_wait {pending}"),
        Op::Wgmma { transpose_a, transpose_b } => {
            flag(&flag("wgmma", "transpose_a", *transpose_a), "transpose_b", *transpose_b)
        }
        Op::SharedDot { terms, transpose_a, transpose_b } => {
            flag(&flag(&of(*terms, "shared_dot"), "transpose_a", *transpose_a), "transpose_b", *transpose_b)
        }
        Op::WgmmaWait { pending } => format!("wgmma_wait {pending}"),
        Op::For => "for".into(),
        Op::While => "while".into(),
        Op::If => "if".into(),
        Op::Roles(_) => "roles".into(),
        Op::Load(mode, cache) => cached(&Op::Load(*mode, CachePolicy::Normal), *cache),
        Op::Store(cache) => cached(&Op::Store(CachePolicy::Normal), *cache),
        plain => plain_name(plain).into(),
    };
    (before, String::new())
}

/// Inline assembly without its operands.
fn inline(assembly: &Assembly) -> String {
    let Assembly { text, constraints, pack, effects } = assembly;
    let name = flag("asm", "volatile", *effects == Effects::Volatile);
    let packed = if *pack == 1 { String::new() } else { format!(" pack {pack}") };
    format!("{name} {text:?} {constraints:?}{packed}")
}

fn plain_name(op: &Op) -> &'static str {
    names::name_of(names::PLAIN, op).unwrap_or("?")
}
/// An access and its cache policy.
fn cached(access: &Op, policy: CachePolicy) -> String {
    let name = plain_name(access);
    names::name_of(names::CACHE, &policy).map_or_else(|| name.into(), |policy| format!("{name} {policy}"))
}
/// Name, order and scope of an atomic access; the weakest order and the device go without saying.
fn atomic(name: &str, how: Atomicity) -> String {
    let words = [names::name_of(names::ORDER, &how.order), names::name_of(names::SCOPE, &how.scope)];
    words.into_iter().flatten().fold(name.to_string(), |all, word| all + " " + word)
}
fn of(terms: Terms, name: &str) -> String {
    names::name_of(names::TERMS, &terms).map_or_else(|| name.into(), |terms| format!("{name} {terms}"))
}
fn flag(name: &str, word: &str, on: bool) -> String {
    if on { format!("{name} {word}") } else { name.into() }
}
