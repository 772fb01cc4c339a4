//! Kernels for launches in graphs: the program for all launches with arguments of some types.
//!
//! Takes: what a kernel is compiled from. Gives: a program whose parameters are tensors and numbers of the launch, as
//! text for a graph. Never: facts of one launch; they follow from the graph.
use super::{Compiled, Failure, Options, Signature, Unit, checked, without_assembly};
use crate::compile::DeviceKind;
use crate::launches::{ProgramText, defined_at, program_text};
use kiln_block::memories::{self, PointerPlace, PointerUse};
use kiln_block::{BlockProgram, Type};

/// A kernel's program for launches in graphs.
pub struct NodeProgram {
    program: BlockProgram,
    parameters: Vec<NodeParameter>,
    /// Where the kernel is defined, as `file.py:12`.
    place: Option<String>,
}

/// A parameter of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeParameter {
    /// The argument that it is, as in [`super::Stages::parameters`].
    pub path: Vec<usize>,
    /// What it takes.
    pub kind: NodeKind,
}

/// What a parameter takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A tensor, and what the program does with it.
    Tensor(PointerUse),
    /// An integer or a bool.
    Integer,
    /// A float.
    Float,
}

/// A program in memories, and the names of its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedProgram {
    /// For the graph.
    pub text: ProgramText,
    /// One for each memory, in the order of the first pointers into them.
    pub pointers: Vec<String>,
    /// Parameters that are integers; the starts of pointers come last.
    pub integers: Vec<String>,
    /// Parameters that are floats.
    pub floats: Vec<String>,
}

impl NodeProgram {
    /// Compiles a kernel for arguments of these types; facts about numbers are to be left out.
    ///
    /// # Errors
    /// [`Failure::Source`] with the place in the source.
    pub fn new(
        unit: &Unit,
        signature: &Signature,
        options: &Options,
        device: DeviceKind,
    ) -> Result<NodeProgram, Failure> {
        let mut compiled = checked(unit, signature, options)?;
        if device == DeviceKind::Cpu {
            without_assembly(unit, &mut compiled)?;
        }
        let Compiled { program, parameters, .. } = compiled;
        let mut uses = memories::pointer_uses(&program).into_iter();
        let kinds: Vec<NodeKind> = program.params.iter().map(|p| kind(program.ty(p.value), &mut uses)).collect();
        let parameters = parameters.into_iter().zip(kinds).map(|(path, kind)| NodeParameter { path, kind }).collect();
        let place = unit.functions.get(unit.entry).map(|f| format!("{}:{}", f.file, f.first_line));
        Ok(NodeProgram { program, parameters, place })
    }
    /// In the order of the program.
    pub fn parameters(&self) -> &[NodeParameter] {
        &self.parameters
    }
    /// The program with its pointers in memories.
    ///
    /// # Errors
    /// As [`memories::in_memories`].
    pub fn placed(&self, places: &[PointerPlace]) -> Result<PlacedProgram, String> {
        let program = memories::in_memories(&self.program, places)?;
        let text = program_text(&program);
        let text = match &self.place {
            Some(place) => defined_at(text, place),
            None => text,
        };
        let mut placed = PlacedProgram { text, pointers: vec![], integers: vec![], floats: vec![] };
        for param in &program.params {
            let names = match kind(program.ty(param.value), &mut std::iter::empty()) {
                NodeKind::Tensor(_) => &mut placed.pointers,
                NodeKind::Integer => &mut placed.integers,
                NodeKind::Float => &mut placed.floats,
            };
            names.push(param.name.clone());
        }
        Ok(placed)
    }
}

/// What a parameter of a type takes; `uses` are those of pointers, in order.
fn kind(ty: &Type, uses: &mut impl Iterator<Item = PointerUse>) -> NodeKind {
    match ty {
        Type::Ptr { .. } => NodeKind::Tensor(uses.next().unwrap_or(PointerUse::Updated)),
        ty if ty.elem().is_some_and(kiln_block::Elem::is_float) => NodeKind::Float,
        _ => NodeKind::Integer,
    }
}
