//! LLVM IR as text, written into a stack of scopes.
//!
//! Scope 0 is the function's straight-line code; each open loop adds one. Loop-invariant code is appended to the scope
//! of its own depth, which precedes the inner loop: code is hoisted as it is written, not by a pass. Names are unique
//! per module.
use kiln_block::{Elem, Format, Kind};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

/// An SSA name or a literal.
pub(super) type Name = Rc<str>;

#[derive(Default)]
pub(super) struct Text {
    scopes: Vec<String>,
    /// Allocas of the entry block.
    entry: String,
    next: u32,
    /// Intrinsic and library declarations by name.
    declared: BTreeMap<String, String>,
    /// Internal helper functions by name.
    helpers: BTreeMap<String, String>,
    /// Names of library functions called.
    pub externs: Vec<&'static str>,
}

/// The LLVM type that holds a value of `elem` in a register; shorter floats are held as f32.
pub(super) fn reg(elem: Elem) -> &'static str {
    match elem.kind() {
        Kind::Float(Format::F64) => "double",
        Kind::Float(_) => "float",
        Kind::Int { .. } => whole(elem),
        Kind::Bool => "i1",
    }
}
/// The LLVM type of one element in memory.
pub(super) fn mem(elem: Elem) -> &'static str {
    match elem.kind() {
        Kind::Float(Format::F64 | Format::F32) => reg(elem),
        _ => whole(elem),
    }
}
/// The integer type of the same size.
fn whole(elem: Elem) -> &'static str {
    match elem.bytes() {
        8 => "i64",
        4 => "i32",
        2 => "i16",
        _ => "i8",
    }
}
/// `T` or `<n x T>`.
pub(super) fn vector(ty: &str, lanes: usize) -> String {
    if lanes == 1 { ty.to_string() } else { format!("<{lanes} x {ty}>") }
}
/// Suffix of intrinsic names: `f32`, `v16f32`.
pub(super) fn suffix(ty: &str, lanes: usize) -> String {
    let s = match ty {
        "float" => "f32",
        "double" => "f64",
        "half" => "f16",
        other => other,
    };
    if lanes == 1 { s.to_string() } else { format!("v{lanes}{s}") }
}
/// A scalar literal repeated over the lanes.
pub(super) fn literal(ty: &str, lanes: usize, scalar: &str) -> Name {
    if lanes == 1 { scalar.into() } else { format!("splat ({ty} {scalar})").into() }
}
/// LLVM's exact spelling of a float (a f32 is written as the double of the same value).
pub(super) fn float(ty: &str, v: f64) -> String {
    let v = if ty == "double" { v } else { v as f32 as f64 };
    format!("0x{:016X}", v.to_bits())
}

impl Text {
    pub fn start(&mut self) {
        self.scopes = vec![String::new()];
        self.entry.clear();
    }
    /// Ends a function; gives its entry's allocas and its body.
    pub fn finish(&mut self) -> (String, String) {
        (std::mem::take(&mut self.entry), self.scopes.pop().unwrap_or_default())
    }
    pub fn depth(&self) -> usize {
        self.scopes.len() - 1
    }
    pub fn fresh(&mut self) -> Name {
        self.next += 1;
        format!("%t{}", self.next).into()
    }
    pub fn label(&mut self) -> String {
        self.next += 1;
        format!("b{}", self.next)
    }
    pub fn line(&mut self, depth: usize, line: impl AsRef<str>) {
        let s = &mut self.scopes[depth];
        s.push_str("  ");
        s.push_str(line.as_ref());
        s.push('\n');
    }
    pub fn mark(&mut self, label: &str) {
        self.mark_at(self.depth(), label);
    }
    pub fn mark_at(&mut self, depth: usize, label: &str) {
        let _ = writeln!(self.scopes[depth], "{label}:");
    }
    pub fn emit(&mut self, depth: usize, rhs: impl AsRef<str>) -> Name {
        let n = self.fresh();
        self.line(depth, format!("{n} = {}", rhs.as_ref()));
        n
    }
    pub fn alloca(&mut self, ty: &str, align: usize) -> Name {
        let n = self.fresh();
        let _ = writeln!(self.entry, "  {n} = alloca {ty}, align {align}");
        n
    }
    pub fn call(&mut self, depth: usize, ret: &str, name: &str, args: &[(&str, &str)]) -> Name {
        self.declare(ret.strip_prefix("nsz ").unwrap_or(ret), name, args);
        let list: Vec<String> = args.iter().map(|(t, a)| format!("{t} {a}")).collect();
        self.emit(depth, format!("call {ret} @{name}({})", list.join(", ")))
    }
    pub fn call_void(&mut self, depth: usize, name: &str, args: &[(&str, &str)]) {
        self.declare("void", name, args);
        let list: Vec<String> = args.iter().map(|(t, a)| format!("{t} {a}")).collect();
        self.line(depth, format!("call void @{name}({})", list.join(", ")));
    }
    fn declare(&mut self, ret: &str, name: &str, args: &[(&str, &str)]) {
        if !self.declared.contains_key(name) && !self.helpers.contains_key(name) {
            let types: Vec<&str> = args.iter().map(|(t, _)| *t).collect();
            self.declared.insert(name.into(), format!("declare {ret} @{name}({})\n", types.join(", ")));
        }
    }
    pub fn has_helper(&self, name: &str) -> bool {
        self.helpers.contains_key(name)
    }
    pub fn add_helper(&mut self, name: &str, text: String) {
        self.helpers.insert(name.into(), text);
    }
    pub fn declare_extern(&mut self, symbol: &'static str, ty: &str, args: usize) {
        if !self.externs.contains(&symbol) {
            self.externs.push(symbol);
            let list = vec![ty; args].join(", ");
            let decl = format!("declare {ty} @{symbol}({list}) nounwind willreturn memory(none)\n");
            self.declared.insert(symbol.into(), decl);
        }
    }
    /// Declarations and helpers, to go before the functions.
    pub fn preamble(&self) -> String {
        self.declared.values().chain(self.helpers.values()).cloned().collect()
    }

    /// Declares a function without a result.
    pub fn declare_void(&mut self, name: &str, arguments: &str) {
        self.declared.insert(name.into(), format!("declare void @{name}({arguments})\n"));
    }
    pub fn declare_scratch(&mut self) {
        self.declared.insert("kiln_scratch".into(), "declare ptr @kiln_scratch(i64)\n".into());
    }
    /// Makes the innermost scope the program's scope 0; `restore` undoes it.
    pub fn rebase(&mut self) -> Vec<String> {
        let inner = self.scopes.pop().unwrap_or_default();
        std::mem::replace(&mut self.scopes, vec![inner])
    }
    pub fn restore(&mut self, outer: Vec<String>) {
        let inner = std::mem::replace(&mut self.scopes, outer);
        self.scopes.extend(inner);
    }

    /// Sets the open scopes aside and starts a helper's body; `close_helper` gives that body and restores them.
    pub fn open_helper(&mut self) -> Vec<String> {
        std::mem::replace(&mut self.scopes, vec![String::new()])
    }
    pub fn close_helper(&mut self, outer: Vec<String>) -> String {
        std::mem::replace(&mut self.scopes, outer).concat()
    }

    /// Opens `for (i = lo; i < hi; i += step)`; gives the counter. `close_loop` inserts the text.
    pub fn open_loop(&mut self) -> (String, Name) {
        let label = self.label();
        self.scopes.push(String::new());
        let i = self.fresh();
        (label, i)
    }
    pub fn close_loop(&mut self, label: &str, i: &str, lo: &str, hi: &str, step: i64) {
        let body = self.scopes.pop().unwrap_or_default();
        let d = self.depth();
        let s = &mut self.scopes[d];
        let _ = write!(
            s,
            "  br label %{label}.pre\n{label}.pre:\n  br label %{label}.head\n{label}.head:\n  {i} = phi i64 [ {lo}, %{label}.pre ], \
             [ {i}.next, %{label}.latch ]\n  {i}.go = icmp slt i64 {i}, {hi}\n  br i1 {i}.go, label %{label}.body, label %{label}.exit\n\
             {label}.body:\n{body}  br label %{label}.latch\n{label}.latch:\n  {i}.next = add nuw nsw i64 {i}, {step}\n  br label \
             %{label}.head\n{label}.exit:\n"
        );
    }
}
