//! Traced runs in the trace-event JSON format of Chrome's tracing page and Perfetto.
//!
//! Two tracks: what the host did, and what ran on the device, each kernel with its bytes, flops and predicted time.
use crate::bench::{Bench, KernelTime};
use kiln_runtime::Span;
use serde_json::{Value, json};

/// Numbers of the tracks.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The trace of a measurement, as JSON.
pub fn json(b: &Bench) -> Value {
    let mut events = vec![
        name("process_name", HOST, format!("kiln: {}", b.model)),
        name("thread_name", HOST, "host".into()),
        name("thread_name", DEVICE, b.device.clone()),
    ];
    for (i, run) in b.trace.iter().enumerate() {
        events.push(event("run", HOST, &format!("run {i}"), run.run, json!({})));
        events.extend(run.host.iter().map(|h| event("launch", HOST, &h.name, h.span, json!({}))));
        events.extend(run.kernels.iter().zip(&b.kernels).map(|(s, k)| event(&k.kind, DEVICE, &k.name, *s, facts(k))));
    }
    json!({
        "displayTimeUnit": "ns",
        "otherData": { "model": b.model, "device": b.device },
        "traceEvents": events,
    })
}

fn name(what: &str, track: u32, text: String) -> Value {
    json!({ "ph": "M", "name": what, "pid": 1, "tid": track, "args": { "name": text } })
}

fn event(category: &str, track: u32, name: &str, s: Span, args: Value) -> Value {
    json!({
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": track,
        "ts": s.start_us, "dur": s.us().max(0.0), "args": args,
    })
}

fn facts(k: &KernelTime) -> Value {
    json!({
        "bytes": k.bytes, "flops": k.flops, "predicted_us": k.predicted_us, "median_us": k.median_us,
        "module": k.module, "kind": k.kind,
    })
}
