//! Captions from files: COCO's annotations and results, maps from image to captions, JSON lines.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::files::read;
use crate::limits::TEXT_BYTES;

/// Captions that people wrote, by image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct References {
    /// Images in the order of the file.
    pub ids: Vec<String>,
    /// Their captions.
    pub captions: Vec<Vec<String>>,
    /// Their files, where COCO's `images` names them.
    pub files: HashMap<String, String>,
}

/// One caption for each image.
pub type Captions = Vec<(String, String)>;

/// What a file holds, before it is known to be right.
enum Shape {
    /// `{images, annotations}`.
    Coco { images: Value, annotations: Value },
    /// `{id: …}`.
    Map(Vec<(String, Value)>),
    /// A list or lines of `{image_id, …}`, each with its place.
    Records(Vec<(String, Value)>),
}

/// A JSON object that keeps its order and its repeated keys.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Entries, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                let mut all = Vec::new();
                while let Some(e) = map.next_entry()? {
                    all.push(e);
                }
                Ok(Entries(all))
            }
        }
        d.deserialize_map(Collect)
    }
}

/// Complaints that begin with the file.
struct Source<'a>(&'a Path);

impl Source<'_> {
    fn wrong(&self, what: impl fmt::Display) -> Error {
        Error::Input(format!("{}: {what}", self.0.display()))
    }

    fn shape(&self) -> Result<Shape> {
        let bytes = read(self.0, &TEXT_BYTES).map_err(|e| Error::file(self.0, e))?;
        let text = std::str::from_utf8(&bytes).map_err(|_| self.wrong("not UTF-8 text"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim_start().starts_with('[') {
            let list: Vec<Value> = serde_json::from_str(text).map_err(|e| self.wrong(format!("not JSON: {e}")))?;
            return Ok(Shape::Records(list.into_iter().enumerate().map(|(i, v)| (format!("[{i}]"), v)).collect()));
        }
        let first = text.lines().find(|l| !l.trim().is_empty()).ok_or_else(|| self.wrong("the file is empty"))?;
        match serde_json::from_str::<Entries>(text) {
            Ok(Entries(mut all)) if !all.iter().any(|e| is_id(&e.0)) => {
                let mut take = |key: &str| all.iter().position(|e| e.0 == key).map(|i| all.swap_remove(i).1);
                match take("annotations") {
                    Some(annotations) => Ok(Shape::Coco { images: take("images").unwrap_or(Value::Null), annotations }),
                    None => Ok(Shape::Map(all)),
                }
            }
            // One record to a line; the message for a broken file is that of its whole.
            Err(e) if serde_json::from_str::<Entries>(first).is_err() => Err(self.wrong(format!("not JSON: {e}"))),
            _ => {
                let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
                let record = |(i, l): (usize, &str)| {
                    let v =
                        serde_json::from_str(l).map_err(|e| self.wrong(format!("line {}: not JSON: {e}", i + 1)))?;
                    Ok((format!("line {}", i + 1), v))
                };
                Ok(Shape::Records(lines.map(record).collect::<Result<_>>()?))
            }
        }
    }

    fn id(&self, place: &str, key: &str, v: Option<&Value>) -> Result<String> {
        match v {
            Some(Value::Number(n)) => Ok(n.to_string()),
            Some(Value::String(s)) if !s.is_empty() => Ok(s.clone()),
            None => Err(self.wrong(format!("{place} has no {key}"))),
            Some(v) => Err(self.wrong(format!("{place}.{key} must be a number or a string, it is {}", short(v)))),
        }
    }

    fn record_id(&self, place: &str, v: &Value) -> Result<String> {
        if !v.is_object() {
            return Err(self.wrong(format!("{place} must be an object, it is {}", short(v))));
        }
        let key = if v.get("image_id").is_none() && v.get("id").is_some() { "id" } else { "image_id" };
        self.id(place, key, v.get(key))
    }

    fn caption(&self, place: &str, v: &Value, may_be_empty: bool) -> Result<String> {
        match v {
            Value::String(s) if may_be_empty || !s.trim().is_empty() => Ok(s.clone()),
            Value::String(_) => Err(self.wrong(format!("{place} is empty"))),
            v => Err(self.wrong(format!("{place} must be a string, it is {}", short(v)))),
        }
    }

    fn captions(&self, place: &str, v: &Value) -> Result<Vec<String>> {
        match v {
            Value::Array(all) if all.is_empty() => Err(self.wrong(format!("{place} has no caption"))),
            Value::Array(all) => {
                all.iter().enumerate().map(|(i, v)| self.caption(&format!("{place}[{i}]"), v, false)).collect()
            }
            v => Ok(vec![self.caption(place, v, false)?]),
        }
    }
}

fn is_id(key: &str) -> bool {
    key == "image_id" || key == "caption" || key == "captions"
}

/// A value in a message: its beginning.
fn short(v: &Value) -> String {
    let text = v.to_string();
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Read references: COCO's `{images, annotations}`, `{id: [captions]}`, or a list or lines of `{image_id, caption}` or
/// `{image_id, captions}`.
pub fn read_references(path: &Path) -> Result<References> {
    let source = Source(path);
    let mut out = References::default();
    let mut at: HashMap<String, usize> = HashMap::new();
    let mut add = |out: &mut References, id: String, captions: Vec<String>| {
        let i = *at.entry(id.clone()).or_insert_with(|| {
            out.ids.push(id);
            out.captions.push(Vec::new());
            out.ids.len() - 1
        });
        out.captions[i].extend(captions);
    };
    match source.shape()? {
        Shape::Map(entries) => {
            let mut seen = HashSet::new();
            for (id, v) in entries {
                if !seen.insert(id.clone()) {
                    return Err(source.wrong(format!("image '{id}' occurs twice")));
                }
                add(&mut out, id.clone(), source.captions(&format!("captions of '{id}'"), &v)?);
            }
        }
        Shape::Records(records) => {
            for (place, v) in records {
                let id = source.record_id(&place, &v)?;
                let (key, captions) = match (v.get("captions"), v.get("caption")) {
                    (Some(c), _) => ("captions", c),
                    (None, Some(c)) => ("caption", c),
                    _ => return Err(source.wrong(format!("{place} has no caption and no captions"))),
                };
                add(&mut out, id, source.captions(&format!("{place}.{key}"), captions)?);
            }
        }
        Shape::Coco { images, annotations } => {
            let list = |name: &str, v: &Value| match v {
                Value::Null => Ok(Vec::new()),
                Value::Array(a) => Ok(a.clone()),
                v => Err(source.wrong(format!("{name} must be a list, it is {}", short(v)))),
            };
            for (i, v) in list("images", &images)?.iter().enumerate() {
                let place = format!("images[{i}]");
                let id = source.id(&place, "id", v.get("id"))?;
                if out.files.contains_key(&id) {
                    return Err(source.wrong(format!("{place}.id {id} occurs twice")));
                }
                let file = v.get("file_name").and_then(Value::as_str).unwrap_or_default();
                out.files.insert(id, file.into());
            }
            let mut seen = HashSet::new();
            for (i, v) in list("annotations", &annotations)?.iter().enumerate() {
                let place = format!("annotations[{i}]");
                let id = source.id(&place, "image_id", v.get("image_id"))?;
                if !out.files.is_empty() && !out.files.contains_key(&id) {
                    return Err(source.wrong(format!("{place}.image_id {id} is not among images")));
                }
                if v.get("id").is_some_and(|own| !seen.insert(own.to_string())) {
                    return Err(source.wrong(format!("{place}.id {} occurs twice", v["id"])));
                }
                let caption = v.get("caption").ok_or_else(|| source.wrong(format!("{place} has no caption")))?;
                add(&mut out, id, vec![source.caption(&format!("{place}.caption"), caption, false)?]);
            }
            out.files.retain(|_, f| !f.is_empty());
        }
    }
    if out.ids.is_empty() {
        return Err(source.wrong("there is no caption in it"));
    }
    Ok(out)
}

/// Read one caption for each image: COCO's `[{image_id, caption}]`, the same as lines, or `{id: caption}`.
pub fn read_captions(path: &Path, may_be_empty: bool) -> Result<Captions> {
    let source = Source(path);
    let mut out = Captions::new();
    match source.shape()? {
        Shape::Coco { .. } => {
            return Err(source.wrong(
                "this is a file of references ({images, annotations}); a list of {image_id, caption} is wanted",
            ));
        }
        Shape::Map(entries) => {
            for (id, v) in entries {
                let place = format!("caption of '{id}'");
                // A list of one caption is what some programs write.
                let v = match &v {
                    Value::Array(a) if a.len() == 1 => &a[0],
                    v => v,
                };
                out.push((id, source.caption(&place, v, may_be_empty)?));
            }
        }
        Shape::Records(records) => {
            for (place, v) in records {
                let id = source.record_id(&place, &v)?;
                let caption = v.get("caption").ok_or_else(|| source.wrong(format!("{place} has no caption")))?;
                out.push((id, source.caption(&format!("{place}.caption"), caption, may_be_empty)?));
            }
        }
    }
    let mut seen = HashSet::new();
    if let Some((id, _)) = out.iter().find(|(id, _)| !seen.insert(id.as_str())) {
        return Err(source.wrong(format!("image_id {id} has two captions")));
    }
    if out.is_empty() {
        return Err(source.wrong("there is no caption in it"));
    }
    Ok(out)
}

/// The caption of each of the references' images, in their order. `subset`: images without a caption are left out of the
/// references, instead of being an error.
pub fn pair(references: &mut References, files: &[(&Path, Captions)], subset: bool) -> Result<Vec<Vec<String>>> {
    let known: HashSet<&str> = references.ids.iter().map(String::as_str).collect();
    let mut maps = Vec::new();
    for (path, captions) in files {
        let strange: Vec<&str> = captions.iter().map(|c| c.0.as_str()).filter(|id| !known.contains(id)).collect();
        if let Some(first) = strange.first() {
            let all = captions.len();
            let what = format!("image_id {first} is not in the references ({} of {all} are not)", strange.len());
            return Err(Source(path).wrong(what));
        }
        maps.push(captions.iter().map(|(id, c)| (id.as_str(), c)).collect::<HashMap<_, _>>());
    }
    let has_all = |id: &str| maps.iter().all(|m| m.contains_key(id));
    if subset {
        let keep: Vec<bool> = references.ids.iter().map(|id| has_all(id)).collect();
        let mut k = keep.iter();
        references.ids.retain(|_| k.next() == Some(&true));
        let mut k = keep.iter();
        references.captions.retain(|_| k.next() == Some(&true));
    }
    for (map, (path, _)) in maps.iter().zip(files) {
        let missing: Vec<&str> = references.ids.iter().map(String::as_str).filter(|id| !map.contains_key(id)).collect();
        if let Some(first) = missing.first() {
            let what = format!(
                "no caption for image {first} of the references ({} of {} are missing)",
                missing.len(),
                references.ids.len()
            );
            return Err(Source(path).wrong(what));
        }
    }
    if references.ids.is_empty() {
        return Err(Error::Input("no image has a caption in every file".into()));
    }
    Ok(maps.iter().map(|m| references.ids.iter().map(|id| m[id.as_str()].clone()).collect()).collect())
}

/// The file of each image below `folder`: by the name that the references give, else a file called by the image's id, as it
/// is or as COCO writes it (`000000000042.jpg`, `COCO_val2014_000000000042.jpg`).
pub fn image_files(references: &References, folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::file(folder, e))?;
    let mut by_id: HashMap<String, PathBuf> = HashMap::new();
    for e in entries {
        let path = e.map_err(|e| Error::file(folder, e))?.path();
        let Some(stem) = path.file_stem().and_then(|s| s.to_str()) else { continue };
        let last = stem.rsplit('_').next().unwrap_or(stem);
        if last.bytes().all(|b| b.is_ascii_digit()) && !last.is_empty() {
            let plain = last.trim_start_matches('0');
            by_id.entry(if plain.is_empty() { "0" } else { plain }.into()).or_insert_with(|| path.clone());
        }
        by_id.insert(stem.into(), path.clone());
        if let Some(name) = path.file_name().and_then(|s| s.to_str()) {
            by_id.insert(name.into(), path.clone());
        }
    }
    let find = |id: &String| {
        let named = references.files.get(id).map(|f| folder.join(f)).filter(|p| p.is_file());
        named.or_else(|| by_id.get(id).cloned())
    };
    let missing = |id: &String| Error::Input(format!("{}: there is no file for image {id}", folder.display()));
    references.ids.iter().map(|id| find(id).ok_or_else(|| missing(id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn references(text: &str) -> std::result::Result<References, String> {
        let (_dir, path) = file(text);
        read_references(&path).map_err(|e| e.to_string())
    }

    fn captions(text: &str) -> std::result::Result<Captions, String> {
        let (_dir, path) = file(text);
        read_captions(&path, false).map_err(|e| e.to_string())
    }

    #[test]
    fn every_form_of_references_is_the_same() {
        let forms = [
            r#"{"images": [{"id": 7, "file_name": "a.jpg"}, {"id": 3}], "annotations":
               [{"image_id": 7, "id": 1, "caption": "x"}, {"image_id": 3, "id": 2, "caption": "z"}, {"image_id": 7, "id": 3, "caption": "y"}]}"#,
            r#"{"7": ["x", "y"], "3": "z"}"#,
            "{\"image_id\": 7, \"caption\": \"x\"}\n{\"image_id\": \"3\", \"caption\": \"z\"}\n\n{\"image_id\": 7, \"caption\": \"y\"}\n",
            "{\"id\": 7, \"captions\": [\"x\", \"y\"]}\n{\"image_id\": 3, \"captions\": [\"z\"]}",
            r#"[{"image_id": 7, "captions": ["x", "y"]}, {"image_id": 3, "caption": "z"}]"#,
        ];
        for f in forms {
            let r = references(f).unwrap();
            assert_eq!(
                (r.ids, r.captions),
                (vec!["7".into(), "3".into()], vec![vec!["x".into(), "y".into()], vec!["z".to_string()]]),
                "{f}"
            );
        }
        assert_eq!(references(forms[0]).unwrap().files, HashMap::from([("7".into(), "a.jpg".into())]));
        assert_eq!(references(r#"{"image_id": 7, "caption": "x"}"#).unwrap().ids, ["7"]);
    }

    #[test]
    fn every_form_of_captions_is_the_same() {
        let want = vec![("7".to_string(), "x".to_string()), ("3".into(), "z".into())];
        for f in [
            r#"[{"image_id": 7, "caption": "x"}, {"image_id": 3, "caption": "z"}]"#,
            r#"{"7": "x", "3": ["z"]}"#,
            "{\"image_id\": 7, \"caption\": \"x\"}\n{\"image_id\": 3, \"caption\": \"z\"}",
        ] {
            assert_eq!(captions(f).unwrap(), want, "{f}");
        }
    }

    #[test]
    fn mistakes_are_named_with_file_and_field() {
        for (text, want) in [
            ("", "the file is empty"),
            ("{\"a\": ", "not JSON"),
            ("[{\"image_id\": 1, \"caption\": 5}]", "[0].caption must be a string, it is 5"),
            ("[{\"image_id\": 1, \"caption\": \" \"}]", "[0].caption is empty"),
            ("[{\"image_id\": [1], \"caption\": \"a\"}]", "[0].image_id must be a number or a string, it is [1]"),
            ("[{\"caption\": \"a\"}]", "[0] has no image_id"),
            ("[{\"image_id\": 1}]", "[0] has no caption"),
            ("[5]", "[0] must be an object, it is 5"),
            ("[]", "there is no caption in it"),
            ("{\"1\": []}", "'1'"),
            ("{\"1\": \"a\", \"1\": \"b\"}", "twice|two captions"),
            ("{\"image_id\": 1, \"caption\": \"a\"}\n{\"image_id\": 2", "line 2: not JSON"),
        ] {
            for e in [references(text).unwrap_err(), captions(text).unwrap_err()] {
                assert!(e.contains("c.json: ") && want.split('|').any(|w| e.contains(w)), "{text}: {e}");
            }
        }
        for (text, want) in [
            (r#"{"annotations": 5}"#, "annotations must be a list"),
            (r#"{"images": [{"id": 1}, {"id": 1}], "annotations": []}"#, "images[1].id 1 occurs twice"),
            (
                r#"{"images": [{"id": 1}], "annotations": [{"image_id": 2, "caption": "a"}]}"#,
                "annotations[0].image_id 2 is not among images",
            ),
            (
                r#"{"annotations": [{"image_id": 2, "id": 1, "caption": "a"}, {"image_id": 2, "id": 1, "caption": "b"}]}"#,
                "annotations[1].id 1 occurs twice",
            ),
            (r#"{"1": ["a", ""]}"#, "captions of '1'[1] is empty"),
        ] {
            let e = references(text).unwrap_err();
            assert!(e.contains(want), "{text}: {e}");
        }
        assert!(captions(r#"{"annotations": []}"#).unwrap_err().contains("file of references"));
        assert!(
            captions(r#"[{"image_id": 1, "caption": "a"}, {"image_id": "1", "caption": "b"}]"#)
                .unwrap_err()
                .contains("two captions")
        );
    }

    #[test]
    fn captions_are_put_in_the_references_order() {
        let r = || references(r#"{"7": ["x"], "3": ["z"], "5": ["q"]}"#).unwrap();
        let c = |s: &str| captions(s).unwrap();
        let p = Path::new("h.json");
        let full = c(r#"{"5": "c", "7": "a", "3": "b"}"#);
        assert_eq!(pair(&mut r(), &[(p, full.clone())], false).unwrap(), [["a", "b", "c"]]);
        let e = pair(&mut r(), &[(p, c(r#"{"5": "c"}"#))], false).unwrap_err().to_string();
        assert_eq!(e, "h.json: no caption for image 7 of the references (2 of 3 are missing)");
        let e = pair(&mut r(), &[(p, c(r#"{"5": "c", "9": "a"}"#))], true).unwrap_err().to_string();
        assert_eq!(e, "h.json: image_id 9 is not in the references (1 of 2 are not)");
        let mut some = r();
        assert_eq!(
            pair(&mut some, &[(p, full), (p, c(r#"{"5": "d", "7": "e"}"#))], true).unwrap(),
            [["a", "c"], ["e", "d"]]
        );
        assert_eq!((some.ids.len(), some.captions.len()), (2, 2));
    }

    #[test]
    fn images_are_found_by_name_and_number() {
        let dir = tempfile::tempdir().unwrap();
        for n in ["x.png", "000000000042.jpg", "COCO_val2014_000000000009.jpg", "0.webp"] {
            std::fs::write(dir.path().join(n), b"").unwrap();
        }
        let r = references(r#"{"42": "a", "9": "b", "x": "c", "0": "d", "x.png": "e"}"#).unwrap();
        let names: Vec<_> = image_files(&r, dir.path())
            .unwrap()
            .iter()
            .map(|p| p.file_name().unwrap().to_str().unwrap().to_string())
            .collect();
        assert_eq!(names, ["000000000042.jpg", "COCO_val2014_000000000009.jpg", "x.png", "0.webp", "x.png"]);
        let r = references(r#"{"43": "a"}"#).unwrap();
        assert!(image_files(&r, dir.path()).unwrap_err().to_string().contains("no file for image 43"));
    }
}
