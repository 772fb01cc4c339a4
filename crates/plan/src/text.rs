//! Text form of a plan: prints everything, and parses back to the same plan.
//!
//! ```text
//! plan "mlp" machine="h200" numerics=torch lower_bound_us=2.3 {
//!   search iterations=2 before=9 after=11 stopped="saturated" candidates=7 tried=1 greedy_us=4.1
//!   b0: f32[8,16] = input 0
//!   b1: f32[16] = param @0
//!   b2: f32[8,16] = temp
//!   kernel "add_relu_0" pointwise run (b0, b1) -> (b2) {
//!     cost read=576 written=512 matrix=0 other=256 us=1.1024 roofline=2.0003
//!     rules "relu"
//!     alternative "one kernel per op (2 kernels)" us=4.1
//!     stop "gemm_1" "arithmetic before a matmul"
//!     values %2 "%4" %3 "%5 %6"
//!     made %3 "relu"
//!     graph add_relu_0(%0: f32[8,16], %1: f32[16]) {
//!       …
//!     }
//!   }
//!   return b2
//! }
//! ```
//! One item per line; a body is the text of a graph.
mod parse;
mod print;
mod words;

pub use parse::parse;
pub use print::print;

use crate::{KernelKind, Plan, PlanError, Stage};
use std::fmt::Display;
use std::str::FromStr;

impl Stage {
    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Load => "load",
            Stage::Run => "run",
        }
    }
}
impl KernelKind {
    /// Every kind.
    pub const ALL: [KernelKind; 10] = [
        KernelKind::Pointwise,
        KernelKind::Reduction,
        KernelKind::Scan,
        KernelKind::Gemm,
        KernelKind::Attention,
        KernelKind::Conv,
        KernelKind::Pool,
        KernelKind::Scatter,
        KernelKind::Launch,
        KernelKind::Fallback,
    ];
}
impl Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print(self))
    }
}
impl FromStr for Plan {
    type Err = PlanError;
    fn from_str(text: &str) -> Result<Plan, PlanError> {
        parse(text)
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Alternative, Buffer, BufferId, BufferKind, Cost, FormNeeds, Kernel, Origin, Precision, Reason, Rounding, Stop,
        Tuning,
    };
    use kiln_graph::{Graph, ParamId, ValueId};

    #[test]
    fn a_plan_prints_and_parses_back() {
        let body: Graph =
            "graph k(%x: f32[4,8], %b: f32[8]) {\n %y = add %x, %b\n return %y\n}".parse().expect("valid");
        let buffer = |kind, ty: &str| Buffer { kind, ty: ty.parse().expect("a type") };
        let p = Plan {
            name: "a \"quoted\" name".into(),
            machine: "h200".into(),
            buffers: vec![
                buffer(BufferKind::Input(0), "f32[4,8]"),
                buffer(BufferKind::Param(ParamId(0)), "f32[8]"),
                buffer(BufferKind::Temp, "f32[4,8]"),
            ],
            kernels: vec![Kernel {
                name: "add_0".into(),
                kind: KernelKind::Pointwise,
                stage: Stage::Run,
                body,
                inputs: vec![BufferId(0), BufferId(1)],
                outputs: vec![BufferId(2)],
                cost: Cost { us: Some(2.125), roofline_us: Some(1.5), bytes_read: 160, ..Cost::default() },
                precision: Precision::Tf32x3,
                rounding: Rounding::PerOp,
                batch_invariant: true,
                form: Some("gemm{wgmma}(layout(a), b)".parse().expect("a form")),
                schedule: Some("fuse i0,i1; split i0 1024; bind warp 4".parse().expect("a schedule")),
                reason: Reason {
                    rules: vec!["a".into(), "b c".into()],
                    alternative: Some(Alternative { what: "apart".into(), us: 4.5 }),
                    stops: vec![Stop {
                        kernel: "gemm_1".into(),
                        why: "no gain: 2.00 us together, 1.00 us apart".into(),
                        needs: FormNeeds { computed: [false, true], ..FormNeeds::default() },
                    }],
                    origins: vec![Origin {
                        value: ValueId(2),
                        names: vec!["%7".into(), "%9".into()],
                        rules: vec!["a".into()],
                    }],
                    tuning: Some(Tuning::Measured { device: "NVIDIA H200".into(), us: 2.5, default_us: 3.25 }),
                },
            }],
            outputs: vec![BufferId(2), BufferId(0)],
            ..Plan::default()
        };
        let text = p.to_string();
        let again: Plan = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again.to_string(), text);
        assert_eq!(crate::verify::verify(&again), Ok(()));
        let json = serde_json::to_string(&p).expect("serialises");
        let from_json: Plan = serde_json::from_str(&json).expect("parses");
        assert_eq!(from_json.to_string(), text);
    }

    #[test]
    fn errors_say_the_line_and_what_is_wanted() {
        let text = "plan \"x\" machine=\"h\" numerics=exact lower_bound_us=0 {\n  b1: f32[] = temp\n  return\n}";
        let e = parse(text).expect_err("buffers count from 0");
        assert_eq!(e.to_string(), "plan text, line 2: expected b0, found b1; buffers are numbered from 0");
    }
}
