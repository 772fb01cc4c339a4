//! Calls: of primitives, helpers, methods and types; and the kernel itself with a launch's arguments.
use super::scope::Scope;
use super::statements::{is_const, is_constexpr};
use super::{Evaluator, Flow, Frame, MAX_CALLS};
use crate::emit::Emitter;
use crate::error::{Eval, internal, type_error, unsupported};
use crate::ops::shape::axis as axis_of;
use crate::primitives::{self, Walk};
use crate::syntax::tree::{CallArgument, Expr, FunctionTree, ParameterKind, Spread};
use crate::syntax::{Parameter, Span};
use crate::types::{Scalar, TensorType};
use crate::unit::{Options, Signature};
use crate::value::{Arguments, Array, Callee, Constant, FunctionId, Tensor, Tuple, Value};
use std::rc::Rc;

impl Evaluator<'_> {
    pub(super) fn call_expr(&mut self, function: &Expr, arguments: &[CallArgument], span: Span) -> Eval<Value> {
        let callee = self.expr(function)?;
        let arguments = self.arguments(arguments)?;
        self.call(&callee, arguments, span)
    }

    pub(super) fn arguments(&mut self, arguments: &[CallArgument]) -> Eval<Arguments> {
        let mut evaluated = Arguments::default();
        for argument in arguments {
            let value = self.expr(&argument.value)?;
            match (argument.spread, &argument.name) {
                (Spread::No, Some(name)) => evaluated.named.push((name.clone(), value)),
                (Spread::No, None) => evaluated.positional.push(value),
                (Spread::Tuple, _) => evaluated.positional.extend(self.sequence(&value)?),
                (Spread::Dict, _) => {
                    return Err(unsupported("`**` in a call is not supported", "name the arguments one by one"));
                }
            }
        }
        Ok(evaluated)
    }

    pub(super) fn call(&mut self, callee: &Value, mut arguments: Arguments, span: Span) -> Eval<Value> {
        match callee {
            Value::Callee(Callee::Primitive(name)) => {
                self.call_span = span;
                self.call_primitive(name, arguments)
            }
            Value::Callee(Callee::Function(id)) => self.call_helper(*id, arguments, span),
            Value::Callee(Callee::Builtin(builtin)) => self.builtin(*builtin, arguments),
            Value::Method { receiver, name } => {
                match &**receiver {
                    Value::Type(ty) => return type_method(ty, name),
                    Value::Array(array) => return stride(array, &arguments),
                    _ => {}
                }
                let function = self.language(primitives::function_of_method(name)).ok_or_else(|| {
                    type_error(
                        format!("{} has no method `{name}`", receiver.describe()),
                        "call a function of the language",
                    )
                })?;
                arguments.positional.insert(0, (**receiver).clone());
                self.call(&function, arguments, span)
            }
            // `tl.float32(x)` casts.
            Value::Type(_) => {
                let cast = self.language("cast").ok_or_else(|| internal("there is no cast"))?;
                arguments.positional.insert(1.min(arguments.positional.len()), callee.clone());
                self.call(&cast, arguments, span)
            }
            other => Err(type_error(format!("{} is not called", other.describe()), "call a function")),
        }
    }

    fn call_primitive(&mut self, name: &str, arguments: Arguments) -> Eval<Value> {
        let primitive = primitives::find(name).ok_or_else(|| internal(format!("there is no primitive `{name}`")))?;
        let values = primitives::bind(primitive, arguments)?;
        (primitive.run)(self, &values)
    }

    /// Walks a helper with its parameters bound.
    pub(super) fn call_helper(&mut self, id: FunctionId, arguments: Arguments, span: Span) -> Eval<Value> {
        if self.frames.len() >= MAX_CALLS {
            return Err(unsupported(
                format!("calls are nested more than {MAX_CALLS} deep"),
                "kernels do not recurse at run time; use a loop",
            ));
        }
        let tree = self.tree(id)?;
        let scope = self.bind(id, &tree, arguments)?;
        let compile_time = self.function(id)?.compile_time;
        self.frames.push(Frame { function: id, scope, compile_time, loops: 0 });
        let result = self.deeper(tree.name_span, |evaluator| evaluator.walk(&tree));
        self.frames.pop();
        result.map_err(|error| error.called_from(self.place(span)))
    }

    fn walk(&mut self, tree: &FunctionTree) -> Eval<Value> {
        match self.block(&tree.body, None)? {
            Flow::Returned(value) => Ok(value),
            Flow::Next => Ok(Value::NONE),
        }
    }

    fn bind(&mut self, id: FunctionId, tree: &FunctionTree, arguments: Arguments) -> Eval<Scope> {
        let mut scope = Scope::default();
        let mut positional = arguments.positional.into_iter();
        let mut named = arguments.named;
        for parameter in &tree.parameters {
            let given = named.iter().position(|(name, _)| *name == parameter.name).map(|at| named.remove(at).1);
            let value = match parameter.kind {
                ParameterKind::Rest => Value::tuple(positional.by_ref().collect()),
                ParameterKind::Keywords => {
                    let (fields, values) = std::mem::take(&mut named).into_iter().unzip();
                    Value::Tuple(Tuple { values: Rc::new(values), fields: Some(Rc::new(fields)) })
                }
                ParameterKind::Plain => {
                    let next = if parameter.keyword_only { None } else { positional.next() };
                    match (next, given) {
                        (Some(_), Some(_)) => return Err(given_twice(tree, parameter)),
                        (Some(value), None) | (None, Some(value)) => value,
                        (None, None) => self.default(id, tree, parameter)?,
                    }
                }
            };
            scope.set(&parameter.name, value, parameter.span);
        }
        let too_many = positional.count();
        if too_many > 0 {
            return Err(type_error(
                format!("`{}` takes {} arguments, and {too_many} more are given", tree.name, tree.parameters.len()),
                "leave them out",
            ));
        }
        if let Some((name, _)) = named.first() {
            return Err(type_error(
                format!("`{}` has no parameter `{name}`", tree.name),
                format!("its parameters are {}", parameter_names(tree)),
            ));
        }
        Ok(scope)
    }

    fn default(&mut self, id: FunctionId, tree: &FunctionTree, parameter: &Parameter) -> Eval<Value> {
        let bound = self.function(id)?.defaults.get(&parameter.name).cloned();
        if let Some(binding) = bound {
            return self.default_value(&parameter.name, &binding);
        }
        let Some(default) = &parameter.default else {
            return Err(type_error(
                format!("`{}` is called without its argument `{}`", tree.name, parameter.name),
                format!("its parameters are {}", parameter_names(tree)),
            ));
        };
        self.frames.push(Frame { function: id, scope: Scope::default(), compile_time: true, loops: 0 });
        let value = self.expr(default);
        self.frames.pop();
        value
    }

    /// Binds a launch's arguments, and walks the kernel; gives the arguments that are the program's parameters.
    pub(super) fn kernel(&mut self, signature: &Signature) -> Eval<Vec<Vec<usize>>> {
        let id = FunctionId::User(self.unit.entry);
        let tree = self.tree(id)?;
        if tree.parameters.len() != signature.arguments.len() {
            return Err(type_error(
                format!(
                    "`{}` has {} parameters, and {} arguments are given",
                    tree.name,
                    tree.parameters.len(),
                    signature.arguments.len()
                ),
                "give each parameter an argument or a default",
            ));
        }
        let mut scope = Scope::default();
        let mut origins = vec![];
        for (at, (parameter, argument)) in tree.parameters.iter().zip(&signature.arguments).enumerate() {
            let value = self.argument(&parameter.name, argument, &[at], &mut origins);
            let value = value.map_err(|error| {
                error.at(|| {
                    self.function(id).map_or_else(|_| Default::default(), |f| crate::source::place(f, parameter.span))
                })
            })?;
            let value = match value {
                Value::Tensor(pointer) if parameter.annotation.as_ref().is_some_and(is_const) => {
                    Value::Tensor(read_only(pointer))
                }
                other => other,
            };
            if parameter.annotation.as_ref().is_some_and(is_constexpr) && value.tensor().is_some() {
                return Err(type_error(
                    format!("`{}` is a constexpr parameter, and its argument is a run-time value", parameter.name),
                    "give its value when compiling",
                ));
            }
            scope.set(&parameter.name, value, parameter.span);
        }
        self.frames.push(Frame { function: id, scope, compile_time: false, loops: 0 });
        self.deeper(tree.name_span, |evaluator| evaluator.walk(&tree))?;
        self.frames.pop();
        Ok(origins)
    }
}

/// A pointer that is only read through.
fn read_only(pointer: Tensor) -> Tensor {
    match pointer.pointee() {
        Some(elem) => Tensor { ty: pointer.ty.with_scalar(Scalar::ConstPointer(elem)), ..pointer },
        None => pointer,
    }
}

impl Walk for Evaluator<'_> {
    fn emit(&mut self) -> &mut Emitter {
        &mut self.emit
    }
    fn options(&self) -> &Options {
        self.options
    }
    fn print(&mut self, line: String) {
        self.printed.push(line);
    }
    fn with_place(&self, message: &str) -> String {
        Evaluator::with_place(self, message)
    }
    fn call_function(&mut self, function: Callee, arguments: Vec<Value>) -> Eval<Value> {
        let arguments = Arguments { positional: arguments, named: vec![] };
        self.call(&Value::Callee(function), arguments, self.call_span)
    }
}

/// `array.stride(axis)`.
fn stride(array: &Array, arguments: &Arguments) -> Eval<Value> {
    let [axis] = &arguments.positional[..] else {
        return Err(type_error("`stride` takes one axis", "write `x.stride(0)`, or `x.strides` for all"));
    };
    let axis = axis_of(primitives::known_int("axis", axis)?, array.strides.len())?;
    Ok(Value::Tensor(array.strides[axis].clone()))
}

fn parameter_names(tree: &FunctionTree) -> String {
    let names: Vec<&str> = tree.parameters.iter().map(|parameter| &parameter.name[..]).collect();
    names.join(", ")
}

fn given_twice(tree: &FunctionTree, parameter: &Parameter) -> Box<crate::KernelError> {
    type_error(format!("`{}` gets its argument `{}` twice", tree.name, parameter.name), "give it by place or by name")
}

/// Predicates of types, and the ends of an integer's range.
fn type_method(ty: &TensorType, name: &str) -> Eval<Value> {
    let range = ty.scalar.number().and_then(|number| number.range());
    match (name, range) {
        ("get_int_max_value", Some((_, most))) => Ok(Value::Constant(Constant::Int(most))),
        ("get_int_min_value", Some((least, _))) => Ok(Value::Constant(Constant::Int(least))),
        _ => super::attributes::type_predicate(ty, name)
            .map(Value::bool)
            .ok_or_else(|| type_error(format!("the type {ty} has no method `{name}`"), "`is_floating()` is one")),
    }
}
