//! What names mean: variables, what a function's text is bound to, names of the language, Python's own.
use super::Evaluator;
use crate::error::{Eval, name_error};
use crate::names::dotted;
use crate::primitives;
use crate::syntax::tree::{Expr, ExprKind};
use crate::types::{Number, Scalar, TensorType};
use crate::unit::{Binding, Literal};
use crate::value::{Builtin, Callee, Constant, FunctionId, Tuple, Value};
use std::rc::Rc;

/// Modules of the language, and parts of them that have names of their own.
const SUBMODULES: [&str; 10] =
    ["language", "core", "math", "standard", "random", "extra", "libdevice", "cuda", "semantic", "PropagateNan"];

const BUILTINS: [(&str, Builtin); 18] = [
    ("breakpoint", Builtin::Breakpoint),
    ("range", Builtin::Range),
    ("len", Builtin::Len),
    ("min", Builtin::Min),
    ("max", Builtin::Max),
    ("int", Builtin::Int),
    ("float", Builtin::Float),
    ("bool", Builtin::Bool),
    ("str", Builtin::Str),
    ("print", Builtin::Print),
    ("isinstance", Builtin::IsInstance),
    ("hasattr", Builtin::HasAttr),
    ("getattr", Builtin::GetAttr),
    ("tuple", Builtin::Tuple),
    ("zip", Builtin::Zip),
    ("enumerate", Builtin::Enumerate),
    ("abs", Builtin::Abs),
    ("repr", Builtin::Repr),
];

impl Evaluator<'_> {
    /// A name, or an attribute whose base may be a dotted name that is bound as a whole.
    pub(super) fn name_or_attribute(&mut self, expr: &Expr) -> Eval<Value> {
        if let Some(path) = dotted(expr)
            && self.frame()?.scope.get(&path[0]).is_none()
        {
            return self.free_name(&path);
        }
        match &expr.kind {
            ExprKind::Name(name) => self.variable(name),
            ExprKind::Attribute(base, name) => {
                let base = self.expr(base)?;
                self.attribute(&base, name)
            }
            _ => self.expr(expr),
        }
    }

    fn variable(&self, name: &str) -> Eval<Value> {
        let frame = self.frame()?;
        match frame.scope.get(name).map(|slot| &slot.value) {
            Some(Value::Missing(missing)) => Err(name_error(missing.why.clone(), missing.hint.clone())),
            Some(value) => Ok(value.clone()),
            None => Err(name_error(format!("`{name}` is not defined"), "assign it before it is used")),
        }
    }

    fn free_name(&mut self, path: &[String]) -> Eval<Value> {
        let (mut value, used) = self.longest_bound(path)?;
        for name in &path[used..] {
            value = self.attribute(&value, name)?;
        }
        Ok(value)
    }

    /// The value of the longest prefix that is bound, and its length.
    fn longest_bound(&self, path: &[String]) -> Eval<(Value, usize)> {
        let function = self.frame()?.function;
        if let FunctionId::User(_) = function {
            let bindings = &self.function(function)?.bindings;
            for length in (1..=path.len()).rev() {
                let name = path[..length].join(".");
                if let Some(binding) = bindings.get(&name) {
                    return Ok((self.bound(&name, binding)?, length));
                }
            }
        } else if let Some(value) = self.language(&path[0]) {
            return Ok((value, 1));
        }
        let builtin = BUILTINS.iter().find(|builtin| builtin.0 == path[0]);
        match builtin {
            Some((_, builtin)) => Ok((Value::Callee(Callee::Builtin(*builtin)), 1)),
            None => Err(name_error(
                format!("`{}` is not defined", path[0]),
                "assign it, pass it as an argument, or define it as a constexpr at the level of the module",
            )),
        }
    }

    pub(super) fn default_value(&self, name: &str, binding: &Binding) -> Eval<Value> {
        self.bound(name, binding)
    }

    fn bound(&self, name: &str, binding: &Binding) -> Eval<Value> {
        match binding {
            Binding::Primitive(path) => self.of_module(path),
            Binding::Dtype(number) => Ok(Value::number(*number)),
            Binding::Function(index) => Ok(Value::Callee(Callee::Function(FunctionId::User(*index)))),
            Binding::Constant(literal) => self.literal_value(literal),
            Binding::Module(path) => Ok(Value::Module(path.clone())),
            Binding::PythonFunction(function) => Err(name_error(
                format!("`{name}` is the Python function {function}, which a kernel cannot call"),
                "decorate it as a kernel, or compute its result ahead and pass it as constexpr",
            )),
            Binding::Unknown(ty) => Err(name_error(
                format!("`{name}` is a global of type {ty}, which a kernel cannot use"),
                "pass it as an argument, or wrap it once, as in `NAME = tl.constexpr(value)`",
            )),
        }
    }

    /// What a module has under a name of its own, or else what the language has.
    fn of_module(&self, path: &str) -> Eval<Value> {
        let last = path.rsplit('.').next().unwrap_or(path);
        self.language(path).or_else(|| self.language(last)).ok_or_else(|| no_primitive(path))
    }

    /// A name of the language itself.
    pub(super) fn language(&self, name: &str) -> Option<Value> {
        if let Some(nan_rule) = name.strip_prefix("PropagateNan.") {
            return Some(Value::str(format!("PropagateNan.{nan_rule}")));
        }
        if let Some(number) = Number::named(name).filter(|number| number.name() == name) {
            return Some(Value::number(number));
        }
        if let Some(primitive) = primitives::find(name) {
            return Some(Value::Callee(Callee::Primitive(primitive.name)));
        }
        if let Some(index) = self.library.index(name) {
            return Some(Value::Callee(Callee::Function(FunctionId::Library(index))));
        }
        SUBMODULES.contains(&name).then(|| Value::Module(format!("kiln.language.{name}")))
    }

    pub(super) fn literal_value(&self, literal: &Literal) -> Eval<Value> {
        let all = |values: &[Literal]| values.iter().map(|value| self.literal_value(value)).collect::<Eval<Vec<_>>>();
        Ok(match literal {
            Literal::None => Value::NONE,
            Literal::Bool(value) => Value::bool(*value),
            Literal::Int(value) => Value::int(*value),
            Literal::Float(value) => Value::Constant(Constant::Float(*value)),
            Literal::Str(text) => Value::str(&text[..]),
            Literal::Dtype(number) => Value::number(*number),
            Literal::Pointer(elem) => Value::Type(TensorType { scalar: Scalar::Pointer(*elem), shape: vec![] }),
            Literal::Primitive(path) => self.of_module(path)?,
            Literal::Function(index) => Value::Callee(Callee::Function(FunctionId::User(*index))),
            Literal::Tuple(values) => Value::tuple(all(values)?),
            Literal::Record { fields, values } => {
                Value::Tuple(Tuple { values: Rc::new(all(values)?), fields: Some(Rc::new(fields.clone())) })
            }
        })
    }

    pub(super) fn module_attribute(&self, path: &str, name: &str) -> Eval<Value> {
        if path.ends_with("PropagateNan") {
            return Ok(Value::str(format!("PropagateNan.{name}")));
        }
        let root = path.split('.').next().unwrap_or(path);
        let math = |value: f64| Ok(Value::Constant(Constant::Float(value)));
        match (root, name) {
            ("math" | "numpy" | "torch", "inf") => math(f64::INFINITY),
            ("math" | "numpy" | "torch", "nan") => math(f64::NAN),
            ("math" | "numpy" | "torch", "pi") => math(std::f64::consts::PI),
            ("math" | "numpy" | "torch", "e") => math(std::f64::consts::E),
            _ => {
                let module = path.rsplit('.').next().unwrap_or(path);
                let whole = self.language(&format!("{module}.{name}"));
                whole.or_else(|| self.language(name)).ok_or_else(|| no_primitive(&format!("{path}.{name}")))
            }
        }
    }
}

fn no_primitive(name: &str) -> Box<crate::KernelError> {
    let last = name.rsplit('.').next().unwrap_or(name);
    crate::error::unsupported(
        format!("the language has no `{name}`"),
        match primitives::near(last) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "see the guide for the functions that a kernel may call".into(),
        },
    )
}
