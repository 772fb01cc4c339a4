//! Types and layouts.
use super::{Parser, Result};
use crate::text::lexer::Kind;
use crate::{Elem, Layout, Swizzle, Type};

impl Parser {
    pub(super) fn elem(&mut self) -> Result<Elem> {
        let t = self.peek().clone();
        match Elem::ALL.into_iter().find(|e| t.kind == Kind::Word && e.name() == t.text) {
            Some(e) => {
                self.at += 1;
                Ok(e)
            }
            None => {
                let known = Elem::ALL.map(Elem::name).join(" ");
                self.fail(format!("`{}` is not an element type; known: {known}", t.text))
            }
        }
    }
    pub(super) fn shape(&mut self) -> Result<Vec<usize>> {
        if self.is("[") && self.same_line() { self.numbers("the size of an axis") } else { Ok(vec![]) }
    }
    pub(super) fn swizzle(&mut self) -> Result<Swizzle> {
        let all = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
        let t = self.peek().text.clone();
        match all.into_iter().find(|s| s.to_string() == t) {
            Some(s) => {
                self.at += 1;
                Ok(s)
            }
            None => self.fail(format!("`{t}` is not a swizzle; write plain, b32, b64 or b128")),
        }
    }
    pub(super) fn ty(&mut self) -> Result<Type> {
        let kind = match (self.peek().text.as_str(), self.ahead(1).text.as_str()) {
            (k @ ("ptr" | "shared" | "desc" | "barrier" | "token"), "<") => k.to_string(),
            _ => {
                let elem = self.elem()?;
                return Ok(Type::Block { elem, shape: self.shape()? });
            }
        };
        self.at += 2;
        let ty = match kind.as_str() {
            "ptr" => {
                let elem = self.elem()?;
                self.expect(">")?;
                return Ok(Type::Ptr { elem, shape: self.shape()? });
            }
            "barrier" => {
                let count = self.integer("the number of barriers")?;
                self.expect(",")?;
                Type::Barrier { count, arrivals: self.integer("the number of arrivals")? }
            }
            "token" => Type::Token { elem: self.elem()?, shape: self.shape()? },
            "desc" => {
                let (elem, shape) = (self.elem()?, self.shape()?);
                self.expect(",")?;
                Type::Desc { elem, shape, swizzle: self.swizzle()? }
            }
            _ => {
                let (elem, shape) = (self.elem()?, self.shape()?);
                self.expect(",")?;
                let stages = self.integer("the number of stages")?;
                self.expect(",")?;
                Type::Shared { elem, shape, stages, swizzle: self.swizzle()? }
            }
        };
        self.expect(">")?;
        Ok(ty)
    }
    pub(super) fn typed(&mut self) -> Result<(Type, Option<Layout>)> {
        let ty = self.ty()?;
        if !(self.is_word("layout") && self.same_line()) {
            return Ok((ty, None));
        }
        self.at += 1;
        self.expect("(")?;
        let mut bases = |word: &str, close: &str| {
            self.expect_word(word)?;
            self.expect("[")?;
            let list = self.list("]", |p| p.numbers::<u32>("a coordinate"))?;
            self.expect(close)?;
            Ok(list)
        };
        let (registers, lanes) = (bases("registers", ",")?, bases("lanes", ",")?);
        Ok((ty, Some(Layout { registers, lanes, warps: bases("warps", ")")? })))
    }
    /// `: type, …`, one per result.
    pub(super) fn result_types(&mut self, n: usize) -> Result<Vec<(Type, Option<Layout>)>> {
        let mut all = vec![];
        for i in 0..n {
            match i {
                0 if !self.is(":") => return self.fail(format!("`: type` is expected here, {n} for the results")),
                0 => self.at += 1,
                _ => self.expect(",")?,
            }
            all.push(self.typed()?);
        }
        Ok(all)
    }
}
