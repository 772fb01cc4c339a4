//! Which elements stores of bound programs reach.
use kiln_block::analysis::{Accesses, Coverage, Footprints, Unfollowed, Writes};
use kiln_block::text::parse;

/// The stores to `%y`, of so many elements, by a program of this grid with these lines.
fn coverage(grid: [usize; 3], elements: usize, lines: &str) -> Result<Coverage, Unfollowed> {
    let text = format!("kernel @k(%x: ptr<i32>, %y: ptr<i32>) grid {grid:?} warps 1 {{\n{lines}\n}}");
    let program = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let accesses = Accesses::through(&program, &Writes::of(&program), program.params[1].value);
    assert!(!accesses.others, "{text}");
    Footprints::of(&program).coverage(&accesses.stores, elements)
}

/// Stores at `%at` of four lanes.
fn store(mask: &str) -> String {
    format!("%ys = splat %y : ptr<i32>[4]\n%to = ptr_add %ys, %at : ptr<i32>[4]\nstore %to, %at{mask}\n")
}
const LANES: &str = "%id = program_id 0 : i32\n%four = const 4 : i32\n%lane = iota : i32[4]\n";

#[test]
fn blocks_under_masks() {
    let lines = format!(
        "{LANES}%first = mul %id, %four : i32\n%firsts = splat %first : i32[4]\n%at = add %firsts, %lane : i32[4]\n\
         %n = const 10 : i32[4]\n%in = cmp lt %at, %n : bool[4]\n{}",
        store(", %in")
    );
    assert_eq!(coverage([3, 1, 1], 10, &lines), Ok(Coverage::Whole { stored: 10 }));
    assert_eq!(coverage([2, 1, 1], 10, &lines), Ok(Coverage::Part));
    assert_eq!(coverage([3, 1, 1], 11, &lines), Ok(Coverage::Part));
    assert_eq!(coverage([3, 1, 1], 9, &lines), Ok(Coverage::Part), "one is outside");
}

#[test]
fn orders_of_tiles_loops_and_branches() {
    // Instances in another order: 0, 2, 1, 3.
    let order = "%two = const 2 : i32\n%a = rem %id, %two : i32\n%b = div %id, %two : i32\n%c = mul %a, %two : i32\n\
                 %place = add %c, %b : i32\n%first = mul %place, %four : i32\n%firsts = splat %first : i32[4]\n\
                 %at = add %firsts, %lane : i32[4]\n";
    assert_eq!(coverage([4, 1, 1], 16, &format!("{LANES}{order}{}", store(""))), Ok(Coverage::Whole { stored: 16 }));
    // Two instances of three blocks each, the last of which is outside.
    let looped = |body: &str| {
        format!(
            "{LANES}%two = const 2 : i32\n%end = const 5 : i32\nfor %n in %id..%end step %two {{\n\
             %first = mul %n, %four : i32\n%firsts = splat %first : i32[4]\n%at = add %firsts, %lane : i32[4]\n{body}\
             yield\n}}"
        )
    };
    assert_eq!(coverage([2, 1, 1], 20, &looped(&store(""))), Ok(Coverage::Whole { stored: 20 }));
    let branch = |condition: &str| looped(&format!("{condition}if %c {{\n{}yield\n}} else {{\nyield\n}}\n", store("")));
    let all = branch("%most = const 9 : i32\n%c = cmp lt %n, %most : bool\n");
    assert_eq!(coverage([2, 1, 1], 20, &all), Ok(Coverage::Whole { stored: 20 }));
    let some = branch("%most = const 3 : i32\n%c = cmp ne %n, %most : bool\n");
    assert_eq!(coverage([2, 1, 1], 20, &some), Ok(Coverage::Part));
    let read = branch("%v = load %x : i32\n%c = cmp ne %n, %v : bool\n");
    assert_eq!(coverage([2, 1, 1], 20, &read), Err(Unfollowed::NotAffine));
}
