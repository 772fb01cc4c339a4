//! The loop over tiles that are drawn from a counter: the producer draws the next tile when it has copied this one, and
//! sends its number to the consumers. A block that drew it before would keep a tile from those that are free first.
use super::super::back_to_back_dots::Draw;
use super::super::copy::Copier;
use super::super::ring::{Numbers, Ring};
use crate::{Builder, Inst, Value};

/// A role's side of the ring of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Sends,
    Receives,
}

/// Runs `body` for every tile that this block draws, with carried scalars. `before`: the instructions of a tile that
/// its starts depend on.
pub fn over_tiles<'k>(
    b: &mut Builder,
    c: &mut Copier<'k>,
    (tiles, draw, before): (Inst, &Draw, &[Inst]),
    (numbers, side): (&Numbers, Side),
    start: &[Value],
    body: impl FnOnce(&mut Builder, &mut Copier<'k>, &[Value]) -> Vec<Value>,
) {
    let data = c.k.inst(tiles);
    let zero = b.i32(0);
    let carried = [&c.all(&data.args)[..], &[zero, zero], start].concat();
    b.while_loop(&carried, |b, now| {
        c.enter();
        c.set(data.regions[0].params[0], now[0]);
        // Without the draw, and so without what depends on it.
        c.scalars(b, before);
        let ring = Ring::of(&now[1..]);
        let last = body(b, c, &now[3..]);
        let (next, ring) = match side {
            Side::Sends => {
                c.copy(b, draw.inst);
                before.iter().filter(|i| draw.after.contains(i)).for_each(|i| c.scalar(b, *i));
                let next = c.all(&[draw.next])[0];
                (next, numbers.send(b, ring, next))
            }
            Side::Receives => {
                let (next, ring) = numbers.receive(b, ring);
                c.set(draw.next, next);
                c.scalar(b, draw.more);
                (next, ring)
            }
        };
        let more = c.all(&c.k.inst(draw.more).results)[0];
        c.leave();
        (more, [&[next][..], &ring.values(), &last].concat())
    });
}
