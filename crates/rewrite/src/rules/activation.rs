//! Recognises activation functions written in primitives: the composite op rounds once, where every primitive rounds.
use super::{Right::Is, Rule};
use kiln_plan::Numerics::*;

pub const RULES: &[Rule] = &[
    Rule {
        name: "silu",
        numerics: Torch,
        half: Torch,
        left: &["(mul ?x (sigmoid ?x))"],
        when: &[],
        right: Is("(silu ?x)"),
        example: "(%x: f32[4]) {\n %s = sigmoid %x\n %y = mul %s, %x\n return %y\n}",
        near_miss: "(%x: f32[4], %z: f32[4]) {\n %s = sigmoid %x\n %y = mul %s, %z\n return %y\n}",
    },
    Rule {
        name: "sigmoid",
        numerics: Torch,
        half: Torch,
        left: &["(div 1 (add 1 (exp (neg ?x))))", "(reciprocal (add 1 (exp (neg ?x))))"],
        when: &[],
        right: Is("(sigmoid ?x)"),
        example: "(%x: f32[4]) {\n %n = neg %x\n %e = exp %n\n %d = add %e, 1.0\n %y = div 1.0, %d\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %e = exp %x\n %d = add %e, 1.0\n %y = div 1.0, %d\n return %y\n}",
    },
    Rule {
        name: "gelu-erf",
        numerics: Torch,
        half: Torch,
        left: &[
            "(mul (mul ?x 0.5) (add 1 (erf (mul ?x 0.7071067811865476))))",
            "(mul ?x (mul 0.5 (add 1 (erf (mul ?x 0.7071067811865476)))))",
            "(mul (mul ?x (add 1 (erf (mul ?x 0.7071067811865476)))) 0.5)",
            "(mul (mul ?x 0.5) (add 1 (erf (div ?x 1.4142135623730951))))",
            "(mul ?x (mul 0.5 (add 1 (erf (div ?x 1.4142135623730951)))))",
            "(mul (mul ?x (add 1 (erf (div ?x 1.4142135623730951)))) 0.5)",
        ],
        when: &[],
        right: Is("(gelu_erf ?x)"),
        example: "(%x: f32[64]) {
            %a = mul 0.70710678, %x\n %e = erf %a\n %t = add %e, 1.0\n %h = mul 0.5, %x\n %y = mul %t, %h\n return %y\n}",
        near_miss: "(%x: f32[64]) {
            %a = mul 0.7072, %x\n %e = erf %a\n %t = add %e, 1.0\n %h = mul 0.5, %x\n %y = mul %t, %h\n return %y\n}",
    },
    Rule {
        name: "gelu-tanh",
        numerics: Torch,
        half: Torch,
        left: &[
            "(mul (mul ?x 0.5) (add 1 (tanh (mul 0.7978845608028654 (add ?x (mul 0.044715 (mul ?x (mul ?x ?x))))))))",
            "(mul ?x (mul 0.5 (add 1 (tanh (mul 0.7978845608028654 (add ?x (mul 0.044715 (mul ?x (mul ?x ?x)))))))))",
            "(mul (mul ?x (add 1 (tanh (mul 0.7978845608028654 (add ?x (mul 0.044715 (mul ?x (mul ?x ?x)))))))) 0.5)",
            "(mul (mul ?x 0.5) (add 1 (tanh (mul 0.7978845608028654 (add ?x (mul (mul 0.044715 ?x) (mul ?x ?x)))))))",
            "(mul (mul ?x 0.5) (add 1 (tanh (mul 0.7978845608028654 (add ?x (mul ?x (mul ?x (mul ?x 0.044715))))))))",
            "(mul (mul ?x 0.5) (add 1 (tanh (mul (mul ?x 0.7978845608028654) (add 1 (mul 0.044715 (mul ?x ?x)))))))",
            "(mul (mul ?x 0.5) (add 1 (tanh (mul (mul ?x 0.7978845608028654) (add 1 (mul ?x (mul ?x 0.044715)))))))",
        ],
        when: &[],
        right: Is("(gelu_tanh ?x)"),
        example: "(%x: f32[64]) {
            %c = pow %x, 3.0\n %d = mul %c, 0.044715\n %i = add %d, %x\n %k = mul %i, 0.7978845608
            %t = tanh %k\n %o = add 1.0, %t\n %h = mul %x, 0.5\n %y = mul %h, %o\n return %y\n}",
        near_miss: "(%x: f32[64]) {
            %c = pow %x, 3.0\n %d = mul %c, 0.0447\n %i = add %d, %x\n %k = mul %i, 0.7978845608
            %t = tanh %k\n %o = add 1.0, %t\n %h = mul %x, 0.5\n %y = mul %h, %o\n return %y\n}",
    },
];
