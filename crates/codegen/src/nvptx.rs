//! NVIDIA GPUs: a block program with layouts as PTX.
//!
//! The layout passes say which element of a block every register of every thread holds; here a block value becomes that
//! many LLVM scalars, and each op is written out for one thread.
//! - [`emit`]: LLVM's builder, intrinsics and inline assembly with checked names;
//! - [`index`]: integers and pointers as `base + constant`, from which addresses, masks and vector widths follow;
//! - [`threads`]: coordinates from thread numbers;
//! - [`head`]: name, parameters, the wait for earlier kernels;
//! - [`gen`]: the walk over the program, control flow;
//! - [`blocks`]: instances of more warps than a block should hold, spread over a cluster;
//! - [`staged`]: asynchronous copies to shared memory while the program computes;
//! - [`swizzled_copy`]: such copies into the tiles that matmuls read; [`fragments`]: reads of them by `ldmatrix`;
//! - [`batched_loads`]: all loads of an iteration in flight before its sums;
//! - [`tiles`], [`roles`], [`tma`], [`wgmma`], [`shared_dot`]: the lower level's ops, which programs with roles use;
//! - [`check`]: indices out of range;
//! - [`pointwise`], [`math`], [`f8`], [`memory`], [`unaligned`], [`gathered`], [`exchange`], [`rows`], [`reduce`],
//!   [`halves`], [`collect`], [`scan`], [`dot`]: the ops by family;
//! - [`target`], [`widen`]: LLVM's optimiser and back end, and a rewrite between them.
//!
//! A program whose arithmetic is `ieee` (a kernel of an exact plan) gets no FMAs from products and sums, and no
//! quotients by reciprocals.
//!
//! Never panics on a verified kernel: an op without code here is [`CodegenError::Unsupported`], and the caller falls
//! back.
use crate::CodegenError;
use kiln_block::{Array, BlockProgram, Elem, Grid, LaunchArray, Param, Type};
use kiln_machine::{Machine, isa};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod atomic;
mod batched_loads;
mod blocks;
mod check;
mod collect;
mod combine;
mod control;
mod dot;
mod emit;
mod exchange;
mod f8;
mod fetch;
mod fragments;
mod gathered;
mod r#gen;
mod halves;
mod head;
mod index;
mod inline;
mod left_wide;
mod math;
mod memory;
mod multiples;
mod places;
mod pointwise;
mod reads;
mod reduce;
mod reduce_by;
mod report;
mod roles;
mod rows;
mod scan;
mod shared_dot;
mod small_integers;
mod split_dot;
mod staged;
mod swizzled_copy;
mod target;
mod threads;
mod tiles;
mod tma;
mod unaligned;
mod wgmma;
mod widen;
mod words;

/// How a parameter of a kernel is passed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// The address of a buffer.
    Address,
    /// A number, by value; a bool is a byte.
    Scalar(Elem),
    /// A tensor map of an array in a buffer.
    Map(TensorMap),
    /// A tensor map that the launcher makes of other arguments.
    LaunchMap(LaunchMap),
}

/// As a [`TensorMap`], of an array whose sizes and strides are numbers of the launch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LaunchMap {
    pub elem: Elem,
    pub array: LaunchArray,
    /// Sizes of one copied tile.
    pub tile: Vec<usize>,
    /// Bytes within which 16-byte chunks are permuted; 0: none.
    pub swizzle: usize,
}

/// A strided array that is copied in tiles; axes outermost first, offset and strides in elements.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TensorMap {
    pub elem: Elem,
    pub array: Array,
    /// Sizes of one copied tile.
    pub tile: Vec<usize>,
    /// Bytes within which 16-byte chunks are permuted; 0: none.
    pub swizzle: usize,
}

/// A kernel's PTX and how it is launched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ptx {
    /// Entry point.
    pub name: String,
    pub text: String,
    /// Blocks of the grid.
    pub grid: Grid,
    /// Threads of a block.
    pub threads: usize,
    /// Dynamic shared memory in bytes.
    pub shared: usize,
    pub cluster: usize,
    /// One per parameter.
    pub args: Vec<Argument>,
    /// Accesses of shared memory whose addresses follow from a layout, by the ways in which banks conflict: how many
    /// times the passes that a warp's bytes need. 1: no conflict.
    #[serde(default)]
    pub bank_ways: BTreeMap<usize, usize>,
}

/// Runs the layout passes on a copy of the kernel and generates PTX for a machine, which is a GPU.
pub fn compile(kernel: &BlockProgram, machine: &Machine) -> Result<Ptx, CodegenError> {
    generated(kernel, machine, |r#gen::Generated { module, shared, bank_ways }, blocks| {
        Ok(Ptx {
            name: head::entry_name(kernel),
            bank_ways,
            text: target::to_ptx(&module, machine.arch)?,
            grid: kernel.grid.constant().map_or(Grid::Launch, |[x, y, z]| Grid::Constant([x * blocks, y, z])),
            threads: kernel.warps / blocks * isa::WARP,
            shared,
            cluster: kernel.cluster.max(blocks),
            args: kernel.params.iter().map(|p| argument(kernel, p)).collect(),
        })
    })
}

/// The LLVM text of a kernel, before LLVM's own passes: for inspection.
pub fn llvm_text(kernel: &BlockProgram, machine: &Machine) -> Result<String, CodegenError> {
    generated(kernel, machine, |code, _| Ok(code.module.print_to_string().to_string()))
}

/// Generates a kernel's module, and gives `take` it with the number of blocks in its cluster.
fn generated<T>(
    kernel: &BlockProgram,
    machine: &Machine,
    take: impl FnOnce(r#gen::Generated, usize) -> emit::Res<T>,
) -> Result<T, CodegenError> {
    let fail = |f: emit::Fail| match f {
        emit::Fail::Unsupported(what) => {
            CodegenError::Unsupported { kernel: kernel.name.clone(), target: machine.arch.name().into(), what }
        }
        emit::Fail::Defect(what) => CodegenError::Defect { kernel: kernel.name.clone(), what },
        emit::Fail::Llvm(what) => CodegenError::Llvm { kernel: kernel.name.clone(), what },
    };
    let roles = kiln_block::passes::layout::anchors::roles(kernel).is_some();
    let arch = machine.arch;
    if roles && !(arch.has_wgmma() && arch.has_tma()) || kernel.cluster > 1 && !arch.has_clusters() {
        return Err(fail(emit::Fail::Unsupported("roles, clusters and tensor-map copies".into())));
    }
    // With roles an instance is always one block.
    let blocks = if roles { 1 } else { blocks::of(kernel, machine).map_err(fail)? };
    let placed = kiln_block::passes::layout::assign(kernel);
    let context = inkwell::context::Context::create();
    let code = r#gen::generate(&context, &placed, machine, blocks).map_err(fail)?;
    let shared = code.shared;
    if shared > machine.limits.shared_per_block {
        return Err(fail(emit::Fail::Unsupported(format!("{shared} bytes of shared memory"))));
    }
    take(code, blocks).map_err(fail)
}

fn argument(kernel: &BlockProgram, p: &Param) -> Argument {
    if let Type::Block { elem, .. } = kernel.ty(p.value) {
        return Argument::Scalar(*elem);
    }
    let Type::Desc { elem, shape, swizzle } = kernel.ty(p.value) else { return Argument::Address };
    let swizzle = swizzle.span();
    let mut tile = shape.clone();
    if let (Some(span), Some(row)) = (swizzle, tile.last_mut()) {
        // One panel at a time; what is beyond the array is zero.
        *row = span / elem.bytes();
    }
    let (elem, swizzle) = (*elem, swizzle.unwrap_or(0));
    match (&p.array, &p.launch_array) {
        (Some(array), _) => Argument::Map(TensorMap { elem, array: array.clone(), tile, swizzle }),
        (None, Some(array)) => Argument::LaunchMap(LaunchMap { elem, array: array.clone(), tile, swizzle }),
        (None, None) => Argument::Address,
    }
}
