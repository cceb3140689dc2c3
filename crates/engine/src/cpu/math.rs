//! Vector math. Loops written over these inline functions inside [`simd`] compile to AVX-512 or AVX2 where the
//! machine has it. `mul_add` is one instruction there and exact everywhere, so results do not depend on the width.

#![allow(clippy::excessive_precision, clippy::unreadable_literal)] // coefficients stand as published

/// Run `f` with the widest vector instructions of this machine.
#[inline(always)]
pub(crate) fn simd<R>(f: impl FnOnce() -> R) -> R {
    struct Call<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Call<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Call(f))
}

/// eˣ, relative error below 2e-7; 0 below −87.3, +∞-free (saturates at 88.7).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5·2²³: adding it rounds to the nearest integer
    let c = x.clamp(-87.3, 88.7);
    let shifted = c.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-0.693359375, c);
    let r = n.mul_add(2.12194440e-4, r);
    let p = 1.9875691500e-4_f32;
    let p = p.mul_add(r, 1.3981999507e-3);
    let p = p.mul_add(r, 8.3334519073e-3);
    let p = p.mul_add(r, 4.1665795894e-2);
    let p = p.mul_add(r, 1.6666665459e-1);
    let p = p.mul_add(r, 5.0000001201e-1);
    let e = p.mul_add(r * r, r) + 1.0;
    // n lies in −126..=128, so the two half powers are normal numbers. It is read from the low bits of the shifted sum:
    // `as i32` handles NaN and overflow lane by lane, which takes longer than all the rest.
    let n = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let h = n >> 1;
    let pow2 = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    let e = e * pow2(h) * pow2(n.wrapping_sub(h));
    if x < -87.3 { 0.0 } else { e }
}

/// erf, error below one unit in the last place (N. Juffa's two-branch form).
#[inline(always)]
pub(crate) fn erf(a: f32) -> f32 {
    let t = a.abs();
    let s = a * a;
    let r = (-1.72853470e-5_f32).mul_add(t, 3.83197126e-4);
    let u = (-3.88396438e-3_f32).mul_add(t, 2.42546219e-2);
    let r = r.mul_add(s, u);
    let r = r.mul_add(t, -1.06777877e-1);
    let r = r.mul_add(t, -6.34846687e-1);
    let r = r.mul_add(t, -1.28717512e-1);
    let r = r.mul_add(t, -t);
    let far = (1.0 - exp(r)).copysign(a);
    let r = (-5.96761703e-4_f32).mul_add(s, 4.99119423e-3);
    let r = r.mul_add(s, -2.67681349e-2);
    let r = r.mul_add(s, 1.12819925e-1);
    let r = r.mul_add(s, -3.76125336e-1);
    let r = r.mul_add(s, 1.28379166e-1);
    let near = r.mul_add(a, a);
    if t > 0.927_734_4 { far } else { near }
}

/// The logistic function.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

const INV_SQRT_2PI: f32 = 0.398_942_3;
const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// x·Φ(x), the exact form (timm's and PyTorch's default).
    GeluErf,
    /// The tanh approximation, which cuBLASLt fuses into its products.
    GeluTanh,
    /// x·σ(x).
    Silu,
}

/// tanh's argument in the tanh form of GELU, and tanh of it.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    let u = SQRT_2_OVER_PI * (GELU_CUBIC * x * x).mul_add(x, x);
    1.0 - 2.0 / (1.0 + exp(2.0 * u))
}

#[inline(always)]
pub(crate) fn gelu_erf_value(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[inline(always)]
pub(crate) fn gelu_erf_slope(x: f32) -> f32 {
    let cdf = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    (x * INV_SQRT_2PI).mul_add(exp(-0.5 * x * x), cdf)
}

#[inline(always)]
pub(crate) fn gelu_tanh_value(x: f32) -> f32 {
    0.5 * x * (1.0 + gelu_tanh(x))
}

#[inline(always)]
pub(crate) fn gelu_tanh_slope(x: f32) -> f32 {
    let t = gelu_tanh(x);
    let du = SQRT_2_OVER_PI * (3.0 * GELU_CUBIC * x).mul_add(x, 1.0);
    (0.5 * x * (1.0 - t * t)).mul_add(du, 0.5 * (1.0 + t))
}

#[inline(always)]
pub(crate) fn silu_value(x: f32) -> f32 {
    x * sigmoid(x)
}

#[inline(always)]
pub(crate) fn silu_slope(x: f32) -> f32 {
    let s = sigmoid(x);
    s * x.mul_add(1.0 - s, 1.0)
}

/// `y = act(x)` over slices.
pub(crate) fn act_forward(act: Act, x: &[f32], y: &mut [f32]) {
    fn each(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32 + Sync + Copy) {
        super::par::rows(y, 1, 16, |first, y| {
            let x = &x[first..first + y.len()];
            simd(
                #[inline(always)]
                || {
                    // Everything here must be inlined to be vectorised: hence `for`, and closures instead of functions.
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = f(*x);
                    }
                },
            );
        });
    }
    match act {
        Act::GeluErf => each(
            x,
            y,
            #[inline(always)]
            |x| gelu_erf_value(x),
        ),
        Act::GeluTanh => each(
            x,
            y,
            #[inline(always)]
            |x| gelu_tanh_value(x),
        ),
        Act::Silu => each(
            x,
            y,
            #[inline(always)]
            |x| silu_value(x),
        ),
    }
}

/// `d *= act'(x)` over slices.
pub(crate) fn act_backward(act: Act, x: &[f32], d: &mut [f32]) {
    fn each(x: &[f32], d: &mut [f32], f: impl Fn(f32) -> f32 + Sync + Copy) {
        super::par::rows(d, 1, 16, |first, d| {
            let x = &x[first..first + d.len()];
            simd(
                #[inline(always)]
                || {
                    for (d, x) in d.iter_mut().zip(x) {
                        *d *= f(*x);
                    }
                },
            );
        });
    }
    match act {
        Act::GeluErf => each(
            x,
            d,
            #[inline(always)]
            |x| gelu_erf_slope(x),
        ),
        Act::GeluTanh => each(
            x,
            d,
            #[inline(always)]
            |x| gelu_tanh_slope(x),
        ),
        Act::Silu => each(
            x,
            d,
            #[inline(always)]
            |x| silu_slope(x),
        ),
    }
}

/// Sixteen independent partial sums: one vector register, so the compiler need not reorder a float sum to vectorise it.
const LANES: usize = 16;

/// Σ f(x[i], y[i], …) over slices of one length, with a fixed order of summation.
#[inline(always)]
pub(crate) fn sum_of<const N: usize>(xs: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let parts = xs.map(|x| x.as_chunks::<LANES>());
    let mut acc = [0.0_f32; LANES];
    for i in 0..parts[0].0.len() {
        let chunk = parts.map(|p| &p.0[i]);
        for (l, a) in acc.iter_mut().enumerate() {
            *a += f(chunk.map(|c| c[l]));
        }
    }
    let rest: f32 = (0..parts[0].1.len()).map(|i| f(parts.map(|p| p.1[i]))).sum();
    acc.iter().sum::<f32>() + rest
}

/// Σ x.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    sum_of([x], |[x]| x)
}

/// Σ x·y over slices of one length, with a fixed order of summation.
#[inline(always)]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut acc = [0.0_f32; LANES];
    let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let rest: f32 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in xs.zip(ys) {
        for ((a, x), y) in acc.iter_mut().zip(x).zip(y) {
            *a = x.mul_add(*y, *a);
        }
    }
    acc.iter().sum::<f32>() + rest
}

/// The largest element (−∞ for an empty slice).
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut acc = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let mut m = chunks.remainder().iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    for c in chunks {
        for (a, &v) in acc.iter_mut().zip(c) {
            *a = if v > *a { v } else { *a };
        }
    }
    for a in acc {
        m = m.max(a);
    }
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    /// erf by its Taylor series in f64: exact to 1e-14 for |x| < 5.
    fn erf64(x: f64) -> f64 {
        if x.abs() > 5.0 {
            return x.signum();
        }
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn exp_and_erf_agree_with_f64() {
        let (mut worst_exp, mut worst_erf) = (0.0_f64, 0.0_f64);
        for i in -80_000..=80_000 {
            let x = i as f32 * 1e-3;
            let want = (x as f64).exp();
            worst_exp = worst_exp.max((exp(x) as f64 - want).abs() / want);
            let y = i as f32 * 5e-5;
            worst_erf = worst_erf.max((erf(y) as f64 - erf64(y as f64)).abs());
        }
        assert!(worst_exp < 2e-7, "exp: {worst_exp}"); // 1.7 units in the last place
        assert!(worst_erf < 1.2e-7, "erf: {worst_erf}"); // one unit in the last place near 1
        assert_eq!((exp(-200.0), exp(0.0)), (0.0, 1.0));
        assert!(exp(f32::NEG_INFINITY) == 0.0 && exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_of_any_length_agree_with_f64() {
        for len in [0, 1, 15, 16, 17, 100] {
            let x: Vec<f32> = (0..len).map(|i| (i * 37 % 11) as f32 - 4.5).collect();
            let y: Vec<f32> = (0..len).map(|i| (i * 53 % 13) as f32 - 6.0).collect();
            // Multiples of 1/2 below 2²³: exact in f32, in any order.
            assert_eq!(sum(&x) as f64, x.iter().map(|&x| x as f64).sum::<f64>());
            assert_eq!(dot(&x, &y) as f64, x.iter().zip(&y).map(|(&x, &y)| x as f64 * y as f64).sum::<f64>());
        }
    }

    #[test]
    fn slopes_are_derivatives_of_values() {
        type F = fn(f32) -> f32;
        let pairs: [(F, F); 3] =
            [(gelu_erf_value, gelu_erf_slope), (gelu_tanh_value, gelu_tanh_slope), (silu_value, silu_slope)];
        for (value, slope) in pairs {
            for i in -60..=60 {
                let x = i as f32 * 0.1;
                let h = 1e-2;
                let numeric = (value(x + h) as f64 - value(x - h) as f64) / (2.0 * h as f64);
                assert!((slope(x) as f64 - numeric).abs() < 1e-4, "at {x}"); // h²·f‴/6 < 5e-5
            }
        }
    }
}
