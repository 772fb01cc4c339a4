//! PTX of typical programs through `ptxas`: accepted, without spills, with the accesses and instructions expected.
mod warpgroups;

use crate::nvptx_common as programs;
use kiln_block::passes::warpgroup::{WarpRoles, roles};
use kiln_block::{AtomicOp, BlockProgram, Builder, CmpOp, Const, DotPrecision, Elem, Facts, ScanOp, Type};
use kiln_codegen::{CodegenError, nvptx, nvptx::Ptx};
use kiln_machine::Arch;
use std::path::PathBuf;
use std::process::Command;

/// `$PTXAS`, or what scripts/setup has put in place.
fn ptxas() -> PathBuf {
    let local = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps/ptxas/bin/ptxas"));
    let path = std::env::var_os("PTXAS").map_or(local, PathBuf::from);
    assert!(path.exists(), "there is no {}: run scripts/setup, which installs ptxas", path.display());
    path
}

/// For the machine that represents the target.
/// Programs of few blocks are launched before the one ahead has ended, as lowering has it.
fn compile(kernel: &BlockProgram, arch: Arch) -> Result<Ptx, CodegenError> {
    let (machine, blocks) = (arch.machine(), kernel.instances().unwrap() * kernel.blocks);
    let few = blocks <= machine.templates.dependent_blocks * machine.units.multiprocessors;
    nvptx::compile(&BlockProgram { dependent: arch.has_dependent_launch() && few, ..kernel.clone() }, machine)
}

/// Registers per thread according to `ptxas`; fails on spills and warnings.
fn assemble(ptx: &Ptx, arch: Arch) -> usize {
    // Tests may be threads of one process, with kernels of the same name.
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let dir = std::env::temp_dir().join(format!("kiln-ptx-{process}-{thread:?}"));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, binary) = (dir.join("k.ptx"), dir.join("k.cubin"));
    std::fs::write(&source, &ptx.text).unwrap();
    let arch = format!("-arch={}", arch.name());
    let out = Command::new(ptxas()).args(["-v", &arch]).arg(&source).arg("-o").arg(&binary).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{log}\n{}", ptx.text);
    assert!(log.contains("0 bytes spill stores, 0 bytes spill loads"), "{log}");
    assert!(!log.contains("warning"), "{log}");
    let used = log.split("Used ").nth(1).and_then(|s| s.split(' ').next()).unwrap();
    println!("{:24} {:12} {:4} registers, {:6} bytes shared", ptx.name, arch, used, ptx.shared);
    used.parse().unwrap()
}

fn check(kernel: &BlockProgram) -> Ptx {
    let mut last = None;
    for arch in [Arch::Sm80, Arch::Sm89, Arch::Sm90a] {
        let ptx = compile(kernel, arch).unwrap_or_else(|e| panic!("{e}"));
        assemble(&ptx, arch);
        last = Some(ptx);
    }
    last.unwrap()
}

fn count(ptx: &Ptx, what: &str) -> usize {
    ptx.text.lines().filter(|l| l.contains(what)).count()
}

/// Names that PTX or the module uses itself.
#[test]
fn names_of_programs_meet_no_others() {
    for name in ["shared", "_shared", "WARP_SZ", "add", "ret", "1st", "über"] {
        let mut kernel = programs::vector_add(1 << 20, Elem::F32);
        kernel.name = name.into();
        let ptx = check(&kernel);
        assert!(ptx.text.contains(&format!(".entry {}(", ptx.name)), "{name}: {}", ptx.text);
    }
}

/// Integers wrap: a comparison does not move a 1 to its other side, and the absolute value of the least i16 is that
/// number again.
#[test]
fn integers_wrap() {
    let text = "kernel @wrap(%x: ptr<i32>, %y: ptr<i32>, %h: ptr<i16>, %out: ptr<bool>) grid [1, 1, 1] warps 1 {
  v0 = iota : i32[64]
  v1 = splat %x : ptr<i32>[64]
  v2 = ptr_add v1, v0 : ptr<i32>[64]
  v3 = load v2 : i32[64]
  v4 = splat %y : ptr<i32>[64]
  v5 = ptr_add v4, v0 : ptr<i32>[64]
  v6 = load v5 : i32[64]
  v7 = cmp le v3, v6 : bool[64]
  v8 = const 1 : i32[64]
  v9 = add v3, v8 : i32[64]
  v10 = cmp lt v9, v6 : bool[64]
  v11 = splat %h : ptr<i16>[64]
  v12 = ptr_add v11, v0 : ptr<i16>[64]
  v13 = load v12 : i16[64]
  v14 = abs v13 : i16[64]
  v15 = cmp lt v14, v13 : bool[64]
  v16 = and v7, v10 : bool[64]
  v17 = xor v16, v15 : bool[64]
  v18 = splat %out : ptr<bool>[64]
  v19 = ptr_add v18, v0 : ptr<bool>[64]
  store v19, v17
}";
    let kernel = kiln_block::text::parse(text).unwrap();
    kiln_block::verify::verify(&kernel).unwrap();
    let ptx = check(&kernel);
    // Two elements per thread, each with the one addition that the program has.
    let sums: Vec<&str> = ptx.text.lines().filter(|l| l.contains("add.s32")).collect();
    assert!(sums.len() == 2 && sums.iter().all(|l| l.ends_with(", 1;")), "{}", ptx.text);
    assert_eq!((count(&ptx, "abs.s32"), count(&ptx, "abs.s16")), (2, 0), "{}", ptx.text);
}

/// Eight unaligned neighbours of a thread: two aligned vectors and a shift, or one by one, as the program says.
#[test]
fn unaligned_vectors() {
    let loads = |load: &str| {
        let text = format!(
            "kernel @shift(%x: ptr<f16> readonly align 16, %y: ptr<f16> align 16) grid [8, 1, 1] warps 1 {{
  v0 = iota : i32[256]
  v1 = program_id 0 : i32
  v8 = const 1001 : i32
  v9 = mul v1, v8 : i32
  v10 = splat v9 : i32[256]
  v2 = add v0, v10 : i32[256]
  v3 = splat %x : ptr<f16>[256]
  v4 = ptr_add v3, v2 : ptr<f16>[256]
  v5 = {load} v4 : f16[256]
  v6 = splat %y : ptr<f16>[256]
  v11 = const 1024 : i32
  v12 = mul v1, v11 : i32
  v13 = splat v12 : i32[256]
  v14 = add v0, v13 : i32[256]
  v7 = ptr_add v6, v14 : ptr<f16>[256]
  store v7, v5
}}"
        );
        let kernel = kiln_block::text::parse(&text).unwrap();
        kiln_block::verify::verify(&kernel).unwrap();
        let ptx = check(&kernel);
        ["ld.global.v4.b32", "ld.global.b16", "prmt.b32.f4e"].map(|op| count(&ptx, op))
    };
    assert_eq!(loads("load"), [2, 0, 4]);
    assert_eq!(loads("load_apart"), [0, 8, 0]);
}

/// Policies of the caches become PTX's operators and priorities, on vectors as on masked elements; ptxas takes them.
#[test]
fn cache_policies_are_operators_of_accesses() {
    for (policy, load, store) in [
        ("evict_first", "ld.global.cs", "st.global.cs"),
        ("evict_last", "ld.global.L1::evict_last", "st.global.L1::evict_last"),
        ("l2_only", "ld.global.cg", "st.global.cg"),
    ] {
        let text = format!(
            "kernel @cached(%x: ptr<f32> readonly align 16, %y: ptr<f32> align 16) grid [4, 1, 1] warps 4 {{
  v0 = iota : i32[512]
  v1 = splat %x : ptr<f32>[512]
  v2 = ptr_add v1, v0 : ptr<f32>[512]
  v3 = const 509 : i32
  v4 = splat v3 : i32[512]
  v5 = cmp lt v0, v4 : bool[512]
  v6 = load {policy} v2, v5 : f32[512]
  v7 = splat %y : ptr<f32>[512]
  v8 = ptr_add v7, v0 : ptr<f32>[512]
  store {policy} v8, v6
}}"
        );
        let kernel = kiln_block::text::parse(&text).unwrap();
        assert_eq!(kiln_block::text::parse(&kiln_block::text::print(&kernel)).unwrap(), kernel);
        let ptx = check(&kernel);
        assert!(count(&ptx, load) > 0 && count(&ptx, store) > 0, "{policy}\n{}", ptx.text);
        assert_eq!(count(&ptx, "ld.global"), count(&ptx, load), "{policy}\n{}", ptx.text);
    }
}

/// One predicated store per thread, after everything that is read, and no branch for it.
#[test]
fn indices_are_checked() {
    let ptx = check(&programs::taken(1 << 20, 30522));
    let stores: Vec<usize> =
        ptx.text.lines().enumerate().filter(|l| l.1.contains("st.global.b64")).map(|l| l.0).collect();
    let last_load = ptx.text.lines().enumerate().filter(|l| l.1.contains("ld.global")).map(|l| l.0).max();
    assert_eq!(stores.len(), 1, "{}", ptx.text);
    assert!(last_load.is_some_and(|l| l < stores[0]), "{}", ptx.text);
    assert!(ptx.text.lines().nth(stores[0]).is_some_and(|l| l.trim_start().starts_with('@')), "{}", ptx.text);
}

#[test]
fn vector_add() {
    let ptx = check(&programs::vector_add(1 << 20, Elem::F32));
    assert_eq!(count(&ptx, "ld.global.v4"), 4, "{}", ptx.text);
    assert_eq!(count(&ptx, "st.global.v4"), 2, "{}", ptx.text);
    assert_eq!(count(&ptx, "setp"), 0, "no mask is left:\n{}", ptx.text);
    let half = check(&programs::vector_add(1 << 20, Elem::Bf16));
    assert_eq!((count(&half, "ld.global.v4"), count(&half, "st.global.v4")), (2, 1), "{}", half.text);
}

#[test]
fn a_tail_that_no_vector_divides() {
    let ptx = check(&programs::vector_add(1_000_003, Elem::F32));
    assert_eq!(count(&ptx, "ld.global.v4"), 4, "the middle is wide:\n{}", ptx.text);
    assert_eq!(
        count(&ptx, "ld.global.b32"),
        0,
        "what is read past the tail is in the buffer's last 16 bytes:\n{}",
        ptx.text
    );
    assert_eq!(count(&ptx, "st.global.v4"), 2, "{}", ptx.text);
    assert_eq!(count(&ptx, "st.global.b32"), 4, "the one vector with a tail is written by elements:\n{}", ptx.text);
    let masked = check(&programs::gelu(1000));
    assert_eq!(count(&masked, "ld.global.v4"), 2, "one predicate per vector:\n{}", masked.text);
    assert_eq!(count(&masked, "ld.global.b32"), 0, "{}", masked.text);
    let uneven = check(&programs::gelu(1002));
    assert_eq!(count(&uneven, "st.global.v4"), 2, "whole vectors but for the last one:\n{}", uneven.text);
    assert_eq!(count(&uneven, "st.global.v2"), 0, "{}", uneven.text);
}

#[test]
fn gelu() {
    let ptx = check(&programs::gelu(1 << 20));
    assert_eq!((count(&ptx, "ld.global.v4"), count(&ptx, "st.global.v4")), (2, 2), "{}", ptx.text);
    assert_eq!(count(&ptx, "tanh.approx"), 0);
}

#[test]
fn softmax() {
    let ptx = check(&programs::softmax(256, 1024, 4));
    assert_eq!((count(&ptx, "ld.global.v4"), count(&ptx, "st.global.v4")), (2, 2), "{}", ptx.text);
    assert_eq!(count(&ptx, "bar.sync") + count(&ptx, "barrier.sync"), 2, "one exchange per reduction:\n{}", ptx.text);
    let mut shared = programs::softmax(64, 32768, 32);
    shared.blocks = 4;
    let wide = compile(&shared, Arch::Sm90a).unwrap();
    assemble(&wide, Arch::Sm90a);
    assert_eq!((count(&wide, "ld.global.v4"), count(&wide, "st.global.v4")), (8, 8));
    assert_eq!((wide.threads, wide.cluster), (256, 4), "blocks of a cluster share a row");
}

#[test]
fn parts_of_a_row_in_runs() {
    let ptx = check(&programs::sum_of_runs(1280, 160, 320));
    assert_eq!(count(&ptx, "ld.global.v4"), 2, "where a part ends is known to be no less than zero:\n{}", ptx.text);
    let odd = check(&programs::sum_of_runs(1280, 161, 320));
    assert_eq!(count(&odd, "ld.global.v4"), 0, "{}", odd.text);
}

#[test]
fn row_sum() {
    let ptx = check(&programs::row_sum(1024));
    assert_eq!(count(&ptx, "ld.global.v4"), 2, "{}", ptx.text);
    assert_eq!(ptx.shared, 0, "rows stay in a warp");
}

#[test]
fn column_sum() {
    let ptx = check(&programs::column_sum(1024, 512));
    assert_eq!(count(&ptx, "ld.global.v4"), 8, "{}", ptx.text);
    assert_eq!(ptx.shared, 2048, "one partial sum a warp and column");
    // The assembler moves no load across a branch.
    let at = |what: &str| ptx.text.find(what).unwrap_or_else(|| panic!("no {what}: {}", ptx.text));
    let last = ptx.text.rfind("ld.global").unwrap_or(0);
    assert!(last < at("@never exit") && at("@never exit") < at("add.f32"), "{}", ptx.text);
}

#[test]
fn transpose() {
    for elem in [Elem::F32, Elem::Bf16] {
        let ptx = check(&programs::transpose(512, 256, elem));
        let vectors = 64 * 64 * elem.bytes() / 16 / 128;
        assert_eq!((count(&ptx, "ld.global.v4"), count(&ptx, "st.global.v4")), (vectors, vectors), "{}", ptx.text);
    }
}

/// Sixteen bytes of f8 at a time; its conversions are instructions where the GPU has them.
#[test]
fn casts_of_f8() {
    for f8 in Elem::ALL.into_iter().filter(|e| e.is_f8()) {
        let instruction = format!("cvt.rn.satfinite.{}x2.f32", &f8.name()[2..]);
        for wide in [Elem::F32, Elem::Bf16, Elem::F16, Elem::I32] {
            // Of 32 elements a thread has vectors of the wider type.
            let (words, accesses) = if wide.bytes() == 4 { ("b32", 8) } else { ("v2.b32", 4) };
            let ptx = check(&programs::cast(1 << 20, wide, f8));
            let stores = count(&ptx, &format!("st.global.{words}"));
            // Each conversion is of two numbers.
            assert_eq!((count(&ptx, &instruction), stores), (16, accesses), "{}", ptx.text);
            let ptx = check(&programs::cast(1 << 20, f8, wide));
            // Of `f8e5m2` a shift is enough.
            let pairs = if f8 == Elem::F8e4m3 { 16 } else { 0 };
            assert_eq!((count(&ptx, "cvt.rn.f16x2"), count(&ptx, "ld.global")), (pairs, accesses), "{}", ptx.text);
        }
    }
}

#[test]
fn matmuls() {
    let matmul = |elem, precision| check(&programs::matmul([256, 256, 256], 32, elem, precision));
    // A warp's 32x32 part: 2 x 4 instructions, by k in steps of 16 or 8.
    let half = matmul(Elem::Bf16, DotPrecision::Exact);
    assert_eq!(count(&half, "mma.sync.aligned.m16n8k16"), 16, "{}", half.text);
    assert_eq!(count(&half, "st.global.v4"), 4, "the result goes out in rows:\n{}", half.text);
    matmul(Elem::F16, DotPrecision::Exact);
    assert_eq!(count(&matmul(Elem::F32, DotPrecision::Tf32), "mma.sync.aligned.m16n8k8"), 32);
    // A loop over K, of which an iteration has two steps.
    assert_eq!(count(&matmul(Elem::F32, DotPrecision::Tf32x3), "mma.sync.aligned.m16n8k8"), 48);
    assert_eq!(count(&matmul(Elem::F32, DotPrecision::Exact), "mma.sync"), 0);
    matmul(Elem::F64, DotPrecision::Exact);
}

#[test]
fn attention() {
    for causal in [false, true] {
        let ptx = check(&programs::attention(256, 256, causal));
        // A warp's 16 rows: 4 tiles of keys by 4 of 16 along d, then 8 tiles of d by 2 of 16 keys.
        assert_eq!(count(&ptx, "mma.sync.aligned.m16n8k16"), 32, "{}", ptx.text);
    }
}

#[test]
fn arg_reductions_and_scans() {
    check(&programs::argmax(64, 1024));
    for op in [ScanOp::Sum, ScanOp::Prod, ScanOp::Max] {
        check(&programs::scan(64, 1024, op));
    }
}

/// An element of a window needs every one that is read next to it.
#[test]
fn windows_are_read_by_words() {
    let ptx = check(&programs::window(1024));
    assert_eq!((count(&ptx, "ld.global.b32"), count(&ptx, "ld.global.b16")), (16, 0), "{}", ptx.text);
}

#[test]
fn every_program() {
    for p in programs::programs() {
        check(&p.kernel);
    }
}

/// The layout pass changes where values are, never what they are: the interpreter, which ignores layouts, gives the
/// same.
#[test]
fn layouts_change_no_value() {
    use kiln_interp::block::{Buffer, run};
    for p in programs::programs().into_iter().filter(|p| p.sizes.iter().max() < Some(&40_000)) {
        let elems = p.kernel.params.iter().map(|v| p.kernel.ty(v.value).elem().unwrap());
        let numbers = programs::inputs(&p);
        let buffers: Vec<Buffer> = elems.zip(numbers).map(|(e, x)| Buffer::from_f64(e, &[x.len()], x)).collect();
        let (mut before, mut after) = (buffers.clone(), buffers);
        run(&p.kernel, &mut before).unwrap_or_else(|e| panic!("{e}"));
        let placed = kiln_block::passes::layout::assign(&p.kernel);
        run(&placed, &mut after).unwrap_or_else(|e| panic!("{e}"));
        for (a, b) in before.iter().zip(&after) {
            assert_eq!(a.bytes, b.bytes, "{}", p.kernel.name);
        }
    }
}

/// Matmuls in f32 from shared tiles: no spills, no warnings, 16-byte reads, a loop over eight of K for 8 by 16 sums per
/// thread.
#[test]
fn multiply_adds() {
    let kernel = kiln_block::text::parse(include_str!("../../block/tests/kernels/multiply_adds.block")).unwrap();
    let ptx = compile(&kernel, Arch::Sm90a).unwrap();
    assemble(&ptx, Arch::Sm90a);
    assert_eq!(count(&ptx, "fma.rn.f32"), 8 * 8 * 16);
    assert_eq!(count(&ptx, "ld.shared.v4"), 8 * (8 + 16) / 4);
    // Sums are not tied to pairs of registers.
    assert_eq!(count(&ptx, "st.shared.v2"), 0);
}

/// A kernel of few blocks may start before the one ahead of it has ended: nothing is read by `ld.global.nc`, which the
/// assembler would move ahead of the wait. A kernel of many blocks uses it, and does not wait.
#[test]
fn waits_for_kernels_before() {
    let few = check(&programs::vector_add(1 << 20, Elem::F32));
    assert_eq!((count(&few, "griddepcontrol.wait"), count(&few, "ld.global.nc")), (1, 0), "{}", few.text);
    let wait = few.text.find("griddepcontrol.wait").unwrap();
    assert!(wait < few.text.find("ld.global").unwrap(), "{}", few.text);
    let many = check(&programs::vector_add(1 << 24, Elem::F32));
    assert_eq!((count(&many, "griddepcontrol.wait"), count(&many, "ld.global.nc.v4")), (0, 4), "{}", many.text);
}

/// A thread of several elements waits for all that its mask names; those that it leaves out are never loaded, and must
/// not stay unset. A value of 8 bytes takes two words, each with its mark.
#[test]
fn values_that_others_wait_for() {
    for (elem, zero, words) in [("f32", "0.0", 1), ("i32", "0", 1), ("f64", "0.0", 2), ("i64", "0", 2)] {
        let text = format!(
            "kernel @k(%totals: ptr<i64>, %out: ptr<{elem}>) grid [2, 1, 1] warps 1 {{
              v0 = program_id 0 : i32
              v1 = const {words} : i32
              v2 = mul v0, v1 : i32
              v3 = ptr_add %totals, v2 : ptr<i64>
              v4 = const {zero} : {elem}
              publish v3, v4
              v5 = iota : i32[64]
              v6 = splat v0 : i32[64]
              v7 = cmp lt v5, v6 : bool[64]
              v8 = splat %totals : ptr<i64>[64]
              v9 = splat v1 : i32[64]
              v10 = mul v5, v9 : i32[64]
              v11 = ptr_add v8, v10 : ptr<i64>[64]
              v12 = await v11, v7 : {elem}[64]
              v13 = reduce sum v12 axis 0 : {elem}
              v14 = ptr_add %out, v0 : ptr<{elem}>
              store v14, v13
            }}"
        );
        let ptx = check(&kiln_block::text::parse(&text).unwrap());
        assert_eq!(ptx.text.matches("st.relaxed.gpu.global.b64").count(), words, "{}", ptx.text);
        let waiting = ptx.text.split("WAIT:").nth(1).and_then(|t| t.split("bra WAIT").next()).unwrap();
        assert_eq!(waiting.matches("ld.relaxed.gpu.global.b64").count(), 2 * words, "{}", ptx.text);
        assert_eq!(waiting.matches("and.b32 %all, %all, %mark").count(), 2 * words, "{}", ptx.text);
        // No fence, and no barrier but those of the sum.
        assert!(!ptx.text.contains("fence") && !ptx.text.contains("release"), "{}", ptx.text);
    }
}

/// Vectors of f32 where the target has them; other types one element at a time. A value that several threads hold is
/// added once.
#[test]
fn atomic_updates() {
    let updates = |elem: Elem, op: AtomicOp, n: usize| {
        let mut b = Builder::new("k", [1, 1, 1], 1);
        let (from, to) = (b.param("from", elem, true), b.param("to", elem, false));
        let at = b.iota(n);
        let (from, to) = (b.ptr_add(from, at), b.ptr_add(to, at));
        let v = b.load(from, None, None);
        b.atomic(op, to, v, None);
        b.finish()
    };
    for (elem, op, text) in [
        (Elem::F32, AtomicOp::Add, "red.global.add.v4.f32"),
        (Elem::F64, AtomicOp::Add, "red.global.add.f64"),
        (Elem::I32, AtomicOp::Add, "red.global.add.u32"),
        (Elem::I64, AtomicOp::Add, "red.global.add.u64"),
        (Elem::I32, AtomicOp::Max, "red.global.max.s32"),
    ] {
        let ptx = check(&updates(elem, op, 128));
        assert_eq!(count(&ptx, text), if text.contains("v4") { 1 } else { 4 }, "{}", ptx.text);
    }
    let scalars = compile(&updates(Elem::F32, AtomicOp::Add, 128), Arch::Sm80).unwrap();
    assert_eq!(count(&scalars, "red.global.add.f32"), 4, "{}", scalars.text);
    // Below a number of the launch that is a multiple, a vector is whole or not there.
    let mut b = Builder::new("k", [1, 1, 1], 1);
    let to = b.param("to", Elem::F32, false);
    let n = b.scalar("n", Elem::I32, Facts { div: 16, ..Facts::default() });
    let at = b.iota(256);
    let mask = b.cmp(CmpOp::Lt, at, n);
    let (to, one) = (b.ptr_add(to, at), b.constant(Type::block(Elem::F32, [256]), Const::Float(1.0)));
    b.atomic(AtomicOp::Add, to, one, Some(mask));
    let masked = check(&b.finish());
    assert_eq!(count(&masked, "red.global.add.v4.f32"), 2, "{}", masked.text);
    let few = check(&updates(Elem::F32, AtomicOp::Add, 8));
    assert!(few.text.lines().any(|l| l.contains("red.global") && l.trim().starts_with('@')), "{}", few.text);
}

/// Atomic accesses of each type in each order, and random programs of what hand-written kernels have.
#[test]
fn programs_of_the_launch() {
    use crate::launch_atomics::{OPS, ORDERS, swaps, updates};
    let types = [Elem::I32, Elem::U32, Elem::I64, Elem::U64, Elem::F32, Elem::F64, Elem::F16, Elem::Bf16];
    let mut all = vec![];
    for (i, elem) in types.into_iter().enumerate() {
        let ops = OPS.into_iter().enumerate().filter(|(_, op)| op.takes(elem));
        all.extend(ops.map(|(j, op)| updates(elem, op, ORDERS[(i + j) % 4], 64)));
        all.extend((elem.bytes() >= 4).then(|| swaps(elem)));
    }
    for seed in 1..=10 {
        let elem = types[seed as usize % 5];
        all.push(crate::launch_random::program(seed, elem, [8, 16]));
    }
    for (n, k) in all.iter().enumerate() {
        let arch = [Arch::Sm80, Arch::Sm90a][n % 2];
        match nvptx::compile(k, arch.machine()) {
            Ok(ptx) => _ = assemble(&ptx, arch),
            // The first GPUs with such sums are of sm_90.
            Err(CodegenError::Unsupported { what, .. }) if arch == Arch::Sm80 && what.contains("of bf16") => {}
            Err(e) => panic!("{e}"),
        }
    }
}
