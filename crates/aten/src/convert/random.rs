//! Refuses what draws random numbers: a compiled graph gives the same results for the same inputs, so that they can be
//! checked.
//!
//! Dropout that is on shows a model in training mode; so does a batch norm that would update its running statistics.
//! What is off (rate 0, or not training) passes.
use super::{attention, context::scalar_of};
use crate::{
    error::Problem,
    raw::{Arg, Call},
};

/// Operators with random results.
const DRAWS: &[&str] = &[
    "_fused_dropout",
    "bernoulli",
    "binomial",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "normal",
    "normal_functional",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "uniform",
];

/// Whether the flag at `at` is set. One that is missing is (`native_dropout` trains by default).
fn on(call: &Call, at: usize) -> bool {
    matches!(call.args.get(at), None | Some(Arg::Bool(true) | Arg::None))
}

fn number(call: &Call, at: usize) -> f64 {
    call.args.get(at).and_then(scalar_of).map_or(0.0, |s| s.as_f64())
}

/// Whether a call with the arguments of evaluation would have others: dropout with a rate, or statistics of the batch
/// although there are running ones.
fn trains(call: &Call, name: &str) -> bool {
    let dropout = |rate: usize, flag: usize| on(call, flag) && number(call, rate) != 0.0;
    // Dropout is between the layers of a recurrent network.
    let recurrent = |layers: usize| number(call, layers) > 1.0 && dropout(layers + 1, layers + 2);
    match (name, call.overload.as_str()) {
        ("dropout" | "feature_dropout" | "alpha_dropout" | "feature_alpha_dropout" | "native_dropout", _) => {
            dropout(1, 2)
        }
        ("lstm" | "gru" | "rnn_tanh" | "rnn_relu", "input") => recurrent(4),
        ("lstm" | "gru" | "rnn_tanh" | "rnn_relu", "data") => recurrent(5),
        ("rrelu", _) => on(call, 3),
        ("_native_batch_norm_legit", "no_stats") => false,
        (
            "batch_norm"
            | "native_batch_norm"
            | "cudnn_batch_norm"
            | "_native_batch_norm_legit"
            | "_native_batch_norm_legit_functional",
            _,
        ) => on(call, 5) && !matches!(call.args.get(3), None | Some(Arg::None)),
        ("_batch_norm_with_update_functional", _) => true,
        _ => attention::places(name).is_some_and(|p| number(call, p.dropout) != 0.0),
    }
}

/// An error if the call draws random numbers, or trains.
pub fn refuse(call: &Call) -> Result<(), Problem> {
    let Some(name) = call.name.strip_prefix("aten::") else { return Ok(()) };
    let (message, help) = if trains(call, name) {
        let help = "call model.eval() before the model is exported; F.dropout also needs training=self.training";
        (format!("the model was saved in training mode, as `{}` shows", call.name), help)
    } else if DRAWS.contains(&name) {
        let help =
            "draw them outside of the model and pass them as an input, or call model.eval() if evaluation needs none";
        (format!("`{}` draws random numbers", call.name), help)
    } else {
        return Ok(());
    };
    Err(Problem { message, source: call.source.clone(), module: call.module.clone(), help: help.into() })
}
