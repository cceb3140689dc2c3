//! A data set of one's own: examples by number, made or read by your code. Here bars that lie or stand, drawn on the fly.
//!
//!     cargo run --release -p tweedie --example own_data

use tweedie::data::{self, ImageSource, Item};
use tweedie::{Classifier, Config, Dataset, Device, Image, Result, Session};

struct Bars {
    count: usize,
}

impl ImageSource for Bars {
    fn len(&self) -> usize {
        self.count
    }

    fn label(&self, i: usize) -> u32 {
        (i % 2) as u32
    }

    fn get(&self, i: usize) -> data::Result<Item> {
        let (lies, at) = (self.label(i) == 0, i / 2 % 8);
        let pixel =
            |p: usize| if (if lies { p / 8 } else { p % 8 }) == at { 255 } else { (p * 37 + i * 11) as u8 % 64 };
        let image = Image { width: 8, height: 8, channels: 1, data: (0..64).map(pixel).collect() };
        Ok(Item { image, label: self.label(i) })
    }
}

fn main() -> Result<()> {
    let data = Dataset::classes("bars", ["lying", "standing"]).train(Bars { count: 800 }).hold_out(0.1).build()?;
    let config = Config::preset("digits")?.with("train.epochs", 4)?.with("augment.mix.mixup_alpha", 0)?;
    let folder = std::env::temp_dir().join(format!("tweedie-bars-{}", std::process::id()));
    let run = Session::create(&folder, &config, data, &Device::auto()?)?.run(|event| println!("{event}"))?;

    let classifier = Classifier::open(&run)?;
    let unseen = Bars { count: 900 };
    for i in [800, 801] {
        println!("{}", classifier.classify(&unseen.get(i)?.image)?.top(1));
    }
    assert_eq!(classifier.classify(&unseen.get(801)?.image)?.best(), Some("standing"));
    std::fs::remove_dir_all(&folder).map_err(|e| tweedie::Error::file(&folder, e))
}
