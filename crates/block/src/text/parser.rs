//! Text to kernels. Any text gives a kernel or an error with its position and what to do.
mod ops;
mod types;
mod words;

use super::lexer::{Kind, Token, tokens};
use crate::{
    Arithmetic, Array, BlockError, BlockProgram, Elem, Extent, Facts, Grid, Inst, InstData, LaunchArray, Layout, Op,
    Param, Region, Role, Type, Value,
};
use std::collections::HashMap;

/// The deepest nesting of regions.
pub const MAX_DEPTH: usize = 64;
type Result<T> = std::result::Result<T, BlockError>;

/// The one kernel of a text.
pub fn parse(text: &str) -> Result<BlockProgram> {
    let mut p = Parser::new(text)?;
    let k = p.kernel()?;
    match p.peek().kind {
        Kind::End => Ok(k),
        _ => p.fail("one kernel is expected; remove what follows it"),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    k: BlockProgram,
    /// Values in scope, by written name (`v3`, `%x`).
    visible: HashMap<String, Value>,
    /// Line of every definition so far.
    defined: HashMap<String, usize>,
    /// Names of the open regions' values.
    scopes: Vec<Vec<String>>,
    /// Written name of every value; `None` for named parameters.
    written: Vec<Option<String>>,
}

/// A value's name as written.
fn value_name(t: &Token) -> Option<String> {
    match t.kind {
        Kind::Local => Some(format!("%{}", t.text)),
        Kind::Word if number_of(&t.text).is_some() => Some(t.text.clone()),
        _ => None,
    }
}
/// 3 of `v3`.
fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix('v')?;
    let n: u32 = digits.parse().ok()?;
    (n.to_string() == digits).then_some(n)
}

impl Parser {
    fn new(text: &str) -> Result<Parser> {
        Ok(Parser {
            tokens: tokens(text)?,
            at: 0,
            k: BlockProgram::default(),
            visible: HashMap::new(),
            defined: HashMap::new(),
            scopes: vec![],
            written: vec![],
        })
    }
    // ---- Values ----
    /// The name of a value that is defined here.
    fn new_name(&mut self) -> Result<Token> {
        match value_name(self.peek()) {
            Some(_) => Ok(self.next()),
            None => self.fail(format!("a new value (`v3` or `%name`) is expected here, not `{}`", self.peek().text)),
        }
    }
    fn define(&mut self, t: &Token, ty: Type, layout: Option<Layout>, named_param: bool) -> Result<Value> {
        let name = value_name(t).unwrap_or_default();
        if let Some(line) = self.defined.insert(name.clone(), t.line) {
            return fail_at(t, format!("`{name}` is defined already, on line {line}; take another name"));
        }
        let v = self.k.new_value(ty);
        self.k.values[v.0 as usize].layout = layout;
        self.written.push((!named_param).then(|| name.clone()));
        self.visible.insert(name.clone(), v);
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(name);
        }
        Ok(v)
    }
    fn operand(&mut self) -> Result<Value> {
        let Some(name) = value_name(self.peek()) else {
            return self.fail(format!("a value (`v3` or `%name`) is expected here, not `{}`", self.peek().text));
        };
        match (self.visible.get(&name), self.defined.get(&name)) {
            (Some(v), _) => {
                let v = *v;
                self.at += 1;
                Ok(v)
            }
            (None, Some(line)) => {
                self.fail(format!("`{name}` (line {line}) ends with its region; yield it to use it outside"))
            }
            (None, None) => self.fail(format!("`{name}` is not defined; define it above its use")),
        }
    }
    /// Operands on the rest of the line, and on after a comma.
    fn operands(&mut self) -> Result<Vec<Value>> {
        let mut all = vec![];
        if self.same_line() && value_name(self.peek()).is_some() {
            all.push(self.operand()?);
            while self.eat(",") {
                all.push(self.operand()?);
            }
        }
        Ok(all)
    }

    // ---- Kernels ----
    fn kernel(&mut self) -> Result<BlockProgram> {
        self.k = BlockProgram { blocks: 1, cluster: 1, ..BlockProgram::default() };
        (self.visible, self.defined, self.written) = (HashMap::new(), HashMap::new(), vec![]);
        self.scopes = vec![vec![]];
        self.expect_word("kernel")?;
        match self.peek().kind {
            Kind::Global => self.k.name = self.next().text,
            _ => return self.fail("the kernel's name (`@name`) is expected here"),
        }
        self.expect("(")?;
        let params = self.list(")", Parser::param)?;
        self.k.params = params;
        self.expect_word("grid")?;
        self.k.grid = self.grid()?;
        self.expect_word("warps")?;
        self.k.warps = self.integer("the number of warps")?;
        if self.eat_word("blocks") {
            self.k.blocks = self.integer("the blocks that share an instance")?;
        }
        if self.eat_word("cluster") {
            self.k.cluster = self.integer("the size of the cluster")?;
        }
        if self.eat_word("vector") {
            self.k.vector = Some(self.integer("the neighbours that a thread holds")?);
        }
        if self.eat_word("lanes") {
            self.k.lanes = Some(self.integer("the lanes along the contiguous axis")?);
        }
        if self.eat_word("registers") {
            self.k.registers = Some(self.integer("the registers of a thread")?);
        }
        self.k.dependent = self.eat_word("dependent");
        if self.eat_word("ieee") {
            self.k.arithmetic = Arithmetic::Ieee;
        }
        self.expect("{")?;
        self.k.body.insts = self.insts(0)?;
        Ok(self.numbered())
    }
    fn grid(&mut self) -> Result<Grid> {
        if self.eat_word("launch") {
            return Ok(Grid::Launch);
        }
        let sizes: Vec<usize> = self.numbers("the size of the grid")?;
        match <[usize; 3]>::try_from(sizes) {
            Ok(sizes) => Ok(Grid::Constant(sizes)),
            Err(_) => self.fail("a grid has three sizes; write `grid [x, y, z]` or `grid launch`"),
        }
    }
    fn param(&mut self) -> Result<Param> {
        let t = self.peek().clone();
        if t.kind != Kind::Local {
            return self.fail(format!("a parameter (`%name: type`) is expected here, not `{}`", t.text));
        }
        self.at += 1;
        let alias = if self.eat_word("as") { Some(self.new_name()?) } else { None };
        self.expect(":")?;
        let (ty, layout) = self.typed()?;
        let readonly = self.eat_word("readonly");
        let align = if self.eat_word("align") { self.integer("an alignment in bytes")? } else { 16 };
        let (mut array, mut launch_array) = (None, None);
        if self.eat_word("of") {
            match self.peek().kind {
                Kind::Local => launch_array = Some(self.launch_array()?),
                _ => array = Some(self.array()?),
            }
        }
        let facts = if self.eat("{") { self.facts()? } else { Facts::default() };
        let value = self.define(alias.as_ref().unwrap_or(&t), ty, layout, true)?;
        Ok(Param { name: t.text, value, align, readonly, array, launch_array, facts })
    }
    /// What is known about a parameter, up to and including `}`.
    fn facts(&mut self) -> Result<Facts> {
        let mut facts = Facts::default();
        self.list("}", |p| {
            match p.word("a fact")?.as_str() {
                "div" => facts.div = p.integer("a divisor")?,
                "equals" => facts.equals = Some(p.integer("the value")?),
                "least" => facts.least = Some(p.integer("the least value")?),
                "most" => facts.most = Some(p.integer("the largest value")?),
                "span32" => facts.span32 = true,
                "noalias" => facts.noalias = true,
                other => {
                    let known = "div, equals, least, most, span32, noalias";
                    return p.fail(format!("there is no fact `{other}`; known: {known}"));
                }
            }
            Ok(())
        })?;
        Ok(facts)
    }
    fn array(&mut self) -> Result<Array> {
        let sizes = self.numbers("the size of an axis")?;
        self.expect_word("strides")?;
        let strides = self.numbers("a stride in elements")?;
        let offset = if self.eat_word("offset") { self.integer("an offset in elements")? } else { 0 };
        Ok(Array { offset, sizes, strides })
    }
    fn launch_array(&mut self) -> Result<LaunchArray> {
        let base = self.earlier_param()?;
        let sizes = self.extents()?;
        self.expect_word("strides")?;
        Ok(LaunchArray { base, sizes, strides: self.extents()? })
    }
    /// Products such as `2 %heads %width`.
    fn extents(&mut self) -> Result<Vec<Extent>> {
        self.expect("[")?;
        self.list("]", |p| {
            let factor = if p.peek().kind == Kind::Number { p.integer("a factor")? } else { 1 };
            let mut params = vec![];
            while p.peek().kind == Kind::Local {
                params.push(p.earlier_param()?);
            }
            Ok(Extent { factor, params })
        })
    }
    /// The position of a parameter before this one.
    fn earlier_param(&mut self) -> Result<usize> {
        // Parameters are the first values, in their order.
        self.operand().map(|v| v.0 as usize)
    }
    /// The kernel with values numbered as they were written, if all were written as numbers: parameters first.
    fn numbered(&mut self) -> BlockProgram {
        let k = std::mem::take(&mut self.k);
        let mut order: Vec<(Option<u32>, usize)> = vec![];
        for (i, name) in self.written.iter().enumerate() {
            match name {
                None => order.push((None, i)),
                Some(name) => match number_of(name) {
                    Some(n) => order.push((Some(n), i)),
                    None => return k,
                },
            }
        }
        order.sort();
        let mut to = vec![Value(0); k.values.len()];
        for (new, (_, old)) in order.iter().enumerate() {
            to[*old] = Value(new as u32);
        }
        k.renumbered(&to)
    }
    /// Instructions up to and including `}`.
    fn insts(&mut self, depth: usize) -> Result<Vec<Inst>> {
        if depth > MAX_DEPTH {
            return self.fail(format!("regions are nested deeper than {MAX_DEPTH}; flatten the program"));
        }
        let mut all = vec![];
        while !self.eat("}") {
            if self.peek().kind == Kind::End {
                return self.fail("the text ends inside `{`; add `}`");
            }
            all.push(self.inst(depth)?);
        }
        Ok(all)
    }
    /// `param`: the name of the region's parameter, an i32.
    fn region(&mut self, depth: usize, param: Option<Token>) -> Result<Region> {
        self.expect("{")?;
        self.scopes.push(vec![]);
        let define = |t: &Token| self.define(t, Type::scalar(Elem::I32), None, false);
        let params = param.iter().map(define).collect::<Result<_>>()?;
        let insts = self.insts(depth + 1)?;
        self.close_scope();
        Ok(Region { params, insts })
    }
    fn close_scope(&mut self) {
        for name in self.scopes.pop().unwrap_or_default() {
            self.visible.remove(&name);
        }
    }
    fn inst(&mut self, depth: usize) -> Result<Inst> {
        let mut results = vec![];
        if value_name(self.peek()).is_some() {
            results.push(self.new_name()?);
            while self.eat(",") {
                results.push(self.new_name()?);
            }
            self.expect("=")?;
        }
        let start = self.peek().clone();
        let name = self.word("an op")?;
        let mut types = None;
        let mut regions = vec![];
        let (op, args) = match name.as_str() {
            "for" => {
                let (args, region, given) = self.for_loop(depth, results.len())?;
                regions.push(region);
                types = Some(given);
                (Op::For, args)
            }
            "while" => {
                let mut args = vec![];
                let carried = self.carried(&mut args)?;
                types = Some(self.loop_types(results.len(), &carried)?);
                regions.push(self.loop_region(depth, carried)?);
                (Op::While, args)
            }
            "if" => {
                let args = vec![self.operand()?];
                types = Some(self.result_types(results.len())?);
                regions.push(self.region(depth, None)?);
                self.expect_word("else")?;
                regions.push(self.region(depth, None)?);
                (Op::If, args)
            }
            "reduce_by" | "scan_by" => {
                let (op, args, region, given) = self.combine(&name, depth, results.len())?;
                regions.push(region);
                types = Some(given);
                (op, args)
            }
            "roles" => {
                let mut roles = vec![];
                while matches!(self.peek().kind, Kind::Word | Kind::Str) && (self.same_line() || roles.is_empty()) {
                    let (role, copy) = self.role()?;
                    roles.push(role);
                    regions.push(self.region(depth, copy)?);
                }
                (Op::Roles(roles), vec![])
            }
            _ => self.simple(&start, &name)?,
        };
        let types = match types {
            Some(t) => t,
            None => self.result_types(results.len())?,
        };
        let mut values = vec![];
        for (t, (ty, layout)) in results.iter().zip(types) {
            values.push(self.define(t, ty, layout, false)?);
        }
        if !matches!(self.peek().kind, Kind::End) && self.same_line() && !self.is("}") {
            return self.fail(format!("`{name}` ends before `{}`; one op a line", self.peek().text));
        }
        Ok(self.k.new_inst(InstData { op, args, results: values, regions }))
    }
    /// After `reduce_by` or `scan_by`: the op, its operands, region and the results' types.
    #[allow(clippy::type_complexity)]
    fn combine(
        &mut self,
        name: &str,
        depth: usize,
        results: usize,
    ) -> Result<(Op, Vec<Value>, Region, Vec<(Type, Option<Layout>)>)> {
        let reverse = name == "scan_by" && self.eat_word("reverse");
        let args = self.operands()?;
        let axis = self.axis()?;
        self.expect_word("with")?;
        self.expect("(")?;
        let params = self.list(")", |p| {
            let name = p.new_name()?;
            p.expect(":")?;
            Ok((name, p.typed()?))
        })?;
        let given = self.result_types(results)?;
        let region = self.loop_region(depth, params)?;
        let op = if name == "scan_by" { Op::ScanBy { axis, reverse } } else { Op::ReduceBy { axis } };
        Ok((op, args, region, given))
    }
    /// A role's header, and the name of its region's parameter.
    fn role(&mut self) -> Result<(Role, Option<Token>)> {
        let name = self.next().text;
        self.expect_word("warps")?;
        let warps = self.integer("the number of warps")?;
        self.expect_word("registers")?;
        let registers = self.integer("the number of registers")?;
        let mut role = Role { name, warps, copies: 1, registers };
        if !self.eat_word("copies") {
            return Ok((role, None));
        }
        role.copies = self.integer("the number of copies")?;
        self.expect_word("as")?;
        Ok((role, Some(self.new_name()?)))
    }
    /// After `for`: operands, region and the results' types.
    #[allow(clippy::type_complexity)]
    fn for_loop(&mut self, depth: usize, results: usize) -> Result<(Vec<Value>, Region, Vec<(Type, Option<Layout>)>)> {
        let index = self.new_name()?;
        let (index_type, index_layout) = if self.eat(":") { self.typed()? } else { (Type::scalar(Elem::I32), None) };
        self.expect_word("in")?;
        let mut args = vec![self.operand()?];
        self.expect("..")?;
        args.push(self.operand()?);
        self.expect_word("step")?;
        args.push(self.operand()?);
        let carried = self.carried(&mut args)?;
        let given = match carried.len() == results || self.is(":") {
            true => self.loop_types(results, &carried)?,
            false => return self.fail(format!("the loop carries {} values and has {results} results", carried.len())),
        };
        let params = std::iter::once((index, (index_type, index_layout))).chain(carried).collect();
        Ok((args, self.loop_region(depth, params)?, given))
    }
    /// Types of a loop's results: as written, else those of what it carries.
    fn loop_types(&mut self, results: usize, carried: &[Carried]) -> Result<Vec<(Type, Option<Layout>)>> {
        match self.is(":") {
            true => self.result_types(results),
            false if results == 0 || results == carried.len() => {
                Ok(carried.iter().take(results).map(|c| c.1.clone()).collect())
            }
            false => self.fail(format!("the loop carries {} values and has {results} results", carried.len())),
        }
    }
    /// What a loop carries, if anything: names and types. The initial values are added to `args`.
    fn carried(&mut self, args: &mut Vec<Value>) -> Result<Vec<Carried>> {
        if !self.eat_word("with") {
            return Ok(vec![]);
        }
        self.expect("(")?;
        self.list(")", |p| {
            let name = p.new_name()?;
            p.expect("=")?;
            args.push(p.operand()?);
            p.expect(":")?;
            Ok((name, p.typed()?))
        })
    }
    fn loop_region(&mut self, depth: usize, names: Vec<Carried>) -> Result<Region> {
        self.scopes.push(vec![]);
        let mut params = vec![];
        for (name, (ty, layout)) in names {
            params.push(self.define(&name, ty, layout, false)?);
        }
        self.expect("{")?;
        let insts = self.insts(depth + 1)?;
        self.close_scope();
        Ok(Region { params, insts })
    }
}

/// The name of a region's parameter, and its type.
type Carried = (Token, (Type, Option<Layout>));

fn fail_at<T>(t: &Token, what: impl Into<String>) -> Result<T> {
    Err(BlockError::Parse { line: t.line, column: t.column, what: what.into() })
}
