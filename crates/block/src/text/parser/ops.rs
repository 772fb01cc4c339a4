//! Ops without regions, and their attributes.
use super::{Parser, Result, fail_at};
use crate::text::{
    lexer::{Kind, Token},
    names,
};
use crate::{Assembly, Atomicity, Const, DotPrecision, Effects, Op, Terms, Value};

impl Parser {
    pub(super) fn choice<T: Clone>(&mut self, what: &str, table: &[(&str, T)]) -> Result<T> {
        match names::find(table, &self.peek().text) {
            Some(x) if self.peek().kind == Kind::Word => {
                self.at += 1;
                Ok(x)
            }
            _ => self.fail(format!("`{}` is not a {what}; known: {}", self.peek().text, names::list(table))),
        }
    }
    /// What a `dot` sums, if the text says.
    pub(super) fn terms(&mut self) -> Terms {
        let found = names::TERMS.iter().find(|(name, _)| self.eat_word(name));
        found.map_or_else(Terms::default, |t| t.1)
    }
    /// An op without regions, and its operands.
    pub(super) fn simple(&mut self, start: &Token, name: &str) -> Result<(Op, Vec<Value>)> {
        match name {
            "expand_dims" | "permute" | "part" | "unpack" | "pack" | "check" | "barrier_expect" | "prefetch"
            | "cat" | "gather" | "multiple_of" => {
                let args = self.operands()?;
                Ok((self.attributes_behind(name)?, args))
            }
            "reduce" => {
                let op = self.choice("reduction", names::REDUCE)?;
                let args = self.operands()?;
                Ok((Op::Reduce { op, axis: self.axis()? }, args))
            }
            "scan" => {
                let op = self.choice("scan", names::SCAN)?;
                let args = self.operands()?;
                Ok((Op::Scan { op, axis: self.axis()? }, args))
            }
            "atomic_compare_swap" => {
                let how = self.atomicity();
                Ok((Op::CompareSwap { how }, self.operands()?))
            }
            _ => match names::find(names::ATOMIC, name) {
                Some(op) => {
                    let how = self.atomicity();
                    Ok((Op::Atomic { op, how }, self.operands()?))
                }
                None => Ok((self.attributes_ahead(start, name)?, self.operands()?)),
            },
        }
    }
    /// Order and scope of an atomic access, as far as the text says.
    fn atomicity(&mut self) -> Atomicity {
        let order = names::ORDER.iter().find(|(name, _)| self.eat_word(name)).map(|o| o.1).unwrap_or_default();
        let scope = names::SCOPE.iter().find(|(name, _)| self.eat_word(name)).map(|s| s.1).unwrap_or_default();
        Atomicity { order, scope }
    }
    /// An op whose attributes follow its operands.
    fn attributes_behind(&mut self, name: &str) -> Result<Op> {
        Ok(match name {
            "expand_dims" => Op::ExpandDims(self.axis()?),
            "cat" => Op::Cat { axis: self.axis()? },
            "gather" => Op::Gather { axis: self.axis()? },
            "multiple_of" => Op::MultipleOf(self.numbers("a divisor")?),
            "permute" => Op::Permute(self.numbers("an axis")?),
            "part" => {
                let axis = self.axis()?;
                self.expect_word("at")?;
                Op::Part { axis, at: self.integer("the first element")? }
            }
            "unpack" | "pack" => {
                self.expect_word("row")?;
                let row = self.integer("the elements of a row")?;
                if name == "pack" { Op::Pack { row } } else { Op::Unpack { row } }
            }
            "check" => {
                self.expect_word("site")?;
                Op::Check { site: self.integer("the number of a site")? }
            }
            _ => {
                self.expect_word("bytes")?;
                let bytes = self.integer("a number of bytes")?;
                if name == "prefetch" { Op::Prefetch { bytes } } else { Op::BarrierExpect { bytes } }
            }
        })
    }
    /// An op whose attributes, if it has any, come before its operands.
    fn attributes_ahead(&mut self, start: &Token, name: &str) -> Result<Op> {
        Ok(match name {
            "const" => Op::Const(self.constant()?),
            "print" => Op::Print(self.quoted()?),
            "assert" => Op::Assert(self.quoted()?),
            "asm" => Op::Asm(Box::new(self.assembly()?)),
            "program_id" => Op::ProgramId(self.integer("an axis of the grid (0, 1 or 2)")?),
            "num_programs" => Op::NumPrograms(self.integer("an axis of the grid (0, 1 or 2)")?),
            "split" => Op::Split(self.integer("a half (0 or 1)")?),
            "cmp" => Op::Cmp(self.choice("comparison", names::CMP)?),
            "cast" => Op::Cast(self.elem()?),
            "cast_to_zero" => Op::CastToZero(self.elem()?),
            "dot" => Op::Dot {
                precision: match () {
                    () if self.eat_word("tf32") => DotPrecision::Tf32,
                    () if self.eat_word("tf32x3") => DotPrecision::Tf32x3,
                    () => DotPrecision::Exact,
                },
                terms: self.terms(),
            },
            "async_wait" => Op::AsyncWait { pending: self.integer("the number of groups left in flight")? },
            "barrier_arrive" => Op::BarrierArrive { multicast: self.eat_word("multicast") },
            "tma_load" => Op::TmaLoad { multicast: self.eat_word("multicast") },
            "tma_store_wait" => Op::TmaStoreWait { pending: self.integer("the number of stores left in flight")? },
            "wgmma" => {
                let transpose_a = self.eat_word("transpose_a");
                Op::Wgmma { transpose_a, transpose_b: self.eat_word("transpose_b") }
            }
            "shared_dot" => {
                let (terms, transpose_a) = (self.terms(), self.eat_word("transpose_a"));
                Op::SharedDot { terms, transpose_a, transpose_b: self.eat_word("transpose_b") }
            }
            "wgmma_wait" => Op::WgmmaWait { pending: self.integer("the number of groups left in flight")? },
            _ => {
                let plain = names::find(names::PLAIN, name)
                    .or_else(|| names::find(names::UNARY, name).map(Op::Unary))
                    .or_else(|| names::find(names::BINARY, name).map(Op::Binary));
                let Some(op) = plain else {
                    return fail_at(start, format!("there is no op `{name}`; see the ops' names in crates/block"));
                };
                self.cached(op)
            }
        })
    }
    /// A load or store with the cache policy that the text says, if any.
    fn cached(&mut self, op: Op) -> Op {
        let mut policy = || names::CACHE.iter().find(|(name, _)| self.eat_word(name)).map(|p| p.1).unwrap_or_default();
        match op {
            Op::Load(mode, _) => Op::Load(mode, policy()),
            Op::Store(_) => Op::Store(policy()),
            other => other,
        }
    }
    /// Inline assembly, up to its operands.
    fn assembly(&mut self) -> Result<Assembly> {
        let effects = if self.eat_word("volatile") { Effects::Volatile } else { Effects::Pure };
        let (text, constraints) = (self.quoted()?, self.quoted()?);
        let pack = if self.eat_word("pack") { self.integer("a number of elements")? } else { 1 };
        Ok(Assembly { text, constraints, pack, effects })
    }
    fn quoted(&mut self) -> Result<String> {
        let token = self.next();
        match token.kind {
            Kind::Str => Ok(token.text),
            _ => fail_at(&token, format!("`{}` is no text in quotes", token.text)),
        }
    }
    pub(super) fn axis(&mut self) -> Result<u8> {
        self.expect_word("axis")?;
        self.integer("an axis")
    }
    pub(super) fn constant(&mut self) -> Result<Const> {
        let t = self.next();
        let text = t.text.as_str();
        let value = match (t.kind, text) {
            (Kind::Word, "true") => Some(Const::Bool(true)),
            (Kind::Word, "false") => Some(Const::Bool(false)),
            (Kind::Word, "inf") => Some(Const::Float(f64::INFINITY)),
            (Kind::Number, "-inf") => Some(Const::Float(f64::NEG_INFINITY)),
            (Kind::Word, "nan") => Some(Const::Float(f64::NAN)),
            (Kind::Number, _) => match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok().map(|b| Const::Float(f64::from_bits(b))),
                None if text.contains(['.', 'e', 'E']) => text.parse().ok().map(Const::Float),
                None => text.parse().ok().map(Const::Int),
            },
            _ => None,
        };
        match value {
            Some(v) => Ok(v),
            None => fail_at(
                &t,
                format!("`{text}` is not a constant; write 3, 1.5, 0x<bits of an f64>, inf, nan, true or false"),
            ),
        }
    }
}
