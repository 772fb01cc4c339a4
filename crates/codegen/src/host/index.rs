//! Index maps: at which coordinates of a value a loop reads it, for each of the loop's own coordinates.
//!
//! Lazy evaluation computes a value once for each distinct list of coordinates. This follows coordinates backwards
//! through the ops that move elements, as [`super::eval`] does when it writes code, but without writing any: demand
//! analysis counts the maps with it.
use kiln_block::{BlockProgram, InstData, Op};
use std::collections::HashMap;
use std::rc::Rc;

/// One coordinate of an element that a loop reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Coordinate {
    /// That of an axis of size 1.
    Zero,
    /// The loop's own, along an axis of this extent.
    Axis { axis: usize, extent: usize },
    /// A half of a split block.
    Half(u8),
    /// One that arithmetic on others gives.
    Computed { map: usize, axis: usize },
}

/// The coordinates at which a value is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct IndexMap(Rc<[Coordinate]>);

/// How a loop reads a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// At one list of coordinates.
    Once(IndexMap),
    /// At several, or at coordinates that depend on data.
    Many,
}

/// What makes coordinates from others.
#[derive(PartialEq, Eq, Hash)]
struct Step {
    from: Rc<[Coordinate]>,
    by: Move,
}

/// How an op moves elements.
#[derive(PartialEq, Eq, Hash)]
enum Move {
    /// From one shape to another.
    Reshape { result: Vec<usize>, operand: Vec<usize> },
    /// From a position along an axis on.
    Part { axis: u8, start: u32 },
}

/// The computed coordinates met so far; equal steps have equal numbers.
#[derive(Default)]
pub(super) struct IndexMaps {
    steps: HashMap<Step, usize>,
}

impl Reading {
    /// Each element of a loop over this shape, at the loop's own coordinates.
    pub fn identity(shape: &[usize]) -> Reading {
        let along = |(axis, &extent): (usize, &usize)| match extent {
            1 => Coordinate::Zero,
            _ => Coordinate::Axis { axis, extent },
        };
        Reading::Once(IndexMap(shape.iter().enumerate().map(along).collect()))
    }
    /// Both readings of one value by one loop.
    pub fn joined(self, other: &Reading) -> Reading {
        if self == *other { self } else { Reading::Many }
    }
}

impl IndexMaps {
    /// How operand `n` of an instruction is read if its result is read so.
    pub fn operand(&mut self, k: &BlockProgram, inst: &InstData, n: usize, result: &Reading) -> Reading {
        let Reading::Once(IndexMap(at)) = result else { return Reading::Many };
        let shape = |v: Option<&kiln_block::Value>| v.map(|v| k.ty(*v).shape()).unwrap_or_default();
        let (operand, to) = (shape(inst.args.get(n)), shape(inst.results.first()));
        let coordinates: Vec<Coordinate> = match &inst.op {
            Op::Broadcast => {
                let along = |(c, &extent): (&Coordinate, &usize)| match extent {
                    1 => Coordinate::Zero,
                    _ => c.clone(),
                };
                at.iter().zip(operand).map(along).collect()
            }
            Op::ExpandDims(axis) => {
                let kept = at.iter().enumerate().filter(|(i, _)| *i != *axis as usize);
                kept.map(|(_, c)| c.clone()).collect()
            }
            Op::Permute(axes) => {
                let mut before = vec![Coordinate::Zero; at.len()];
                for (c, &axis) in at.iter().zip(axes) {
                    if let Some(place) = before.get_mut(axis as usize) {
                        *place = c.clone();
                    }
                }
                before
            }
            Op::Reshape => self.reshaped(at, to, operand),
            Op::Split(half) => at.iter().cloned().chain([Coordinate::Half(*half)]).collect(),
            Op::Join => at.iter().take(operand.len()).cloned().collect(),
            Op::Part { axis, at: start } => {
                let (axis, step) = (*axis as usize, Move::Part { axis: *axis, start: *start });
                let map = self.number(at, step);
                let mut before = at.to_vec();
                if let Some(c) = before.get_mut(axis) {
                    *c = Coordinate::Computed { map, axis };
                }
                before
            }
            Op::Cat { .. } => self.computed(at, to, operand),
            Op::Gather { .. } if n == 0 => return Reading::Many,
            _ => return Reading::Once(IndexMap(at.clone())),
        };
        Reading::Once(IndexMap(coordinates.into()))
    }
    fn reshaped(&mut self, at: &Rc<[Coordinate]>, to: &[usize], operand: &[usize]) -> Vec<Coordinate> {
        let extents = |shape: &[usize]| shape.iter().copied().filter(|n| *n > 1).collect::<Vec<_>>();
        if extents(to) != extents(operand) {
            return self.computed(at, to, operand);
        }
        // Only axes of size 1 come and go.
        let mut kept = at.iter().zip(to).filter(|(_, n)| **n > 1).map(|(c, _)| c.clone());
        let along = |n: &usize| if *n > 1 { kept.next() } else { None }.unwrap_or(Coordinate::Zero);
        operand.iter().map(along).collect()
    }
    fn computed(&mut self, at: &Rc<[Coordinate]>, to: &[usize], operand: &[usize]) -> Vec<Coordinate> {
        let map = self.number(at, Move::Reshape { result: to.to_vec(), operand: operand.to_vec() });
        (0..operand.len()).map(|axis| Coordinate::Computed { map, axis }).collect()
    }
    /// The number of the coordinates that a step makes.
    fn number(&mut self, at: &Rc<[Coordinate]>, by: Move) -> usize {
        let next = self.steps.len();
        *self.steps.entry(Step { from: at.clone(), by }).or_insert(next)
    }
}
