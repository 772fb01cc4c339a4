//! Packs test cases with libtorch's results into one file, so that a machine without libtorch can check its own results
//! against them.
use crate::{
    chains::chain,
    near::{Near, Wanted},
    ops::{Case, cases},
};
use kiln::io::{dtype, view, write_whole};
use kiln::{DType, Error, Graph, Numerics, Tensor, Torch, Type, eager};
use kiln_graph::Op;
use safetensors::{SafeTensorError, SafeTensors};
use std::{collections::HashMap, path::Path};

/// A graph with its inputs and the reference for its outputs.
pub struct Packed {
    pub case: Case,
    pub numerics: Numerics,
    pub want: Vec<Wanted>,
}

/// Every op on every type, and this many chains under exact numerics, with libtorch's results.
pub fn all(torch: &Torch, chains: u64) -> Result<Vec<Packed>, String> {
    let usual = cases()?.into_iter().map(|case| (case, Numerics::default()));
    let exact = (0..chains).map(|seed| {
        let (graph, inputs) = chain(seed).map_err(|e| e.to_string())?;
        Ok((Case { name: format!("chain {seed}"), graph, inputs, near: Near::Bits }, Numerics::Exact))
    });
    let exact = exact.collect::<Result<Vec<_>, String>>()?;
    let pack = |(case, numerics): (Case, Numerics)| {
        let want = wanted(torch, &case).map_err(|e| format!("{}: {e}", case.name))?;
        Ok(Packed { case, numerics, want })
    };
    usual.chain(exact).map(pack).collect()
}

/// libtorch's results, in the graph's types and in f64.
pub fn wanted(torch: &Torch, case: &Case) -> Result<Vec<Wanted>, String> {
    let wide = |t: &Tensor| match t.ty.dtype.is_float() {
        true => Tensor::from_f64(Type::new(DType::F64, t.ty.shape.clone()), t.to_f64_vec()),
        false => t.clone(),
    };
    let own = eager::run(torch, &case.graph, &case.inputs)?;
    let precise = match case.near {
        Near::Ulps { .. } | Near::Wide { .. } | Near::BitsInF64 => {
            let inputs: Vec<Tensor> = case.inputs.iter().map(wide).collect();
            eager::run(torch, &precise(&case.graph), &inputs)?
        }
        Near::Bits | Near::AlmostBits | Near::Numbers => own.clone(),
    };
    Ok(own.into_iter().zip(precise).map(|(torch, precise)| Wanted { torch, precise }).collect())
}

/// The graph with all floats in f64.
fn precise(g: &Graph) -> Graph {
    let wide = |d: DType| if d.is_float() { DType::F64 } else { d };
    let mut new = Graph::new(&g.name);
    let mut ids = vec![];
    for v in g.values() {
        let args: Vec<_> = g.args(v).iter().map(|a| ids[a.0 as usize]).collect();
        let ty = Type::new(wide(g.dtype(v)), g.shape(v));
        ids.push(match g.op(v) {
            Op::Input(_) => new.input(ty),
            Op::Cast(d) => new.push(Op::Cast(wide(*d)), ty, &args),
            op => new.push(op.clone(), ty, &args),
        });
    }
    g.outputs.iter().for_each(|v| new.output(ids[v.0 as usize]));
    new
}

/// The parts of a case that are not tensors: its index, tolerance, numerics and graph, in this order.
type Head = (usize, Near, Numerics, String);

pub fn write(path: &Path, all: &[Packed]) -> Result<(), Error> {
    let failed = |e: String| Error::failed(format!("cannot pack the cases: {e}"), "report this");
    let (mut tensors, mut heads) = (vec![], HashMap::new());
    for (i, p) in all.iter().enumerate() {
        let head: Head = (i, p.case.near, p.numerics, p.case.graph.to_string());
        heads.insert(p.case.name.clone(), serde_json::to_string(&head).map_err(|e| failed(e.to_string()))?);
        tensors.extend(p.case.inputs.iter().enumerate().map(|(k, t)| (format!("{i}/in/{k}"), t)));
        for (k, w) in p.want.iter().enumerate() {
            tensors.extend([(format!("{i}/torch/{k}"), &w.torch), (format!("{i}/precise/{k}"), &w.precise)]);
        }
    }
    let named = |(name, t)| Ok((name, view(t)?));
    let views = tensors
        .into_iter()
        .map(named)
        .collect::<Result<Vec<_>, SafeTensorError>>()
        .map_err(|e| failed(e.to_string()))?;
    let bytes = safetensors::serialize(views, Some(heads)).map_err(|e| failed(e.to_string()))?;
    write_whole(path, &bytes)
}

pub fn read(path: &Path) -> Result<Vec<Packed>, Error> {
    let bytes = std::fs::read(path).map_err(|e| Error::reading(path, e))?;
    let bad = |what: String| {
        Error::failed(format!("{} does not hold packed cases: {what}", path.display()), "pack them again")
    };
    let file = SafeTensors::deserialize(&bytes).map_err(|e| bad(e.to_string()))?;
    let (_, heads) = SafeTensors::read_metadata(&bytes).map_err(|e| bad(e.to_string()))?;
    let tensor = |name: &str| -> Option<Tensor> {
        let view = file.tensor(name).ok()?;
        Tensor::from_bytes(Type::new(dtype(view.dtype())?, view.shape().to_vec()), view.data())
    };
    let mut all = vec![];
    for (name, head) in heads.metadata().iter().flatten() {
        let (i, near, numerics, text): Head = serde_json::from_str(head).map_err(|e| bad(e.to_string()))?;
        let graph: Graph = text.parse().map_err(|e| bad(format!("{name}: {e}")))?;
        let count = |v: &[kiln_graph::ValueId]| 0..v.len();
        let missing = || bad(format!("{name} has too few tensors"));
        let inputs: Option<Vec<Tensor>> = count(&graph.inputs).map(|k| tensor(&format!("{i}/in/{k}"))).collect();
        let want: Option<Vec<Wanted>> = count(&graph.outputs)
            .map(|k| {
                Some(Wanted {
                    torch: tensor(&format!("{i}/torch/{k}"))?,
                    precise: tensor(&format!("{i}/precise/{k}"))?,
                })
            })
            .collect();
        let case = Case { name: name.clone(), graph, inputs: inputs.ok_or_else(missing)?, near };
        all.push((i, Packed { case, numerics, want: want.ok_or_else(missing)? }));
    }
    all.sort_by_key(|(i, _)| *i);
    Ok(all.into_iter().map(|(_, p)| p).collect())
}
