//! Source locations of imported operators: the full module path, and the line in the model's own source.
use crate::common::*;
use kiln_graph::{DType, Tensor, Type};

const MODEL: &str = r#"
import sys, torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.acts = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
    def forward(self, x):
        x = self.acts["relu"](self.up(x))
        return self.acts["tanh"](x)

class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList([Block(), Block()])
    def forward(self, x):
        for l in self.layer:
            x = l(x)
        return x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Coder()
        self.decoder = nn.ModuleList([Block(), Block()])
    def forward(self, x):
        x = self.encoder(x)
        for l in self.decoder:
            x = l(x)
        return x.exp()

model = Model().eval()
make = (lambda m: torch.jit.script(m)) if "SCRIPT" else (lambda m: torch.jit.trace(m, torch.zeros(2, 4)))
make(model).save(sys.argv[1])
"#;

#[test]
fn module_paths_are_whole_and_lines_are_the_models_own() {
    for (name, script) in [("traced_paths", ""), ("scripted_paths", "yes")] {
        let path = exported(name, &MODEL.replace("SCRIPT", script));
        let model = kiln_torchscript::import(&path, &[Tensor::zeros(Type::new(DType::F32, [2, 4]))]).unwrap();
        let g = &model.graph;
        let found: Vec<String> = g
            .values()
            .filter(|v| !g.args(*v).is_empty())
            .map(|v| format!("{} {}: {}", g.op(v).name(), g.source(v).module, g.source(v).line))
            .collect();
        let mut want = vec![];
        for block in ["encoder.layer.0", "encoder.layer.1", "decoder.0", "decoder.1"] {
            want.push(format!("linear {block}.up: {name}_test.py:11"));
            want.push(format!("relu {block}.acts.relu: {name}_test.py:11"));
            want.push(format!("tanh {block}.acts.tanh: {name}_test.py:12"));
        }
        want.push(format!("exp : {name}_test.py:32"));
        assert_eq!(found, want, "{name}");
    }
}
