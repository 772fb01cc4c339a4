//! A kernel of a Python file, by the file's text alone: what its names are bound to is read from the imports,
//! definitions and constants at the top level of the file and of the files that it imports from. Nothing is executed:
//! what only Python could compute is unknown, and an error where a kernel uses it.
use crate::error::{ErrorKind, Eval, KernelError, name_error};
use crate::names::{dotted, free_names};
use crate::syntax::module::{Definition, Item, items};
use crate::syntax::tree::{CallArgument, Expr, ExprKind, UnaryOp};
use crate::syntax::{self, FunctionTree, Span};
use crate::types::Number;
use crate::unit::{Binding, Function, Literal, Unit};
use std::collections::HashMap;

/// A Python file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    pub path: String,
    pub text: String,
}

/// Finds the file of a module: the path of the file that imports it, the dots before its name, its name.
pub type FindModule<'a> = dyn FnMut(&str, usize, &str) -> Option<SourceFile> + 'a;

/// Packages whose names are the language's own.
const LANGUAGE: [&str; 2] = ["triton", "kiln"];

/// A parameter of a kernel as its text says.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    pub name: String,
    /// It is a constant of the program.
    pub is_constexpr: bool,
    pub default: Option<Literal>,
}

/// The kernel of this name with its helpers.
///
/// # Errors
/// If the file is not Python, or has no such function.
pub fn unit_of_file(file: &SourceFile, kernel: &str, find: &mut FindModule) -> Result<Unit, Box<KernelError>> {
    let mut reader = Reader { modules: vec![], known: HashMap::new(), unit: Unit::default(), find };
    let module = reader.module(file.clone())?;
    match reader.modules[module].item(kernel) {
        Some(Item::Function(_)) => {}
        _ => {
            let functions: Vec<&str> = reader.modules[module].kernels().collect();
            return Err(name_error(
                format!("{} defines no function `{kernel}`", file.path),
                match functions[..] {
                    [] => "it has no function that is decorated as a kernel".to_string(),
                    _ => format!("its kernels are {}", functions.join(", ")),
                },
            ));
        }
    }
    reader.unit.entry = reader.function(module, kernel)?;
    Ok(reader.unit)
}

/// The parameters of a unit's kernel.
///
/// # Errors
/// If its text is not Python.
pub fn parameters(unit: &Unit) -> Result<Vec<Parameter>, Box<KernelError>> {
    let Some(function) = unit.functions.get(unit.entry) else { return Ok(vec![]) };
    let tree = crate::source::parse(function)?;
    let constant =
        |annotation: &Expr| dotted(annotation).is_some_and(|path| path.last().is_some_and(|n| n == "constexpr"));
    let one = |p: &syntax::Parameter| Parameter {
        name: p.name.clone(),
        is_constexpr: p.annotation.as_ref().is_some_and(constant),
        default: match function.defaults.get(&p.name) {
            Some(Binding::Constant(literal)) => Some(literal.clone()),
            Some(Binding::Dtype(number)) => Some(Literal::Dtype(*number)),
            _ => None,
        },
    };
    Ok(tree.parameters.iter().map(one).collect())
}

struct Module {
    file: SourceFile,
    items: Vec<(String, Item)>,
}

impl Module {
    /// What a name is bound to last.
    fn item(&self, name: &str) -> Option<&Item> {
        self.items.iter().rev().find(|item| item.0 == name).map(|item| &item.1)
    }
    fn kernels(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter_map(|(name, item)| match item {
            Item::Function(f) if f.is_kernel() => Some(&name[..]),
            _ => None,
        })
    }
}

impl Definition {
    fn is_kernel(&self) -> bool {
        self.decorators.iter().any(|name| name == "jit" || name == "kernel")
    }
    fn is_compile_time(&self) -> bool {
        self.decorators.iter().any(|name| name == "constexpr_function")
    }
}

struct Reader<'a, 'f> {
    modules: Vec<Module>,
    /// Functions of the unit by module and name.
    known: HashMap<(usize, String), usize>,
    unit: Unit,
    find: &'a mut FindModule<'f>,
}

impl Reader<'_, '_> {
    fn module(&mut self, file: SourceFile) -> Eval<usize> {
        if let Some(at) = self.modules.iter().position(|module| module.file.path == file.path) {
            return Ok(at);
        }
        let items = items(&file.text).map_err(|error| {
            let whole = Function {
                name: "the module".into(),
                file: file.path.clone(),
                first_line: 1,
                source: file.text.clone(),
                ..Function::default()
            };
            KernelError::new(ErrorKind::Syntax, error.message).at(|| crate::source::place(&whole, error.span))
        })?;
        self.modules.push(Module { file, items });
        Ok(self.modules.len() - 1)
    }

    /// The place of a module's function in the unit, which it is added to if it is new.
    fn function(&mut self, module: usize, name: &str) -> Eval<usize> {
        if let Some(known) = self.known.get(&(module, name.to_string())) {
            return Ok(*known);
        }
        let Some(Item::Function(definition)) = self.modules[module].item(name).cloned() else {
            return Err(name_error(format!("`{name}` is no function"), "define it in the file"));
        };
        let function = cut_out(&self.modules[module].file, name, &definition);
        let index = self.unit.functions.len();
        self.known.insert((module, name.to_string()), index);
        self.unit.functions.push(function.clone());
        for path in free_names(&function.source).unwrap_or_default() {
            let first = path.split('.').next().unwrap_or(&path);
            if let Some(binding) = self.binding(module, first)? {
                self.unit.functions[index].bindings.insert(first.to_string(), binding);
            }
        }
        if let Ok(tree) = syntax::parse_function(&function.source) {
            self.defaults(module, index, &tree)?;
        }
        Ok(index)
    }

    fn defaults(&mut self, module: usize, index: usize, tree: &FunctionTree) -> Eval<()> {
        for parameter in &tree.parameters {
            if let Some(default) = &parameter.default {
                let binding = match self.value(module, default)? {
                    Some(value) => value,
                    None => Binding::Unknown("an expression".into()),
                };
                self.unit.functions[index].defaults.insert(parameter.name.clone(), binding);
            }
        }
        Ok(())
    }

    /// What a name of a module is bound to; `None` if the module does not bind it.
    fn binding(&mut self, module: usize, name: &str) -> Eval<Option<Binding>> {
        let Some(item) = self.modules[module].item(name).cloned() else { return Ok(None) };
        Ok(Some(match item {
            Item::Module(path) => Binding::Module(path),
            Item::Function(definition) if definition.is_kernel() || definition.is_compile_time() => {
                Binding::Function(self.function(module, name)?)
            }
            Item::Function(_) => Binding::PythonFunction(name.into()),
            Item::Constant(expr) => match self.value(module, &expr)? {
                Some(value) => value,
                None => Binding::Unknown("an expression that only Python computes".into()),
            },
            Item::From { level, module: from, name } => return self.imported(module, level, &from, &name).map(Some),
        }))
    }

    fn imported(&mut self, module: usize, level: usize, from: &str, name: &str) -> Eval<Binding> {
        let root = from.split('.').next().unwrap_or(from);
        if level == 0 && LANGUAGE.contains(&root) {
            return Ok(match name {
                "language" | "testing" | "kernels" | "extra" | "libdevice" | "math" => {
                    Binding::Module(format!("{from}.{name}"))
                }
                _ if from.ends_with(".libdevice") => Binding::Primitive(format!("libdevice.{name}")),
                _ => Binding::Primitive(name.into()),
            });
        }
        let importer = self.modules[module].file.path.clone();
        if let Some(file) = (self.find)(&importer, level, from) {
            let other = self.module(file)?;
            if let Some(binding) = self.binding(other, name)? {
                return Ok(binding);
            }
        }
        let whole = if from.is_empty() { name.to_string() } else { format!("{from}.{name}") };
        Ok(match (self.find)(&importer, level, &whole) {
            Some(_) => Binding::Unknown(format!("a module, `{whole}`: import the function from it")),
            None => Binding::Unknown(format!("`{whole}`, whose file is not found")),
        })
    }

    /// The value of an expression that needs no Python.
    fn value(&mut self, module: usize, expr: &Expr) -> Eval<Option<Binding>> {
        Ok(match &expr.kind {
            ExprKind::Call { function, arguments } => match (dotted(function), &arguments[..]) {
                (Some(path), [CallArgument { value, .. }]) if path.last().is_some_and(|n| n == "constexpr") => {
                    self.value(module, value)?
                }
                _ => None,
            },
            ExprKind::Name(name) => self.binding(module, name)?,
            ExprKind::Attribute(..) => dotted(expr)
                .and_then(|path| {
                    Number::named(path.last()?).filter(|number| path.last().is_some_and(|n| n == number.name()))
                })
                .map(Binding::Dtype),
            _ => self.literal(module, expr)?.map(Binding::Constant),
        })
    }

    fn literal(&mut self, module: usize, expr: &Expr) -> Eval<Option<Literal>> {
        Ok(Some(match &expr.kind {
            ExprKind::None => Literal::None,
            ExprKind::Bool(b) => Literal::Bool(*b),
            ExprKind::Int(n) => Literal::Int(*n),
            ExprKind::Float(x) => Literal::Float(*x),
            ExprKind::Str(text) => Literal::Str(text.clone()),
            ExprKind::Unary(UnaryOp::Minus, inner) => match self.literal(module, inner)? {
                Some(Literal::Int(n)) => Literal::Int(-n),
                Some(Literal::Float(x)) => Literal::Float(-x),
                _ => return Ok(None),
            },
            ExprKind::Tuple(parts) | ExprKind::List(parts) => {
                let mut all = vec![];
                for part in parts {
                    match self.literal(module, part)? {
                        Some(part) => all.push(part),
                        None => return Ok(None),
                    }
                }
                Literal::Tuple(all)
            }
            _ => {
                return Ok(match self.value_of_name(module, expr)? {
                    Some(Binding::Constant(literal)) => Some(literal),
                    Some(Binding::Dtype(number)) => Some(Literal::Dtype(number)),
                    _ => None,
                });
            }
        }))
    }
    fn value_of_name(&mut self, module: usize, expr: &Expr) -> Eval<Option<Binding>> {
        match &expr.kind {
            ExprKind::Name(_) | ExprKind::Attribute(..) | ExprKind::Call { .. } => self.value(module, expr),
            _ => Ok(None),
        }
    }
}

/// A function's text, moved to the left margin.
fn cut_out(file: &SourceFile, name: &str, definition: &Definition) -> Function {
    let Span { start, end } = definition.span;
    let (start, end) = (start as usize, (end as usize).min(file.text.len()));
    let line = file.text[..start].rfind('\n').map_or(0, |at| at + 1);
    let shift = start - line;
    let margin = " ".repeat(shift);
    let lines = file.text[start..end].lines().map(|line| line.strip_prefix(&margin[..]).unwrap_or(line));
    Function {
        name: name.into(),
        file: file.path.clone(),
        first_line: 1 + file.text[..start].matches('\n').count(),
        column_shift: shift,
        source: lines.collect::<Vec<_>>().join("\n") + "\n",
        compile_time: definition.is_compile_time(),
        ..Function::default()
    }
}
