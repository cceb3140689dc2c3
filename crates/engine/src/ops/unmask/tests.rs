use super::*;

const CPU: Device = Device::Cpu;
const MASK: u32 = 9;

fn u32s(shape: &[usize], v: Vec<u32>) -> Tensor {
    Tensor::from_u32(&CPU, shape, v).unwrap()
}

fn f32s(shape: &[usize], v: Vec<f32>) -> Tensor {
    Tensor::from_f32(&CPU, shape, v).unwrap()
}

#[test]
fn the_most_confident_come_first() {
    let state = Masked {
        tokens: u32s(&[2, 4], vec![MASK, 1, MASK, MASK, MASK, MASK, 3, MASK]),
        log_prob: f32s(&[2, 4], vec![0.0; 8]),
    };
    let chosen = u32s(&[8], (20..28).collect());
    let confidence = f32s(&[8], vec![-3.0, 0.0, -1.0, -2.0, -1.0, -1.0, 0.0, f32::NAN]);
    let run = |share: f32| {
        let got = unmask(&state, (&chosen, &confidence), MASK, &f32s(&[1], vec![share]), Reveal::Confident).unwrap();
        (got.tokens.to_vec_u32().unwrap(), got.log_prob.to_vec().unwrap())
    };
    // Two thirds of three are two; of equals the first; what is not a number comes last.
    let (tokens, log_prob) = run(2.0 / 3.0);
    assert_eq!(tokens, [MASK, 1, 22, 23, 24, 25, 3, MASK]);
    assert_eq!(log_prob, [0.0, 0.0, -1.0, -2.0, -1.0, -1.0, 0.0, 0.0]);
    assert_eq!(run(0.0).0, [MASK, 1, 22, MASK, 24, MASK, 3, MASK]); // at least one
    assert_eq!(run(1.0).0, [20, 1, 22, 23, 24, 25, 3, 27]);
}

/// Each masked token is revealed with the named probability, independently of its neighbours; others never change.
#[test]
fn random_unmasking_has_its_probability() {
    let (b, n, share) = (20_000, 3, 0.3_f64);
    let state = Masked {
        tokens: u32s(&[b, n], (0..b * n).map(|i| if i % n == 1 { 5 } else { MASK }).collect()),
        log_prob: f32s(&[b, n], vec![0.0; b * n]),
    };
    let (chosen, confidence) = (u32s(&[b * n], vec![1; b * n]), f32s(&[b * n], vec![-1.0; b * n]));
    let noise = Noise::new(&CPU, 4, 5, 6).unwrap();
    let examples = u32s(&[b], (0..b as u32).collect());
    let how = Reveal::Random { noise: &noise, examples: &examples };
    let reveal = |share: f64| {
        let share = f32s(&[1], vec![share as f32]);
        unmask(&state, (&chosen, &confidence), MASK, &share, how).unwrap().tokens.to_vec_u32().unwrap()
    };
    let got = reveal(share);
    let mean = |f: &dyn Fn(&[u32]) -> bool| got.chunks_exact(n).filter(|t| f(t)).count() as f64 / b as f64;
    // Five standard errors of a frequency.
    let close = |seen: f64, p: f64| (seen - p).abs() < 5.0 * (p * (1.0 - p) / b as f64).sqrt();
    assert!(close(mean(&|t| t[0] == 1), share) && close(mean(&|t| t[2] == 1), share));
    assert!(close(mean(&|t| t[0] == 1 && t[2] == 1), share * share));
    assert_eq!(mean(&|t| t[1] == 5), 1.0);
    assert!(reveal(1.0).iter().all(|t| *t != MASK));
    assert!(reveal(0.0).chunks_exact(n).all(|t| t == [MASK, 5, MASK]));
}

/// The least confident of those that were revealed before, the share rounded; what is new, kept or masked stays as it is.
#[test]
fn the_least_confident_are_masked_again() {
    let before = Masked {
        tokens: u32s(&[2, 6], vec![1, 2, MASK, 3, 4, 5, 1, 2, 3, 4, 5, 6]),
        log_prob: f32s(&[2, 6], vec![-1.0, -3.0, -9.0, -9.0, -2.0, -0.5, -1.0, -1.0, f32::NAN, -2.0, -7.0, 0.0]),
    };
    // The third token of the first row is revealed by this step.
    let after = Masked {
        tokens: u32s(&[2, 6], vec![1, 2, 8, 3, 4, 5, 1, 2, 3, 4, 5, 6]),
        log_prob: f32s(&[2, 6], vec![-1.0, -3.0, -9.0, -9.0, -2.0, -0.5, -1.0, -1.0, f32::NAN, -2.0, -7.0, 0.0]),
    };
    let mut kept = vec![FREE; 12];
    (kept[3], kept[10]) = (3, 5);
    let kept = u32s(&[12], kept);
    let run = |share: f32, kept: Option<&Tensor>| {
        remask(&after, &before, kept, MASK, &f32s(&[1], vec![share]), Reveal::Confident).unwrap()
    };
    // Of four and of five: half is two, and two and a half round up; what is not a number goes first, of equals the first.
    let got = run(0.5, Some(&kept));
    assert_eq!(got.tokens.to_vec_u32().unwrap(), [1, MASK, 8, 3, MASK, 5, MASK, 2, MASK, MASK, 5, 6]);
    let log_prob = got.log_prob.to_vec().unwrap();
    assert_eq!([1, 4, 6, 8, 9].map(|i| log_prob[i]), [0.0; 5]);
    assert_eq!([0, 2, 3, 5].map(|i| log_prob[i]), [-1.0, -9.0, -9.0, -0.5]);
    let tokens = |share, kept| run(share, kept).tokens.to_vec_u32().unwrap();
    assert_eq!(tokens(0.5, None), [1, MASK, 8, MASK, MASK, 5, 1, 2, MASK, MASK, MASK, 6]);
    // A tenth of four is none; all is all but what is kept or new.
    assert_eq!(tokens(0.1, Some(&kept))[..6], [1, 2, 8, 3, 4, 5]);
    assert_eq!(tokens(1.0, Some(&kept)), [MASK, MASK, 8, 3, MASK, MASK, MASK, MASK, MASK, MASK, 5, MASK]);
    assert_eq!(tokens(0.0, None), after.tokens.to_vec_u32().unwrap());
    let shares = f32s(&[2], vec![0.0, 1.0]);
    let each = remask(&after, &before, None, MASK, &shares, Reveal::Confident).unwrap().tokens.to_vec_u32().unwrap();
    assert_eq!(each, [1, 2, 8, 3, 4, 5, MASK, MASK, MASK, MASK, MASK, MASK]);
    let short = u32s(&[5], vec![FREE; 5]);
    assert!(remask(&after, &before, Some(&short), MASK, &shares, Reveal::Confident).is_err());
}

/// Each revealed token is masked again with the named probability, independently of its neighbours.
#[test]
fn random_masking_has_its_probability() {
    let (b, n, share) = (20_000, 3, 0.3_f64);
    let before = Masked {
        tokens: u32s(&[b, n], (0..b * n).map(|i| if i % n == 1 { MASK } else { 5 }).collect()),
        log_prob: f32s(&[b, n], vec![-1.0; b * n]),
    };
    let after = Masked { tokens: u32s(&[b, n], vec![5; b * n]), ..before.clone() };
    let noise = Noise::new(&CPU, 4, 5, 6).unwrap();
    let examples = u32s(&[b], (0..b as u32).collect());
    let how = Reveal::Random { noise: &noise, examples: &examples };
    let got = remask(&after, &before, None, MASK, &f32s(&[1], vec![share as f32]), how).unwrap();
    let got = got.tokens.to_vec_u32().unwrap();
    let mean = |f: &dyn Fn(&[u32]) -> bool| got.chunks_exact(n).filter(|t| f(t)).count() as f64 / b as f64;
    // Five standard errors of a frequency.
    let close = |seen: f64, p: f64| (seen - p).abs() < 5.0 * (p * (1.0 - p) / b as f64).sqrt();
    assert!(close(mean(&|t| t[0] == MASK), share) && close(mean(&|t| t[2] == MASK), share));
    assert!(close(mean(&|t| t[0] == MASK && t[2] == MASK), share * share));
    assert_eq!(mean(&|t| t[1] == 5), 1.0);
}
