//! Scenes that somebody arranged: the renderer of `embedded:shapes`, without what it leaves to chance.

use serde::{Deserialize, Serialize};

use super::draw::{SIDE, paint_on_paper};
use super::scene::{COLOURS, Object, SHAPES, SIZES};
use crate::data::{DataError, Image, Result};

/// Objects that a scene may have.
pub const MOST_OBJECTS: usize = 6;

/// One object and where its middle lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SceneObject {
    /// "small" or "large".
    pub size: String,
    /// "red", "green", "blue", "yellow", "purple" or "black".
    pub color: String,
    /// "circle", "square", "triangle" or "cross".
    pub shape: String,
    /// From the left, 0 to 32.
    pub x: f32,
    /// From the top, 0 to 32.
    pub y: f32,
}

/// The picture of some objects, later ones above earlier ones, as a model that was trained on `embedded:shapes` has seen them. What is
/// wrong names the field, as `objects[1].color`.
///
/// ```
/// use tweedie::data::{SceneObject, draw_scene};
///
/// let circle = SceneObject { size: "large".into(), color: "red".into(), shape: "circle".into(), x: 16.0, y: 8.0 };
/// let image = draw_scene(&[circle.clone()])?;
/// assert_eq!((image.width, image.pixel(16, 8), image.pixel(2, 30)), (32, &[222, 40, 40][..], &[230; 3][..]));
/// let e = draw_scene(&[SceneObject { color: "pink".into(), ..circle }]).unwrap_err().to_string();
/// assert!(e.starts_with("objects[0].color = \"pink\" must be one of red, green"), "{e}");
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
pub fn draw_scene(objects: &[SceneObject]) -> Result<Image> {
    if objects.is_empty() || objects.len() > MOST_OBJECTS {
        let n = objects.len();
        return Err(DataError::Setting(format!("objects: a scene has 1 to {MOST_OBJECTS} objects, not {n}")));
    }
    let placed = objects.iter().enumerate().map(|(i, o)| placed(i, o)).collect::<Result<Vec<_>>>()?;
    Ok(paint_on_paper(&placed))
}

fn placed(i: usize, o: &SceneObject) -> Result<(Object, (f32, f32))> {
    let of = |field: &str, names: &[&str], name: &str| {
        names.iter().position(|n| *n == name).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            DataError::Setting(format!("objects[{i}].{field} = {shown:?} must be one of {}", names.join(", ")))
        })
    };
    let object = Object {
        size: of("size", &SIZES, &o.size)?,
        colour: of("color", &COLOURS, &o.color)?,
        shape: of("shape", &SHAPES, &o.shape)?,
    };
    for (field, at) in [("x", o.x), ("y", o.y)] {
        if !(0.0..=SIDE as f32).contains(&at) {
            return Err(DataError::Setting(format!("objects[{i}].{field} = {at} must lie in [0, {SIDE}]")));
        }
    }
    Ok((object, (o.x, o.y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(x: f32, y: f32) -> SceneObject {
        SceneObject { size: "small".into(), color: "black".into(), shape: "cross".into(), x, y }
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        let e = |objects: &[SceneObject]| draw_scene(objects).unwrap_err().to_string();
        assert!(e(&[]).contains("1 to 6") && e(&vec![object(1.0, 1.0); 7]).contains("not 7"));
        assert_eq!(e(&[object(1.0, 1.0), object(f32::NAN, 1.0)]), "objects[1].x = NaN must lie in [0, 32]");
        assert_eq!(e(&[object(1.0, 32.5)]), "objects[0].y = 32.5 must lie in [0, 32]");
        let shape = SceneObject { shape: "star".into(), ..object(1.0, 1.0) };
        assert!(e(&[shape]).contains("objects[0].shape"));
    }

    #[test]
    fn objects_may_lie_half_outside_and_the_last_is_on_top() {
        let corner = draw_scene(&[object(0.0, 0.0), object(32.0, 32.0)]).unwrap();
        assert_eq!((corner.pixel(0, 0), corner.pixel(31, 31)), (&[28; 3][..], &[28; 3][..]));
        let red = SceneObject { color: "red".into(), ..object(16.0, 16.0) };
        assert_eq!(draw_scene(&[object(16.0, 16.0), red]).unwrap().pixel(16, 16), [222, 40, 40]);
    }
}
