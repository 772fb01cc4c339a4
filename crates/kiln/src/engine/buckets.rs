//! Buckets: calls of a few sizes of a batch share one binding, whose batch is larger; rows are added to the inputs, and
//! left out of the outputs.
//!
//! Takes: the sizes that are compiled for, by dimension. Gives: for the sizes of a call those to run with, and what to
//! keep of each output. Never: rounds up unless the rows of the program are proved to be independent ([`independent`])
//! at just these sizes.
use super::{
    Engine, lock,
    rows::{Rows, independent},
};
use crate::{
    Error,
    program::{Output, Sizes, Specialised},
};
use kiln_runtime::Param;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Sizes to round up to.
#[derive(Default)]
pub(super) struct Buckets {
    /// By symbol: the name by which it was asked for, and sizes, ascending.
    sizes: BTreeMap<String, (String, Vec<i64>)>,
    /// By symbol, sizes, and the size of the batch that they were compared with.
    proofs: Mutex<BTreeMap<(String, Sizes, i64), Proof>>,
}
/// The batch axis of each output, or what mixes rows.
type Proof = Result<Arc<Vec<Option<Rows>>>, String>;

/// The sizes of a bucket for those of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// The sizes to run with.
    pub sizes: Sizes,
    /// By output that is a tensor, in order: axes of which only the first positions belong to the call, and how many.
    pub keep: Vec<Vec<(usize, usize)>>,
}

impl Engine {
    /// The engine with buckets: by symbol or dimension (`x.0`), the sizes to round up to. Larger sizes are compiled for
    /// as they are.
    ///
    /// # Errors
    /// [`Error::Inputs`] if there is no such dimension, or a size is not in its range; [`Error::Failed`] if rounding up
    /// could change results, with the operator that mixes rows.
    pub fn with_buckets(self, buckets: BTreeMap<String, Vec<i64>>) -> Result<Engine, Error> {
        let mut sizes = BTreeMap::new();
        for (name, mut all) in buckets {
            let symbol = self.program.symbol(&name)?;
            all.sort_unstable();
            all.dedup();
            for size in &all {
                self.program.sizes(&Sizes::from([(symbol.clone(), *size)]), &[])?;
            }
            sizes.insert(symbol, (name, all));
        }
        let engine = Engine { buckets: Buckets { sizes, proofs: Mutex::default() }, ..self };
        for (symbol, (name, all)) in &engine.buckets.sizes {
            let Some(largest) = all.last() else { continue };
            let at = |n: i64| engine.program.sizes(&Sizes::from([(symbol.clone(), n)]), &[]);
            // Any other size that the program takes.
            let others = [largest - 1, largest / 2, largest + 1, largest * 2].into_iter().filter(|n| n != largest);
            let why = match others.into_iter().find(|n| *n > 1 && at(*n).is_ok()) {
                Some(other) => engine.proof(symbol, &at(*largest)?, other)?.err(),
                None => Some("the program takes no other size".to_string()),
            };
            if let Some(why) = why {
                let what = format!("`{name}` of {} cannot be rounded up: {why}", engine.program.name());
                return Err(Error::failed(what, format!("leave `{name}` out of the buckets")));
            }
        }
        Ok(engine)
    }

    /// The bucket for these sizes of all symbols; `None` if they are to be compiled for as they are.
    ///
    /// # Errors
    /// As [`Engine::with_buckets`].
    pub fn rounded(&self, sizes: &Sizes) -> Result<Option<Rounded>, Error> {
        let mut to = sizes.clone();
        for (symbol, (_, buckets)) in &self.buckets.sizes {
            if let Some(size) = to.get_mut(symbol) {
                *size = buckets.iter().copied().find(|b| *b >= *size).unwrap_or(*size);
            }
        }
        // A larger size may break a guard.
        if to == *sizes || self.program.sizes(&to, &[]).is_err() {
            return Ok(None);
        }
        let mut keep: Vec<Vec<(usize, usize)>> = vec![];
        for (symbol, size) in sizes.iter().filter(|(symbol, size)| to[*symbol] != **size) {
            // The program was proved for its buckets; for other sizes, such as 1, it may still be another one.
            let Ok(rows) = self.proof(symbol, &to, *size)? else { return Ok(None) };
            keep.resize(rows.len(), vec![]);
            for (kept, rows) in keep.iter_mut().zip(rows.iter()) {
                // Invariant: sizes of a program are positive.
                kept.extend(rows.map(|r| (r.axis, r.each * *size as usize)));
            }
        }
        Ok(Some(Rounded { sizes: to, keep }))
    }

    /// The batch axis of each output, if rows along `symbol` are independent at these sizes and that other size of the
    /// batch, or why they are not. The error outside is one of the program.
    fn proof(&self, symbol: &str, sizes: &Sizes, other: i64) -> Result<Proof, Error> {
        let key = (symbol.to_string(), sizes.clone(), other);
        if let Some(known) = lock(&self.buckets.proofs).get(&key) {
            return Ok(known.clone());
        }
        let smaller = Sizes::from_iter(sizes.clone().into_iter().chain([(symbol.to_string(), other)]));
        let proof = self.rows(symbol, [sizes, &smaller])?.map(Arc::new);
        lock(&self.buckets.proofs).insert(key, proof.clone());
        Ok(proof)
    }

    /// The batch axis of each output, or why there is none. The error outside is one of the program.
    fn rows(&self, symbol: &str, sizes: [&Sizes; 2]) -> Result<Result<Vec<Option<Rows>>, String>, Error> {
        let [a, b] = [self.program.specialise(sizes[0])?, self.program.specialise(sizes[1])?];
        if !a.states.is_empty() || !a.model.writes.is_empty() {
            return Ok(Err("the program writes to its inputs or state".into()));
        }
        let varies = |o: &Output| matches!(o, Output::Size(e) if e.value(sizes[0]) != e.value(sizes[1]));
        if self.program.outputs().iter().any(varies) {
            return Ok(Err("the program returns a number that depends on the size of the batch".into()));
        }
        if let Some(name) = made_otherwise(&a, &b) {
            return Ok(Err(format!("the constant `{name}` depends on the size of the batch")));
        }
        // Invariant: sizes of a program are positive.
        let batch = sizes.map(|s| s[symbol] as usize);
        Ok(independent([&a.model.graph, &b.model.graph], batch))
    }
}

/// The name of a parameter that conversion made, with other contents.
fn made_otherwise(a: &Specialised, b: &Specialised) -> Option<String> {
    let same = |i: usize| match (&a.params[i], b.params.get(i)) {
        (Param::Host(x), Some(Param::Host(y))) => a.origins[i].is_some() || x.ty == y.ty && x.bytes() == y.bytes(),
        (_, other) => other.is_some() && a.origins[i].is_some(),
    };
    let other = (0..a.params.len()).find(|i| a.origins[*i] != b.origins.get(*i).copied().flatten() || !same(*i))?;
    a.model.graph.params.get(other).map(|p| p.name.clone())
}
