//! Against plain f64 arithmetic on the host.

use super::*;
use crate::cases::random;
use crate::{Device, rng};

const CPU: Device = Device::Cpu;

fn ids(v: &[u32]) -> Tensor {
    Tensor::from_u32(&CPU, &[v.len()], v.to_vec()).unwrap()
}

fn softmax(l: &[f64]) -> Vec<f64> {
    let max = l.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = l.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

/// The definition: guided logits, banned classes left out, softmax; then the first class at which the distribution function
/// passes the uniform number.
struct Plain {
    logits: Vec<Vec<f64>>,
    p: Vec<Vec<f64>>,
}

impl Plain {
    fn new(logits: &[f32], n: usize, v: usize, w: Option<f64>, banned: &dyn Fn(usize) -> Vec<usize>) -> Plain {
        let row = |r: usize| &logits[r * v..][..v];
        let rows = logits.len() / v / if w.is_some() { 2 } else { 1 };
        let of = |r: usize| {
            let mut l: Vec<f64> = match w {
                Some(w) => {
                    let c = r / n * 2 * n + r % n;
                    row(c).iter().zip(row(c + n)).map(|(c, u)| *u as f64 + w * (*c as f64 - *u as f64)).collect()
                }
                None => row(r).iter().map(|l| *l as f64).collect(),
            };
            banned(r).into_iter().for_each(|k| l[k] = f64::NEG_INFINITY);
            l
        };
        let logits: Vec<Vec<f64>> = (0..rows).map(of).collect();
        Plain { p: logits.iter().map(|l| softmax(l)).collect(), logits }
    }

    fn argmax(&self, r: usize) -> usize {
        let l = &self.logits[r];
        (0..l.len()).fold(0, |best, k| if l[k] > l[best] { k } else { best })
    }

    fn draw(&self, r: usize, u: f64) -> usize {
        let mut sum = 0.0;
        self.p[r]
            .iter()
            .position(|p| {
                sum += p;
                u < sum
            })
            .unwrap()
    }
}

fn uniform(seed: u64, stream: u32, step: u32, example: u32, token: u32) -> f64 {
    let w = rng::philox([token, example, step, stream], [seed as u32, (seed >> 32) as u32]);
    ((w[0] as u64) << 21 | (w[1] as u64) >> 11) as f64 / (1_u64 << 53) as f64
}

#[test]
fn every_result_agrees_with_the_definition() {
    for (b, n, v) in [(1, 1, 2), (2, 3, 5), (3, 4, 1000), (1, 2, 5003)] {
        for w in [None, Some(2.5_f32), Some(0.0)] {
            let rows = b * n;
            let logits = random(1, &[if w.is_some() { 2 * b } else { b }, n, v], 3.0);
            let (classes, bits) = (ids(&[0, v as u32 - 1]), ids(&(0..rows as u32).map(|r| r % 3).collect::<Vec<_>>()));
            let banned = |r: usize| match r % 3 {
                0 => vec![],
                1 => vec![0],
                _ => vec![v - 1],
            };
            let want = Plain::new(&logits.to_vec().unwrap(), n, v, w.map(f64::from), &banned);
            let examples: Vec<u32> = (0..b as u32).map(|e| 100 + e).collect();
            let (noise, examples_t) = (Noise::new(&CPU, 7, 8, 2).unwrap().later(3), ids(&examples));
            let weight = w.map(|w| Tensor::from_f32(&CPU, &[1], vec![w]).unwrap());
            for drawn in [false, true] {
                let k = 8.min(v - 1);
                let got = choose(
                    &logits,
                    &Choose {
                        tokens: n,
                        classes: None,
                        guidance: weight.as_ref(),
                        how: match drawn {
                            true => How::Drawn { noise: &noise, examples: &examples_t },
                            false => How::Argmax,
                        },
                        banned: Some(Banned { classes: &classes, rows: &bits }),
                        fixed: None,
                        numbers: true,
                        probabilities: true,
                        top: k,
                    },
                )
                .unwrap();
                let tokens = got.tokens.to_vec_u32().unwrap();
                let numbers = got.numbers().unwrap();
                let (log_prob, entropy) = (numbers.log_prob.to_vec().unwrap(), numbers.entropy.to_vec().unwrap());
                let p = got.probabilities.unwrap().to_vec().unwrap();
                let (top, top_log_prob) = got.top.unwrap();
                let (top, top_log_prob) = (top.to_vec_u32().unwrap(), top_log_prob.to_vec().unwrap());
                for r in 0..rows {
                    let token = match drawn {
                        true => want.draw(r, uniform(7, 8, 5, examples[r / n], (r % n) as u32)),
                        false => want.argmax(r),
                    };
                    let q = &want.p[r];
                    assert_eq!(tokens[r] as usize, token, "[{b}, {n}, {v}] w {w:?} drawn {drawn} row {r}");
                    // f32 logits of up to 15 differ from f64 ones by 1e-6, and so do logarithms.
                    assert!((log_prob[r] as f64 - q[token].ln()).abs() < 1e-5, "{} {}", log_prob[r], q[token].ln());
                    let h: f64 = q.iter().filter(|q| **q > 0.0).map(|q| -q * q.ln()).sum();
                    assert!((entropy[r] as f64 - h).abs() < 1e-5, "{} {h}", entropy[r]);
                    for (a, q) in p[r * v..][..v].iter().zip(q) {
                        assert!((*a as f64 - q).abs() < 1e-5 * q + 1e-12, "{a} {q}");
                    }
                    let mut order: Vec<usize> = (0..v).collect();
                    order.sort_by(|a, b| q[*b].total_cmp(&q[*a]));
                    for j in 0..k {
                        assert_eq!(top[r * k + j] as usize, order[j]);
                        assert!((top_log_prob[r * k + j] as f64 - q[order[j]].ln()).abs() < 1e-5);
                    }
                }
            }
        }
    }
}

#[test]
fn given_tokens_stay_and_have_all_probability() {
    let (rows, v) = (6, 9);
    let logits = random(2, &[2, 3, v], 2.0);
    let fixed = ids(&[FREE, 4, FREE, 8, 0, FREE]);
    let free = choose(&logits, &Choose { probabilities: true, ..Choose::argmax(3) }).unwrap();
    let all = Choose { probabilities: true, numbers: true, fixed: Some(&fixed), ..Choose::argmax(3) };
    let got = choose(&logits, &all).unwrap();
    let log_prob = got.numbers().unwrap().log_prob.to_vec().unwrap();
    let (tokens, p) = (got.tokens.to_vec_u32().unwrap(), got.probabilities.unwrap().to_vec().unwrap());
    let (others, q) = (free.tokens.to_vec_u32().unwrap(), free.probabilities.unwrap().to_vec().unwrap());
    for r in 0..rows {
        match fixed.to_vec_u32().unwrap()[r] {
            FREE => assert_eq!((tokens[r], &p[r * v..][..v]), (others[r], &q[r * v..][..v])),
            t => {
                assert_eq!(tokens[r], t);
                assert!(p[r * v..][..v].iter().enumerate().all(|(k, p)| *p == (k as u32 == t) as u8 as f32));
                // What the network thinks of it is still told.
                assert!((log_prob[r] - q[r * v + t as usize].ln()).abs() < 1e-5);
            }
        }
    }
    let wrong = choose(&logits, &Choose { fixed: Some(&ids(&[FREE, 9, 0, 0, 0, 0])), ..Choose::argmax(3) });
    assert!(wrong.err().unwrap().to_string().contains("token 9 fixed at 1"));
}

/// Draws follow the distribution, far into the tail: χ² over classes whose expected counts reach down to a few.
#[test]
fn draws_follow_the_distribution() {
    let (n, v) = (200_000, 12);
    let l: Vec<f32> = (0..v).map(|k| -(k as f32)).collect();
    let logits = Tensor::from_f32(&CPU, &[n, 1, v], l.repeat(n)).unwrap();
    let p = softmax(&l.iter().map(|l| *l as f64).collect::<Vec<_>>());
    let (noise, examples) = (Noise::new(&CPU, 1, 2, 3).unwrap(), ids(&(0..n as u32).collect::<Vec<_>>()));
    let how = How::Drawn { noise: &noise, examples: &examples };
    let tokens = choose(&logits, &Choose { how, ..Choose::argmax(1) }).unwrap().tokens.to_vec_u32().unwrap();
    let mut counts = vec![0.0; v];
    tokens.iter().for_each(|t| counts[*t as usize] += 1.0);
    let chi = |p: &[f64]| counts.iter().zip(p).map(|(c, p)| (c - n as f64 * p).powi(2) / (n as f64 * p)).sum::<f64>();
    assert!(chi(&p) < 37.4, "{}", chi(&p)); // 11 degrees of freedom: P(χ² > 37.4) = 1e-4
    // The test sees a temperature of 0.98.
    let cooler = softmax(&l.iter().map(|l| *l as f64 / 0.98).collect::<Vec<_>>());
    assert!(chi(&cooler) > 37.4, "{}", chi(&cooler));
}

#[test]
fn broken_logits_still_give_a_class() {
    let (nan, inf) = (f32::NAN, f32::NEG_INFINITY);
    let logits = Tensor::from_f32(&CPU, &[3, 1, 3], vec![nan, 1.0, nan, nan, nan, nan, inf, inf, inf]).unwrap();
    let (noise, examples) = (Noise::new(&CPU, 1, 2, 3).unwrap(), ids(&[0, 1, 2]));
    for how in [How::Argmax, How::Drawn { noise: &noise, examples: &examples }] {
        for numbers in [false, true] {
            let got = choose(&logits, &Choose { how, numbers, ..Choose::argmax(1) }).unwrap();
            assert_eq!(got.tokens.to_vec_u32().unwrap(), [1, 0, 0]);
            assert_eq!(got.numbers().ok().map(|n| n.log_prob.to_vec().unwrap()[0]), numbers.then_some(0.0));
        }
    }
}

/// What lies beyond the classes changes nothing, however large, and the tokens alone are those that come with the numbers.
#[test]
fn longer_rows_and_fewer_results_choose_the_same() {
    let (b, n, v, stride) = (2, 3, 13, 16);
    let short = random(5, &[2 * b, n, v], 3.0).to_vec().unwrap();
    let long: Vec<f32> = short.chunks_exact(v).flat_map(|r| [r, &[99.0, f32::NAN, f32::INFINITY]].concat()).collect();
    let short = Tensor::from_f32(&CPU, &[2 * b, n, v], short).unwrap();
    let long = Tensor::from_f32(&CPU, &[2 * b, n, stride], long).unwrap();
    let (weight, fixed) = (Tensor::from_f32(&CPU, &[1], vec![2.0]).unwrap(), ids(&[FREE, 4, FREE, FREE, 0, FREE]));
    let (noise, examples) = (Noise::new(&CPU, 1, 2, 3).unwrap(), ids(&[0, 1]));
    let drawn = How::Drawn { noise: &noise, examples: &examples };
    for (guidance, fixed, how) in
        [(Some(&weight), None, How::Argmax), (None, None, drawn), (Some(&weight), Some(&fixed), drawn)]
    {
        let n = if guidance.is_some() { n } else { 2 * n };
        let fixed = fixed.filter(|_| guidance.is_some());
        let all = Choose { guidance, fixed, how, numbers: true, probabilities: true, top: 3, ..Choose::argmax(n) };
        let want = choose(&short, &all).unwrap();
        let got = choose(&long, &Choose { classes: Some(v), ..all }).unwrap();
        let tokens = want.tokens.to_vec_u32().unwrap();
        assert_eq!(got.tokens.to_vec_u32().unwrap(), tokens);
        let values = |c: &Chosen| {
            let (n, p) = (c.numbers().unwrap(), c.probabilities.as_ref().unwrap());
            [&n.log_prob, &n.entropy, p, &c.top.as_ref().unwrap().1].map(|t| t.to_vec().unwrap())
        };
        assert_eq!(values(&got), values(&want));
        let fewer = Choose { numbers: false, probabilities: false, top: 0, classes: Some(v), ..all };
        assert_eq!(choose(&long, &fewer).unwrap().tokens.to_vec_u32().unwrap(), tokens);
    }
    assert!(choose(&short, &Choose { classes: Some(v + 1), ..Choose::argmax(n) }).is_err());
}

#[test]
fn wrong_shapes_are_errors() {
    let logits = random(0, &[2, 3, 4], 1.0);
    let plain = Choose::argmax(3);
    assert!(choose(&logits, &Choose::argmax(4)).is_err());
    assert!(choose(&logits, &Choose::argmax(0)).is_err());
    assert!(choose(&logits, &Choose { top: 5, ..plain }).is_err());
    assert!(choose(&logits, &Choose { fixed: Some(&ids(&[0; 5])), ..plain }).is_err());
    let weight = random(0, &[1], 1.0);
    assert!(choose(&random(0, &[3, 3, 4], 1.0), &Choose { guidance: Some(&weight), ..plain }).is_err());
    assert!(choose(&logits, &Choose { guidance: Some(&random(0, &[2], 1.0)), ..plain }).is_err());
    let banned = Banned { classes: &ids(&[0; 33]), rows: &ids(&[0; 6]) };
    assert!(choose(&logits, &Choose { banned: Some(banned), ..plain }).is_err());
}
