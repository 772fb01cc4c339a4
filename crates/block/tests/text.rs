//! Round trips of the text form, and its errors.
use kiln_block::{Arithmetic, BlockError, Const, Elem, Op, text::*, verify::verify};

fn kernels() -> Vec<(&'static str, &'static str)> {
    vec![
        ("vector_add", include_str!("kernels/vector_add.block")),
        ("softmax", include_str!("kernels/softmax.block")),
        ("layer_norm", include_str!("kernels/layer_norm.block")),
        ("matmul", include_str!("kernels/matmul.block")),
        ("attention", include_str!("kernels/attention.block")),
        ("pipeline", include_str!("kernels/pipeline.block")),
        ("warpgroups", include_str!("kernels/warpgroups.block")),
        ("odd_rows", include_str!("kernels/odd_rows.block")),
        ("multiply_adds", include_str!("kernels/multiply_adds.block")),
    ]
}

#[test]
fn round_trips() {
    for (name, source) in kernels() {
        let k = parse(source).unwrap_or_else(|e| panic!("{name}: {e}"));
        verify(&k).unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = print(&k);
        let again = parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        assert_eq!(k, again, "{text}");
        assert_eq!(k, k.compacted());
        assert_eq!(text, print(&again));
    }
}

#[test]
fn layouts_odd_names_and_bits() {
    let text = r#"kernel @"a b"(%"x y" as v0: ptr<f32> align 4, %n: i32, %"x y" as v2: ptr<i64> readonly align 8) grid [1, 2, 3] warps 1 cluster 2 ieee {
  v3 = const 0x7ff8000000000001 : f32[2] layout(registers [[1]], lanes [[0],[0],[0],[0],[0]], warps [])
  v4 = const -0.0 : f64
  v5 = const 0xfff0000000000000 : f16
  v6 = const -9223372036854775808 : i64
}
"#;
    let k = parse(text).unwrap();
    assert_eq!(print(&k), text);
    assert_eq!(k.arithmetic, Arithmetic::Ieee);
    let consts: Vec<_> = k.insts.iter().filter_map(|i| if let Op::Const(c) = i.op { Some(c) } else { None }).collect();
    assert_eq!(consts[0], Const::Float(f64::from_bits(0x7ff8000000000001)));
    assert_eq!(consts[1], Const::Float(-0.0));
    assert_eq!(k.ty(k.insts[2].results[0]).elem(), Some(Elem::F16));
}

#[test]
fn grids_and_facts_of_the_launch() {
    let source = "kernel @k(%p: ptr<f32> readonly align 8 {span32, noalias}, \
                  %n: i32 {div 16, equals -32, least -64, most 0}, %m: i64) grid launch warps 4 {
  v3 = num_programs 2 : i32
}
";
    let k = parse(source).unwrap();
    verify(&k).unwrap();
    assert_eq!(print(&k), source);
    let of = |fact: &str| parse(&source.replace("div 16", fact)).unwrap_err().to_string();
    assert!(of("odd").contains("known: div, equals, least, most, span32, noalias"), "{}", of("odd"));
    assert!(of("div").contains("a divisor is expected"), "{}", of("div"));
}

#[test]
fn loops_of_any_values_and_bits() {
    let source = "kernel @k(%p: ptr<f32> align 16, %n: i64, %u: u32) grid launch warps 1 {
  v3 = const 0 : i64
  v4 = const 1 : i64
  v5 = const 0xfff8000000000000 : f32
  v6 = for v7 : i64 in v3..%n step v4 with (v8 = %p : ptr<f32>) {
    v9 = ptr_add v8, v7 : ptr<f32>
    yield v9
  }
  v10, v11 = while with (v12 = v6 : ptr<f32>, v13 = v5 : f32) {
    v14 = load v12 : f32
    v15 = max_num v13, v14 : f32
    v16 = cmp lt v15, v14 : bool
    yield v16, v12, v15
  }
  v17 = bitcast v10 : i64
  v18 = mul_hi v17, v17 : i64
  v19 = bitcast v18 : ptr<u16>
  v20 = fma v11, v11, v11 : f32
  v21 = cast_to_zero bf16 v20 : bf16
  v22 = div_rn v20, v11 : f32
  v23 = sqrt_rn v22 : f32
}
";
    let k = parse(source).unwrap();
    verify(&k).unwrap();
    assert_eq!(parse(&print(&k)).unwrap(), k, "{}", print(&k));
    assert_eq!(print(&k), source);
    let short = source.replace("v10, v11 = while", "v10 = while");
    assert!(parse(&short).unwrap_err().to_string().contains("the loop carries 2 values and has 1 results"));
}

#[test]
fn atomics_regions_and_moves() {
    let source = "kernel @k(%p: ptr<i32> align 16, %v: i32) grid launch warps 1 {
  v2 = atomic_add acquire_release system %p, %v : i32
  atomic_min %p, %v
  v3 = atomic_exchange release block %p, v2 : i32
  v4 = atomic_compare_swap acquire %p, v2, v3 : i32
  v5 = splat v4 : i32[8]
  v6, v7 = scan_by reverse v5, v5 axis 0 with (v8 : i32, v9 : i32, v10 : i32, v11 : i32) : i32[8], i32[8] {
    v12 = add v8, v11 : i32
    yield v12, v9
  }
  v13 = join v6, v7 : i32[8,2]
  v14 = split 1 v13 : i32[8]
  v15 = cat v14, v6 axis 0 : i32[16]
  v16 = gather v15, v14 axis 0 : i32[8]
  v17 = reduce_by v16 axis 0 with (v18 : i32, v19 : i32) : i32 {
    yield v19
  }
}
";
    let k = parse(source).unwrap();
    verify(&k).unwrap();
    assert_eq!(print(&k), source);
    assert_eq!(parse(&print(&k)).unwrap(), k);
}

#[test]
fn reports() {
    let source = "kernel @k(%x: ptr<f32> align 16) grid launch warps 1 {
  v1 = const true : bool[8]
  v2 = const 1.0 : f32[4,2]
  print \"a \\\"text\\\"\\n\" v2
  print \"masked\" v1, v1
  print \"an address\" %x
  print \"alone\"
  assert \"all hold\" v1
  assert \"all hold\" v1, v1
}
";
    let k = parse(source).unwrap();
    verify(&k).unwrap();
    assert_eq!(print(&k), source);
    assert_eq!(parse(&print(&k)).unwrap(), k);
}

#[test]
fn bytes_asked_for() {
    let source = "kernel @k(%x: ptr<f32> readonly align 16) grid [1, 1, 1] warps 1 {\n  prefetch %x bytes 64\n}\n";
    let k = parse(source).unwrap();
    verify(&k).unwrap();
    assert_eq!(print(&k), source);
    let many = "kernel @k(%x: ptr<f32>) grid [1,1,1] warps 1 { %p = splat %x : ptr<f32>[8]\n prefetch %p bytes 64 }";
    assert!(verify(&parse(many).unwrap()).unwrap_err().to_string().contains("one pointer"));
}

#[test]
fn checks_of_indices() {
    let source = "kernel @k(%x: ptr<i64>) grid [1, 1, 1] warps 1 {
  %i = iota : i32[8]
  %w = cast i64 %i : i64[8]
  %b = cmp lt %i, %i : bool[8]
  check %x, %b, %w site 7
  check %x, %b, %w, %b site 0
}
";
    let k = parse(source).unwrap();
    verify(&k).unwrap();
    let text = print(&k);
    assert_eq!(parse(&text).unwrap(), k, "{text}");
    assert!(text.contains("site 7") && text.contains("site 0"), "{text}");
    for (from, to, says) in [
        ("ptr<i64>", "ptr<i64> readonly", "readonly"),
        ("ptr<i64>", "ptr<f32>", "one pointer to an i64"),
        ("check %x, %b, %w site", "check %x, %b, %i site", "the index"),
        ("check %x, %b, %w site", "check %x, %i, %w site", "the condition"),
        ("check %x, %b, %w, %b site", "check %x, %b, %w, %i site", "the mask"),
    ] {
        let wrong = verify(&parse(&source.replace(from, to)).unwrap()).unwrap_err().to_string();
        assert!(wrong.contains(says), "{to}: {wrong}");
    }
}

#[test]
fn numbers_drawn_from_a_counter() {
    let source = "kernel @k(%c: ptr<i32>) grid [4, 1, 1] warps 1 {
  %t = program_id 0 : i32
  %z = const 0 : i32
  %n = const 9 : i32
  %s = alloc_shared : shared<i32[], 2, plain>
  while with (%i = %t : i32, %k = %z : i32) {
    %d = atomic_inc %c, %n : i32
    shared_store %s, %k, %d
    %e = shared_load %s, %k : i32
    %m = cmp lt %e, %n : bool
    yield %m, %e, %k
  }
}
";
    let k = parse(source).unwrap();
    verify(&k).unwrap();
    let text = print(&k);
    assert_eq!(parse(&text).unwrap(), k, "{text}");
    let mut clean = k.clone();
    kiln_block::passes::canonicalise(&mut clean).unwrap();
    assert!(print(&clean).contains("atomic_inc"), "{}", print(&clean));
    for (from, to, says) in [
        ("ptr<i32>", "ptr<i32> readonly", "readonly"),
        ("ptr<i32>", "ptr<i64>", "ptr<i32> is needed"),
        ("yield %m, %e, %k", "yield %e, %e, %k", "the condition"),
        ("yield %m, %e, %k", "yield %m, %e", "yielded values"),
    ] {
        let wrong = verify(&parse(&source.replace(from, to)).unwrap()).unwrap_err().to_string();
        assert!(wrong.contains(says), "{to}: {wrong}");
    }
}

#[test]
fn rows_in_a_run() {
    let k = parse(
        "kernel @k(%x: f32) grid [1,1,1] warps 1 { %a = splat %x : f32[32]\n \
         %b = unpack %a row 7 : f32[4,8]\n %c = pack %b row 7 : f32[32] }",
    )
    .unwrap();
    verify(&k).unwrap();
    assert!(print(&k).contains("v2 = unpack v1 row 7 : f32[4,8]\n  v3 = pack v2 row 7 : f32[32]"), "{}", print(&k));
    let wide =
        parse("kernel @k(%x: f32) grid [1,1,1] warps 1 { %a = splat %x : f32[32]\n %b = unpack %a row 9 : f32[4,8] }")
            .unwrap();
    assert!(verify(&wide).unwrap_err().to_string().contains("4 rows of 9 elements"));
}

/// Gaps in the numbering of values close up; their order stays.
#[test]
fn gaps_close() {
    let k = parse("kernel @k() grid [1,1,1] warps 4 { v9 = const 1 : i32\n v7 = neg v9 : i32 }").unwrap();
    assert!(print(&k).contains("v1 = const 1 : i32\n  v0 = neg v1 : i32\n"), "{}", print(&k));
}

#[test]
fn errors_have_a_place() {
    let body = |s: &str| format!("kernel @k(%x: ptr<f32>) grid [1, 1, 1] warps 4 {{\n{s}\n}}");
    for (source, at, says) in [
        ("", (1, 1), "kernel"),
        (&body("  %a = frob %x : f32"), (2, 8), "there is no op"),
        (&body("  %a = neg %b : f32"), (2, 12), "`%b` is not defined"),
        (&body("%a = const 1 : i32\n%a = const 1 : i32"), (3, 1), "line 2"),
        (&body("%a = const 1 : i33"), (2, 16), "known: f64"),
        (&body("%a = const 1x : i32"), (2, 12), "not a constant"),
        (&body("%a = const 1 : i32 %b = const 1 : i32"), (2, 20), "one op a line"),
        (&body("%a = const 1"), (3, 1), "type"),
        ("kernel @k() grid [1, 1] warps 4 {}", (1, 25), "three"),
        ("kernel @k() grid [1, 1, 1] warps 4 {", (1, 37), "add `}`"),
        ("kernel @\"k", (1, 11), "closed"),
        ("§", (1, 1), "no meaning"),
    ] {
        match parse(source) {
            Err(BlockError::Parse { line, column, what }) => {
                assert!((line, column) == at && what.contains(says), "{source}\n{line}:{column}: {what}");
            }
            other => panic!("{source}\n{other:?}"),
        }
    }
    let out_of_scope =
        body("%t = const true : bool\n%r = if %t : f32 { %a = const 1.0 : f32\n yield %a } else { yield %a }");
    assert!(parse(&out_of_scope).unwrap_err().to_string().contains("yield it"));
    let deep = body(&format!("%t = const true : bool\n{}", "if %t {\n".repeat(100_000)));
    assert!(parse(&deep).unwrap_err().to_string().contains("nested deeper"));
}

/// Truncated and scrambled texts give errors, never panics.
#[test]
fn broken_texts() {
    for (_, source) in kernels() {
        let chars: Vec<char> = source.chars().collect();
        for cut in (0..chars.len()).step_by(17) {
            let text: String = chars[..cut].iter().collect();
            assert!(parse(&text).is_err());
            let text: String = chars.iter().enumerate().filter(|(i, _)| i % 977 != cut % 977).map(|(_, c)| c).collect();
            if let Ok(k) = parse(&text) {
                _ = verify(&k);
                _ = print(&k);
            }
        }
    }
}
