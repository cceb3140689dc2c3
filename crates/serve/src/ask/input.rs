//! Images of requests: files in base64, and scenes to be drawn.

use serde_json::Value;
use tweedie::Image;
use tweedie::data::{SceneObject, Task, draw_scene};

use super::fields::Fields;
use crate::error::{Problem, Result};
use crate::model::Described;

/// Longest side of an image.
const MOST_SIDE: usize = 8192;

/// The image of a request as the network reads it; none for a model of text.
pub fn image_values(model: &Described, f: &Fields) -> Result<Option<Vec<f32>>> {
    let image = match (f.text("image"), f.get("scene"), model.task) {
        (None, None, Task::Text) => return Ok(None),
        (_, _, Task::Text) => {
            return Err(Problem::field("image", format!("{} writes text without images", model.name)));
        }
        (Some(_), Some(_), _) => return Err(Problem::field("scene", "give image or scene, not both")),
        (Some(text), None, _) => decoded(text)?,
        (None, Some(scene), _) => scene_image(scene)?,
        (None, None, _) => return Err(Problem::field("image", "image is missing")),
    };
    model.values(image).map(Some)
}

fn decoded(text: &str) -> Result<Image> {
    let wrong = |why: String| Problem::field("image", why);
    let data = match text.strip_prefix("data:") {
        Some(url) => url.split_once(";base64,").ok_or_else(|| wrong("a data: URL must be ;base64,".into()))?.1,
        None => text,
    };
    let bytes = base64::decode(data).map_err(|e| wrong(format!("image is not base64: {e}")))?;
    let image = Image::decode(&bytes).map_err(|e| wrong(format!("the image cannot be read: {e}")))?;
    let (w, h) = (image.width, image.height);
    if w.max(h) > MOST_SIDE {
        return Err(wrong(format!(
            "the image is {w} × {h} pixels; the limit is {MOST_SIDE} on a side: make it smaller"
        )));
    }
    Ok(image)
}

/// The picture of a scene, `{"objects": […]}`.
pub fn scene_image(scene: &Value) -> Result<Image> {
    if let Some(name) = scene.as_object().and_then(|o| o.keys().find(|k| *k != "objects")) {
        return Err(Problem::field("scene", format!("a scene has objects, not {name:?}")));
    }
    let none = || Problem::field("scene.objects", "scene.objects must be a list of 1 to 6 objects");
    let list = scene["objects"].as_array().filter(|l| l.len() <= 64).ok_or_else(none)?;
    let mut objects = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        let wrong = |e: serde_json::Error| Problem::field(format!("scene.objects[{i}]"), format!("objects[{i}]: {e}"));
        objects.push(serde_json::from_value::<SceneObject>(value.clone()).map_err(wrong)?);
    }
    draw_scene(&objects).map_err(|e| {
        let message = e.to_string();
        let field = message.split([' ', ':']).next().unwrap_or_default().to_string();
        Problem::field(format!("scene.{field}"), message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_wrong_with_a_scene_names_its_field() {
        let circle = |color: &str, x: f64| json!({"size": "small", "color": color, "shape": "circle", "x": x, "y": 3});
        let of = |scene: Value| scene_image(&scene).map(|_| String::new()).unwrap_or_else(|p| p.field.unwrap());
        assert_eq!(of(json!({"objects": [circle("red", 3.0)]})), "");
        assert_eq!(of(json!({"objects": [circle("red", 3.0), circle("pink", 3.0)]})), "scene.objects[1].color");
        assert_eq!(of(json!({"objects": [circle("red", 33.0)]})), "scene.objects[0].x");
        assert_eq!(of(json!({"objects": []})), "scene.objects");
        assert_eq!(of(json!({"objects": 3})), "scene.objects");
        assert_eq!(of(json!({"objects": [3]})), "scene.objects[0]");
        assert_eq!(of(json!({"things": []})), "scene");
    }

    #[test]
    fn images_are_files_in_base64() {
        let png = base64::encode(Image::filled(3, 2, &[9, 9, 9]).to_png().unwrap());
        assert_eq!(decoded(&png).unwrap().width, 3);
        assert_eq!(decoded(&format!("data:image/png;base64,{png}")).unwrap().height, 2);
        for wrong in ["", "data:image/png,abc", "%%%", &png[..png.len() / 2]] {
            assert_eq!(decoded(wrong).unwrap_err().field.as_deref(), Some("image"), "{wrong}");
        }
        let wide = base64::encode(Image::filled(8193, 1, &[0]).to_png().unwrap());
        assert!(decoded(&wide).unwrap_err().message.contains("the limit is 8192"));
    }
}
