//! The part of the language that is written in the language: functions over primitives, as source text.
//!
//! The text is parsed once a process. Names in it are those of the language itself.
use crate::error::{Eval, internal};
use crate::source;
use crate::syntax::{self, FunctionTree};
use crate::unit::Function;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

const FILES: [(&str, &str); 7] = [
    ("kiln/language/arithmetic.py", include_str!("library/arithmetic.py")),
    ("kiln/language/blocks.py", include_str!("library/blocks.py")),
    ("kiln/language/libdevice.py", include_str!("library/libdevice.py")),
    ("kiln/language/reductions.py", include_str!("library/reductions.py")),
    ("kiln/language/scaled.py", include_str!("library/scaled.py")),
    ("kiln/language/sorting.py", include_str!("library/sorting.py")),
    ("kiln/language/random.py", include_str!("library/random.py")),
];

pub struct Library {
    functions: Vec<Function>,
    trees: Vec<Arc<FunctionTree>>,
    by_name: HashMap<String, usize>,
}

impl Library {
    pub fn get() -> Eval<&'static Library> {
        static LIBRARY: OnceLock<Eval<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Library::parse).as_ref().map_err(Clone::clone)
    }

    fn parse() -> Eval<Library> {
        let mut library = Library { functions: vec![], trees: vec![], by_name: HashMap::new() };
        for (file, text) in FILES {
            let function = Function { file: file.into(), first_line: 1, source: text.into(), ..Function::default() };
            let trees = syntax::parse_module(text)
                .map_err(|error| internal(source::syntax_error(&function, error).to_string()))?;
            for tree in trees {
                library.by_name.insert(tree.name.clone(), library.trees.len());
                library.functions.push(Function { name: tree.name.clone(), ..function.clone() });
                library.trees.push(Arc::new(tree));
            }
        }
        Ok(library)
    }

    pub fn index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
    pub fn function(&self, index: usize) -> Option<&Function> {
        self.functions.get(index)
    }
    pub fn tree(&self, index: usize) -> Eval<Arc<FunctionTree>> {
        self.trees.get(index).cloned().ok_or_else(|| internal("the library has no such function"))
    }
    /// Names for users; those that start with `_` are the library's.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str).filter(|name| !name.starts_with('_'))
    }
}
