//! A refusal in a sentence: which values of the region it is about, with their numbers.
use crate::dag::Dag;
use crate::region::{MAX_BUFFERS, MAX_MEMBERS, MAX_USES, Reject};
use kiln_graph::ops::Class;
use std::collections::BTreeSet;

impl Reject {
    /// The fact behind the name, for readers who do not know the planner.
    pub fn means(self) -> &'static str {
        use Reject::*;
        match self {
            TwoAnchors => {
                "a kernel computes at most one matmul, attention, convolution, pooling, scatter or scan whole, or, where the machine \
                 has tiles with two sums, two matmuls of one left operand"
            }
            RowsDiffer => "all reductions of a kernel share its rows, and these run over different ones",
            RowReductionAfterMatmul => "a matmul is computed in tiles, and a row spans several of them",
            RowReductionBeforeMatmul => "a matmul reads its operands in tiles before a whole row of them is known",
            ArithmeticBeforeMatmul => "a matmul's operands are copied from memory straight into its tiles",
            ArithmeticAroundAttention => "attention's operands and result are copied as they are",
            OperandNotStrided => "rows and columns of an operand must be evenly spaced in memory",
            AnchorRecomputed => {
                "a matmul, attention or convolution is computed once, and this would need it more than once"
            }
            AnchorNeedsStoredOperands => "this op reads its operands from memory at places of its own",
            ViewAfterAnchor => "the result is stored in the order it is computed in",
            DataMovementAfterMatmul => "gathers, pads and concatenations do not follow a matmul in its tiles",
            OutputNotCovered => "a kernel's outputs share one iteration space, and one of these lies outside of it",
            OutputPermutedAfterReduction => "rows are stored in the order they are reduced in",
            RowsOfOtherOutput => "an output with one element a row needs a full-size output that the rows belong to",
            SecondOutputOfAnchor => "a kernel with a matmul, attention or convolution stores one result",
            PlaceReductionNotAlone => "argmax and argmin share a kernel with no other reduction or output",
            ScanSpaceDiffers => "a scan walks its own axis in order, and the kernel walks another space",
            RecomputedTooOften => "a value would be reached in too many different ways, each computed apart",
            TooLarge => "past this size, compile time outweighs any saving",
            Empty => "an empty tensor has no iteration space to share",
            Fallback => "libtorch runs it, one call by itself",
            KeptApart => "a constraint says so",
        }
    }
    pub fn by_name(name: &str) -> Option<Reject> {
        Reject::ALL.into_iter().find(|r| r.name() == name)
    }
}

/// The refusal's name, the values it is about, and the fact behind it.
pub fn refusal(dag: &Dag, members: &[usize], outs: &[usize], r: Reject) -> String {
    use Reject::*;
    let of = |test: &dyn Fn(Class) -> bool| -> Vec<usize> {
        members.iter().copied().filter(|&m| test(dag.class[m])).collect()
    };
    let anchors = || of(&|c| c.is_anchor());
    let rows = || of(&|c| matches!(c, Class::Reduce | Class::ArgReduce | Class::Row));
    let moves = || of(&|c| c == Class::Movement);
    let pointwise = || of(&|c| c == Class::Pointwise);
    let about = match r {
        TwoAnchors => listed(dag, &anchors()),
        RowsDiffer => {
            rows().iter().map(|&v| row(dag, v)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; ")
        }
        RowReductionAfterMatmul | RowReductionBeforeMatmul => {
            let rows: Vec<String> = rows().iter().take(2).map(|&v| row(dag, v)).collect();
            format!("{}, with {}", rows.join("; "), listed(dag, &anchors()))
        }
        ArithmeticBeforeMatmul | ArithmeticAroundAttention => {
            let mut ops = pointwise();
            ops.extend(moves());
            format!("{} beside {}", listed(dag, &ops), listed(dag, &anchors()))
        }
        DataMovementAfterMatmul => format!("{} beside {}", listed(dag, &moves()), listed(dag, &anchors())),
        OperandNotStrided | AnchorRecomputed | AnchorNeedsStoredOperands | ViewAfterAnchor | ScanSpaceDiffers => {
            listed(dag, &anchors())
        }
        OutputNotCovered | SecondOutputOfAnchor | RowsOfOtherOutput | OutputPermutedAfterReduction => {
            format!("outputs {}", listed(dag, outs))
        }
        PlaceReductionNotAlone => listed(dag, &rows()),
        RecomputedTooOften => format!("more than {MAX_USES} ways"),
        TooLarge if members.len() > MAX_MEMBERS => format!("{} values, of {MAX_MEMBERS} at most", members.len()),
        TooLarge => format!("more than {MAX_BUFFERS} buffers"),
        Fallback => listed(dag, &of(&|c| matches!(c, Class::Fallback | Class::Result))),
        Empty | KeptApart => String::new(),
    };
    let about = if about.is_empty() { about } else { format!(" ({about})") };
    format!("{}{about}: {}", r.name(), r.means())
}

/// As `linear %47 f32[2,32,768]`.
pub fn label(dag: &Dag, v: usize) -> String {
    let value = &dag.nodes[v].value;
    let name = value.of.first().map(|v| format!(" {v}")).unwrap_or_default();
    format!("{}{name} {}", value.op.name(), value.ty)
}

/// The first few, and how many more.
fn listed(dag: &Dag, values: &[usize]) -> String {
    const SHOWN: usize = 3;
    let mut words: Vec<String> = values.iter().take(SHOWN).map(|&v| label(dag, v)).collect();
    if values.len() > SHOWN {
        words.push(format!("{} more", values.len() - SHOWN));
    }
    words.join(", ")
}

/// A reduction with the length of its rows.
fn row(dag: &Dag, v: usize) -> String {
    // Invariant: a value that is reduced in this stage has what it reduces as its first operand.
    let of = dag.args(v)[0];
    let (x, y) = (dag.count(of), dag.count(v));
    let length = match crate::pattern::axes(dag.op(v)) {
        Some(axes) => axes.iter().map(|&a| dag.shape(of)[a]).product::<usize>(),
        None if x > y && y > 0. => (x / y) as usize,
        None => dag.shape(v).last().copied().unwrap_or(1),
    };
    format!("{} over rows of {length}", label(dag, v))
}
