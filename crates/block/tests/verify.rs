//! Invalid programs, and what the verifier says.
use kiln_block::{Inst, Value, text::parse, verify::verify};

/// `%x` is read-only, `%y` is not; the lines are the body of a kernel of four warps.
fn message(lines: &str) -> String {
    let source = format!(
        "kernel @k(%x: ptr<f32> readonly, %y: ptr<f32>, %d: desc<bf16[64,64], b128>) grid [4, 1, 1] warps 4 {{\n\
         {lines}\n}}"
    );
    let k = parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    verify(&k).map_or_else(|e| e.to_string(), |()| "fine".into())
}

#[test]
fn every_rule_speaks() {
    let start = "%i = const 0 : i32\n%t = const true : bool\n%f = const 0.0 : f32\n%b = iota : i32[8]\n\
                 %m = const 1.0 : f32[8,4]\n";
    for (lines, says) in [
        ("", "fine"),
        ("%v = iota : i32[12]", "powers of two"),
        ("%v = iota : f32[8]", "i32[n] is needed"),
        ("%v = const 1 : f32", "write 1.0"),
        ("%v = const 300 : u8", "does not fit"),
        ("%v = program_id 3 : i32", "0, 1 or 2"),
        ("%v = splat %b : i32[8]", "a scalar is needed"),
        ("%v = broadcast %b : i32[4]", "axes of size 1"),
        ("%v = expand_dims %b axis 2 : i32[8,1]", "axis 2"),
        ("%v = reshape %b : i32[4]", "different numbers"),
        ("%v = permute %m [0,0] : f32[8,8]", "no permutation"),
        ("%v = permute %m [1,0] : f32[8,4]", "f32[4,8] is needed"),
        ("%v = exp %i : i32", "not defined on i32"),
        ("%v = add %i, %f : i32", "the second operand"),
        ("%v = add %t, %t : bool", "not defined on bool"),
        ("%v = cmp lt %i, %i : i32", "bool is needed"),
        ("%v = select %t, %b, %b : i32[8]", "the condition"),
        ("%v = asm \"mov.b32 $0, $1;\" \"=r,r\" %b : f32[8]", "fine"),
        ("asm volatile \"bar.sync 0;\" \"\"", "there is no result"),
        ("%v = asm \"mov.b32 $0, $1;\" \"=r,r\" %m : f32[8]", "of another shape"),
        ("%v = asm \"mov.b32 $0, $1;\" \"=v,v\" %b : f32[8]", "no constraint of a GPU's assembly"),
        ("%v = asm \"mov.b32 $0, $1;\" \"=r\" %b : f32[8]", "0 registers of operands; 1 expected"),
        ("%v = asm \"mov.b32 $0, $1;\" \"=r,r\" pack 2 %b : f32[8]", "1 registers of results; 2 expected"),
        ("%v = asm \"mov.b32 $0, $1;\" \"=r,r\" pack 3 %b : f32[8]", "a power of two to 32"),
        ("%v = ptr_add %x, %b : ptr<f32>", "the offset"),
        ("%v = multiple_of %f [16] : f32", "integers or pointers are needed"),
        ("%v = multiple_of %i [16,16] : i32", "1 expected"),
        ("%v = multiple_of %i [0] : i32", "a divisor is 0"),
        ("%v = multiple_of %i [16] : i64", "i32 is needed"),
        ("%v = multiple_of %x [16] : ptr<f32>", "fine"),
        ("%v = bitcast %i : f64", "has not the bits of f64"),
        ("%v = bitcast %x : i32", "has not the bits of i32"),
        ("%v = bitcast %x : f64", "for pointers a pointer or i64"),
        ("%v = bitcast %b : f32[4]", "has not the bits"),
        ("%v = bitcast %x : ptr<i8>", "fine"),
        ("%v = fma %i, %i, %i : i32", "not defined on i32"),
        ("%v = fma %f, %f, %m : f32", "the addend"),
        ("%v = max_num %i, %i : i32", "not defined on i32"),
        ("%v = mul_hi %f, %f : f32", "not defined on f32"),
        ("%h = cast f16 %f : f16\n%v = div_rn %h, %h : f16", "not defined on f16"),
        ("%h = cast f16 %f : f16\n%v = sqrt_rn %h : f16", "not defined on f16"),
        ("%v = cast_to_zero f64 %f : f64", "a float to a smaller one is"),
        ("%v = const -1 : u32", "does not fit"),
        ("%v = const -1 : u64", "fine"),
        ("%v = load %x, %i : f32", "the mask"),
        ("%v = load %i : f32", "a pointer is needed"),
        ("store %x, %f", "readonly"),
        ("%v = atomic_add %x, %f : f32", "readonly"),
        ("%v = atomic_max %y, %f : f32", "no such update"),
        ("print \"d\" %d", "the operand"),
        ("print \"m\" %b, %t", "the mask"),
        ("assert \"b\" %b", "the condition"),
        ("%c = const true : bool[8]\nassert \"c\" %c, %t", "the mask"),
        ("%v = atomic_xor %y, %f : f32", "no such update"),
        ("%v = atomic_add acquire system %y, %f : i32", "the result is i32; f32 is needed"),
        ("%v = atomic_compare_swap %x, %f, %f : f32", "readonly"),
        ("%v = atomic_compare_swap %y, %i, %f : f32", "the expected value"),
        ("%v = atomic_compare_swap %y, %f, %i : f32", "the new value"),
        (
            "%p = bitcast %y : ptr<i8>\n%h = cast i8 %i : i8\n%v = atomic_compare_swap %p, %h, %h : i8",
            "16, 32 or 64 bits",
        ),
        (
            "%p = ptr_add %x, %i : ptr<f32>\n%q = splat %p : ptr<f32>[8]\n%v = const 0.0 : f32[8]\nstore %q, %v",
            "parameter x",
        ),
        ("%v = reduce sum %m axis 2 : f32[8]", "axis 2"),
        ("%v = reduce argmax %m axis 1 : f32[8]", "i32[8] is needed"),
        ("%v = dot %m, %m, %m : f32[8,4]", "[M,K] by [K,N]"),
        ("%v = reduce_by %m axis 1 with (%p : f32, %q : f32) : f32[8] {\nyield %p\n}", "fine"),
        ("%v = reduce_by %m axis 2 with (%p : f32, %q : f32) : f32[8] {\nyield %p\n}", "axis 2"),
        ("%v = reduce_by %m axis 1 with (%p : f32) : f32[8] {\nyield %p\n}", "1 parameters of the region; 2 expected"),
        ("%v = reduce_by %m axis 1 with (%p : f32, %q : i32) : f32[8] {\nyield %p\n}", "a parameter of the region"),
        ("%v = reduce_by %m axis 1 with (%p : f32, %q : f32) : f32[8] {\nyield %i\n}", "a yielded value"),
        (
            "%v = reduce_by %m axis 1 with (%p : f32, %q : f32) : f32[8] {\n%l = load %x : f32\nyield %l\n}",
            "neither accesses nor branches",
        ),
        ("%v = reduce_by %m, %b axis 0 with (%p : f32, %q : f32) : f32[8] {\nyield %p\n}", "1 results; 2 expected"),
        ("%v = scan_by reverse %m axis 0 with (%p : f32, %q : f32) : f32[4] {\nyield %p\n}", "a result is f32[4]"),
        ("%v = join %b, %m : i32[8,2]", "the second operand"),
        ("%v = join %b, %b : i32[2,8]", "i32[8,2] is needed"),
        ("%v = split 0 %m : f32[8]", "a last axis of 2 is needed"),
        ("%j = join %b, %b : i32[8,2]\n%v = split 2 %j : i32[8]", "0 or 1"),
        ("%v = cat %b, %b axis 1 : i32[16]", "axis 1"),
        ("%v = cat %b, %b axis 0 : i32[8]", "i32[16] is needed"),
        ("%v = gather %m, %b axis 0 : f32[8]", "i32 of the sizes of f32[8,4]"),
        ("%v = gather %b, %b axis 1 : i32[8]", "axis 1"),
        ("for %n in %i..%i step %i {\nyield\n}", "must be positive"),
        ("%o = const 1 : i32\nfor %n in %i..%i step %o {\n}", "must end in `yield`"),
        ("for %n in %f..%f step %f {\nyield\n}", "an i32 or i64 scalar is needed"),
        ("%o = const 1 : i64\nfor %n in %i..%i step %o {\nyield\n}", "the step is i64; i32 is needed"),
        ("%o = const 1 : i64\nfor %n in %o..%o step %o {\nyield\n}", "the index is i32; i64 is needed"),
        ("%r = while with (%c = %f : f32) {\nyield %t, %i\n}", "a yielded value is i32"),
        ("while with (%c = %f : f32) {\nyield %t, %c\n}", "in a loop without results"),
        ("%r = while with (%c = %x : ptr<f32>) {\nyield %t, %c\n}\nstore %r, %f", "parameter x is readonly"),
        ("%o = const 1 : i32\n%r = for %n in %i..%i step %o with (%c = %f : f32) {\nyield %n\n}", "a yielded value"),
        (
            "%o = const 1 : i32\nfor %n in %i..%i step %o {\n%s = alloc_shared : shared<f32[8], 1, plain>\nyield\n}",
            "outside",
        ),
        ("yield", "ends regions"),
        ("%v = tile_load %d, %i : bf16[64,64]", "1 starts"),
        ("%s = alloc_shared : shared<bf16[64,4], 2, b64>", "no multiple of 16"),
        (
            "%s = alloc_shared : shared<i32[8], 2, plain>\n%two = const 2 : i32\nshared_store %s, %two, %b",
            "stage 2 of 2",
        ),
        ("barrier_arrive %i, %i", "a barrier is needed"),
        ("%w = alloc_barriers : barrier<2, 1>\nbarrier_arrive multicast %w, %i", "needs a cluster"),
        ("roles one warps 2 registers 0 {\nyield\n}", "2 warps and the kernel 4"),
        ("roles one warps 4 registers 0 {\ncluster_sync\nyield\n}", "move it out"),
    ] {
        let got = message(&format!("{start}{lines}"));
        assert!(got.contains(says), "{lines}\nsays: {got}\nexpected: {says}");
    }
}

/// What is said of parameters and grids of the launch.
#[test]
fn values_of_the_launch() {
    let of = |params: &str, rest: &str| {
        let source = format!("kernel @k({params}) {rest} {{\n}}");
        let k = parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
        verify(&k).map_or_else(|e| e.to_string(), |()| "fine".into())
    };
    for (params, says) in [
        ("%n: i32 {div 16, least 0, most 4096}", "fine"),
        ("%b: bool {equals 1}", "fine"),
        ("%p: ptr<f32> {span32, noalias}", "fine"),
        ("%p: ptr<f32> {div 16}", "facts of integers and bools, not of ptr<f32>; pointers have `align`"),
        ("%x: f32 {least 0}", "facts of integers and bools, not of f32"),
        ("%n: i32 {span32}", "facts of pointers, not of i32"),
        ("%n: i32 {noalias}", "facts of pointers, not of i32"),
        ("%n: i32 {div 0}", "div 0; a positive number"),
        ("%n: i32 {div -4}", "div -4; a positive number"),
        ("%n: i32 {equals 7, div 2}", "no i32 is as the facts say"),
        ("%n: i32 {equals 7, most 6}", "no i32 is as the facts say"),
        ("%n: i32 {least 4, most 3}", "no i32 is as the facts say"),
        ("%n: i8 {most 200}", "no i8 is as the facts say"),
        ("%b: bool {equals 2}", "no bool is as the facts say"),
    ] {
        let got = of(params, "grid launch warps 4");
        assert!(got.contains(says), "{params}\nsays: {got}\nexpected: {says}");
    }
    for rest in ["grid launch warps 4 blocks 2", "grid launch warps 4 cluster 2"] {
        assert!(of("", rest).contains("neither clusters nor blocks"), "{rest}");
    }
    assert!(message("%v = num_programs 3 : i32").contains("0, 1 or 2"));
}

#[test]
fn matmuls_in_flight() {
    let start = "%z = const 0 : i32\n%s = alloc_shared : shared<bf16[64,64], 1, b128>\n%n = const 0.0 : f32[64,64]
        %t = wgmma %s, %z, %s, %z, %n : token<f32[64,64]>\n";
    for (lines, says) in [
        ("wgmma_commit\n%v = wgmma_wait 0 %t : f32[64,64]", "fine"),
        ("%v = wgmma_wait 0 %t : f32[64,64]", "before `wgmma_commit`"),
        ("wgmma_commit\n%v = exp %t : f32[64,64]", "after `wgmma_wait`"),
        (
            "%u = wgmma %s, %z, %s, %z, %t : token<f32[64,64]>\nwgmma_commit\n%v = wgmma_wait 0 %t : f32[64,64]",
            "already",
        ),
    ] {
        let got = message(&format!("{start}{lines}"));
        assert!(got.contains(says), "{lines}\nsays: {got}\nexpected: {says}");
    }
}

/// A stage that threads have read is handed back after a fence, in the same region.
#[test]
fn reads_of_copied_tiles() {
    let start = "%z = const 0 : i32\n%o = const 1 : i32\n%w = alloc_barriers : barrier<1, 1>
        %s = alloc_shared : shared<bf16[64,64], 1, b128>\n%p = alloc_shared : shared<bf16[64,64], 1, b128>
        tma_load %s, %z, %d, %w, %z, %z, %z\n";
    let read = "%v = shared_load %s, %z : bf16[64,64]";
    let arrive = "barrier_arrive %w, %z";
    let looped = |body: &str| format!("for %n in %z..%o step %o {{\n{body}\nyield\n}}\n");
    for (lines, says) in [
        (format!("{read}\nfence_async\n{arrive}"), "fine"),
        (format!("{arrive}\n{read}\nfence_async"), "fine"),
        (format!("%v = shared_load %p, %z : bf16[64,64]\n{arrive}"), "fine"),
        (looped(&format!("{read}\nfence_async\n{arrive}")), "fine"),
        (format!("{read}\n{arrive}"), "may overtake"),
        (format!("fence_async\n{read}\nsync\n{arrive}"), "may overtake"),
        (looped(read), "another region"),
        (format!("{read}\n{}", looped(arrive)), "another region"),
    ] {
        let got = message(&format!("{start}{lines}"));
        assert!(got.contains(says), "{lines}\nsays: {got}\nexpected: {says}");
    }
}

#[test]
fn grids_that_are_too_large() {
    use kiln_block::verify::grid;
    for fits in [[0, 1, 1], [(1 << 31) - 1, 1, 1], [1 << 30, 1 << 22, 1]] {
        assert_eq!(grid(fits.into()), Ok(()));
    }
    for large in [[1 << 31, 1, 1], [1, 1, 1 << 40], [1 << 30, 1 << 23, 1], [1 << 30, 1 << 30, 1 << 30]] {
        assert!(grid(large.into()).is_err_and(|what| what.contains("fewer than 2^31")), "{large:?}");
    }
}

/// Invalid programs that no text gives.
#[test]
fn broken_arenas() {
    let good = parse("kernel @k() grid [1, 1, 1] warps 4 {\nv0 = const 1 : i32\nv1 = neg v0 : i32\n}").unwrap();
    assert_eq!(verify(&good), Ok(()));
    let mut k = good.clone();
    k.body.insts.swap(0, 1);
    assert!(verify(&k).unwrap_err().to_string().contains("v1 = neg v0 : i32: v0 is used before"));
    let mut k = good.clone();
    k.body.insts.push(Inst(0));
    assert!(verify(&k).unwrap_err().to_string().contains("two places"));
    let mut k = good.clone();
    k.insts[1].results[0] = Value(0);
    assert!(verify(&k).unwrap_err().to_string().contains("twice"));
    let mut k = good.clone();
    k.insts[1].results[0] = Value(9);
    assert!(verify(&k).unwrap_err().to_string().contains("does not exist"));
    let mut k = good.clone();
    k.insts[1].args[0] = Value(9);
    assert!(verify(&k).is_err());
    let mut k = good;
    k.body.insts.push(Inst(7));
    assert!(verify(&k).unwrap_err().to_string().contains("does not exist"));
}

/// Lanes along an axis: read as they print, and a power of two of a warp's.
#[test]
fn lanes_along_an_axis() {
    let source = |lanes: usize| format!("kernel @k() grid [1, 1, 1] warps 4 lanes {lanes} {{\n}}\n");
    let k = parse(&source(8)).expect("parses");
    assert_eq!((k.lanes, kiln_block::text::print(&k)), (Some(8), source(8)));
    assert!(verify(&k).is_ok());
    for wrong in [6, 64] {
        let e = verify(&parse(&source(wrong)).expect("parses")).expect_err("is refused").to_string();
        assert!(e.contains(&format!("{wrong} lanes along an axis; a power of two to 32")), "{e}");
    }
}

/// Arrays that the launcher describes: read as they print, behind a pointer and before no argument.
#[test]
fn arrays_of_the_launch() {
    let source = |params: &str| format!("kernel @k({params}) grid launch warps 4 {{\n}}\n");
    let pointer = "%x: ptr<f16> readonly align 16, %n: i32 align 1, %s: i32 align 1 {div 8}";
    let array = "%d: desc<f16[64,64], b128> readonly of %x [%n, 4096] strides [2 %s, 1]";
    let good = source(&format!("{pointer}, {array}"));
    let k = parse(&good).expect("parses");
    assert_eq!(kiln_block::text::print(&k), good);
    assert_eq!(verify(&k), Ok(()));
    for (params, says) in [
        (format!("{pointer}, {}", array.replace("[%n, 4096]", "[%n]")), "1 sizes and 2 strides"),
        (format!("{pointer}, {}", array.replace("2 %s", "2 %n")), "multiples of 16 bytes"),
        (format!("{pointer}, {}", array.replace(", 1]", ", 2]")), "rows must be contiguous"),
        (format!("{pointer}, {}", array.replace("[%n,", "[%x,")), "no signed integer"),
        (format!("{pointer}, %p: ptr<i32>, {}", array.replace("[%n,", "[%p,")), "no signed integer"),
        (format!("{pointer}, {}", array.replace("of %x", "of %n")), "a pointer to f16"),
        (format!("{}, {array}", pointer.replace("align 16", "align 8")), "aligned to 16 bytes"),
        (format!("{pointer}, {array}, %m: i32 align 1"), "the last parameters"),
    ] {
        let e = verify(&parse(&source(&params)).expect("parses")).expect_err("is refused").to_string();
        assert!(e.contains(says), "{params}: {e}");
    }
}
