//! `KILN_CPU`: generated code and the runtime's matmuls use the instruction set it names; an unknown one is refused
//! with a message.
use serde_json::Value;
use std::process::{Command, Output};

fn kiln(level: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kiln")).args(args).env("KILN_CPU", level).output().expect("kiln starts")
}
fn graph(name: &str) -> String {
    format!("{}/../../graphs/{name}.kiln", env!("CARGO_MANIFEST_DIR"))
}
fn text(o: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr))
}
/// Instruction sets of this processor, as `kiln doctor` lists them.
fn levels() -> Vec<&'static str> {
    let said = text(&kiln("portable", &["doctor"]));
    assert!(said.contains("uses portable"), "{said}");
    let line = said.lines().find(|l| l.contains("uses portable")).expect("a line about the processor");
    ["portable", "avx2", "avx512", "amx"].into_iter().filter(|l| line.contains(l)).collect()
}

#[test]
fn each_level_is_used_and_gives_right_results() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let convolution = dir.path().join("convolution.kiln");
    let program = "graph convolution(%x: f32[1,8,13,13]) {\n  @w \"w\": f32[16,8,3,3] = random(seed=1, scale=0.1)\n  \
                   %c = conv %x, @w padding=[1,1]\n  %r = relu %c\n  return %r\n}\n";
    std::fs::write(&convolution, program).expect("a temporary file");
    let models = [
        (graph("matmul_leaky_relu"), 1e-4),
        (graph("llama_block_bf16"), 0.1),
        (convolution.display().to_string(), 1e-4),
    ];
    for level in levels() {
        assert!(text(&kiln(level, &["doctor"])).contains(&format!("uses {level}")), "{level}");
        for (name, most) in &models {
            let o = kiln(level, &["bench", name, "--device", "cpu", "--seconds", "0.01", "--json", "-"]);
            assert!(o.status.success(), "{level}, {name}: {}", text(&o));
            let figures: Value = serde_json::from_slice(&o.stdout).expect("JSON");
            let error = figures["max_abs_err"].as_f64().expect("a number");
            assert!(error < *most, "{level}, {name}: results are off by {error}");
        }
    }
}

#[test]
fn a_level_that_cannot_be_is_refused() {
    for args in [&["run", &graph("softmax"), "--device", "cpu", "--outputs", "/dev/null"][..], &["doctor"]] {
        let said = text(&kiln("sse", args));
        assert!(said.contains("KILN_CPU is `sse`") && said.contains("portable"), "kiln {args:?}: {said}");
    }
    let o = kiln("sse", &["bench", &graph("softmax"), "--device", "cpu", "--seconds", "0.01"]);
    assert_eq!(o.status.code(), Some(2), "{}", text(&o));
}
