//! Batch-invariant plans on the host: a row has the same bytes in batches of 1, 2, 8, 64 and 512 rows.
use kiln::compile::{DeviceKind, open_device};
use kiln::{Contract, Device, Numerics, Target};
use kiln_difftest::invariance;

fn host() -> Device {
    open_device(DeviceKind::Cpu, Some(2)).expect("threads")
}

#[test]
fn a_rows_bytes_do_not_depend_on_the_batch() {
    for numerics in [Numerics::Torch, Numerics::Exact] {
        let contract = Contract { batch_invariant: true, ..numerics.into() };
        invariance::check(&host(), Target::Cpu, contract, &invariance::BATCHES).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// The check detects plans that are not batch-invariant.
#[test]
fn other_plans_differ() {
    let found = invariance::check(&host(), Target::Cpu, Contract::default(), &[1, 8, 64]);
    assert!(found.is_err_and(|e| e.contains("differs between batches")));
}
