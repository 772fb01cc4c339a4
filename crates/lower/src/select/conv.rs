//! Schedules of convolutions ([`crate::matmul::conv`]): by patches or as an implicit GEMM, of transposed ones for all
//! parts.
use crate::error::LowerError;
use crate::matmul::conv::implicit_gemm::{self, DEEP, Input, folds};
use crate::matmul::conv::transposed::Part;
use crate::matmul::conv::{Conv, Images, by_columns, by_patches, find, images, is_shared, is_small, parts};
use crate::matmul::operands::Way;
use crate::matmul::{self, Matmul};
use crate::nest::lowering::Lowering;
use crate::scalar::epilogue_map::{self, Lattice};
use crate::select::gemm::candidates as gemm_candidates;
use crate::select::matmul::{candidates as matmul_candidates, epilogues, staged, swapped_candidates};
use kiln_graph::ValueId;
use kiln_plan::exec::Slot;
use kiln_plan::matmul_schedule::{MatmulForm, MatmulSchedule, TiledMatmul};
use kiln_plan::{Engine, Hardware, Precision};

/// Schedules of a convolution on a GPU, with the microseconds they are predicted to take. Not all of them fit.
pub fn candidates(kernel: &Lowering, machine: &Hardware) -> Result<Vec<(MatmulSchedule, f64)>, LowerError> {
    let (v, c) = find(kernel)?;
    if is_small(&c) {
        return Ok(vec![]);
    }
    let mut all = vec![];
    if !c.transposed {
        all = products(kernel, v, (&c, &[]), machine)?;
    } else {
        let ways = (0..=c.stride.len()).map(|joined| (joined, parts(kernel, v, &c, machine, joined)));
        let ways: Vec<(usize, Option<Vec<Part>>)> = ways.collect();
        if ways.iter().all(|w| w.1.is_none()) {
            return by_columns(kernel, v, &mut |kernel| gemm_candidates(kernel, machine));
        }
        for (joined, parts) in ways.iter().filter_map(|(joined, parts)| Some((*joined, parts.as_ref()?))) {
            let found = candidates_in_parts(kernel, v, (&c, parts), machine)?;
            let one = |(p, us): (TiledMatmul, f64)| (TiledMatmul { form: MatmulForm { joined, ..p.form }, ..p }, us);
            // Only tensor cores have arithmetic to spare, and exact sums take no zeros.
            all.extend(found.into_iter().filter(|(p, _)| p.tile.engine == Engine::Wgmma || joined == 0).map(one));
        }
    }
    Ok(all.into_iter().map(|(p, us)| (MatmulSchedule::Matmul(p), us)).collect())
}

/// Schedules of a convolution that is one launch; `lattice`: where its results are.
fn products(
    kernel: &Lowering,
    v: ValueId,
    (c, lattice): (&Conv, &[Lattice]),
    machine: &Hardware,
) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    match images(c) {
        Images::Each => by_patches(kernel, v, (c, lattice), (machine, Images::Each), &|p| {
            let mut all = matmul_candidates(kernel, p, machine)?;
            if p.precision == Precision::Tf32 && machine.arch.has_wgmma() {
                all.extend(p.with_swapped(|p| swapped_candidates(kernel, p, machine))?);
            }
            Ok(all)
        }),
        Images::All => window_products(kernel, v, (c, lattice), machine, Input::Read),
    }
}

/// The same, for the matmul with patches of all images.
fn window_products(
    kernel: &Lowering,
    v: ValueId,
    (c, lattice): (&Conv, &[Lattice]),
    machine: &Hardware,
    input: Input,
) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    by_patches(kernel, v, (c, lattice), (machine, Images::All), &|p| {
        let mut all = implicit_gemm_products(kernel, c, p, machine, input)?;
        all.extend(matmul_candidates(kernel, p, machine)?);
        Ok(all)
    })
}

/// Schedules of a transposed convolution in parts: those of its largest part, at the sum of what all parts are
/// predicted to take.
fn candidates_in_parts(
    kernel: &Lowering,
    v: ValueId,
    (c, parts): (&Conv, &[Part]),
    machine: &Hardware,
) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    if let [whole] = parts {
        return products(kernel, v, (&whole.conv(c), &whole.lattice(c)), machine);
    }
    let of_part = |p: &Part, input| window_products(kernel, v, (&p.conv(c), &p.lattice(c)), machine, input);
    let mut all = of_part(&parts[0], Input::Read)?;
    all.retain(|a| is_shared(&a.0));
    for part in &parts[1..] {
        if part.window_points() == 0 {
            let us = without_sums_us(kernel, &part.conv(c), &part.lattice(c), machine);
            all.iter_mut().for_each(|a| a.1 += us);
            continue;
        }
        let others = of_part(part, Input::Copied)?;
        // All parts follow one schedule.
        let follows = |o: &TiledMatmul, p: &TiledMatmul| {
            let (a, b) = (o.tile, p.tile);
            o.form == p.form && a.size == b.size && (a.cluster, a.ping_pong) == (b.cluster, b.ping_pong)
        };
        let same = |p: &TiledMatmul| others.iter().find(|o| follows(&o.0, p));
        all.retain(|a| same(&a.0).is_some());
        all.iter_mut().for_each(|a| a.1 += same(&a.0).map_or(0.0, |o| o.1));
    }
    Ok(all)
}

/// Predicted microseconds of [`crate::matmul::conv::without_sums`] for this part.
fn without_sums_us(kernel: &Lowering, part: &Conv, lattice: &[Lattice], machine: &Hardware) -> f64 {
    let elements: usize = part.out.iter().product();
    let sent = |out: &ValueId| {
        let bytes = kernel.graph.dtype(*out).bytes();
        (elements * bytes) as f64 * epilogue_map::sectors(lattice, part.out.len() - 1, bytes)
    };
    let bytes: f64 = kernel.graph.outputs.iter().map(sent).sum();
    (machine.gemm.dependent_launch + bytes / machine.gemm.read) / machine.units.clock * 1e6
}

/// Schedules with the microseconds they are predicted to take, the copies included.
fn implicit_gemm_products(
    kernel: &Lowering,
    c: &Conv,
    by_patches: &Matmul,
    machine: &Hardware,
    input: Input,
) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    let mut all = vec![];
    for folded in folds(c, matmul::operand_dtype(kernel, by_patches.v)) {
        all.extend(folded_candidates(kernel, c, by_patches, machine, (input, folded))?);
    }
    Ok(all)
}

fn folded_candidates(
    kernel: &Lowering,
    c: &Conv,
    by_patches: &Matmul,
    machine: &Hardware,
    (input, folded): (Input, usize),
) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    let found = implicit_gemm::with(kernel, c, by_patches, (machine, Slot::Scratch(1), folded), &|w, matmul| {
        let (precision, launches) = (matmul.precision, w.copies(input));
        let way = Way { copies: [false; 2], precision, rounded: false, sides: [DEEP; 2], launches };
        let one = |(p, us): (TiledMatmul, f64)| {
            (TiledMatmul { form: MatmulForm { implicit: true, folded, ..p.form }, ..p }, us)
        };
        Ok(staged(kernel, matmul, &way, &epilogues(kernel, matmul)?).into_iter().map(one).collect())
    });
    Ok(found?.unwrap_or_default())
}
