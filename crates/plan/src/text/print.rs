//! Prints a plan as text.
use crate::{BufferId, BufferKind, Kernel, Plan, Tuning};
use std::fmt::Write;

fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}
fn list(ids: &[BufferId]) -> String {
    ids.iter().map(BufferId::to_string).collect::<Vec<_>>().join(", ")
}

fn known(us: Option<f64>) -> String {
    us.map_or("unknown".to_string(), |us| us.to_string())
}

/// The canonical text. Parsing it gives an equal plan.
pub fn print(p: &Plan) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail; the results are dropped throughout.
    let (name, machine, numerics) = (quoted(&p.name), quoted(&p.machine), p.contract);
    let _ = writeln!(out, "plan {name} machine={machine} numerics={numerics} lower_bound_us={} {{", p.lower_bound_us);
    let s = &p.search;
    let _ = writeln!(
        out,
        "  search iterations={} before={} after={} stopped={} candidates={} tried={} greedy_us={}",
        s.iterations,
        s.enodes_before,
        s.enodes_after,
        quoted(&s.stopped),
        s.candidates,
        s.tried,
        s.greedy_us
    );
    for (i, b) in p.buffers.iter().enumerate() {
        let kind = match b.kind {
            BufferKind::Input(n) => format!("input {n}"),
            BufferKind::Param(id) => format!("param {id}"),
            BufferKind::Frozen => "frozen".to_string(),
            BufferKind::Temp => "temp".to_string(),
        };
        let _ = writeln!(out, "  b{i}: {} = {kind}", b.ty);
    }
    for k in &p.kernels {
        kernel(&mut out, k);
    }
    let outputs = list(&p.outputs);
    let _ = writeln!(out, "  return{}{outputs}\n}}", if outputs.is_empty() { "" } else { " " });
    out
}
fn kernel(out: &mut String, k: &Kernel) {
    let (name, kind, stage) = (quoted(&k.name), k.kind.name(), k.stage.name());
    let _ = writeln!(out, "  kernel {name} {kind} {stage} ({}) -> ({}) {{", list(&k.inputs), list(&k.outputs));
    let c = &k.cost;
    let _ = writeln!(
        out,
        "    cost read={} written={} matrix={} other={} us={} roofline={}",
        c.bytes_read,
        c.bytes_written,
        c.matrix_flops,
        c.other_flops,
        known(c.us),
        known(c.roofline_us)
    );
    if k.batch_invariant {
        let _ = writeln!(out, "    batch_invariant");
    }
    if let Some(precision) = k.precision.name() {
        let _ = writeln!(out, "    precision {precision}");
    }
    if let Some(rounding) = k.rounding.name() {
        let _ = writeln!(out, "    rounding {rounding}");
    }
    if !k.reason.rules.is_empty() {
        let rules: Vec<String> = k.reason.rules.iter().map(|r| quoted(r)).collect();
        let _ = writeln!(out, "    rules {}", rules.join(" "));
    }
    if let Some(form) = &k.form {
        let _ = writeln!(out, "    form {}", quoted(&form.to_string()));
    }
    if let Some(schedule) = &k.schedule {
        let _ = writeln!(out, "    schedule {}", quoted(&schedule.to_string()));
    }
    match &k.reason.tuning {
        Some(Tuning::Measured { device, us, default_us }) => {
            let _ = writeln!(out, "    tuned {} us={us} default={default_us}", quoted(device));
        }
        Some(Tuning::Unused { why }) => {
            let _ = writeln!(out, "    not_tuned {}", quoted(why));
        }
        None => {}
    }
    if let Some(a) = &k.reason.alternative {
        let _ = writeln!(out, "    alternative {} us={}", quoted(&a.what), a.us);
    }
    for s in &k.reason.stops {
        let needs: String = s.needs.names().iter().map(|name| format!(" {name}")).collect();
        let _ = writeln!(out, "    stop {} {}{needs}", quoted(&s.kernel), quoted(&s.why));
    }
    let named: Vec<String> =
        k.reason.origins.iter().map(|o| format!("{} {}", o.value, quoted(&o.names.join(" ")))).collect();
    if !named.is_empty() {
        let _ = writeln!(out, "    values {}", named.join(" "));
    }
    for o in k.reason.origins.iter().filter(|o| !o.rules.is_empty()) {
        let rules: Vec<String> = o.rules.iter().map(|r| quoted(r)).collect();
        let _ = writeln!(out, "    made {} {}", o.value, rules.join(" "));
    }
    for line in k.body.to_string().lines() {
        let _ = writeln!(out, "    {line}");
    }
    out.push_str("  }\n");
}
