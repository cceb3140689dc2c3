//! What is in a picture, and the one sentence about it.

use super::Numbers;

pub(super) const SIZES: [&str; 2] = ["small", "large"];
pub(super) const COLOURS: [&str; 6] = ["red", "green", "blue", "yellow", "purple", "black"];
pub(super) const SHAPES: [&str; 4] = ["circle", "square", "triangle", "cross"];
/// Rows of three: where a single object is.
pub(super) const PLACES: [&str; 9] = [
    "at the top left",
    "at the top",
    "at the top right",
    "at the left",
    "at the center",
    "at the right",
    "at the bottom left",
    "at the bottom",
    "at the bottom right",
];
/// How the first objects lie to those that follow: in a column or in a row.
pub(super) const RELATIONS: [&str; 2] = ["above", "left of"];

/// Indices into the lists above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub size: usize,
    pub colour: usize,
    pub shape: usize,
}

impl Object {
    fn random(r: &mut Numbers) -> Object {
        Object { size: r.below(SIZES.len()), colour: r.below(COLOURS.len()), shape: r.below(SHAPES.len()) }
    }

    fn name(&self) -> String {
        format!("a {} {} {}", SIZES[self.size], COLOURS[self.colour], SHAPES[self.shape])
    }

    fn code(&self) -> u32 {
        ((self.size * COLOURS.len() + self.colour) * SHAPES.len() + self.shape) as u32
    }
}

/// One to three objects, named from top to bottom and from left to right: there is no second way to say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scene {
    /// In one of nine places.
    One(Object, usize),
    /// The first above or left of the second.
    Two([Object; 2], usize),
    /// One object on one side, two on the other; the number says whether the first one or the first two are on the
    /// first side.
    Three([Object; 3], usize, usize),
}

impl Scene {
    /// A quarter have one object, half have two, a quarter three.
    pub fn random(r: &mut Numbers) -> Scene {
        match r.below(4) {
            0 => Scene::One(Object::random(r), r.below(PLACES.len())),
            1 | 2 => Scene::Two([(); 2].map(|()| Object::random(r)), r.below(RELATIONS.len())),
            _ => Scene::Three([(); 3].map(|()| Object::random(r)), r.below(RELATIONS.len()), 1 + r.below(2)),
        }
    }

    pub fn caption(&self) -> String {
        match self {
            Scene::One(object, place) => format!("{} {}", object.name(), PLACES[*place]),
            Scene::Two([a, b], relation) => format!("{} {} {}", a.name(), RELATIONS[*relation], b.name()),
            Scene::Three([a, b, c], relation, first) => {
                let (a, b, c, relation) = (a.name(), b.name(), c.name(), RELATIONS[*relation]);
                match first {
                    1 => format!("{a} {relation} {b} and {c}"),
                    _ => format!("{a} and {b} {relation} {c}"),
                }
            }
        }
    }

    /// A number for each scene.
    pub fn code(&self) -> u32 {
        let kinds = (SIZES.len() * COLOURS.len() * SHAPES.len()) as u32;
        let (objects, layout): (&[Object], usize) = match self {
            Scene::One(object, place) => (std::slice::from_ref(object), *place),
            Scene::Two(objects, relation) => (objects, PLACES.len() + relation),
            Scene::Three(objects, relation, first) => (objects, PLACES.len() + RELATIONS.len() * first + relation),
        };
        objects.iter().fold(layout as u32, |code, o| code * kinds + o.code())
    }
}
