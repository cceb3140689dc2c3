use serde::Deserialize;

use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    seed: u64,
    train: Train,
    model: Model,
    data: Data,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Train {
    batch: usize,
    lr: f32,
    recompute: bool,
    kind: Kind,
    mean: [f32; 3],
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    CrossEntropy,
    Noise,
}

/// Without defaults of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    width: usize,
    encoder: Encoder,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoder {
    depth: usize,
    heads: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Data {
    path: String,
    val_fraction: f64,
}

impl Default for Train {
    fn default() -> Train {
        Train { batch: 128, lr: 1e-3, recompute: false, kind: Kind::CrossEntropy, mean: [0.1; 3], note: None }
    }
}

impl Default for Config {
    fn default() -> Config {
        let model = Model { width: 64, encoder: Encoder { depth: 4, heads: 2 } };
        Config { seed: 0, train: Train::default(), model, data: Data::default() }
    }
}

fn strings(s: &[&str]) -> Vec<String> {
    s.iter().map(|s| s.to_string()).collect()
}

fn env(pairs: &[(&str, &str)]) -> std::vec::IntoIter<(String, String)> {
    pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect::<Vec<_>>().into_iter()
}

fn message(recipe: &str, env_pairs: &[(&str, &str)], sets: &[&str]) -> String {
    match load::<Config>(Some(("r.toml", recipe)), env(env_pairs), &strings(sets)) {
        Err(Error::Input(m)) => m,
        other => panic!("expected an input error, got {other:?}"),
    }
}

#[test]
fn nothing_given_is_the_default() {
    let (c, o) = load::<Config>(None, env(&[]), &[]).unwrap();
    assert_eq!(c, Config::default());
    assert_eq!(o, []);
}

#[test]
fn each_layer_wins_over_those_below() {
    let recipe = "seed = 1\n[train]\nbatch = 1\nlr = 0.5\n";
    let layers = |n: usize| {
        let sets = strings(&["seed=3"]);
        let flags = [("--seed".to_string(), "seed=4".to_string())];
        let (c, o) = Layers {
            recipe: Some(("r.toml", recipe)),
            env: if n > 1 { env(&[("TWEEDIE_SEED", "2"), ("PATH", "x")]).collect() } else { vec![] },
            sets: if n > 2 { &sets } else { &[] },
            flags: if n > 3 { &flags } else { &[] },
            ..Layers::default()
        }
        .load::<Config>()
        .unwrap();
        assert_eq!((c.train.batch, c.train.lr, c.model.width), (1, 0.5, 64));
        let from = o.iter().find(|o| o.key == "seed").unwrap().source.to_string();
        (c.seed, from)
    };
    assert_eq!(layers(1), (1, "r.toml:1".into()));
    assert_eq!(layers(2), (2, "environment TWEEDIE_SEED".into()));
    assert_eq!(layers(3), (3, "--set".into()));
    assert_eq!(layers(4), (4, "--seed".into()));
}

#[test]
fn part_of_a_table_without_defaults_is_merged_over_the_default() {
    let recipe = "[model.encoder]\ndepth = 12";
    let (c, _) = load::<Config>(Some(("r", recipe)), env(&[("TWEEDIE_MODEL__WIDTH", "9")]), &[]).unwrap();
    assert_eq!(c.model, Model { width: 9, encoder: Encoder { depth: 12, heads: 2 } });
    assert!(load::<Config>(None, env(&[("TWEEDIE_MAX_PIXELS", "9")]), &[]).is_ok(), "a limit, not a setting");
    let (c, _) = load::<Config>(None, env(&[]), &strings(&["model.encoder={heads = 7}"])).unwrap();
    assert_eq!(c.model.encoder, Encoder { depth: 4, heads: 7 });
}

#[test]
fn origins_name_only_what_differs() {
    // The second repeats the default, also as f32 (0.001 is not a value of that type).
    let recipe = "[train]\nbatch = 64\nlr = 0.001\nmean = [0.1, 0.1, 0.2]";
    let (_, o) = load::<Config>(Some(("r", recipe)), env(&[]), &strings(&["data.path=a b"])).unwrap();
    let seen: Vec<_> = o.iter().map(|o| (o.key.as_str(), o.value.as_str(), o.default.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("data.path", "\"a b\"", "\"\""),
            ("train.batch", "64", "128"),
            ("train.mean", "[0.1, 0.1, 0.2]", "[0.1, 0.1, 0.1]")
        ]
    );
    assert_eq!(o[1].source, Source::Recipe("r".into(), 2));
}

#[test]
fn text_stays_text_and_numbers_take_common_forms() {
    let set = |s: &str| load::<Config>(None, env(&[]), &strings(&[s])).unwrap().0;
    assert_eq!(set("data.path=2024").data.path, "2024");
    assert_eq!(set("data.path=a=b#c").data.path, "a=b#c");
    assert_eq!(set("data.path=\"quoted\"").data.path, "quoted");
    assert_eq!(set("data.path=").data.path, "");
    assert_eq!(set("train.lr=.5").train.lr, 0.5);
    assert_eq!(set("train.lr=3e-4").train.lr, 3e-4);
    assert_eq!(set("train.lr=1").train.lr, 1.0);
    assert_eq!(set("train.kind=noise").train.kind, Kind::Noise);
    assert!(set("train.recompute=true").train.recompute);
    assert_eq!(set("train.mean=[1, 2, 3]").train.mean, [1.0, 2.0, 3.0]);
}

#[test]
fn unknown_keys_name_their_place_and_the_nearest() {
    assert_eq!(
        message("\n[train]\nbatchs = 3", &[], &[]),
        "r.toml:3: unknown key 'train.batchs'; did you mean 'train.batch'?"
    );
    assert_eq!(message("[trian]\nlr = 3", &[], &[]), "r.toml:2: unknown key 'trian.lr'; did you mean 'train.lr'?");
    assert_eq!(message("", &[], &["batch=3"]), "--set: unknown key 'batch'; did you mean 'train.batch'?");
    assert_eq!(message("", &[], &["seed.x=3"]), "--set: unknown key 'seed.x'; did you mean 'seed'?");
    assert_eq!(
        message("", &[("TWEEDIE_TRAIN__BACTH", "3")], &[]),
        "environment TWEEDIE_TRAIN__BACTH: unknown key 'train.bacth'; did you mean TWEEDIE_TRAIN__BATCH?"
    );
    assert_eq!(
        message("[data]\nxylophone = 3", &[], &[]),
        "r.toml:2: unknown key 'data.xylophone'; known keys here: path, val_fraction"
    );
}

#[test]
fn wrong_types_say_what_was_expected() {
    let m = |sets: &[&str]| message("", &[], sets);
    assert_eq!(
        message("[train]\n\nbatch = 'many'", &[], &[]),
        "r.toml:3: train.batch = \"many\": expected a whole number"
    );
    assert_eq!(m(&["train.batch=1.5"]), "--set: train.batch = 1.5: expected a whole number");
    assert_eq!(
        m(&["train.batch=-1"]),
        "--set: train.batch = -1: invalid value: integer `-1`, expected a whole number that is not negative and not too large"
    );
    let e = m(&["train.mean=[1,\"x\"]"]);
    assert!(e.ends_with("expected a number"), "{e}");
    assert_eq!(m(&["train.lr=fast"]), "--set: train.lr = fast: expected a number");
    assert_eq!(m(&["train.recompute=yes"]), "--set: train.recompute = yes: expected true or false");
    assert_eq!(m(&["train.mean=0.5"]), "--set: train.mean = 0.5: expected a list");
    assert_eq!(message("data.path = 3", &[], &[]), "r.toml:1: data.path = 3: expected text");
    let e = m(&["train.kind=nois"]);
    assert!(e.starts_with("--set: train.kind = nois: ") && e.contains("cross-entropy") && e.contains("noise"), "{e}");
    let e = m(&["train.batch=-1"]);
    assert!(e.starts_with("--set: train.batch = -1: ") && e.contains("invalid value"), "{e}");
    assert_eq!(m(&["model.encoder=3"]), "--set: 'model.encoder' is a table, not a value; its keys are depth, heads");
    let e = m(&["seed=18446744073709551615"]);
    assert_eq!(e, "--set: seed = 18446744073709551615: whole numbers of TOML end at 9223372036854775807");
}

#[test]
fn malformed_input_names_its_line() {
    let e = message("seed = 1\n[train]\nbatch = = 3\n", &[], &[]);
    assert!(e.starts_with("r.toml:3: this is not TOML: ") && e.ends_with("batch = = 3"), "{e}");
    let e = message("seed = 1\nseed = 2", &[], &[]);
    assert!(e.starts_with("r.toml:2: "), "{e}");
    for bad in ["seed", "=3", ""] {
        assert!(message("", &[], &[bad]).contains("expected key=value"));
    }
}

#[test]
fn variables_that_are_not_settings_are_ignored() {
    let vars: Vec<_> = NOT_SETTINGS.iter().map(|n| (*n, "x")).collect();
    assert_eq!(load::<Config>(None, env(&vars), &[]).unwrap().0, Config::default());
}

#[test]
fn optional_keys_and_directives() {
    let set = strings(&["train.note=hi", "model.preset=big"]);
    let layers = Layers { sets: &set, optional: &["train.note"], directives: &["model.preset"], ..Layers::default() };
    assert_eq!(layers.value("model.preset").unwrap().as_deref(), Some("big"));
    assert_eq!(layers.value("model.width").unwrap(), None);
    let base = Config { seed: 5, ..Config::default() };
    let (c, o) = layers.load_over(&base).unwrap();
    assert_eq!((c.seed, c.train.note.as_deref()), (5, Some("hi")));
    assert_eq!(o.len(), 1);
    assert!(Layers { sets: &set, optional: &["train.note"], ..Layers::default() }.load::<Config>().is_err());
}

/// Every layer may use an old name; a higher layer wins whichever name it uses.
#[test]
fn old_names_are_accepted() {
    let renamed = [("train.old_batch", "train.batch"), ("rate", "train.lr")];
    let of = |recipe: &str, vars: &[(&str, &str)], sets: &[&str]| {
        let layers = Layers {
            recipe: Some(("r.toml", recipe)),
            env: env(vars).collect(),
            sets: &strings(sets),
            renamed: &renamed,
            ..Layers::default()
        };
        layers.load::<Config>().map(|(c, o)| (c.train, o)).map_err(|e| e.to_string())
    };
    let (train, origins) = of("[train]\nold_batch = 3", &[], &["rate=.5"]).unwrap();
    assert_eq!((train.batch, train.lr), (3, 0.5));
    assert_eq!((origins[0].key.as_str(), origins[0].source.to_string().as_str()), ("train.batch", "r.toml:2"));
    let batch = |recipe, vars, sets| of(recipe, vars, sets).unwrap().0.batch;
    assert_eq!(batch("train.old_batch = 3", &[("TWEEDIE_TRAIN__OLD_BATCH", "4")], &[]), 4);
    assert_eq!(batch("train.old_batch = 3", &[], &["train.batch=5"]), 5);
    assert_eq!(batch("train.batch = 3", &[], &["train={old_batch = 6}"]), 6);
    let e = of("[train]\nbatch = 3\nold_batch = 3", &[], &[]).unwrap_err();
    let both = "train.old_batch is called train.batch now; both are given, leave out the old name";
    assert_eq!(e, format!("r.toml:3, r.toml:2: {both}"));
    let e = of("", &[], &["train.batch=3", "train.old_batch=3"]).unwrap_err();
    assert_eq!(e, format!("--set: {both}"));
    let e = of("", &[], &["train.old_batch=many"]).unwrap_err();
    assert_eq!(e, "--set: train.batch = many: expected a whole number");
    assert!(message("train.old_batch = 3", &[], &[]).contains("unknown key"), "an alias is for settings that have it");
}

#[test]
fn written_settings_read_back_the_same() {
    let mut c = Config::default();
    c.train.lr = 0.1 + 0.2;
    c.data.path = "a \"b\"\n\\".into();
    let text = to_toml(&c).unwrap();
    assert_eq!(load::<Config>(Some(("r", &text)), env(&[]), &[]).unwrap().0, c);
    c.seed = u64::MAX; // TOML has no such number
    assert!(to_toml(&c).is_err());
}
