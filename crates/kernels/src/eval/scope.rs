//! Variables of a function.
use crate::syntax::Span;
use crate::value::{Missing, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

#[derive(Clone, Debug)]
pub struct Slot {
    pub value: Value,
    /// Where it was assigned last.
    pub span: Span,
}

#[derive(Clone, Debug, Default)]
pub struct Scope {
    names: BTreeMap<String, Slot>,
    /// Names whose next assignment is annotated as constexpr.
    pub annotated: BTreeSet<String>,
}

impl Scope {
    pub fn get(&self, name: &str) -> Option<&Slot> {
        self.names.get(name)
    }
    /// A name that has a usable value.
    pub fn usable(&self, name: &str) -> Option<&Slot> {
        self.get(name).filter(|slot| !matches!(slot.value, Value::Missing(_)))
    }
    pub fn set(&mut self, name: &str, value: Value, span: Span) {
        self.names.insert(name.to_string(), Slot { value, span });
    }
    pub fn set_missing(&mut self, name: &str, span: Span, why: String, hint: &str) {
        let missing = Missing { why, hint: hint.into() };
        self.set(name, Value::Missing(Rc::new(missing)), span);
    }
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Slot)> {
        self.names.iter()
    }
}
