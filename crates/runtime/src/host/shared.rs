//! What sessions on the host have in common: folded values, packed operands, and arenas for intermediate results.
//!
//! Takes: what sessions compute when they are loaded, and the bytes that their runs need. Gives: the values, and for
//! each run an arena that no other run has meanwhile. Never: has more arenas than runs at one time, or one larger than
//! the largest session needs.
use super::gemm::Panels;
use crate::{
    RuntimeError,
    shared::{Values, lock},
};
use kiln_graph::{Tensor, memory::Memory};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

#[derive(Default)]
pub(crate) struct HostShared {
    pub folded: Values<Tensor>,
    pub packed: Values<Panels>,
    pub arenas: Arc<Arenas>,
}
impl HostShared {
    pub fn bytes(&self) -> usize {
        self.folded.bytes(|t| t.bytes().len()) + self.packed.bytes(Panels::bytes) + self.arenas.bytes()
    }
}

/// Arenas that runs borrow: one for each run at a time, as large as the largest session needs.
#[derive(Default)]
pub(crate) struct Arenas(Mutex<State>);
#[derive(Default)]
struct State {
    idle: Vec<Memory>,
    /// Bytes of those that runs have.
    lent: usize,
    /// How many sessions need this many bytes.
    needs: BTreeMap<usize, usize>,
}
impl State {
    fn largest(&self) -> usize {
        self.needs.last_key_value().map_or(0, |(bytes, _)| *bytes)
    }
}
impl Arenas {
    fn bytes(&self) -> usize {
        let state = lock(&self.0);
        state.lent + state.idle.iter().map(Memory::len).sum::<usize>()
    }
}

/// A session's need of arenas of this size.
pub(super) struct Need {
    arenas: Arc<Arenas>,
    pub bytes: usize,
}
impl Need {
    /// Fails if there is no memory for an arena.
    pub fn new(arenas: &Arc<Arenas>, bytes: usize) -> Result<Need, RuntimeError> {
        *lock(&arenas.0).needs.entry(bytes).or_default() += 1;
        let need = Need { arenas: arenas.clone(), bytes };
        need.borrow()?;
        Ok(need)
    }
    /// An arena for a run. The last one that was given back comes first, so that runs one after the other have the
    /// same.
    pub fn borrow(&self) -> Result<Lent, RuntimeError> {
        let mut state = lock(&self.arenas.0);
        let memory = match state.idle.pop() {
            Some(m) if m.len() >= self.bytes => m,
            // A smaller one is of no use to the largest session any more.
            _ => arena(state.largest())?,
        };
        state.lent += memory.len();
        Ok(Lent { arenas: self.arenas.clone(), memory: Some(memory) })
    }
}
impl Drop for Need {
    fn drop(&mut self) {
        let mut state = lock(&self.arenas.0);
        if let Some(count) = state.needs.get_mut(&self.bytes) {
            *count -= 1;
            if *count == 0 {
                state.needs.remove(&self.bytes);
            }
        }
        let largest = state.largest();
        state.idle.retain(|m| m.len() <= largest);
    }
}

/// An arena that a run has.
pub(super) struct Lent {
    arenas: Arc<Arenas>,
    /// `None` only while it is given back.
    memory: Option<Memory>,
}
impl Lent {
    /// The first byte.
    pub fn at(&self) -> *mut u8 {
        self.memory.as_ref().map_or(std::ptr::null_mut(), Memory::as_ptr)
    }
}
impl Drop for Lent {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut state = lock(&self.arenas.0);
        state.lent -= memory.len();
        if memory.len() <= state.largest() {
            state.idle.push(memory);
        }
    }
}

/// Zeroed memory of so many bytes.
pub(super) fn arena(bytes: usize) -> Result<Memory, RuntimeError> {
    let what = "intermediate results".to_string();
    Memory::zeroed(bytes).ok_or_else(|| RuntimeError::Memory { bytes, what, why: "out of memory".into() })
}
