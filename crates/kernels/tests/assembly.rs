//! Inline assembly: registers, and what is refused.
use crate::harness::{compiled, pointer, refused};
use kiln_block::text::print;
use kiln_kernels::{Argument, Number};

/// A kernel whose parameters are a pointer to float32, and a statement with `x`, a block that it points to.
fn with_block(statement: &str) -> String {
    format!("\ndef kernel(p):\n    at = p + tl.arange(0, 64)\n    x = tl.load(at)\n    {statement}\n")
}

fn floats() -> Vec<Argument> {
    vec![pointer(Number::Float32)]
}

#[test]
fn texts_and_registers() {
    for (statement, says) in [
        (
            "y = tl.inline_asm_elementwise('tanh.approx.f32 $0, $1;', '=f,f', [x], tl.float32, True, 1)\n    \
             tl.store(at, y)",
            "asm \"tanh.approx.f32 $0, $1;\" \"=f,f\"",
        ),
        (
            "y, z = tl.inline_asm_elementwise(asm='a $0, $1, $2;', constraints='=r,=r,r,n', args=[x, 3], \
             dtype=(tl.int32, tl.uint32), is_pure=True, pack=1); tl.store(at, y + z)",
            "i32[64], u32[64]",
        ),
        (
            "y = tl.inline_asm_elementwise('and $0, $1;', '=r,r', [x.to(tl.int8)], tl.int8, True, 4); tl.store(at, y)",
            "\"=r,r\" pack 4",
        ),
        (
            "tl.inline_asm_elementwise('bar.sync 0;', '=r', [], dtype=tl.int32, is_pure=False, pack=1)",
            "asm volatile \"bar.sync 0;\" \"=r\" : i32",
        ),
        (
            "tl.inline_asm_elementwise('st.global.b8 [$1], 0;', '=r,l', [at], tl.int8, is_pure=False, pack=1)",
            "asm volatile",
        ),
        ("tl.store(at, tl.extra.cuda.smid())", "%smid"),
        ("tl.store(at, tl.extra.cuda.num_threads())", "const 128"),
    ] {
        let program = print(&compiled(&with_block(statement), floats()).unwrap_or_else(|e| panic!("{e}")).program);
        assert!(program.contains(says), "{statement}\n{program}");
    }
}

#[test]
fn wrong_registers_are_refused() {
    let call = |constraints: &str, pack: &str, pure: &str| {
        with_block(&format!("y = tl.inline_asm_elementwise('a', '{constraints}', [x], tl.float32, {pure}, {pack})"))
    };
    for (kernel, says) in [
        (call("=v,v", "1", "True"), "`=v` is no constraint"),
        (call("=r", "1", "True"), "the operands take 1 registers, and 0 are named"),
        (call("=r,r", "2", "True"), "the results take 2 registers, and 1 are named"),
        (call("=r,r", "3", "True"), "pack is 3"),
        (call("=r,r", "1", "x"), "`is_pure` is"),
    ] {
        let error = refused(&kernel, floats());
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Memory that assembly may write through any address is not read-only.
#[test]
fn assembly_with_effects_ends_readonly() {
    let read = with_block("tl.device_assert(x > 0)");
    let volatile = with_block("tl.inline_asm_elementwise('bar.sync 0;', '=r', [], tl.int32, False, 1)");
    let readonly = |text: &str| {
        let compiled = compiled(text, floats()).unwrap_or_else(|e| panic!("{e}"));
        compiled.program.params[0].readonly
    };
    assert!(readonly(&read) && !readonly(&volatile));
}
