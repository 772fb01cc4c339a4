//! Names of a function: which it assigns, and which dotted names it takes from around it.
use crate::KernelError;
use crate::syntax::tree::{Expr, ExprKind, FormatPart, FunctionTree, Stmt, StmtKind};
use crate::syntax::{self, Span};
use std::collections::BTreeSet;

/// The dotted names that a function's text uses and does not define, such as `tl.load`, sorted. A caller finds out what
/// they are bound to.
pub fn free_names(source: &str) -> Result<Vec<String>, Box<KernelError>> {
    let tree = syntax::parse_function(source).map_err(|error| {
        let function = crate::unit::Function { source: source.into(), first_line: 1, ..Default::default() };
        crate::source::syntax_error(&function, error)
    })?;
    let local = locals(&tree);
    let mut free = BTreeSet::new();
    visit_body(&tree.body, &mut |expr| {
        if let Some(path) = dotted(expr)
            && !local.contains(&path[0])
        {
            free.insert(path.join("."));
            return Descend::No;
        }
        Descend::Yes
    });
    Ok(free.into_iter().collect())
}

/// Parameters, and all that is assigned in the body.
fn locals(tree: &FunctionTree) -> BTreeSet<String> {
    let mut local = assigned(&tree.body);
    local.extend(tree.parameters.iter().map(|parameter| parameter.name.clone()));
    local
}

/// `a.b.c` as its parts.
pub fn dotted(expr: &Expr) -> Option<Vec<String>> {
    match &expr.kind {
        ExprKind::Name(name) => Some(vec![name.clone()]),
        ExprKind::Attribute(base, name) => {
            let mut path = dotted(base)?;
            path.push(name.clone());
            Some(path)
        }
        _ => None,
    }
}

/// Names that statements assign, at any depth.
pub fn assigned(body: &[Stmt]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    visit_statements(body, &mut |stmt| match &stmt.kind {
        StmtKind::Assign { targets, .. } => targets.iter().for_each(|target| target_names(target, &mut names)),
        StmtKind::Augmented { target, .. } | StmtKind::Annotated { target, .. } | StmtKind::For { target, .. } => {
            target_names(target, &mut names);
        }
        StmtKind::With { items, .. } => {
            items.iter().filter_map(|item| item.target.as_ref()).for_each(|target| target_names(target, &mut names));
        }
        _ => {}
    });
    visit_body(body, &mut |expr| {
        match &expr.kind {
            ExprKind::Assign { name, .. } => {
                names.insert(name.clone());
            }
            ExprKind::ListOf { target, .. } => target_names(target, &mut names),
            _ => {}
        }
        Descend::Yes
    });
    names
}

fn target_names(target: &Expr, names: &mut BTreeSet<String>) {
    match &target.kind {
        ExprKind::Name(name) => {
            names.insert(name.clone());
        }
        ExprKind::Tuple(items) | ExprKind::List(items) => items.iter().for_each(|item| target_names(item, names)),
        ExprKind::Starred(inner) | ExprKind::Subscript(inner, _) => target_names(inner, names),
        _ => {}
    }
}

/// The first `return` among statements, at any depth.
pub fn first_return(body: &[Stmt]) -> Option<Span> {
    let mut found = None;
    visit_statements(body, &mut |stmt| {
        if matches!(stmt.kind, StmtKind::Return(_)) {
            found.get_or_insert(stmt.span);
        }
    });
    found
}

fn visit_statements<'t>(body: &'t [Stmt], visit: &mut impl FnMut(&'t Stmt)) {
    for stmt in body {
        visit(stmt);
        match &stmt.kind {
            StmtKind::If { body, otherwise, .. } => {
                visit_statements(body, visit);
                visit_statements(otherwise, visit);
            }
            StmtKind::For { body, .. } | StmtKind::While { body, .. } | StmtKind::With { body, .. } => {
                visit_statements(body, visit);
            }
            _ => {}
        }
    }
}

/// Whether the parts of an expression are visited too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Descend {
    Yes,
    No,
}

/// Visits every expression in statements, outer ones first. Annotations are not evaluated and not visited.
fn visit_body(body: &[Stmt], visit: &mut impl FnMut(&Expr) -> Descend) {
    let mut expressions: Vec<&Expr> = vec![];
    visit_statements(body, &mut |stmt| match &stmt.kind {
        StmtKind::Expr(value) => expressions.push(value),
        StmtKind::Assign { targets, value } => {
            expressions.extend(targets);
            expressions.push(value);
        }
        StmtKind::Augmented { target, value, .. } => expressions.extend([target, value]),
        StmtKind::Annotated { value, .. } | StmtKind::Return(value) => expressions.extend(value),
        StmtKind::If { test, .. } | StmtKind::While { test, .. } => expressions.push(test),
        StmtKind::For { iterable, .. } => expressions.push(iterable),
        StmtKind::With { items, .. } => expressions.extend(items.iter().map(|item| &item.context)),
        StmtKind::Assert { test, message } => {
            expressions.push(test);
            expressions.extend(message);
        }
        StmtKind::Pass | StmtKind::Unsupported(_) => {}
    });
    for expr in expressions {
        visit_expr(expr, visit);
    }
}

fn visit_expr(expr: &Expr, visit: &mut impl FnMut(&Expr) -> Descend) {
    if visit(expr) == Descend::Yes {
        for part in parts(expr) {
            visit_expr(part, visit);
        }
    }
}

/// The expressions that an expression is made of.
fn parts(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        ExprKind::Name(_)
        | ExprKind::None
        | ExprKind::Bool(_)
        | ExprKind::Int(_)
        | ExprKind::Float(_)
        | ExprKind::Str(_)
        | ExprKind::Ellipsis
        | ExprKind::Unsupported(_) => vec![],
        ExprKind::Format(pieces) => pieces
            .iter()
            .filter_map(|piece| match piece {
                FormatPart::Value { value, .. } => Some(value),
                FormatPart::Text(_) => None,
            })
            .collect(),
        ExprKind::Tuple(items) | ExprKind::List(items) | ExprKind::Logical(_, items) => items.iter().collect(),
        ExprKind::Starred(value)
        | ExprKind::Unary(_, value)
        | ExprKind::Attribute(value, _)
        | ExprKind::Assign { value, .. } => vec![value],
        ExprKind::Binary(_, left, right) | ExprKind::Subscript(left, right) => vec![left, right],
        ExprKind::Compare { left, rest } => std::iter::once(&**left).chain(rest.iter().map(|(_, e)| e)).collect(),
        ExprKind::Conditional { test, body, otherwise } => vec![test, body, otherwise],
        ExprKind::Call { function, arguments } => {
            std::iter::once(&**function).chain(arguments.iter().map(|a| &a.value)).collect()
        }
        ExprKind::Slice { lower, upper, step } => [lower, upper, step].into_iter().flatten().map(|e| &**e).collect(),
        ExprKind::ListOf { element, iterable, conditions, .. } => {
            [&**iterable, element].into_iter().chain(conditions).collect()
        }
    }
}
