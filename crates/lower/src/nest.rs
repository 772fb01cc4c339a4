//! The loop nest of a kernel: what it computes, and over which axes, before anything is tiled.
//!
//! Takes: a space, and the scalar program at a point of a space. Gives: axes with names ([`Axis`]) and extents, and the
//! program at the coordinates of a space in which some of them are fused. Never: tiles, grids, warps
//! ([`crate::schedule`]).
pub mod lowering;
pub mod passes;
pub mod pointwise;
pub mod reduction;
pub mod scan;
pub mod scatter;

use crate::error::LowerError;
use crate::scalar::dag::Scene;
use crate::scalar::expr::CoordId;
use crate::scalar::space::{Coord, Space};
use kiln_graph::Graph;
use kiln_plan::exec::Slot;
use kiln_plan::{Axis, Hardware};
use std::cell::RefCell;
use std::rc::Rc;

/// The scalar program at the coordinates of a space.
pub type At<'a> = dyn Fn(&Space) -> Result<Scene, LowerError> + 'a;

/// What is done with each nest of a body.
pub type Visit<'f> = dyn FnMut(&Nest) -> Result<(), LowerError> + 'f;

/// A loop nest, with the machine it is for.
pub struct Nest<'a> {
    /// Name of the program.
    pub name: &'a str,
    pub machine: &'a Hardware<'a>,
    /// Split and merged until accesses are affine and contiguous ([`Space::canonicalise`]).
    pub space: Space,
    /// The program in that space.
    pub scene: Rc<Scene>,
    /// The body whose inputs and outputs it reads and writes, if they are its buffers.
    pub body: Option<&'a Graph>,
    /// Whether it is beside the one that a kernel is about: it has not the schedule that is asked for that.
    pub is_auxiliary: bool,
    at: &'a At<'a>,
    /// The program in other spaces that schedules asked for.
    others: RefCell<Vec<(Space, Rc<Scene>)>>,
}

impl<'a> Nest<'a> {
    /// The nest of a program over a space. A program with a row is resolved a second time with a row for each level of
    /// reductions, which refuses bodies that depend on an enclosing row.
    pub fn new(
        name: &'a str,
        mut space: Space,
        at: &'a At<'a>,
        machine: &'a Hardware<'a>,
    ) -> Result<Nest<'a>, LowerError> {
        let scene = Rc::new(space.canonicalise(at)?);
        if space.coords.iter().any(|c| c.row) {
            at(&space.with_distinct_inner_rows())?;
        }
        Ok(Nest { name, machine, space, scene, body: None, is_auxiliary: false, at, others: RefCell::default() })
    }
    /// The nest of a kernel with this body.
    pub fn of_body(self, body: &'a Graph) -> Nest<'a> {
        Nest { body: Some(body), ..self }
    }
    /// A nest beside the one that the kernel is about.
    pub fn auxiliary(self) -> Nest<'a> {
        Nest { is_auxiliary: true, ..self }
    }
    /// Bytes of a buffer, where that is known.
    pub fn size(&self, slot: Slot) -> Option<u64> {
        let body = self.body?;
        let value = match slot {
            Slot::Input(i) => body.inputs.get(i as usize),
            Slot::Output(i) => body.outputs.get(i as usize),
            Slot::Scratch(_) | Slot::Faults | Slot::Counter => None,
        };
        value.map(|v| body.ty(*v).bytes() as u64)
    }
    /// The axes with their extents: those that are not reduced, outermost first, then the row.
    pub fn axes(&self) -> Vec<(Axis, usize)> {
        let kept = self.kept().enumerate().map(|(n, c)| (Axis::Kept(n as u8), c.extent));
        kept.chain(self.row().map(|n| (Axis::Row, n))).collect()
    }
    /// Coordinates that are not reduced.
    pub fn kept(&self) -> impl Iterator<Item = &Coord> {
        self.space.coords.iter().filter(|c| !c.row)
    }
    /// Elements of a row.
    pub fn row(&self) -> Option<usize> {
        let extents: Vec<usize> = self.space.coords.iter().filter(|c| c.row).map(|c| c.extent).collect();
        (!extents.is_empty()).then(|| extents.iter().product())
    }
    /// The space with the row as one coordinate, and which coordinate each axis is.
    pub fn named(&self) -> (Space, Vec<(Axis, CoordId)>) {
        let mut space = self.space.clone();
        let row = space.merge(&space.row_ids());
        let kept = self.kept().enumerate().map(|(n, c)| (Axis::Kept(n as u8), c.id));
        let names = kept.chain(row.map(|id| (Axis::Row, id))).collect();
        (space, names)
    }
    /// The same nest over another space of the same points.
    pub fn moved_to(&self, space: Space) -> Result<Nest<'a>, LowerError> {
        let scene = Rc::new(self.resolve(&space)?);
        Ok(Nest { space, scene, others: RefCell::default(), ..*self })
    }
    /// The program at a point, or at all neighbours that are one.
    fn resolve(&self, space: &Space) -> Result<Scene, LowerError> {
        let mut all = Scene::default();
        match space.group {
            None => return (self.at)(space),
            Some(_) => space.members().iter().try_for_each(|s| (self.at)(s).map(|member| all.append(&member)))?,
        }
        Ok(all)
    }
    /// The program in another space of the same points.
    pub fn scene_in(&self, space: &Space) -> Result<Rc<Scene>, LowerError> {
        if space.axes == self.space.axes {
            return Ok(self.scene.clone());
        }
        if let Some((_, known)) = self.others.borrow().iter().find(|(s, _)| s.axes == space.axes) {
            return Ok(known.clone());
        }
        let scene = Rc::new(self.resolve(space)?);
        self.others.borrow_mut().push((space.clone(), scene.clone()));
        Ok(scene)
    }
}
