//! Refusals in words: the fact behind each, and the values of the region that it is about.
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
                "a kernel has at most one anchor op (matmul, attention, convolution, pooling, scatter or scan), or two matmuls that share their \
                 left operand where the machine has dual GEMMs"
            }
            RowsDiffer => "all reductions of a kernel must run over the same rows",
            RowReductionAfterMatmul => {
                "a row reduction needs the whole row; a GEMM tile holds only part of it, or its epilogue cannot reduce \
                 rows"
            }
            RowReductionBeforeMatmul => {
                "a row reduction needs the whole row; a matmul, attention or convolution reads its operands tile by \
                 tile"
            }
            ArithmeticBeforeMatmul => {
                "attention, convolutions and dots of launches read their operands from memory, and so do matmuls on \
                 hosts, in batch-invariant plans, and of which both rows and columns are more than 16"
            }
            ArithmeticAroundAttention => "the attention kernel reads its operands and writes its result unchanged",
            OperandNotStrided => "rows and columns of an operand must have constant strides in memory",
            AnchorRecomputed => {
                "an anchor op, such as a matmul, is computed whole and once; this kernel would compute parts of it, or \
                 compute it again"
            }
            AnchorNeedsStoredOperands => {
                "this op reads its operands by an access pattern of its own, so they must be in memory"
            }
            ViewAfterAnchor => "an anchor op stores its result in the order in which it computes it",
            DataMovementAfterMatmul => "a GEMM's epilogue cannot contain gathers, pads or concatenations",
            OutputNotCovered => "all outputs of a kernel share one iteration space, and one of these is outside of it",
            OutputPermutedAfterReduction => "rows are stored in the order in which they are reduced",
            RowsOfOtherOutput => {
                "an output of one element per row needs a full-size output that is computed from the same rows"
            }
            SecondOutputOfAnchor => "a kernel with an anchor op, such as a matmul, stores one result",
            PlaceReductionNotAlone => "a kernel with argmax or argmin has no other reduction and no other output",
            ScanSpaceDiffers => {
                "a scan iterates over its own axis in order, and the kernel has another iteration space"
            }
            RecomputedTooOften => {
                "a value would be read by too many different access patterns, and computed separately for each"
            }
            TooLarge => "beyond this size, compile time outweighs any saving",
            Empty => "an empty tensor has no iteration space to share",
            Fallback => "libtorch runs it as a separate call",
            Launch => {
                "a program written by hand fuses elementwise ops that take the place of its loads, or follow the \
                 stores of one of its results; each is computed where an element is loaded or stored"
            }
            LaunchUpdates => {
                "atomics, and stores to a copy of an operand, need the elements in memory; only what is written as \
                 new memory, or read, is computed in place"
            }
            LaunchReadsBack => "what the program stores and loads again must be what it stored",
            LaunchOffsets => {
                "offsets and masks of a load or store that is fused must be sums of program ids, loop indices and \
                 block positions with constant factors; these are computed from what the program loads, or by \
                 quotients and remainders"
            }
            LaunchStoresPart => {
                "what its stores leave out is unspecified, and the op after it would not be computed there"
            }
            LaunchTooLarge => "whether every element is stored was not followed through so many instances",
            KeptApart => "required by `never_fuse`",
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
            format!("{} next to {}", listed(dag, &ops), listed(dag, &anchors()))
        }
        DataMovementAfterMatmul => format!("{} next to {}", listed(dag, &moves()), listed(dag, &anchors())),
        OperandNotStrided | AnchorRecomputed | AnchorNeedsStoredOperands | ViewAfterAnchor | ScanSpaceDiffers => {
            listed(dag, &anchors())
        }
        OutputNotCovered | SecondOutputOfAnchor | RowsOfOtherOutput | OutputPermutedAfterReduction => {
            format!("outputs {}", listed(dag, outs))
        }
        PlaceReductionNotAlone => listed(dag, &rows()),
        RecomputedTooOften => format!("more than {MAX_USES} access patterns"),
        TooLarge if members.len() > MAX_MEMBERS => format!("{} values; at most {MAX_MEMBERS}", members.len()),
        TooLarge => format!("more than {MAX_BUFFERS} buffers"),
        Fallback => listed(dag, &of(&|c| matches!(c, Class::Fallback | Class::Result))),
        Launch => {
            let other = |c| !matches!(c, Class::Result | Class::Pointwise | Class::View | Class::Generator);
            listed(dag, &of(&other))
        }
        LaunchUpdates | LaunchReadsBack | LaunchOffsets | LaunchStoresPart | LaunchTooLarge => {
            listed(dag, &of(&|c| c == Class::Launch))
        }
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
    // Invariant: the first operand of a reduction is the value that it reduces.
    let of = dag.args(v)[0];
    let (x, y) = (dag.count(of), dag.count(v));
    let length = match crate::pattern::axes(dag.op(v)) {
        Some(axes) => axes.iter().map(|&a| dag.shape(of)[a]).product::<usize>(),
        None if x > y && y > 0. => (x / y) as usize,
        None => dag.shape(v).last().copied().unwrap_or(1),
    };
    format!("{} over rows of {length}", label(dag, v))
}
