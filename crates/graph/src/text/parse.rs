//! Parser: text to graph.
mod launch;
mod words;

use self::launch::Declared;
use super::{
    lex::{Token, error, lex},
    ops::build,
};
use crate::{DType, Graph, GraphError, Init, Op, ParamId, ParamInfo, Scalar, Type, ValueId, ops::Attr};
use std::collections::HashMap;

/// Parses one graph, infers its types and verifies it. The error has line and column.
pub fn parse(text: &str) -> Result<Graph, GraphError> {
    parse_with(text, &mut |file| Err(format!("{file} is not read here; write the program's text in its place")))
}

/// [`parse`], of a text that may name files with block programs. `read_file` gives the text of one, or a sentence.
pub fn parse_with(text: &str, read_file: &mut ReadFile) -> Result<Graph, GraphError> {
    let tokens = lex(text)?;
    let mut p = Parser {
        text,
        tokens,
        next: 0,
        graph: Graph::default(),
        values: HashMap::new(),
        params: HashMap::new(),
        param_nodes: HashMap::new(),
        inputs: Vec::new(),
        places: Vec::new(),
        programs: Vec::new(),
        read_file,
    };
    p.graph()?;
    let at = |v: ValueId| p.places.get(v.0 as usize).copied().unwrap_or(text.len());
    p.graph.verify().map_err(|e| match &e {
        GraphError::Operand { value, .. } | GraphError::Invalid { value, .. } => error(text, at(*value), e.to_string()),
        _ => e,
    })?;
    Ok(p.graph)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, usize)>,
    next: usize,
    graph: Graph,
    values: HashMap<String, ValueId>,
    params: HashMap<String, ParamId>,
    /// First node that reads each parameter; reused when the parameter is an operand.
    param_nodes: HashMap<ParamId, ValueId>,
    /// Inputs written as nodes instead of in the header: index and value.
    inputs: Vec<(u32, ValueId)>,
    /// Byte offset of each node in the text.
    places: Vec<usize>,
    programs: Vec<Declared>,
    read_file: &'a mut ReadFile<'a>,
}

/// Gives the text of a file that a graph names.
pub type ReadFile<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

/// An operand as written.
enum Operand {
    Value(ValueId),
    Literal(Scalar),
}

type Parsed<T> = Result<T, GraphError>;

impl Parser<'_> {
    fn graph(&mut self) -> Parsed<()> {
        self.keyword("graph")?;
        self.graph.name = match self.advance() {
            Token::Word(name) | Token::Str(name) => name,
            other => return self.fail_back(format!("expected the graph's name, found {}", other.describe())),
        };
        self.punct('(')?;
        while !self.eat(')') {
            let (place, name) = self.value_name()?;
            self.punct(':')?;
            let ty = self.ty()?;
            let v = self.graph.input(ty);
            self.define(place, name, v)?;
            if !self.eat(',') {
                self.punct(')')?;
                break;
            }
        }
        self.punct('{')?;
        loop {
            match self.peek() {
                Token::Param(_) => self.param()?,
                Token::Value(_) => self.node()?,
                Token::Program(_) => self.program()?,
                Token::Word(word) if word == "kernel" => self.program_of_file()?,
                _ => break,
            }
        }
        self.keyword("return")?;
        while matches!(self.peek(), Token::Value(_) | Token::Param(_)) {
            let v = self.reference()?;
            self.graph.outputs.push(v);
            if !self.eat(',') {
                break;
            }
        }
        self.punct('}')?;
        if *self.peek() != Token::End {
            return self.fail(format!(
                "the graph ends here, but {} follows; one file holds one graph",
                self.peek().describe()
            ));
        }
        self.all_launched()?;
        self.inputs.sort_unstable();
        self.graph.inputs.extend(self.inputs.iter().map(|i| i.1));
        Ok(())
    }

    /// `@0 "name": type = init`.
    fn param(&mut self) -> Parsed<()> {
        let place = self.place();
        let Token::Param(id) = self.advance() else { return self.fail("expected a parameter, as @0") };
        let name = match self.peek().clone() {
            Token::Str(name) => {
                self.next += 1;
                name
            }
            _ => id.clone(),
        };
        self.punct(':')?;
        let ty = self.ty()?;
        let init = if self.eat('=') { self.init(ty.dtype)? } else { Init::External };
        let p = ParamId(self.graph.params.len() as u32);
        if self.params.insert(id.clone(), p).is_some() {
            return Err(error(self.text, place, format!("`@{id}` is declared twice; rename one")));
        }
        self.graph.params.push(ParamInfo { name, ty, init });
        Ok(())
    }

    fn init(&mut self, dtype: DType) -> Parsed<Init> {
        if self.eat('[') {
            let mut data = Vec::new();
            while !self.eat(']') {
                data.push(self.scalar()?.for_dtype(dtype));
                if !self.eat(',') {
                    self.punct(']')?;
                    break;
                }
            }
            return Ok(Init::Data(data));
        }
        match self.advance() {
            Token::Word(w) if w == "external" => Ok(Init::External),
            Token::Word(w) if w == "fill" => {
                self.punct('(')?;
                let s = self.scalar()?.for_dtype(dtype);
                self.punct(')')?;
                Ok(Init::Fill(s))
            }
            Token::Word(w) if w == "random" => self.random(),
            other => self.fail_back(format!(
                "expected external, random(seed=1, scale=0.1), fill(0.0) or a list of numbers, found {}",
                other.describe()
            )),
        }
    }

    fn random(&mut self) -> Parsed<Init> {
        let (mut seed, mut scale) = (0, Scalar::Float(1.0));
        self.punct('(')?;
        while !self.eat(')') {
            match self.advance() {
                Token::Word(w) if w == "seed" => {
                    self.punct('=')?;
                    seed = match self.advance() {
                        Token::Int(v) if u64::try_from(v).is_ok() => v as u64,
                        _ => return self.fail_back("expected a seed: an integer from 0"),
                    };
                }
                Token::Word(w) if w == "scale" => {
                    self.punct('=')?;
                    scale = self.scalar()?;
                }
                other => return self.fail_back(format!("expected seed= or scale=, found {}", other.describe())),
            }
            if !self.eat(',') {
                self.punct(')')?;
                break;
            }
        }
        Ok(Init::Random { seed, scale })
    }

    /// `%name = op operands attributes : type loc(…)`.
    fn node(&mut self) -> Parsed<()> {
        let (place, name) = self.value_name()?;
        self.punct('=')?;
        let op_place = self.place();
        let Token::Word(op_name) = self.advance() else {
            return self.fail_back("expected an op's name, as add or reduce.sum");
        };
        let v = match op_name.as_str() {
            "param" => {
                let v = self.param_node(op_place)?;
                self.stated_type(v, op_place)?;
                v
            }
            "input" => {
                let index = match self.advance() {
                    Token::Int(i) if u32::try_from(i).is_ok() => i as u32,
                    _ => return self.fail_back("expected the input's position, from 0"),
                };
                self.punct(':')?;
                let ty = self.ty()?;
                let v = self.push(Op::Input(index), ty, &[], op_place);
                self.inputs.push((index, v));
                v
            }
            "const" => {
                let s = self.scalar()?;
                let ty = if self.eat(':') { self.ty()? } else { Type::new(default_dtype(s), []) };
                let s = s.for_dtype(ty.dtype);
                self.push(Op::Const(s), ty, &[], op_place)
            }
            "iota" => {
                let mut attrs = self.attrs()?;
                let axis = match attrs.0.pop() {
                    None => 0,
                    Some((k, Attr::Int(v))) if k == "axis" && attrs.0.is_empty() && (0..1 << 31).contains(&v) => {
                        v as usize
                    }
                    Some(_) => return Err(error(self.text, op_place, "iota has one attribute, as axis=0")),
                };
                self.punct(':')?;
                let ty = self.ty()?;
                self.push(Op::Iota { axis }, ty, &[], op_place)
            }
            "launch" => {
                let v = self.launch(op_place)?;
                self.stated_type(v, op_place)?;
                v
            }
            _ => {
                let v = self.computed(&op_name, op_place)?;
                self.stated_type(v, op_place)?;
                v
            }
        };
        if *self.peek() == Token::Word("loc".into()) {
            self.next += 1;
            let source = self.source()?;
            self.graph.set_source(v, source);
        }
        self.define(place, name, v)
    }

    fn computed(&mut self, op_name: &str, op_place: usize) -> Parsed<ValueId> {
        let operands = self.operands()?;
        let mut attrs = self.attrs()?;
        let values = operands.iter().enumerate().filter(|(i, _)| op_name != "select" || *i > 0);
        let like = values.into_iter().find_map(|(_, o)| match o {
            Operand::Value(v) => Some(self.graph.dtype(*v)),
            Operand::Literal(_) => None,
        });
        let mut args = Vec::with_capacity(operands.len());
        for o in operands {
            args.push(match (o, like) {
                (Operand::Value(v), _) => v,
                (Operand::Literal(s), Some(dtype)) => {
                    self.push(Op::Const(s.for_dtype(dtype)), Type::new(dtype, []), &[], op_place)
                }
                (Operand::Literal(_), None) => {
                    return Err(error(
                        self.text,
                        op_place,
                        "all operands are numbers, so their dtype is unknown: write at least one as a value, or use \
                         const",
                    ));
                }
            });
        }
        let types: Vec<Type> = args.iter().map(|a| self.graph.ty(*a).clone()).collect();
        let op = build(op_name, &mut attrs, &types).map_err(|what| error(self.text, op_place, what))?;
        let added = self.graph.add(op, &args).map_err(|e| match e {
            GraphError::Operand { op, what, .. } => error(self.text, op_place, format!("{op}: {what}")),
            other => other,
        })?;
        self.places.resize(self.graph.len(), op_place);
        Ok(added)
    }

    fn operands(&mut self) -> Parsed<Vec<Operand>> {
        let mut operands = Vec::new();
        loop {
            match self.peek() {
                Token::Value(_) | Token::Param(_) => operands.push(Operand::Value(self.reference()?)),
                t => match t.scalar() {
                    Some(s) => {
                        self.next += 1;
                        operands.push(Operand::Literal(s));
                    }
                    None if operands.is_empty() => return Ok(operands),
                    None => return self.fail(format!("expected an operand after the comma, found {}", t.describe())),
                },
            }
            if !self.eat(',') {
                return Ok(operands);
            }
        }
    }

    fn stated_type(&mut self, v: ValueId, op_place: usize) -> Parsed<()> {
        if !self.eat(':') {
            return Ok(());
        }
        let stated = self.ty()?;
        let actual = self.graph.ty(v);
        if stated == *actual {
            return Ok(());
        }
        let what = format!(
            "{} gives {actual}, but {stated} is stated; correct it or leave the type out",
            self.graph.op(v).name()
        );
        Err(error(self.text, op_place, what))
    }

    fn param_node(&mut self, place: usize) -> Parsed<ValueId> {
        let at = self.place();
        let Token::Param(id) = self.advance() else { return self.fail_back("expected a parameter, as @0") };
        let p = self.declared(&id, at)?;
        let ty = self.graph.params[p.0 as usize].ty.clone();
        let v = self.push(Op::Param(p), ty, &[], place);
        self.param_nodes.entry(p).or_insert(v);
        Ok(v)
    }

    /// A reference to a value, or to a parameter, for which the first use adds a `param` node.
    fn reference(&mut self) -> Parsed<ValueId> {
        let place = self.place();
        match self.advance() {
            Token::Value(name) => match self.values.get(&name) {
                Some(v) => Ok(*v),
                None => Err(error(
                    self.text,
                    place,
                    format!("`%{name}` is not defined above; values are defined before they are used"),
                )),
            },
            Token::Param(id) => {
                let p = self.declared(&id, place)?;
                if let Some(v) = self.param_nodes.get(&p) {
                    return Ok(*v);
                }
                let ty = self.graph.params[p.0 as usize].ty.clone();
                let v = self.push(Op::Param(p), ty, &[], place);
                self.param_nodes.insert(p, v);
                Ok(v)
            }
            other => self.fail_back(format!("expected a value, as %0, found {}", other.describe())),
        }
    }

    fn declared(&self, id: &str, place: usize) -> Parsed<ParamId> {
        let unknown =
            || error(self.text, place, format!("`@{id}` is not declared above; declare it as `@{id}: f32[8]`"));
        self.params.get(id).copied().ok_or_else(unknown)
    }

    fn push(&mut self, op: Op, ty: Type, args: &[ValueId], place: usize) -> ValueId {
        let v = self.graph.push(op, ty, args);
        self.places.resize(self.graph.len(), place);
        v
    }

    fn define(&mut self, place: usize, name: String, v: ValueId) -> Parsed<()> {
        self.places.resize(self.graph.len(), place);
        match self.values.insert(name.clone(), v) {
            Some(_) => Err(error(self.text, place, format!("`%{name}` is defined twice; rename one"))),
            None => Ok(()),
        }
    }
}

fn default_dtype(s: Scalar) -> DType {
    match s {
        Scalar::Float(_) => DType::F32,
        Scalar::Int(_) => DType::I64,
        Scalar::Bool(_) => DType::Bool,
    }
}
