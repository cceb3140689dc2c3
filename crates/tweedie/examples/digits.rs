use std::time::Instant;
use tweedie::augment::*;
use tweedie::config::*;
use tweedie::train::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut c = Config::default();
    c.augment = AugmentConfig { crop: Crop::Padded { pad: 1, padding: Padding::Zero }, ..AugmentConfig::none() };
    c.train.epochs = a[1].parse().unwrap();
    c.train.lr = a[2].parse().unwrap();
    c.train.kfold = a[3].parse().unwrap();
    c.train.batch = a[4].parse().unwrap();
    c.train.eval_every = 10;
    c.train.ema = 0.99;
    c.train.warmup_epochs = 3.0;
    for m in [Method::Tdd, Method::Mdd] {
        c.model.method = m;
        let t0 = Instant::now();
        let d = tweedie::data::open("embedded:digits", &Default::default()).unwrap();
        let mut t = Trainer::new(&c, d, &tweedie_engine::Device::Cpu).unwrap();
        t.run(|e| if let Event::Eval { .. } = e { println!("{:.1}s {}", t0.elapsed().as_secs_f64(), serde_json::to_string(e).unwrap()) }, |_, _| Ok(String::new()), || false).unwrap();
    }
}
