//! Builds an op from its name and attributes, with defaults for omitted attributes.
use crate::{
    Op, Type,
    ops::{Attr, Attribute, Visitor},
};

/// Parsed attributes in the order of the text. Each is consumed once, and none may remain.
pub(super) struct Attrs(pub Vec<(String, Attr)>);

/// Consumes attributes; keeps the first error.
struct Reader<'a> {
    attrs: &'a mut Attrs,
    error: Option<String>,
}
impl Reader<'_> {
    fn take<T: Attribute>(&mut self, key: &str) -> Option<T> {
        let i = self.attrs.0.iter().position(|(k, _)| k == key)?;
        let value = T::read(self.attrs.0.remove(i).1);
        if value.is_none() {
            self.error.get_or_insert_with(|| format!("{key}= wants {}", T::WANTS));
        }
        value
    }
}
impl Visitor for Reader<'_> {
    fn needed<T: Attribute>(&mut self, key: &'static str, value: &mut T) {
        match self.take(key) {
            Some(given) => *value = given,
            None => {
                self.error.get_or_insert_with(|| format!("{key}= is missing: give {}", T::WANTS));
            }
        }
    }
    fn optional<T: Attribute>(&mut self, key: &'static str, value: &mut T) {
        if let Some(given) = self.take(key) {
            *value = given;
        }
    }
    fn or<T: Attribute>(&mut self, key: &'static str, value: &mut T, default: impl FnOnce() -> T) {
        *value = self.take(key).unwrap_or_else(default);
    }
    fn rare<T: Attribute + Default + PartialEq>(&mut self, key: &'static str, value: &mut T) {
        self.or(key, value, T::default);
    }
}

/// The op called `name` on operands of types `args`. Not for leaves. The error is a clause.
pub(super) fn build(name: &str, attrs: &mut Attrs, args: &[Type]) -> Result<Op, String> {
    let mut op = Op::on(name, args).filter(|op| !op.is_leaf()).ok_or_else(|| unknown(name))?;
    let mut reader = Reader { attrs, error: None };
    op.visit(&mut reader);
    match (reader.error, attrs.0.first()) {
        (Some(error), _) => Err(error),
        (None, Some((key, _))) => Err(format!("{name} has no attribute {key}=; leave it out")),
        (None, None) => Ok(op),
    }
}

/// The message for an unknown op; suggests a similar name if there is one.
fn unknown(name: &str) -> String {
    let near = Op::names().min_by_key(|k| distance(k, name)).filter(|k| distance(k, name) * 2 <= name.len());
    match near {
        Some(near) => format!("there is no op `{name}`; did you mean `{near}`?"),
        None => format!(
            "there is no op `{name}`; ops are add, mul, reduce.sum, dot, reshape, … (see the op set's documentation)"
        ),
    }
}

/// Edit distance of the first 40 bytes.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<u8>, Vec<u8>) = (a.bytes().take(40).collect(), b.bytes().take(40).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
