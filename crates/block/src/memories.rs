//! Pointers of a program in memories: parameters that point into one memory become one parameter.
//!
//! A launch in a graph has tensors as values, and no two of them share memory. Where pointers of a launch do, as two
//! views of one tensor, they are offsets into it here.
//! Takes: a program, and for each of its pointers the memory that it points into. Gives: a program with a pointer for
//! each memory, and an integer for each pointer that starts behind the beginning of its memory.
//! Never: sizes of memories, what lies in them.
use crate::{BlockProgram, Elem, Facts, InstData, Op, Param, Type, Value, analysis::Writes};
use std::collections::HashMap;

/// Where a pointer parameter points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PointerPlace {
    /// The number of the memory.
    pub memory: usize,
    /// Where in it.
    pub start: PointerStart,
}

/// Where in its memory a pointer starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointerStart {
    /// At the first element.
    Beginning,
    /// At the element that an argument of the launch says.
    Argument,
}

/// The parameters that point to memory, in order.
pub fn pointers(program: &BlockProgram) -> impl Iterator<Item = &Param> {
    program.params.iter().filter(|p| matches!(program.ty(p.value), Type::Ptr { .. }))
}

/// What a program does through a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointerUse {
    /// It only reads.
    Read,
    /// It may write.
    Written,
    /// It may write, and combine elements with what is there.
    Updated,
}

/// What a program does through each of its pointers.
pub fn pointer_uses(program: &BlockProgram) -> Vec<PointerUse> {
    let writes = Writes::of(program);
    let one = |p: &Param| match (writes.through(p.value), writes.anywhere() || writes.updates(p.value)) {
        (_, true) => PointerUse::Updated,
        (true, false) => PointerUse::Written,
        (false, false) => PointerUse::Read,
    };
    pointers(program).map(one).collect()
}

/// The program with one pointer for each memory, which is named after the first of its pointers; the integers of
/// [`PointerStart::Argument`] come last, as `x_start`. Nothing is known of its parameters.
///
/// # Errors
/// If pointers into one memory have different types, or the places are not as many as the pointers.
pub fn in_memories(program: &BlockProgram, places: &[PointerPlace]) -> Result<BlockProgram, String> {
    let pointed: Vec<Param> = pointers(program).cloned().collect();
    if pointed.len() != places.len() {
        return Err(format!("{} places are given for {} pointers; give one for each", places.len(), pointed.len()));
    }
    let mut program = program.clone();
    let mut first_of: HashMap<usize, Param> = HashMap::new();
    let mut replaced: HashMap<Value, Value> = HashMap::new();
    let (mut starts, mut shifts) = (vec![], vec![]);
    for (pointer, place) in pointed.iter().zip(places) {
        let first = first_of.entry(place.memory).or_insert_with(|| pointer.clone());
        let (ty, wanted) = (program.ty(pointer.value).clone(), program.ty(first.value).clone());
        if ty != wanted {
            return Err(format!(
                "`{}` and `{}` point into one tensor, as {ty} and {wanted}; pass tensors of one type, or copies",
                pointer.name, first.name
            ));
        }
        let base = first.value;
        let target = match place.start {
            PointerStart::Beginning => base,
            PointerStart::Argument => {
                let start = start_parameter(&mut program, &pointer.name);
                let target = program.new_value(ty);
                shifts.push(InstData {
                    op: Op::PtrAdd,
                    args: vec![base, start.value],
                    results: vec![target],
                    regions: vec![],
                });
                starts.push(start);
                target
            }
        };
        replaced.insert(pointer.value, target);
    }
    for value in program.insts.iter_mut().flat_map(|inst| &mut inst.args) {
        *value = replaced.get(value).copied().unwrap_or(*value);
    }
    let shifts: Vec<_> = shifts.into_iter().map(|data| program.new_inst(data)).collect();
    program.body.insts.splice(0..0, shifts);
    let kept = |p: &Param| !replaced.contains_key(&p.value) || first_of.values().any(|first| first.value == p.value);
    program.params.retain(kept);
    program.params.extend(starts);
    for n in 0..program.params.len() {
        forget(&mut program, n);
    }
    Ok(program.compacted())
}

/// A parameter for the start of a pointer.
fn start_parameter(program: &mut BlockProgram, pointer: &str) -> Param {
    let mut name = format!("{pointer}_start");
    while program.params.iter().any(|p| p.name == name) {
        name.push('_');
    }
    let value = program.new_value(Type::scalar(Elem::I64));
    Param { name, value, align: 1, readonly: false, array: None, launch_array: None, facts: Facts::default() }
}

/// Forgets what is known of a parameter of one launch.
fn forget(program: &mut BlockProgram, n: usize) {
    let align = match program.ty(program.params[n].value) {
        Type::Ptr { elem, .. } => elem.bytes().max(1),
        _ => 1,
    };
    let param = &mut program.params[n];
    (param.facts, param.align, param.readonly) = (Facts::default(), align, false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{parse, print};

    const ADD: &str = "kernel @add(%x: ptr<f32> align 16, %y: ptr<f32>, %out: ptr<f32>, %n: i32 {div 16}) grid launch \
                       warps 4 {\n  v4 = load %x : f32\n  v5 = load %y : f32\n  v6 = add v4, v5 : f32\n  store %out, \
                       v6\n}\n";

    fn at(memory: usize, start: PointerStart) -> PointerPlace {
        PointerPlace { memory, start }
    }

    #[test]
    fn pointers_into_one_memory_become_one() {
        let program = parse(ADD).expect("valid");
        assert_eq!(pointer_uses(&program), [PointerUse::Read, PointerUse::Read, PointerUse::Written]);
        let places = [at(0, PointerStart::Beginning), at(1, PointerStart::Beginning), at(0, PointerStart::Argument)];
        let placed = in_memories(&program, &places).expect("of one type");
        crate::verify::verify(&placed).expect("sound");
        let names: Vec<&str> = placed.params.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["x", "y", "n", "out_start"]);
        assert_eq!(pointer_uses(&placed), [PointerUse::Written, PointerUse::Read]);
        let text = print(&placed);
        assert!(text.contains("ptr_add %x, %out_start") && !text.contains("div 16"), "{text}");
    }

    #[test]
    fn pointers_of_two_types_have_two_memories() {
        let text = ADD.replace("%y: ptr<f32>", "%y: ptr<i32>").replace("load %y : f32", "load %y : i32");
        let program = parse(&text.replace("v6 = add v4, v5 : f32\n  store %out, v6", "store %out, v4")).expect("valid");
        let places = [at(0, PointerStart::Beginning); 3];
        let why = in_memories(&program, &places).expect_err("two types");
        assert!(why.contains("`y` and `x` point into one tensor"), "{why}");
        assert!(in_memories(&program, &places[..2]).is_err());
    }
}
