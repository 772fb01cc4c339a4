//! Launches of block programs, and the programs that a graph declares.
use super::{Parsed, Parser};
use crate::launch::{ArgumentValue, LaunchArgument, LaunchOp, ProgramText};
use crate::ops::Attr;
use crate::text::lex::{Token, error};
use crate::text::programs::program_in;
use crate::{GraphError, Op, ValueId};

/// A program that a graph declares.
pub(super) struct Declared {
    program: ProgramText,
    place: usize,
    is_launched: bool,
}

impl Parser<'_> {
    /// `kernel @name(…) … { … }`.
    pub(super) fn program(&mut self) -> Parsed<()> {
        let place = self.place();
        match self.advance() {
            Token::Program(program) => self.declare(place, program),
            _ => self.fail_back("expected a block program, as kernel @name(…) grid launch warps 4 { … }"),
        }
    }
    /// `kernel @name from "file"`.
    pub(super) fn program_of_file(&mut self) -> Parsed<()> {
        let place = self.place();
        self.keyword("kernel")?;
        let Token::Param(name) = self.advance() else {
            return self.fail_back("expected the program's name, as @scale");
        };
        self.keyword("from")?;
        let file = self.string()?;
        let wrong = |what: String| error(self.text, place, what);
        let text = (self.read_file)(&file).map_err(wrong)?;
        let program = program_in(&text)
            .ok_or_else(|| wrong(format!("{file} holds no block program; it begins with `kernel @{name}(…)`")))?;
        if program.name != name {
            let what = format!("{file} holds the program `{}`; write `kernel @{} from …`", program.name, program.name);
            return Err(wrong(what));
        }
        self.declare(place, program)
    }
    fn declare(&mut self, place: usize, program: ProgramText) -> Parsed<()> {
        if self.programs.iter().any(|p| p.program.name == program.name) {
            return Err(error(self.text, place, format!("`kernel @{}` is declared twice; rename one", program.name)));
        }
        self.programs.push(Declared { program, place, is_launched: false });
        Ok(())
    }
    /// An error for a program that nothing launches.
    pub(super) fn all_launched(&self) -> Parsed<()> {
        let Some(idle) = self.programs.iter().find(|p| !p.is_launched) else { return Ok(()) };
        let name = &idle.program.name;
        Err(error(self.text, idle.place, format!("`kernel @{name}` is never launched; remove it, or launch it")))
    }

    /// `launch name(x=%0, out=new f32[8], n=8) grid=[1]`, behind the word `launch`.
    pub(super) fn launch(&mut self, op_place: usize) -> Parsed<ValueId> {
        let place = self.place();
        let name = match self.advance() {
            Token::Word(name) | Token::Str(name) => name,
            other => return self.fail_back(format!("expected a program's name, found {}", other.describe())),
        };
        let program = self.programs.iter_mut().find(|p| p.program.name == name).map(|p| {
            p.is_launched = true;
            p.program.clone()
        });
        let program = program.ok_or_else(|| {
            let what = format!(
                "there is no program `{name}` above; declare it as `kernel @{name}(…) … {{ … }}` or `kernel @{name} \
                 from \"{name}.kiln\"`"
            );
            error(self.text, place, what)
        })?;
        let (arguments, operands) = self.arguments()?;
        let grid = self.grid()?;
        let op = Op::Launch(Box::new(LaunchOp { program, grid, arguments }));
        let added = self.graph.add(op, &operands).map_err(|e| match e {
            GraphError::Operand { op, what, .. } => error(self.text, op_place, format!("{op}: {what}")),
            other => other,
        })?;
        self.places.resize(self.graph.len(), op_place);
        Ok(added)
    }
    fn arguments(&mut self) -> Parsed<(Vec<LaunchArgument>, Vec<ValueId>)> {
        let (mut arguments, mut operands) = (vec![], vec![]);
        self.punct('(')?;
        while !self.eat(')') {
            let parameter = match self.advance() {
                Token::Word(name) | Token::Str(name) => name,
                other => return self.fail_back(format!("expected a parameter's name, found {}", other.describe())),
            };
            self.punct('=')?;
            let value = self.argument(&mut operands)?;
            arguments.push(LaunchArgument { parameter, value });
            if !self.eat(',') {
                self.punct(')')?;
                break;
            }
        }
        Ok((arguments, operands))
    }
    fn argument(&mut self, operands: &mut Vec<ValueId>) -> Parsed<ArgumentValue> {
        match self.peek().clone() {
            Token::Value(_) | Token::Param(_) => {
                operands.push(self.reference()?);
                Ok(ArgumentValue::Operand)
            }
            Token::Word(word) if word == "copy" => {
                self.next += 1;
                let operand = self.reference()?;
                operands.push(operand);
                Ok(ArgumentValue::Copy(self.graph.ty(operand).clone()))
            }
            Token::Word(word) if word == "new" => {
                self.next += 1;
                Ok(ArgumentValue::New(self.ty()?))
            }
            token => match token.scalar() {
                Some(number) => {
                    self.next += 1;
                    Ok(ArgumentValue::Number(number))
                }
                None => self.fail(format!(
                    "expected what a parameter is given: a tensor `%x` to read, `copy %x` to change a copy of it, `new \
                     f32[8]` to write, or a number; found {}",
                    token.describe()
                )),
            },
        }
    }
    fn grid(&mut self) -> Parsed<Vec<usize>> {
        let place = self.place();
        let attrs = self.attrs()?.0;
        let wanted = || error(self.text, place, "a launch has one attribute, as grid=[8] or grid=[8,2,1]");
        match &attrs[..] {
            [] => Ok(vec![]),
            [(key, Attr::List(sizes))] if key == "grid" && !sizes.is_empty() => {
                sizes.iter().map(|n| usize::try_from(*n).map_err(|_| wanted())).collect()
            }
            _ => Err(wanted()),
        }
    }
}
