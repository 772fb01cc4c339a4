//! Places labels of a plot so that none covers another label, a point, or the legend. Coordinates are pixels from the
//! upper left.

/// Font size of labels.
pub const FONT: i32 = 12;

/// An occupied rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    pub left: i32,
    pub top: i32,
    pub right: i32,
    pub bottom: i32,
}
impl Frame {
    pub fn at(corner: (i32, i32), size: (i32, i32)) -> Frame {
        Frame { left: corner.0, top: corner.1, right: corner.0 + size.0, bottom: corner.1 + size.1 }
    }
    pub fn meets(&self, other: &Frame) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }
    fn within(&self, other: &Frame) -> bool {
        self.left >= other.left && self.right <= other.right && self.top >= other.top && self.bottom <= other.bottom
    }
}

/// Upper bound of a text's width and height. The viewer chooses the font; in sans-serif fonts characters are at most
/// 0.6 of their height wide.
pub fn text_size(text: &str) -> (i32, i32) {
    (text.chars().count() as i32 * FONT * 3 / 5, FONT + 2)
}

/// A text and its upper left corner.
pub type Label = (String, (i32, i32));

pub struct Labels {
    plot: Frame,
    pub taken: Vec<Frame>,
}
impl Labels {
    pub fn new(from: (i32, i32), to: (i32, i32)) -> Labels {
        let plot = Frame { left: from.0, top: from.1, right: to.0, bottom: to.1 };
        Labels { plot, taken: vec![] }
    }
    /// Places the text at the first of these corners where it is inside the plot and covers nothing.
    fn place(&mut self, text: String, corners: impl IntoIterator<Item = (i32, i32)>) -> Option<Label> {
        let size = text_size(&text);
        let free = |corner: &(i32, i32)| {
            let at = Frame::at(*corner, size);
            at.within(&self.plot) && self.taken.iter().all(|t| !t.meets(&at))
        };
        let corner = corners.into_iter().find(free)?;
        self.taken.push(Frame::at(corner, size));
        Some((text, corner))
    }
    /// Places a label next to, above or below a point.
    pub fn beside_point(&mut self, text: String, (x, y): (i32, i32)) -> Option<Label> {
        let (w, h) = text_size(&text);
        let near = [(x + 8, y - h / 2), (x - 8 - w, y - h / 2), (x - w / 2, y - 8 - h), (x - w / 2, y + 8)];
        let aside = [(x + 8, y - 6 - h), (x + 8, y + 6), (x - 8 - w, y - 6 - h), (x - 8 - w, y + 6)];
        self.place(text, near.into_iter().chain(aside))
    }
    /// Places a label along a roof whose end, or start, is at `end`: above the line if there is space, else below it,
    /// or further along.
    pub fn beside_roof(&mut self, text: String, end: (i32, i32)) -> Option<Label> {
        let (w, h) = text_size(&text);
        let start = (end.0 - w).max(self.plot.left + 4).min(self.plot.right - w);
        let steps = (self.plot.right - self.plot.left) / 40;
        let along = (0..steps).flat_map(move |i| {
            let x = [start - 40 * i, start + 40 * i];
            x.into_iter().flat_map(move |x| [(x, end.1 - h - 1), (x, end.1 + 2)])
        });
        self.place(text, along)
    }
}
