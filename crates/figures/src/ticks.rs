//! Where an axis has its ticks and how they read: steps of 1, 2 or 5 times a power of ten.

/// Ticks of one axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ticks {
    pub major: Vec<(f64, String)>,
    pub minor: Vec<f64>,
    /// The labels stand for multiples of this power of ten.
    pub power: i32,
}

/// 10ᵉ times `n`, exact where a division is: 3 × 10⁻¹ is the double nearest to 0.3.
fn times_ten(n: f64, e: i32) -> f64 {
    if e < 0 { n / 10f64.powi(-e) } else { n * 10f64.powi(e) }
}

/// The values at multiples of the smallest step 1, 2 or 5 × 10ᵉ that gives at most `most` of them in `lo..=hi`.
pub fn linear_values(lo: f64, hi: f64, most: usize) -> Vec<f64> {
    let most = most.max(1);
    let finest = ((hi - lo) / (most + 1) as f64).log10().floor();
    if !finest.is_finite() {
        return vec![lo];
    }
    for e in finest as i32.. {
        for m in [1.0, 2.0, 5.0] {
            let step = times_ten(m, e);
            // Ends that are multiples up to rounding count.
            let (first, last) = ((lo / step - 1e-9).ceil(), (hi / step + 1e-9).floor());
            if last - first < most as f64 {
                return (0..=(last - first) as i64).map(|i| times_ten((first + i as f64) * m, e)).collect();
            }
        }
        if e > 300 {
            break;
        }
    }
    Vec::new()
}

/// Linear ticks in `lo..=hi`, at most `most`.
pub fn linear(lo: f64, hi: f64, most: usize) -> Ticks {
    let values = linear_values(lo, hi, most);
    let (labels, power) = labels(&values);
    Ticks { major: values.into_iter().zip(labels).collect(), minor: Vec::new(), power }
}

/// Logarithmic ticks in `lo..=hi` (both positive), about `most`: powers of ten, thinned if many; 1-2-5 within few decades;
/// linear steps within a fraction of one.
pub fn log(lo: f64, hi: f64, most: usize) -> Ticks {
    let most = most.max(2);
    let (first, last) = ((lo.log10() - 1e-9).ceil() as i32, (hi.log10() + 1e-9).floor() as i32);
    let inside = |v: &f64| *v >= lo * (1.0 - 1e-9) && *v <= hi * (1.0 + 1e-9);
    let multiples = |which: &[f64]| -> Vec<f64> {
        let decades = first - 1..=last;
        decades.flat_map(|e| which.iter().map(move |m| times_ten(*m, e)).collect::<Vec<_>>()).filter(inside).collect()
    };
    let nine = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let fine = multiples(&[1.0, 2.0, 5.0]);
    if fine.len() < 3 {
        return linear(lo, hi, most);
    }
    if fine.len() <= most && last - first < 3 {
        let minor = multiples(&nine).into_iter().filter(|v| !fine.contains(v)).collect();
        return Ticks { major: name_powers(fine), minor, power: 0 };
    }
    if last - first < 1 {
        return linear(lo, hi, most);
    }
    let decades = (last - first + 1) as usize;
    let every = [1, 2, 3, 5, 10, 20, 50, 100, 200].into_iter().find(|k| decades.div_ceil(*k) <= most).unwrap_or(400);
    let major: Vec<f64> =
        (first..=last).filter(|e| e.rem_euclid(every as i32) == 0).map(|e| times_ten(1.0, e)).collect();
    let minor = if every == 1 { multiples(&nine[1..]) } else { multiples(&[1.0]) };
    let minor = minor.into_iter().filter(|v| !major.contains(v)).collect();
    Ticks { major: name_powers(major), minor, power: 0 }
}

/// Plain numbers while they are short, powers of ten otherwise.
fn name_powers(values: Vec<f64>) -> Vec<(f64, String)> {
    let plain = values.iter().all(|v| (0.00999..10001.0).contains(v));
    let name = |v: f64| {
        if plain {
            return number(v, (-v.log10().floor()).max(0.0) as usize);
        }
        let e = (v.log10() + 1e-9).floor();
        let m = (v / 10f64.powf(e)).round();
        let ten = format!("10{}", superscript(e as i32));
        if m == 1.0 { ten } else { format!("{m}×{ten}") }
    };
    values.into_iter().map(|v| (v, name(v))).collect()
}

/// One number of decimals for all, and the power of ten that is left out of all.
fn labels(values: &[f64]) -> (Vec<String>, i32) {
    let largest = values.iter().fold(0.0_f64, |a, v| a.max(v.abs()));
    let power = match largest {
        l if l >= 1e5 || (l > 0.0 && l < 1e-2) => (l.log10() / 3.0 + 1e-9).floor() as i32 * 3,
        _ => 0,
    };
    let scaled: Vec<f64> = values.iter().map(|v| times_ten(*v, -power)).collect();
    let step = match scaled.as_slice() {
        [a, b, ..] => b - a,
        [a] => a.abs(),
        [] => 1.0,
    };
    let decimals = if step > 0.0 { (-(step.log10() + 1e-6).floor()).clamp(0.0, 12.0) as usize } else { 0 };
    (scaled.into_iter().map(|v| number(v, decimals)).collect(), power)
}

/// A number with a real minus sign.
pub fn number(v: f64, decimals: usize) -> String {
    let text = format!("{v:.decimals$}");
    match text.strip_prefix('-') {
        Some(digits) if digits.chars().all(|c| c == '0' || c == '.') => digits.to_string(),
        Some(digits) => format!("−{digits}"),
        None => text,
    }
}

/// An exponent.
pub fn superscript(e: i32) -> String {
    let raise = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        c => char::from_u32(0x2070 + (c as u32 - '0' as u32)).unwrap_or(c),
    };
    e.to_string().chars().map(raise).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(t: &Ticks) -> Vec<&str> {
        t.major.iter().map(|m| m.1.as_str()).collect()
    }

    #[test]
    fn linear_steps_are_1_2_5() {
        assert_eq!(linear_values(0.0, 1.0, 6), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(linear_values(0.0, 1.0, 11), (0..=10).map(|i| f64::from(i) / 10.0).collect::<Vec<_>>());
        assert_eq!(linear_values(0.0, 1.0, 5), [0.0, 0.5, 1.0]);
        assert_eq!(linear_values(-3.0, 7.0, 6), [-2.0, 0.0, 2.0, 4.0, 6.0]);
        assert_eq!(linear_values(0.93, 0.987, 4), [0.94, 0.96, 0.98]);
        assert_eq!(linear_values(0.0, 78_000.0, 6), [0.0, 2e4, 4e4, 6e4]);
        assert_eq!(linear_values(2.0, 2.0, 6), [2.0]); // never asked for by an axis, and still no endless loop
        for most in 5..12 {
            for (lo, hi) in [(0.0, 0.7), (1e-9, 3e-9), (-1e12, 4e13), (99.0, 101.3)] {
                let n = linear_values(lo, hi, most).len();
                assert!((2..=most).contains(&n), "{n} ticks of {most} in {lo}..{hi}");
            }
        }
    }

    #[test]
    fn linear_labels_share_decimals_and_power() {
        assert_eq!(names(&linear(0.0, 1.0, 6)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(names(&linear(-1.0, 1.0, 5)), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(names(&linear(0.0, 50_000.0, 6)), ["0", "10000", "20000", "30000", "40000", "50000"]);
        let t = linear(0.0, 300_000.0, 4);
        assert_eq!((names(&t), t.power), (vec!["0", "100", "200", "300"], 3));
        let t = linear(0.0, 0.0003, 4);
        assert_eq!((names(&t), t.power), (vec!["0", "100", "200", "300"], -6));
    }

    #[test]
    fn logarithmic_ticks() {
        let t = log(1.0, 1000.0, 8);
        assert_eq!(names(&t), ["1", "10", "100", "1000"]);
        assert_eq!(t.minor.len(), 24);
        assert_eq!(names(&log(1.0, 50.0, 8)), ["1", "2", "5", "10", "20", "50"]);
        assert_eq!(names(&log(0.01, 0.5, 8)), ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5"]);
        assert_eq!(names(&log(1e-6, 1e-3, 8)), ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³"]);
        assert_eq!(names(&log(1e-12, 1.0, 5)), ["10⁻¹²", "10⁻⁹", "10⁻⁶", "10⁻³", "10⁰"]);
        assert_eq!(names(&log(0.91, 0.99, 5)), ["0.92", "0.94", "0.96", "0.98"]); // no decade: linear steps
    }
}
