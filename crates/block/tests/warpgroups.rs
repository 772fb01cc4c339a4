//! The results of the warpgroup passes on short programs, and what they refuse.
use kiln_block::{
    Arithmetic, BlockProgram, Op, passes,
    text::{parse, print},
    verify::verify,
};
use kiln_machine::Arch;

const POINTERS: &str = include_str!("../../../benches/ladder/pointers.block");
const DESCRIPTORS: &str = include_str!("../../../benches/ladder/descriptors.block");

fn after(names: &[&str], source: &str) -> Result<BlockProgram, String> {
    let mut k = parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    verify(&k).unwrap_or_else(|e| panic!("{e}\n{source}"));
    passes::run(names, &mut k, Arch::Sm90a.machine()).map_err(|e| e.to_string())?;
    verify(&k).unwrap_or_else(|e| panic!("{e}\n{}", print(&k)));
    passes::canonicalise(&mut k).map_err(|e| e.to_string())?;
    assert_eq!(parse(&print(&k)), Ok(k.clone()));
    Ok(k)
}

fn count(k: &BlockProgram, op: impl Fn(&Op) -> bool) -> usize {
    let mut n = 0;
    k.walk(&mut |_, d| n += usize::from(op(&d.op)));
    n
}

#[test]
fn pointers_and_descriptors_come_to_the_same() {
    let from = |source, names: &[&str]| {
        let k = after(names, source).unwrap();
        (
            k.grid,
            k.warps,
            k.cluster,
            count(&k, |op| matches!(op, Op::TmaLoad { .. })),
            count(&k, |op| *op == Op::TmaStore),
        )
    };
    let wanted = ([132, 1, 1].into(), 12, 2, 3, 4);
    assert_eq!(from(POINTERS, &["warpgroups"]), wanted);
    assert_eq!(from(POINTERS, &["tensor_maps", "clusters", "roles"]), wanted);
    assert_eq!(from(DESCRIPTORS, &["clusters", "roles"]), wanted);
}

#[test]
fn passes_keep_the_arithmetic() {
    let exact = POINTERS.replacen(" {\n", " ieee {\n", 1);
    for names in [&["warpgroups"][..], &["tensor_maps", "clusters", "roles"]] {
        assert_eq!(after(names, &exact).unwrap().arithmetic, Arithmetic::Ieee, "{names:?}");
    }
}

#[test]
fn pointers_become_descriptors() {
    let k = after(&["tensor_maps"], POINTERS).unwrap();
    let text = print(&k);
    assert!(text.contains("%a: desc<bf16[128,64], b128> readonly of [4096, 4096] strides [4096, 1]"), "{text}");
    assert!(text.contains("%c: desc<bf16[128,256], b128> of [4096, 4096] strides [4096, 1]"), "{text}");
    assert_eq!(count(&k, |op| matches!(op, Op::Load(..) | Op::Store(_) | Op::PtrAdd)), 0, "{text}");
}

/// Every pass gives a program that the next one takes, for any number of blocks.
#[test]
fn steps_stand_alone() {
    for (names, grid, warps) in [
        (&["roles"][..], [32, 16, 1], 12),
        (&["persistent"], [132, 1, 1], 8),
        (&["persistent", "roles"], [132, 1, 1], 12),
        (&["clusters"], [132, 1, 1], 8),
    ] {
        let k = after(names, DESCRIPTORS).unwrap();
        assert_eq!((k.grid, k.warps), (grid.into(), warps), "{names:?}\n{}", print(&k));
    }
}

#[test]
fn refusals_say_why() {
    let refused = |source: &str| after(&["roles"], source).unwrap_err();
    let with = |old: &str, new: &str| {
        assert!(DESCRIPTORS.contains(old), "{old}");
        DESCRIPTORS.replace(old, new)
    };
    for (source, why) in [
        (POINTERS.to_string(), "= load v"),
        (with("%hi step %step", "%hi step %m"), "not a positive constant"),
        (with("%lo..%hi", "%hi..%lo"), "no iteration"),
        (
            with("%zero = const 0.0 : f32[128,256]", "%one = cast f32 %m : f32\n%zero = splat %one : f32[128,256]"),
            "start from",
        ),
        (with("yield %next", "%more = add %next, %next : f32[128,256]\nyield %more"), "changed between two matmuls"),
        (
            DESCRIPTORS
                .replace("bf16[128,64], b128", "bf16[128,32], b64")
                .replace("bf16[128,64]", "bf16[128,32]")
                .replace("bf16[64,256]", "bf16[32,256]"),
            "shorter than 128 bytes",
        ),
        (DESCRIPTORS.replace("[128,", "[32,"), "not a multiple of 64 rows"),
        (
            with("%rounded = cast", "%again = reshape %sum : f32[128,256]\n%rounded = cast")
                .replace("bf16 %sum", "bf16 %again"),
            "slice by slice",
        ),
    ] {
        let said = refused(&source);
        assert!(said.contains(why), "{why}:\n{said}");
    }
    assert!(after(&["clusters", "persistent"], DESCRIPTORS).unwrap_err().contains("already"));
}

/// Whole rows of a tensor core's sums are combined from their slices; other rows are refused.
#[test]
fn rows_are_reduced_in_their_tile() {
    let softmax = "%most = reduce max %sum axis 1 : f32[128]
  %column = expand_dims %most axis 1 : f32[128,1]
  %wide = broadcast %column : f32[128,256]
  %apart = sub %sum, %wide : f32[128,256]
  %rounded = cast bf16 %apart";
    let rows = DESCRIPTORS.replace("%rounded = cast bf16 %sum", softmax);
    let k = after(&["roles"], &rows).unwrap();
    let text = print(&k);
    assert_eq!(count(&k, |op| matches!(op, Op::Reduce { .. })), 1, "{text}");
    assert_eq!(count(&k, |op| matches!(op, Op::Part { .. })), 4, "{text}");
    let refused = |old: &str, new: &str| after(&["roles"], &rows.replace(old, new)).unwrap_err();
    let columns = refused(
        "axis 1 : f32[128]\n  %column = expand_dims %most axis 1 : f32[128,1]",
        "axis 0 : f32[256]\n  %column = expand_dims %most axis 0 : f32[1,256]",
    );
    assert!(columns.contains("row by row"), "{columns}");
    let others = refused("reduce max %sum", "reduce max %zero");
    assert!(others.contains("tensor core's sums"), "{others}");
}
