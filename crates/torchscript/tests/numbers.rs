//! A Python number out of an integer dtype's range behaves as in PyTorch: it wraps, promotes, or is rejected.
use crate::common::*;
use kiln_graph::{DType, Tensor, Type};
use kiln_torchscript::{ImportErrors, Session};

/// A tensor with values near both ends of the dtype's range, and numbers inside and outside of the range.
fn operands(dtype: DType) -> (Tensor, Vec<i64>) {
    let of = |v: Vec<i64>| {
        let bytes = v.iter().flat_map(|v| v.to_le_bytes()[..dtype.bytes()].to_vec()).collect::<Vec<u8>>();
        Tensor::from_bytes(Type::new(dtype, [v.len()]), &bytes).unwrap()
    };
    let Some((low, high)) = dtype.int_range() else { return (of(vec![0, 1, 1, 0]), vec![-1, 2, 1 << 40]) };
    // Not the lowest number: dividing it by -1 crashes libtorch.
    let x = of(vec![0, 1, 2, 7, 100, high, high - 1, low + 1]);
    let beyond = [low.checked_sub(1), high.checked_add(1)].into_iter().flatten();
    (x, [-1, 3, 1 << 40].into_iter().chain(beyond).collect())
}

fn by_libtorch(path: &std::path::Path, inputs: &[Tensor]) -> Result<Vec<Tensor>, ImportErrors> {
    let mut session = Session::open(path, inputs, -1, 0)?;
    session.run()?;
    session.outputs()
}

#[test]
fn every_operator_takes_every_number_as_pytorch_does() {
    let mut names: Vec<String> = std::fs::read_dir(archives())
        .unwrap()
        .filter_map(|f| f.unwrap().file_name().into_string().ok()?.strip_suffix(".pt").map(str::to_string))
        .filter(|n| n.starts_with("number_"))
        .collect();
    names.sort();
    assert!(names.len() >= 41, "{names:?}");
    let (mut failures, mut compared) = (vec![], 0);
    for name in &names {
        for dtype in [DType::U8, DType::I8, DType::I16, DType::I32, DType::I64, DType::Bool] {
            let (x, numbers) = operands(dtype);
            for n in numbers {
                let inputs = [x.clone(), Tensor::from_bytes(Type::new(DType::I64, []), &n.to_le_bytes()).unwrap()];
                let path = archive(name);
                let case = format!("{name} of {dtype} and {n}");
                match (kiln_torchscript::import(&path, &inputs), by_libtorch(&path, &inputs)) {
                    (Ok(model), Ok(want)) => {
                        compared += 1;
                        if let Some(d) = difference(&evaluate(&model, &inputs), &want) {
                            failures.push(format!("{case}: {d}\n{}", summary(&model.graph)));
                        }
                    }
                    (Err(e), Ok(_)) => failures.push(format!("{case} is refused: {e}")),
                    (Ok(_), Err(e)) => failures.push(format!("{case} is imported, but torch says {e}")),
                    (Err(_), Err(_)) => {}
                }
            }
        }
    }
    assert!(compared > 500, "{compared} compared");
    assert!(failures.is_empty(), "{} of {compared}:\n{}", failures.len(), failures.join("\n\n"));
}
