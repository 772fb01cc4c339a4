//! The syntax tree: statements and expressions with the bytes that they came from.

/// Bytes of a text, from `start` to before `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn to(self, last: Span) -> Span {
        Span { start: self.start, end: last.end.max(self.end) }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct FunctionTree {
    pub name: String,
    pub name_span: Span,
    pub parameters: Vec<Parameter>,
    pub body: Vec<Stmt>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterKind {
    Plain,
    /// `*args`
    Rest,
    /// `**kwargs`
    Keywords,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    pub name: String,
    pub span: Span,
    pub kind: ParameterKind,
    /// After `*` or `*args`.
    pub keyword_only: bool,
    pub annotation: Option<Expr>,
    pub default: Option<Expr>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Stmt {
    pub span: Span,
    pub kind: StmtKind,
}

#[derive(Clone, PartialEq, Debug)]
pub enum StmtKind {
    Expr(Expr),
    Assign {
        targets: Vec<Expr>,
        value: Expr,
    },
    Augmented {
        target: Expr,
        op: BinaryOp,
        value: Expr,
    },
    Annotated {
        target: Expr,
        annotation: Expr,
        value: Option<Expr>,
    },
    If {
        test: Expr,
        body: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    For {
        target: Expr,
        iterable: Expr,
        body: Vec<Stmt>,
        has_else: bool,
    },
    While {
        test: Expr,
        body: Vec<Stmt>,
        has_else: bool,
    },
    With {
        items: Vec<WithItem>,
        body: Vec<Stmt>,
    },
    Return(Option<Expr>),
    Assert {
        test: Expr,
        message: Option<Expr>,
    },
    Pass,
    /// Python that has no meaning in a kernel, by name.
    Unsupported(&'static str),
}

#[derive(Clone, PartialEq, Debug)]
pub struct WithItem {
    pub context: Expr,
    pub target: Option<Expr>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Expr {
    pub span: Span,
    pub kind: ExprKind,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ExprKind {
    Name(String),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    Ellipsis,
    Format(Vec<FormatPart>),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Starred(Box<Expr>),
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    Logical(LogicalOp, Vec<Expr>),
    Compare {
        left: Box<Expr>,
        rest: Vec<(CompareOp, Expr)>,
    },
    Conditional {
        test: Box<Expr>,
        body: Box<Expr>,
        otherwise: Box<Expr>,
    },
    Call {
        function: Box<Expr>,
        arguments: Vec<CallArgument>,
    },
    Attribute(Box<Expr>, String),
    Subscript(Box<Expr>, Box<Expr>),
    Slice {
        lower: Option<Box<Expr>>,
        upper: Option<Box<Expr>>,
        step: Option<Box<Expr>>,
    },
    Assign {
        name: String,
        value: Box<Expr>,
    },
    ListOf {
        element: Box<Expr>,
        target: Box<Expr>,
        iterable: Box<Expr>,
        conditions: Vec<Expr>,
    },
    /// Python that has no meaning in a kernel, by name.
    Unsupported(&'static str),
}

/// An argument: `value`, `*value` or `name=value`.
#[derive(Clone, PartialEq, Debug)]
pub struct CallArgument {
    pub name: Option<String>,
    pub spread: Spread,
    pub value: Expr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    No,
    Tuple,
    Dict,
}

#[derive(Clone, PartialEq, Debug)]
pub enum FormatPart {
    Text(String),
    Value { value: Expr, repr: bool, spec: String },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryOp {
    Plus,
    Minus,
    Not,
    Invert,
}

impl UnaryOp {
    pub fn symbol(self) -> &'static str {
        match self {
            UnaryOp::Plus => "+",
            UnaryOp::Minus => "-",
            UnaryOp::Not => "not",
            UnaryOp::Invert => "~",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogicalOp {
    And,
    Or,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
    MatMul,
    Shl,
    Shr,
    And,
    Or,
    Xor,
}

impl BinaryOp {
    const SYMBOLS: [(BinaryOp, &'static str, &'static str); 13] = [
        (BinaryOp::Add, "+", "+="),
        (BinaryOp::Sub, "-", "-="),
        (BinaryOp::Mul, "*", "*="),
        (BinaryOp::Div, "/", "/="),
        (BinaryOp::FloorDiv, "//", "//="),
        (BinaryOp::Mod, "%", "%="),
        (BinaryOp::Pow, "**", "**="),
        (BinaryOp::MatMul, "@", "@="),
        (BinaryOp::Shl, "<<", "<<="),
        (BinaryOp::Shr, ">>", ">>="),
        (BinaryOp::And, "&", "&="),
        (BinaryOp::Or, "|", "|="),
        (BinaryOp::Xor, "^", "^="),
    ];
    pub fn symbol(self) -> &'static str {
        Self::SYMBOLS[self as usize].1
    }
    /// By the symbol of an augmented assignment.
    pub fn augmented(symbol: &str) -> Option<BinaryOp> {
        Self::SYMBOLS.iter().find(|row| row.2 == symbol).map(|row| row.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Is,
    IsNot,
    In,
    NotIn,
}

impl CompareOp {
    pub fn symbol(self) -> &'static str {
        match self {
            CompareOp::Eq => "==",
            CompareOp::Ne => "!=",
            CompareOp::Lt => "<",
            CompareOp::Le => "<=",
            CompareOp::Gt => ">",
            CompareOp::Ge => ">=",
            CompareOp::Is => "is",
            CompareOp::IsNot => "is not",
            CompareOp::In => "in",
            CompareOp::NotIn => "not in",
        }
    }
}
