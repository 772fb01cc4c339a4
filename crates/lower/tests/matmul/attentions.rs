//! Attention of every kind of operand, mask and size, against the interpreter.
use super::*;

#[test]
fn attentions() {
    for d in ["f32", "f16", "bf16", "f64"] {
        let on = if d == "f64" { host } else { body };
        on(
            Attention,
            &format!(
                "(%q: {d}[2,3,20,16], %k: {d}[2,3,20,16], %v: {d}[2,3,20,16]) {{ %y = attention %q, %k, %v \
                 scale=0.25\n return %y }}"
            ),
        );
        on(
            Attention,
            &format!(
                "(%q: {d}[2,4,20,16], %k: {d}[2,2,20,16], %v: {d}[2,2,20,24]) {{ %y = attention %q, %k, %v scale=0.25 \
                 causal=true\n return %y }}"
            ),
        );
        on(
            Attention,
            &format!(
                "(%q: {d}[3,7,10], %k: {d}[3,70,10], %v: {d}[3,70,10], %m: {d}[7,70]) {{ %y = attention %q, %k, %v, %m \
                 scale=0.3\n return %y }}"
            ),
        );
        on(
            Attention,
            &format!(
                "(%q: {d}[2,3,7,10], %k: {d}[2,3,9,10], %v: {d}[2,3,9,10], %m: bool[2,1,1,9]) {{ %y = attention %q, \
                 %k, %v, %m scale=0.3\n return %y }}"
            ),
        );
        on(
            Attention,
            &format!(
                "(%q: {d}[2,3,1,10], %k: {d}[2,3,1,10], %v: {d}[2,3,1,10], %m: bool[2,1,1,1]) {{ %y = attention %q, \
                 %k, %v, %m scale=0.3\n return %y }}"
            ),
        );
    }
    for masked in ["zero", "nan"] {
        body(
            Attention,
            &format!(
                "(%q: f32[2,3,7,10], %k: f32[2,3,9,10], %v: f32[2,3,9,10], %m: bool[2,3,7,1]) {{ %y = attention %q, \
                 %k, %v, %m scale=0.3 fully_masked={masked}\n return %y }}"
            ),
        );
        // A single key.
        body(
            Attention,
            &format!(
                "(%q: f32[2,3,7,10], %k: f32[2,3,1,10], %v: f32[2,3,1,10], %m: bool[2,3,7,1]) {{ %y = attention %q, \
                 %k, %v, %m scale=0.3 fully_masked={masked}\n return %y }}"
            ),
        );
    }
    body(
        Attention,
        "(%q: f32[2,130,3,16], %k: f32[2,130,3,16], %v: f32[2,130,3,16]) { %a = permute %q perm=[0,2,1,3]\n \
         %b = permute %k perm=[0,2,1,3]\n %c = permute %v perm=[0,2,1,3]\n \
         %y = attention %a, %b, %c scale=0.25 causal=true\n %p = permute %y perm=[0,2,1,3]\n \
         %r = reshape %p shape=[2,130,48]\n return %r }",
    );
}

/// One query, or few blocks of them: slices of the keys (split-KV), whole rows masked, a mask that hides whole slices.
#[test]
fn attention_split_along_keys() {
    for d in ["f32", "bf16"] {
        for (shapes, how) in [
            ("%q: {d}[2,1,24], %k: {d}[2,700,24], %v: {d}[2,700,17]", "%q, %k, %v scale=0.25"),
            ("%q: {d}[2,4,1,64], %k: {d}[2,2,900,64], %v: {d}[2,2,900,64]", "%q, %k, %v scale=0.125 causal=false"),
            ("%q: {d}[3,5,24], %k: {d}[3,1500,24], %v: {d}[3,1500,24], %m: bool[5,1]", "%q, %k, %v, %m scale=0.3"),
            (
                "%q: {d}[3,5,24], %k: {d}[3,1500,24], %v: {d}[3,1500,24], %m: bool[5,1]",
                "%q, %k, %v, %m scale=0.3 fully_masked=nan",
            ),
            ("%q: {d}[1,1,48], %k: {d}[1,1500,48], %v: {d}[1,1500,48], %m: {d}[1,1500]", "%q, %k, %v, %m scale=0.3"),
            ("%q: {d}[1,290,64], %k: {d}[1,300,64], %v: {d}[1,300,40]", "%q, %k, %v scale=0.2 causal=true"),
            ("%q: {d}[4,33,64], %k: {d}[4,513,64], %v: {d}[4,513,64], %m: bool[1,513]", "%q, %k, %v, %m scale=0.2"),
        ] {
            body(Attention, &format!("({}) {{ %y = attention {how}\n return %y }}", shapes.replace("{d}", d)));
        }
    }
    body(
        Attention,
        "(%q: f32[2,1,3,16], %k: f32[2,900,3,16], %v: f32[2,900,3,16]) { %a = permute %q perm=[0,2,1,3]\n \
         %b = permute %k perm=[0,2,1,3]\n %c = permute %v perm=[0,2,1,3]\n \
         %y = attention %a, %b, %c scale=0.25 causal=false\n %p = permute %y perm=[0,2,1,3]\n \
         %r = reshape %p shape=[2,48]\n return %r }",
    );
}

/// Few queries of heads that share keys, whose rows a GPU puts into one tile: masks by query, by head and by batch;
/// slices of the keys.
#[test]
fn attention_of_groups_with_few_queries() {
    for d in ["bf16", "f16", "f32"] {
        for (shapes, how) in [
            ("%q: {d}[2,6,1,24], %k: {d}[2,2,70,24], %v: {d}[2,2,70,17]", "%q, %k, %v scale=0.25"),
            ("%q: {d}[4,3,16], %k: {d}[1,700,16], %v: {d}[1,700,16], %m: {d}[4,3,700]", "%q, %k, %v, %m scale=0.3"),
            ("%q: {d}[2,6,5,16], %k: {d}[2,2,40,16], %v: {d}[2,2,40,16], %m: bool[6,1,40]", "%q, %k, %v, %m scale=0.3"),
            (
                "%q: {d}[2,4,13,16], %k: {d}[2,1,90,16], %v: {d}[2,1,90,16], %m: bool[2,1,13,90]",
                "%q, %k, %v, %m scale=0.3 fully_masked=nan",
            ),
            ("%q: {d}[8,8,16], %k: {d}[1,300,16], %v: {d}[1,300,24], %m: bool[8,1]", "%q, %k, %v, %m scale=0.3"),
        ] {
            body(Attention, &format!("({}) {{ %y = attention {how}\n return %y }}", shapes.replace("{d}", d)));
        }
        body(
            Attention,
            &format!(
                "(%q: {d}[2,3,6,16], %k: {d}[2,50,2,16], %v: {d}[2,50,2,16], %r: {d}[2,3,96]) {{ %a = permute %q \
                 perm=[0,2,1,3]\n %b = permute %k perm=[0,2,1,3]\n %c = permute %v perm=[0,2,1,3]\n \
                 %y = attention %a, %b, %c scale=0.25\n %p = permute %y perm=[0,2,1,3]\n \
                 %o = reshape %p shape=[2,3,96]\n %z = add %o, %r\n return %z }}"
            ),
        );
    }
}

/// Keys and values that a GPU dequantises as it reads them: by factors of a head, of a key, of a column; with an
/// offset.
#[test]
fn attention_of_quantised_keys() {
    let dequantised = |x: &str, by: &str, to: &str| {
        format!(
            "%{x}f = cast %{x} to=f32\n %{x}m = {}\n %{x}h = cast %{x}m to={to}\n",
            by.replace("%x", &format!("%{x}f"))
        )
    };
    for (d, stored) in [("bf16", "f8e4m3"), ("f16", "f8e5m2"), ("bf16", "i8"), ("f32", "f8e4m3")] {
        for (s, t, w, factor, by) in [
            (1, 700, 24, "2,1,1", "mul %x, %c"),
            (3, 90, 16, "2,90,1", "mul %c, %x"),
            (5, 70, 40, "40", "sub %x, %c"),
            (1, 1, 16, "1", "add %x, %c"),
        ] {
            let (keys, values) = (dequantised("k", by, d), dequantised("v", by, d));
            let masked = if t > 1 { ", %m" } else { "" };
            body(
                Attention,
                &format!(
                    "(%q: {d}[3,6,{s},{w}], %k: {stored}[3,2,{t},{w}], %v: {stored}[3,2,{t},{w}], %c: f32[{factor}], %m: bool[3,1,1,{t}]) {{
                        {keys} {values} %y = attention %q, %kh, %vh{masked} scale=0.02\n return %y }}"
                ),
            );
        }
    }
}

/// A single key, whose value is infinite or NaN in places; keys of width one.
#[test]
fn attention_of_axes_of_one() {
    for d in ["f32", "bf16"] {
        for (shapes, how) in [
            ("%q: {d}[2,17,10], %k: {d}[2,1,10], %v: {d}[2,1,20]", "%y = attention %q, %k, %v scale=0.25"),
            ("%q: {d}[2,1,10], %k: {d}[2,1,10], %v: {d}[2,1,20]", "%y = attention %q, %k, %v scale=0.25"),
            ("%q: {d}[2,17,1], %k: {d}[2,9,1], %v: {d}[2,9,3]", "%y = attention %q, %k, %v scale=0.25"),
            ("%q: {d}[2,1,1], %k: {d}[2,1,1], %v: {d}[2,1,1]", "%y = attention %q, %k, %v scale=0.25"),
            ("%q: {d}[2,17,3], %k: {d}[2,9,3], %v: {d}[2,9,1]", "%y = attention %q, %k, %v scale=0.25"),
            (
                "%q: {d}[2,17,10], %k: {d}[2,9,10], %v: {d}[2,1,20]",
                "%w = broadcast %v shape=[2,9,20]\n %y = attention %q, %k, %w scale=0.25",
            ),
        ] {
            let text = format!("graph g({}) {{ {how}\n return %y }}", shapes.replace("{d}", d));
            let k = kernel(Attention, text.parse().unwrap());
            let mut inputs = kiln_graphgen::inputs(&k.body, 7);
            for target in [Arch::Cpu, GPU] {
                compare_kernel(&k, &inputs, target).unwrap().unwrap();
            }
            let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
            let v = &inputs[2];
            let values = (0..v.ty.count()).map(|i| special.get(i).copied().unwrap_or(v.get_f64(i)));
            inputs[2] = Tensor::from_f64(v.ty.clone(), values);
            compare_kernel(&k, &inputs, GPU).unwrap_or_else(|e| panic!("{text}: {e}")).unwrap();
        }
    }
}
