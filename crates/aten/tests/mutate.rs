//! Random edits of JSON documents, for fuzz tests of what reads them; and a run that catches panics.
use kiln_graph::Random;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// What edits put in the place of texts and of objects.
pub struct Words {
    pub texts: Vec<String>,
    pub objects: Vec<Value>,
}

/// Sizes, axes and counts at the edges of what is valid or can be computed with.
const NUMBERS: [i64; 18] =
    [-1, 0, 1, 2, 3, 4, 7, 11, 31, 33, -2, -33, 1 << 20, 1 << 31, 1 << 46, 1 << 62, i64::MAX, i64::MIN];

/// One edit: of a number, a text, a list, or an object, or a part put in the place of another one.
pub fn mutate(document: &mut Value, random: &mut Random, words: &Words) {
    let mut places = vec![];
    collect(document, String::new(), &mut places);
    let place = random.choose(&places);
    let other = document.pointer(&random.choose(&places)).cloned().unwrap_or(Value::Null);
    let Some(found) = document.pointer_mut(&place) else { return };
    let alike = std::mem::discriminant(found) == std::mem::discriminant(&other);
    if alike && !place.is_empty() && random.next_below(4) == 0 {
        *found = other;
        return;
    }
    match found {
        Value::Null | Value::Bool(_) => *found = Value::from(random.next_below(2) == 0),
        Value::Number(n) => {
            let near = n.as_i64().unwrap_or_default().wrapping_add([-1, 1][random.next_below(2)]);
            *found = Value::from(if random.next_below(3) == 0 { near } else { random.choose(&NUMBERS) });
        }
        Value::String(s) => *s = random.choose(&words.texts),
        Value::Array(items) => {
            let at = random.next_below(items.len());
            match (random.next_below(5), items.is_empty()) {
                (0, _) | (_, true) => items.push(other),
                (1, _) => items.clear(),
                (2, _) => drop(items.remove(at)),
                (3, _) => items.push(items[at].clone()),
                _ => items.swap(at, 0),
            }
        }
        Value::Object(fields) => {
            let key = fields.keys().nth(random.next_below(fields.len())).cloned();
            match (key, fields.len()) {
                (Some(key), 2..) => drop(fields.remove(&key)),
                _ => *found = random.choose(&words.objects),
            }
        }
    }
}

/// JSON pointers of all parts.
fn collect(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| collect(v, format!("{at}/{i}"), places)),
        Value::Object(fields) => fields
            .iter()
            .for_each(|(k, v)| collect(v, format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), places)),
        _ => {}
    }
    places.push(at);
}

/// Where panics happened, with the number of times and the first case.
#[derive(Default)]
pub struct Panics(BTreeMap<String, (usize, String)>);

impl Panics {
    /// Runs `f`; notes a panic in it. `case` says what was run.
    pub fn catch<T>(&mut self, case: impl FnOnce() -> String, f: impl FnOnce() -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(f));
        if result.is_err() {
            let place = LAST.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
            self.0.entry(place).or_insert_with(|| (0, case())).0 += 1;
        }
        result.ok()
    }
    /// Fails if there was any.
    fn check(&self) {
        let told: Vec<String> =
            self.0.iter().map(|(place, (n, case))| format!("{n} times: {place}\n    first by {case}")).collect();
        assert!(told.is_empty(), "{} places panic:\n{}", told.len(), told.join("\n"));
    }
}

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Runs `f` with panics recorded rather than printed; fails if there were any.
pub fn recording<T>(f: impl FnOnce(&mut Panics) -> T) -> T {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(info.to_string().replace('\n', " "));
    }));
    let mut panics = Panics::default();
    let result = f(&mut panics);
    std::panic::set_hook(before);
    panics.check();
    result
}

/// The number of edited documents: `KILN_CASES`, or `few`, which take some seconds.
pub fn cases(few: usize) -> usize {
    std::env::var("KILN_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}
