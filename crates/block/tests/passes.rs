//! The results of the passes on short programs.
use kiln_block::{
    passes,
    text::{parse, print},
};
use kiln_machine::Arch;

/// The body after passes; `%x` is read-only.
fn after(names: &[&str], lines: &str) -> String {
    let source = format!("kernel @k(%x: ptr<f32> readonly, %y: ptr<f32>) grid [4, 1, 1] warps 4 {{\n{lines}\n}}");
    let mut k = parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    kiln_block::verify::verify(&k).unwrap_or_else(|e| panic!("{e}\n{source}"));
    passes::run(names, &mut k, Arch::Sm90a.machine()).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let text = print(&k);
    text.lines().skip(1).filter(|l| *l != "}").map(|l| format!("{l}\n")).collect()
}
fn check(names: &[&str], lines: &str, expected: &str) {
    let got = after(names, lines);
    assert_eq!(got.trim_end(), expected.trim_matches('\n'), "after {names:?}:\n{got}");
}

#[test]
fn a_mask_that_always_holds_goes() {
    check(
        passes::CANONICAL,
        "%p = program_id 0 : i32\n%n = const 8 : i32\n%s = mul %p, %n : i32\n%i = iota : i32[8]\n%ss = splat %s : i32[8]
        %at = add %ss, %i : i32[8]\n%end = const 32 : i32[8]\n%in = cmp lt %at, %end : bool[8]
        %xs = splat %x : ptr<f32>[8]\n%xp = ptr_add %xs, %at : ptr<f32>[8]\n%v = load %xp, %in : f32[8]
        %ys = splat %y : ptr<f32>[8]\n%yp = ptr_add %ys, %at : ptr<f32>[8]\nstore %yp, %v, %in",
        "
  v2 = program_id 0 : i32
  v3 = const 8 : i32
  v4 = mul v2, v3 : i32
  v5 = iota : i32[8]
  v6 = splat v4 : i32[8]
  v7 = add v6, v5 : i32[8]
  v8 = splat %x : ptr<f32>[8]
  v9 = ptr_add v8, v7 : ptr<f32>[8]
  v10 = load v9 : f32[8]
  v11 = splat %y : ptr<f32>[8]
  v12 = ptr_add v11, v7 : ptr<f32>[8]
  store v12, v10",
    );
}

#[test]
fn small_whole_floats_fold() {
    check(
        passes::CANONICAL,
        "%a = const 3.0 : f32\n%i = cast i32 %a : i32\n%p = ptr_add %y, %i : ptr<f32>\n%h = const 0.0 : f16
        %f = cast f32 %h : f32\nstore %p, %f\n%b = const 2.5 : f32\n%j = cast i32 %b : i32\n%q = ptr_add %y, %j : ptr<f32>
        store %q, %b",
        "
  v2 = const 3 : i32
  v3 = ptr_add %y, v2 : ptr<f32>
  v4 = const 0.0 : f32
  store v3, v4
  v5 = const 2.5 : f32
  v6 = cast i32 v5 : i32
  v7 = ptr_add %y, v6 : ptr<f32>
  store v7, v5",
    );
}

/// Columns of a tile by its width are the tile's number, and what is loaded from there is one scalar.
#[test]
fn what_is_the_same_for_all_elements_is_a_scalar() {
    check(
        passes::CANONICAL,
        "%p = program_id 0 : i32\n%m = load %x : f32\n%k = cast i32 %m : i32\n%t = rem %p, %k : i32\n%n = const 8 : i32
        %s = mul %t, %n : i32\n%i = iota : i32[8]\n%ss = splat %s : i32[8]\n%at = add %ss, %i : i32[8]
        %width = const 8 : i32[8]\n%tile = div %at, %width : i32[8]\n%pitch = splat %k : i32[8]
        %row = mul %tile, %pitch : i32[8]\n%xs = splat %x : ptr<f32>[8]\n%xp = ptr_add %xs, %row : ptr<f32>[8]
        %v = load %xp : f32[8]\n%ys = splat %y : ptr<f32>[8]\n%yp = ptr_add %ys, %at : ptr<f32>[8]\nstore %yp, %v",
        "
  v2 = program_id 0 : i32
  v3 = load %x : f32
  v4 = cast i32 v3 : i32
  v5 = rem v2, v4 : i32
  v6 = const 8 : i32
  v7 = mul v5, v6 : i32
  v8 = iota : i32[8]
  v9 = splat v7 : i32[8]
  v10 = add v9, v8 : i32[8]
  v14 = mul v5, v4 : i32
  v15 = ptr_add %x, v14 : ptr<f32>
  v16 = load v15 : f32
  v11 = splat v16 : f32[8]
  v12 = splat %y : ptr<f32>[8]
  v13 = ptr_add v12, v10 : ptr<f32>[8]
  store v13, v11",
    );
}

#[test]
fn integers_fold() {
    check(
        passes::CANONICAL,
        "%a = const 6 : i32\n%b = const 7 : i32\n%c = mul %a, %b : i32\n%z = sub %c, %c : i32\n%d = add %c, %z : i32
        %p = ptr_add %y, %d : ptr<f32>\n%q = ptr_add %p, %z : ptr<f32>\n%f = cast f32 %a : f32\nstore %q, %f",
        "
  v2 = const 42 : i32
  v3 = ptr_add %y, v2 : ptr<f32>
  v4 = const 6.0 : f32
  store v3, v4",
    );
}

#[test]
fn known_loops_and_branches_come_apart() {
    check(
        passes::CANONICAL,
        "%z = const 0 : i32\n%o = const 1 : i32\n%f = const 2.0 : f32\n%t = cmp eq %z, %z : bool
        %r = for %n in %z..%o step %o with (%c = %f : f32) {\n%s = if %t : f32 {\n%e = add %c, %c : f32\nyield %e\n} else {\nyield %c\n}\nyield %s\n}
        %w = for %m in %o..%z step %o with (%d = %r : f32) {\n%u = add %d, %f : f32\nyield %u\n}\nstore %y, %w",
        "
  v2 = const 2.0 : f32
  v3 = add v2, v2 : f32
  store %y, v3",
    );
}

#[test]
fn invariants_leave_loops_and_unused_values_go() {
    check(
        &["cse", "licm", "dce"],
        "%z = const 0 : i32\n%h = const 9 : i32\n%o = const 1 : i32\n%f = const 2.0 : f32
        %r, %unused = for %n in %z..%h step %o with (%c = %f : f32, %d = %f : f32) {
        %two = const 2.0 : f32\n%v = load %x : f32\n%w = mul %v, %two : f32\n%a = add %c, %w : f32\n%b = add %d, %w : f32\nyield %a, %b\n}
        store %y, %r",
        "
  v2 = const 0 : i32
  v3 = const 9 : i32
  v4 = const 1 : i32
  v5 = const 2.0 : f32
  v8 = load %x : f32
  v9 = mul v8, v5 : f32
  v11 = for v6 in v2..v3 step v4 with (v7 = v5 : f32) {
    v10 = add v7, v9 : f32
    yield v10
  }
  store %y, v11",
    );
}

#[test]
fn layouts_come_last() {
    let mut k = parse(include_str!("kernels/matmul.block")).unwrap();
    let all: Vec<&str> = passes::PASSES.iter().map(|p| p.0).collect();
    passes::run(&all, &mut k, Arch::Sm90a.machine()).unwrap();
    let text = print(&k);
    assert!(text.contains("layout(registers"), "{text}");
    assert!(parse(&text).as_ref() == Ok(&k), "{text}");
    assert!(
        passes::run(&["frob"], &mut k, Arch::Sm90a.machine()).unwrap_err().to_string().contains("known: wide_offsets")
    );
}
