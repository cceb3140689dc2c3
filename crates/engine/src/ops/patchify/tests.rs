use super::*;
use crate::device::Device;

fn numbered(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_f32(&Device::Cpu, shape, (0..n).map(|i| i as f32).collect()).unwrap()
}

/// y[b, gy·across + gx, (c·p + py)·p + px] = images[b, c, gy·p + py, gx·p + px].
#[test]
fn every_pixel_is_where_the_formula_says() {
    // The second is large enough for several threads.
    for (s, p) in [([2, 3, 6, 4], 2), ([3, 3, 96, 160], 16), ([1, 2, 3, 3], 3), ([2, 1, 2, 5], 1)] {
        let [b, c, h, w] = s;
        let images = numbered(&s);
        let t = Tape::inference();
        let y = patchify(&t, &t.constant(images.clone()), p, DType::F32).unwrap();
        let (across, len) = (w / p, c * p * p);
        assert_eq!(y.shape(), [b, h / p * across, len]);
        let (got, from) = (y.value().to_vec().unwrap(), images.to_vec().unwrap());
        for (i, &value) in from.iter().enumerate() {
            let (x, yy, ch, n) = (i % w, i / w % h, i / (w * h) % c, i / (w * h * c));
            let to = (n * (h / p) * across + yy / p * across + x / p) * len + (ch * p + yy % p) * p + x % p;
            assert_eq!(got[to], value);
        }
    }
}

/// The gradient of a permutation is its inverse: with dy = y the images come back.
#[test]
fn backward_puts_the_image_together_again() {
    for (s, p) in [([2, 3, 6, 4], 2), ([3, 3, 96, 160], 16), ([1, 2, 7, 7], 7)] {
        let t = Tape::new();
        let images = t.leaf(numbered(&s));
        let y = patchify(&t, &images, p, DType::F32).unwrap();
        let dy = y.value().clone();
        let g = t.backward_from(&y, dy, None).unwrap();
        assert_eq!(g.get(&images).unwrap().to_vec().unwrap(), images.value().to_vec().unwrap());
    }
}

#[test]
fn sides_must_be_multiples_of_the_patch() {
    let t = Tape::new();
    for (s, p) in [([1, 1, 6, 4], 4), ([1, 1, 4, 6], 4), ([1, 1, 4, 4], 0)] {
        let e = patchify(&t, &t.leaf(numbered(&s)), p, DType::F32).unwrap_err().to_string();
        assert!(e.contains("multiples of"), "{e}");
    }
    assert!(patchify(&t, &t.leaf(numbered(&[4, 4])), 2, DType::F32).is_err());
    assert!(patchify(&t, &t.leaf(numbered(&[1, 1, 4, 4])), 2, DType::Bf16).is_err());
}
