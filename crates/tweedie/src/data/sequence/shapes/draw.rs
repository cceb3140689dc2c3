//! A scene as 32×32 pixels. Only exactly rounded operations, so that the pictures are the same everywhere.

use super::Numbers;
use super::scene::{Object, Scene};
use crate::data::Image;

pub(super) const SIDE: usize = 32;
/// Points per pixel along each axis.
const FINE: usize = 4;
/// As the words say: red, green, blue, yellow, purple, black.
const INKS: [[f32; 3]; 6] = [
    [222.0, 40.0, 40.0],
    [40.0, 160.0, 60.0],
    [45.0, 95.0, 225.0],
    [245.0, 205.0, 20.0],
    [155.0, 50.0, 185.0],
    [28.0, 28.0, 28.0],
];
/// How far an object may lie from where it belongs: as far as two large ones on both sides of the middle leave room for.
const JITTER: f32 = 1.5;

/// Between which half of an object's width lies. Small and large are apart by more than they vary.
fn radii(object: &Object) -> (f32, f32) {
    match object.size {
        0 => (3.4, 4.0),
        _ => (5.6, 6.2),
    }
}

/// Between which each channel of the paper lies.
const PAPER: (f32, f32) = (215.0, 245.0);

fn middle((low, high): (f32, f32)) -> f32 {
    (low + high) / 2.0
}

/// Objects at exactly these places, of the middle size, on even paper of the middle tint.
pub(super) fn paint_on_paper(objects: &[(Object, (f32, f32))]) -> Image {
    let mut pixels = vec![[middle(PAPER); 3]; SIDE * SIDE];
    for (object, at) in objects {
        paint(&mut pixels, object.shape, *at, middle(radii(object)), INKS[object.colour]);
    }
    image(&pixels)
}

fn image(pixels: &[[f32; 3]]) -> Image {
    let data = pixels.iter().flatten().map(|v| (v + 0.5).clamp(0.0, 255.0) as u8).collect();
    Image { width: SIDE, height: SIDE, channels: 3, data }
}

pub(super) fn draw(scene: &Scene, r: &mut Numbers) -> Image {
    let mut pixels = background(r);
    for (object, (x, y)) in placed(scene, r) {
        let (x, y) = (x + r.within(-JITTER, JITTER), y + r.within(-JITTER, JITTER));
        let (low, high) = radii(&object);
        let radius = r.within(low, high);
        let ink = INKS[object.colour].map(|v| v + r.within(-14.0, 14.0));
        paint(&mut pixels, object.shape, (x, y), radius, ink);
    }
    image(&pixels)
}

/// Light paper of some tint, a little darker towards one side.
fn background(r: &mut Numbers) -> Vec<[f32; 3]> {
    let tint = [(); 3].map(|()| r.within(PAPER.0, PAPER.1));
    let (across, down) = (r.within(-0.6, 0.6), r.within(-0.6, 0.6));
    let half = SIDE as f32 / 2.0;
    let shade = |i: usize| across * ((i % SIDE) as f32 - half) + down * ((i / SIDE) as f32 - half);
    (0..SIDE * SIDE).map(|i| tint.map(|t| t + shade(i))).collect()
}

/// The objects with the places around which they lie.
fn placed(scene: &Scene, r: &mut Numbers) -> Vec<(Object, (f32, f32))> {
    const THIRDS: [f32; 3] = [7.8, 16.0, 24.2];
    const HALVES: [f32; 2] = [8.0, 24.0];
    // Along the relation and across it.
    let at = |relation: usize, along: f32, across: f32| match relation {
        0 => (across, along),
        _ => (along, across),
    };
    match *scene {
        Scene::One(object, place) => vec![(object, (THIRDS[place % 3], THIRDS[place / 3]))],
        Scene::Two([a, b], relation) => {
            let across = r.within(8.0, 24.0); // the pair as a whole may lie off the middle
            vec![(a, at(relation, HALVES[0], across)), (b, at(relation, HALVES[1], across))]
        }
        Scene::Three([a, b, c], relation, first) => {
            let [low, high] = HALVES;
            let spots = match first {
                1 => [(low, 16.0), (high, low), (high, high)],
                _ => [(low, low), (low, high), (high, 16.0)],
            };
            [a, b, c].into_iter().zip(spots.map(|(along, across)| at(relation, along, across))).collect()
        }
    }
}

/// Mix `ink` into the pixels by the share of each that the shape covers.
fn paint(pixels: &mut [[f32; 3]], shape: usize, (x, y): (f32, f32), radius: f32, ink: [f32; 3]) {
    let range = |c: f32| ((c - radius - 1.0).max(0.0) as usize)..((c + radius + 2.0) as usize).min(SIDE);
    for row in range(y) {
        for column in range(x) {
            let fine = |i: usize| (i as f32 + 0.5) / FINE as f32;
            let hits = (0..FINE * FINE).filter(|i| {
                let (dx, dy) = (column as f32 + fine(i % FINE) - x, row as f32 + fine(i / FINE) - y);
                covers(shape, dx / radius, dy / radius)
            });
            let share = hits.count() as f32 / (FINE * FINE) as f32;
            for (p, ink) in pixels[row * SIDE + column].iter_mut().zip(ink) {
                *p += share * (ink - *p);
            }
        }
    }
}

/// Whether a shape of radius 1 covers a point. The order is that of the words: circle, square, triangle, cross.
fn covers(shape: usize, x: f32, y: f32) -> bool {
    let inside = |w: f32, h: f32| x.abs() <= w && y.abs() <= h;
    match shape {
        0 => x * x + y * y <= 1.0,
        1 => inside(0.88, 0.88),
        2 => (-0.95..=0.85).contains(&y) && x.abs() <= (y + 0.95) * 0.56,
        _ => inside(1.0, 0.34) || inside(0.34, 1.0),
    }
}
