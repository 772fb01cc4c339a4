//! `KILN_CPU`: each instruction set of this processor is used where it is asked for, by generated code as by matrix products, and what
//! cannot be is refused in words.
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
/// Those of this processor, as `doctor` lists them.
fn levels() -> Vec<&'static str> {
    let said = text(&kiln("portable", &["doctor"]));
    assert!(said.contains("uses portable"), "{said}");
    let line = said.lines().find(|l| l.contains("uses portable")).expect("a line about the processor");
    ["portable", "avx2", "avx512", "amx"].into_iter().filter(|l| line.contains(l)).collect()
}

#[test]
fn each_level_is_used_and_gives_right_results() {
    for level in levels() {
        assert!(text(&kiln(level, &["doctor"])).contains(&format!("uses {level}")), "{level}");
        for (name, most) in [("resnet_basic_block", 1e-4), ("gpt2_block", 1e-4), ("llama_block_bf16", 0.1)] {
            let o = kiln(level, &["bench", &graph(name), "--device", "cpu", "--seconds", "0.01", "--json", "-"]);
            assert!(o.status.success(), "{level}, {name}: {}", text(&o));
            let figures: Value = serde_json::from_slice(&o.stdout).expect("JSON");
            let error = figures["max_abs_err"].as_f64().expect("a number");
            assert!(error < most, "{level}, {name}: results are off by {error}");
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
