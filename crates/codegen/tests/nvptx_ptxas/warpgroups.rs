//! Programs in roles and persistent ones: no spills, and no warning of serialised matmuls.
use super::*;

/// The asynchronous level: no spills, no warning (as C7510: serialised matmuls), every op as one instruction.
#[test]
fn warpgroups() {
    let kernels = kiln_block::text::parse(include_str!("../../../block/tests/kernels/warpgroups.block")).unwrap();
    for arch in [Arch::Sm80, Arch::Sm89] {
        assert!(compile(&kernels, arch).is_err());
    }
    let ptx = compile(&kernels, Arch::Sm90a).unwrap();
    assert_eq!((ptx.threads, ptx.cluster), (384, 2));
    assert!(ptx.shared <= Arch::Sm90a.machine().limits.shared_per_block);
    assemble(&ptx, Arch::Sm90a);
    // Four steps of K per stage, the first stage peeled.
    assert_eq!(count(&ptx, "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"), 8);
    // Addresses in matrix descriptors exclude the rank of the block in the cluster.
    assert_eq!(count(&ptx, ", 16320;"), 2, "{}", ptx.text);
    // Two parts of the left operand, and four panels of the right one for both blocks.
    assert_eq!(count(&ptx, "cp.async.bulk.tensor.2d.shared::cluster.global"), 6);
    assert_eq!(count(&ptx, ".multicast::cluster"), 4);
    // Sixteen per slice of the tile, four slices.
    assert_eq!(count(&ptx, "stmatrix.sync.aligned.m8n8.x4"), 16);
    assert_eq!(count(&ptx, "cp.async.bulk.tensor.2d.global.shared::cta"), 4);
    assert_eq!(count(&ptx, "setmaxnreg"), 2);
}

/// A plain matmul of pointer loads, through the passes: the same instructions.
#[test]
fn warpgroups_by_passes() {
    let kernel = kiln_block::text::parse(include_str!("../../../../benches/ladder/pointers.block")).unwrap();
    for names in [&["tensor_maps", "roles"][..], &["warpgroups"]] {
        let mut k = kernel.clone();
        kiln_block::passes::run(names, &mut k, Arch::Sm90a.machine()).unwrap();
        kiln_block::passes::canonicalise(&mut k).unwrap();
        let ptx = compile(&k, Arch::Sm90a).unwrap();
        assemble(&ptx, Arch::Sm90a);
        assert_eq!(count(&ptx, "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"), 8);
        assert_eq!(count(&ptx, "stmatrix.sync.aligned.m8n8.x4"), 16);
        assert_eq!(count(&ptx, "setmaxnreg"), 2);
    }
}

/// Attention with bounds of the launch: the first iteration is in branches, and the wait for the sums of an iteration
/// comes after a branch behind the weights, where assemblers leave it.
#[test]
fn attention_of_a_launch() {
    let source = include_str!("../../../block/tests/kernels/attention_of_launch.block");
    // Two consumers on a multiprocessor, in one block or in two.
    for (rows, threads, start) in [(128, 384, None), (64, 256, Some(128))] {
        let text = source.replace("[128", &format!("[{rows}")).replace("const 128", &format!("const {rows}"));
        let mut k = kiln_block::text::parse(&text).unwrap();
        kiln_block::passes::run(&["launch_maps", "roles"], &mut k, Arch::Sm90a.machine()).unwrap();
        kiln_block::passes::canonicalise(&mut k).unwrap();
        assert_eq!(k.registers, start);
        let ptx = nvptx::compile(&k, Arch::Sm90a.machine()).unwrap();
        assert_eq!(ptx.threads, threads);
        assert!(assemble(&ptx, Arch::Sm90a) <= 65536 / 384);
        assert_eq!((count(&ptx, "setmaxnreg.dec"), count(&ptx, "setmaxnreg.inc")), (1, 1));
        // Scores of two first iterations and of two loops, with and without masks; sums of the loops and after them.
        assert_eq!(count(&ptx, "wgmma.mma_async.sync.aligned.m64n64k16"), 4 * 4 + 3 * 4);
        assert_eq!(count(&ptx, "ld.global"), 0, "{}", ptx.text);
        for (at, _) in ptx.text.match_indices("wgmma.wait_group.sync.aligned 1;") {
            let until = &ptx.text[at..][..ptx.text[at..].find("wgmma.wait_group.sync.aligned 0;").unwrap()];
            let last = until.rfind("mbarrier.try_wait").unwrap();
            let exponentials = until[..last].matches("ex2.approx").count();
            assert!(exponentials >= 32, "{exponentials} before the wait for sums\n{until}");
        }
    }
}

/// Persistent clusters over rows: the next row is prefetched, what rows share is read once, exchanges wait only for
/// what they receive, and nothing spills.
#[test]
fn persistent_rows() {
    let mut k = kiln_block::text::parse(include_str!("../../../block/tests/kernels/layer_norm.block")).unwrap();
    kiln_block::passes::run(&["persistent-rows", "fold", "cse", "licm", "dce"], &mut k, Arch::Sm90a.machine()).unwrap();
    let ptx = compile(&k, Arch::Sm90a).unwrap();
    assemble(&ptx, Arch::Sm90a);
    assert_eq!((ptx.grid.along(0).unwrap(), ptx.cluster, ptx.threads), (7 * 16, 16, 512));
    // The first row, the next one, gain and bias, 32 elements of four bytes per thread each.
    assert_eq!(count(&ptx, "cp.async.cg.shared.global"), 4 * 32 * 4 / 16);
    assert_eq!((count(&ptx, "ld.global"), count(&ptx, "st.global")), (0, 8));
    // The wait for all blocks to have started.
    assert_eq!(count(&ptx, "barrier.cluster.wait"), 1);
    assert_eq!(count(&ptx, "st.async"), 2);
}

/// Persistent clusters over rows of an odd length: vectors that are partly in the row are read whole, what rows share
/// is read once from memory, and nothing spills.
#[test]
fn persistent_odd_rows() {
    let k = kiln_block::text::parse(include_str!("../../../block/tests/kernels/odd_rows.block")).unwrap();
    let mut k = kiln_block::passes::persistent_rows::run(&k, 64).unwrap();
    kiln_block::passes::canonicalise(&mut k).unwrap();
    let ptx = compile(&k, Arch::Sm90a).unwrap();
    assemble(&ptx, Arch::Sm90a);
    assert_eq!((ptx.grid.along(0).unwrap(), ptx.cluster, ptx.threads), (64 * 2, 2, 512));
    // The first row and the next one, of which a thread has seven vectors of eight.
    assert_eq!(count(&ptx, "cp.async.cg.shared.global"), 2 * 7);
    let (_, round) = ptx.text.split_once("cp.async.wait_group").unwrap();
    assert_eq!(round.matches("ld.global").count(), 0);
}

/// Dual GEMM: two sums side by side, of a left operand that is read once; registers suffice for both.
#[test]
fn two_sums_in_one_kernel() {
    let mut k = kiln_block::text::parse(include_str!("../../../../benches/ladder/swiglu.block")).unwrap();
    kiln_block::passes::run(&["warpgroups", "fold", "cse", "licm", "dce"], &mut k, Arch::Sm90a.machine()).unwrap();
    let ptx = compile(&k, Arch::Sm90a).unwrap();
    assemble(&ptx, Arch::Sm90a);
    assert_eq!(ptx.cluster, 2);
    assert_eq!(count(&ptx, "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"), 16);
}

/// The softmax of a tile's rows, in place of its cast.
const ROWS: &str = "%most = reduce max %sum axis 1 : f32[128]
  %column = expand_dims %most axis 1 : f32[128,1]
  %wide = broadcast %column : f32[128,256]
  %apart = sub %sum, %wide : f32[128,256]
  %term = exp %apart : f32[128,256]
  %total = reduce sum %term axis 1 : f32[128]
  %below = expand_dims %total axis 1 : f32[128,1]
  %spread = broadcast %below : f32[128,256]
  %share = div %term, %spread : f32[128,256]
  %rounded = cast bf16 %share";

/// A softmax of the tile's rows in its epilogue: the widest rows, held once and reduced in registers and four lanes.
#[test]
fn rows_of_a_tile() {
    let text = include_str!("../../../../benches/ladder/descriptors.block").replace("%rounded = cast bf16 %sum", ROWS);
    let mut k = kiln_block::text::parse(&text).unwrap();
    kiln_block::passes::run(&["warpgroups", "fold", "cse", "licm", "dce"], &mut k, Arch::Sm90a.machine()).unwrap();
    let ptx = compile(&k, Arch::Sm90a).unwrap();
    assemble(&ptx, Arch::Sm90a);
    // Two rows per thread, two shuffle steps, two reductions; each term once.
    assert_eq!(count(&ptx, "shfl.sync.bfly"), 8);
    assert_eq!(count(&ptx, "ex2.approx"), 128);
    assert_eq!((count(&ptx, "ld.local"), count(&ptx, "st.local")), (0, 0));
}

/// Ping-pong consumers hold all rows of a tile, and wait for their turn in addition to the ring.
#[test]
fn ping_pong() {
    let text = include_str!("../../../../benches/ladder/descriptors.block")
        .replace("256", "128")
        .replace("[32, 16, 1]", "[32, 32, 1]");
    for epilogue in ["%rounded = cast bf16 %sum", &ROWS.replace("256", "128")] {
        let mut k = kiln_block::text::parse(&text.replace("%rounded = cast bf16 %sum", epilogue)).unwrap();
        kiln_block::passes::run(&["persistent"], &mut k, Arch::Sm90a.machine()).unwrap();
        let mut k = roles::run(
            &k,
            Some(WarpRoles {
                consumers: 2,
                stages: 4,
                ping_pong: true,
                columns: None,
                rows: None,
                buffers: None,
                last: None,
            }),
            Arch::Sm90a.machine(),
        )
        .unwrap();
        kiln_block::passes::canonicalise(&mut k).unwrap();
        let ptx = compile(&k, Arch::Sm90a).unwrap();
        assemble(&ptx, Arch::Sm90a);
        assert_eq!(count(&ptx, "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"), 16);
        assert_eq!(count(&ptx, "mbarrier.init"), 4 + 4 + 2);
    }
}

/// A tile with more columns than the matmul: only the matmul's are read, multiplied and stored.
#[test]
fn columns_of_the_matmul() {
    let text = include_str!("../../../../benches/ladder/descriptors.block");
    for (columns, multiplied) in [(192, 192), (200, 256)] {
        let mut k = kiln_block::text::parse(text).unwrap();
        kiln_block::passes::run(&["persistent"], &mut k, Arch::Sm90a.machine()).unwrap();
        let crew = WarpRoles {
            consumers: 2,
            stages: 3,
            ping_pong: false,
            columns: Some(columns),
            rows: Some(24),
            buffers: None,
            last: None,
        };
        let mut k = roles::run(&k, Some(crew), Arch::Sm90a.machine()).unwrap();
        kiln_block::passes::canonicalise(&mut k).unwrap();
        let ptx = compile(&k, Arch::Sm90a).unwrap();
        assemble(&ptx, Arch::Sm90a);
        let wgmma = format!("wgmma.mma_async.sync.aligned.m64n{multiplied}k16.f32.bf16.bf16");
        assert_eq!(count(&ptx, &wgmma), 8);
        // Columns in panels of 64.
        assert_eq!(count(&ptx, "cp.async.bulk.tensor.2d.global.shared"), columns.div_ceil(64));
    }
}

/// A left operand that is read to registers, and a result that is stored transposed: no spills and no warning of
/// serialised matmuls. What is read is rounded before the wait for the matmuls that run meanwhile.
#[test]
fn left_operands_in_registers() {
    let text = include_str!("../../../block/tests/kernels/left_registers.block");
    for (ping_pong, blocks) in [(false, 1), (true, 2)] {
        let mut k = kiln_block::text::parse(text).unwrap();
        kiln_block::passes::run(&["persistent"], &mut k, Arch::Sm90a.machine()).unwrap();
        let crew =
            WarpRoles { consumers: 2, stages: 4, ping_pong, columns: None, rows: None, buffers: None, last: None };
        let mut k = roles::run(&k, Some(crew), Arch::Sm90a.machine()).unwrap();
        kiln_block::passes::canonicalise(&mut k).unwrap();
        let ptx = compile(&k, Arch::Sm90a).unwrap();
        assemble(&ptx, Arch::Sm90a);
        // A stage has four steps of K, for each 64 rows: the first stage, two of the loop, and the last one.
        let steps = 4 * 4 * blocks;
        assert_eq!(count(&ptx, "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32"), steps);
        // Registers of a thread.
        let (loads, rounds) = (count(&ptx, "ld.shared.b32"), count(&ptx, "cvt.rna.tf32.f32"));
        assert_eq!((loads, rounds), (4 * steps, 4 * steps));
        assert_eq!(count(&ptx, "selp.f32"), 4 * steps);
        let (_, rest) = ptx.text.split_once("wgmma.commit_group").unwrap();
        let (before, _) = rest.split_once("wgmma.wait_group").unwrap();
        assert_eq!(before.matches("cvt.rna.tf32.f32").count(), 16 * blocks, "{before}");
        // Sums, each of them once.
        assert_eq!(count(&ptx, "st.shared.b32"), 64 * blocks);
    }
}
