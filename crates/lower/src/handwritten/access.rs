//! What is known of the accesses of a launch, for the planner ([`LaunchAccess`]).
use super::bound;
use kiln_block::analysis::{Accesses, Coverage, Footprints, Unfollowed, Writes};
use kiln_block::bind::BoundProgram;
use kiln_block::{BlockProgram, Inst, Op, Value, passes};
use kiln_graph::Type;
use kiln_graph::launch::{ArgumentValue, LaunchOp};
use kiln_plan::{LaunchAccess, TensorAccess, Unfusable};
use std::collections::HashSet;

/// Accesses of a launch to operands of these types. Nothing fuses with a program that is not bound.
pub fn launch_access(launch: &LaunchOp, operands: &[&Type]) -> LaunchAccess {
    let program = bound(launch, operands, |_, _| false).ok().and_then(|BoundProgram { mut program, arguments }| {
        passes::canonicalise(&mut program).ok()?;
        Some(BoundProgram { program, arguments })
    });
    let Some(BoundProgram { program, arguments }) = program else { return unknown(launch, operands) };
    let (writes, footprints) = (Writes::of(&program), Footprints::of(&program));
    let multiplied = multiplied(&program);
    let mut found = arithmetic(&program, &footprints);
    let mut next = operands.iter();
    for (n, argument) in launch.arguments.iter().enumerate() {
        let param = arguments.iter().position(|a| *a == n).and_then(|at| program.params.get(at));
        let Some(param) = param else { continue };
        let accesses = Accesses::through(&program, &writes, param.value);
        let all = || accesses.loads.iter().chain(&accesses.stores);
        let elements = all().map(|access| footprints.elements(*access)).sum();
        let is_multiplied = accesses.loads.iter().any(|load| multiplied.contains(load));
        let tensor = |fusable| TensorAccess { fusable, elements, is_multiplied };
        match &argument.value {
            ArgumentValue::Operand => {
                next.next();
                found.operands.push(tensor(loads(&accesses, &footprints)));
            }
            ArgumentValue::New(ty) => {
                found.results.push(tensor(stores(&accesses, &footprints, ty.count())));
            }
            ArgumentValue::Copy(_) => {
                // The operand is copied as a whole.
                let elements = next.next().map_or(0., |ty| ty.count() as f64);
                let fusable = Err(Unfusable::Updated);
                found.operands.push(TensorAccess { fusable, elements, is_multiplied: false });
                found.results.push(tensor(fusable));
            }
            ArgumentValue::Number(_) => {}
        }
    }
    found
}

fn unknown(launch: &LaunchOp, operands: &[&Type]) -> LaunchAccess {
    let tensor = |ty: &Type| TensorAccess {
        fusable: Err(Unfusable::NotAffine),
        elements: ty.count() as f64,
        is_multiplied: false,
    };
    LaunchAccess {
        operands: operands.iter().map(|ty| tensor(ty)).collect(),
        results: launch.results().map(tensor).collect(),
        ..LaunchAccess::default()
    }
}

/// Whether what is loaded may be computed where it is.
fn loads(accesses: &Accesses, footprints: &Footprints) -> Result<(), Unfusable> {
    if accesses.others {
        return Err(Unfusable::Updated);
    }
    let is_affine = |load: &Inst| footprints.offsets(*load).is_some();
    if accesses.loads.iter().all(is_affine) { Ok(()) } else { Err(Unfusable::NotAffine) }
}

/// Whether what is stored is what a reader gets, of every element.
fn stores(accesses: &Accesses, footprints: &Footprints, elements: usize) -> Result<(), Unfusable> {
    if accesses.others {
        return Err(Unfusable::Updated);
    }
    if !accesses.loads.is_empty() {
        return Err(Unfusable::ReadBack);
    }
    match footprints.coverage(&accesses.stores, elements) {
        Ok(Coverage::Whole { .. }) => Ok(()),
        Ok(Coverage::Part) => Err(Unfusable::PartlyStored),
        Err(Unfollowed::NotAffine) => Err(Unfusable::NotAffine),
        Err(Unfollowed::TooMany) => Err(Unfusable::TooMany),
    }
}

/// Loads whose values dots multiply as they are, or transposed.
fn multiplied(program: &BlockProgram) -> HashSet<Inst> {
    let mut factors: HashSet<Value> = HashSet::new();
    program.walk(&mut |_, data| {
        if matches!(data.op, Op::Dot { .. }) {
            factors.extend(&data.args[..2]);
        }
    });
    let transposed: Vec<Value> = {
        let mut found = vec![];
        program.walk(&mut |_, data| {
            if matches!(data.op, Op::Permute(_)) && data.results.iter().any(|v| factors.contains(v)) {
                found.extend(&data.args);
            }
        });
        found
    };
    factors.extend(transposed);
    let mut loads = HashSet::new();
    program.walk(&mut |inst, data| {
        if matches!(data.op, Op::Load(..)) && data.results.iter().any(|v| factors.contains(v)) {
            loads.insert(inst);
        }
    });
    loads
}

/// What the program computes.
fn arithmetic(program: &BlockProgram, footprints: &Footprints) -> LaunchAccess {
    let mut found = LaunchAccess { dot_type: "f32", ..LaunchAccess::default() };
    program.walk(&mut |inst, data| {
        let runs = || footprints.runs(inst);
        let elements = |v: &Value| program.ty(*v).count() as f64;
        match (&data.op, &data.args[..], &data.results[..]) {
            (Op::Dot { .. }, [left, right, ..], [_]) => {
                let columns = program.ty(*right).shape().last().copied().unwrap_or(1);
                found.dot_flops += 2. * elements(left) * columns as f64 * runs();
                found.dot_type = program.ty(*left).elem().map_or("f32", |elem| elem.name());
            }
            (Op::Unary(_), _, [v]) => found.other_flops += FUNCTION * elements(v) * runs(),
            (Op::Binary(_) | Op::Fma | Op::Select | Op::Cmp(_) | Op::Cast(_), _, [v])
                if program.ty(*v).elem().is_some_and(|elem| elem.is_float()) =>
            {
                found.other_flops += elements(v) * runs();
            }
            (Op::Reduce { .. } | Op::Scan { .. } | Op::ReduceBy { .. } | Op::ScanBy { .. }, [v, ..], _) => {
                found.other_flops += elements(v) * runs();
            }
            _ => {}
        }
    });
    found
}

/// Operations that a function of one number counts as, as in the table of ops.
const FUNCTION: f64 = 8.;
